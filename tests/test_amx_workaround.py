"""A machine that shows AMX without its tiles: torch's bfloat16 must not kill the process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sightline.amx_workaround import LIMIT, WITHOUT_AMX, disable_broken_amx, lacks_amx_tiles

HOLLOW = "processor\t: 0\ncpuid level\t: 28\nflags\t\t: fpu avx512f amx_bf16 amx_tile amx_int8\n\nprocessor\t: 1\ncpuid level\t: 32\n"


@pytest.mark.parametrize(
    ("seen", "hollow"),
    [
        (HOLLOW, True),
        (HOLLOW.replace(": 28", ": 32"), False),
        (HOLLOW.replace(" amx_tile", ""), False),
        (HOLLOW.replace("cpuid level", "bugs"), False),
        ("", False),
    ],
)
def test_amx_is_hollow_where_no_leaf_describes_its_tiles(seen: str, hollow: bool) -> None:
    assert lacks_amx_tiles(seen) is hollow


def test_the_limit_is_set_unless_the_user_set_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpuinfo").write_text(HOLLOW)
    monkeypatch.delenv(LIMIT, raising=False)
    assert WITHOUT_AMX in disable_broken_amx(tmp_path / "cpuinfo")
    assert os.environ[LIMIT] == WITHOUT_AMX
    monkeypatch.setenv(LIMIT, "AVX2")
    disable_broken_amx(tmp_path / "cpuinfo")
    assert os.environ[LIMIT] == "AVX2"
    monkeypatch.delenv(LIMIT)
    (tmp_path / "cpuinfo").write_text("flags : amx_tile\n")
    assert disable_broken_amx(tmp_path / "cpuinfo") == disable_broken_amx(tmp_path / "none") == ""
    assert LIMIT not in os.environ


def test_bfloat16_lives_on_this_machine() -> None:
    code = "import sightline, torch; x = torch.ones(64, 64).bfloat16(); print(torch.nn.functional.linear(x, x).sum().item())"
    without = {name: value for name, value in os.environ.items() if name != LIMIT}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=without, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, str(64.0**3)), done.stderr
