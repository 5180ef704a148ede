"""Disables AMX in oneDNN on virtual machines that report it without its tiles.

Some virtual machines report AMX without the table of its tiles (CPUID leaf 0x1D). oneDNN, which
computes torch's bfloat16 products, then loads an empty tile, and the process dies of an illegal
instruction. On such machines oneDNN's ISA limit excludes AMX, set before its first use.
"""

from __future__ import annotations

import os
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_FP16"
TILES = 0x1D


def lacks_amx_tiles(cpuinfo: str) -> bool:
    """Whether the first processor of /proc/cpuinfo has AMX, but not the CPUID leaf with the size of
    its tiles."""
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    facts = {name.strip(): value.strip() for name, _, value in lines}
    level = facts.get("cpuid level", "")
    return "amx_tile" in facts.get("flags", "").split() and level.isdecimal() and int(level) < TILES


def disable_broken_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Disable AMX if it is broken here, and return the reason (empty if it is not). A limit that is
    already set in the environment stays."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as file:
            is_broken = lacks_amx_tiles(file.read(1 << 14))
    except OSError:
        return ""
    if is_broken:
        os.environ.setdefault(LIMIT, WITHOUT_AMX)
    return (
        f"this machine reports AMX without its tiles; torch runs with {LIMIT}={os.environ[LIMIT]}"
        if is_broken
        else ""
    )
