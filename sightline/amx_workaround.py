"""Processors that promise more than they can do.

Some virtual machines show AMX without the table of its tiles (CPUID leaf 0x1D). oneDNN, which
multiplies torch's bfloat16, then loads an empty tile, and the process dies of an illegal
instruction. Where that is so, oneDNN is told to go without AMX, before it is first used.
"""

from __future__ import annotations

import os
from pathlib import Path

LIMIT = "ONEDNN_MAX_CPU_ISA"
WITHOUT_AMX = "AVX512_CORE_FP16"
TILES = 0x1D


def lacks_amx_tiles(cpuinfo: str) -> bool:
    """Whether the first processor of /proc/cpuinfo has AMX, but no leaf that says how large its
    tiles are."""
    lines = (line.partition(":") for line in cpuinfo.partition("\n\n")[0].splitlines())
    facts = {name.strip(): value.strip() for name, _, value in lines}
    level = facts.get("cpuid level", "")
    return "amx_tile" in facts.get("flags", "").split() and level.isdecimal() and int(level) < TILES


def disable_broken_amx(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Why torch must go without AMX here; empty where it need not. What the environment says stays
    as it is."""
    try:
        with cpuinfo.open(encoding="utf-8", errors="replace") as file:
            hollow = lacks_amx_tiles(file.read(1 << 14))
    except OSError:
        return ""
    if hollow:
        os.environ.setdefault(LIMIT, WITHOUT_AMX)
    return (
        f"this machine shows AMX without its tiles; torch is told {LIMIT}={os.environ[LIMIT]}"
        if hollow
        else ""
    )
