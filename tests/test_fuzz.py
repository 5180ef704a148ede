"""A small seeded part of `make fuzz`, in this process; and the campaign itself, whose workers may
die."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.fuzz import campaign, outcome
from tools.fuzz.campaign import Campaign, build_case, judge, make_samples
from tools.fuzz.formats import FORMATS

ROOT = Path(__file__).parents[1]
SEED = 0
CASES = {
    "folder": 60,
    "tokenizer": 60,
    "recipe": 40,
    "lab": 20,
    "llama2c": 40,
    "gguf": 20,
    "model": 15,
    "template": 10,
    "store": 40,
    "trace": 40,
    "npz": 40,
    "run": 40,
}


@pytest.mark.parametrize("name", CASES)
def test_damaged_files_are_refused_in_one_line_or_read_as_the_reference_reads_them(
    name: str, tmp_path: Path
) -> None:
    make_samples(tmp_path, [name])
    for sample in (tmp_path / name).iterdir():
        assert judge(name, sample, sample) == ("equal", ""), sample.name
    kinds = set[str]()
    for number in range(CASES[name]):
        sample = build_case(tmp_path, (name, SEED, number), tmp_path / "case")
        kind, text = judge(name, tmp_path / "case", sample)
        assert kind in outcome.SOUND, f"{kind} in case {number}: {text}"
        kinds.add(kind)
    assert "refused" in kinds, "the mutations hit nothing"


def test_every_format_is_a_module_and_every_module_a_format() -> None:
    result = {path.stem for path in (ROOT / "tools" / "fuzz" / "formats").glob("*.py")}
    assert result == {*FORMATS, "__init__", "samples", "tensors"}


def test_cases_are_the_same_each_time(tmp_path: Path) -> None:
    make_samples(tmp_path, ["recipe"])
    for number in range(20):
        for place in ("a", "b"):
            build_case(tmp_path, ("recipe", 7, number), tmp_path / place)
        [one, other] = [
            [(path.name, path.read_bytes()) for path in sorted((tmp_path / place).iterdir())]
            for place in ("a", "b")
        ]
        assert one == other


BROKEN = """
import os, signal, time

def make(place):
    for name in ("differ", "hang", "kill", "ok", "raise"):
        (place / name).mkdir()
        (place / name / "file.txt").write_text(name)

def check(case, sample):
    if sample.name == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if sample.name == "hang":
        time.sleep(600)
    if sample.name == "raise":
        raise TypeError("unexpected")
    if sample.name == "differ":
        from tools.fuzz.outcome import require
        require(False, "other numbers")
"""
SCRIPT = """
import sys, types
from pathlib import Path
from tools.fuzz import campaign

def main(place):
    campaign.make_samples(place / "samples", ["broken"])
    run = campaign.Campaign(place / "samples", ["broken"], seed=119, cases=6, out=place / "out", seconds=1.5)
    run.run(1)
    print(sorted(run.counts["broken"]))
    print(run.table().splitlines()[-1])

if __name__ == "__main__":
    main(Path(sys.argv[1]))
"""


def test_a_crash_a_hang_a_traceback_and_a_difference_are_found_saved_and_survived(
    tmp_path: Path,
) -> None:
    """With a reader that does all of it, in real workers."""
    package = tmp_path / "extra" / "tools" / "fuzz" / "formats"
    package.mkdir(parents=True)
    (package / "broken.py").write_text(BROKEN)
    (tmp_path / "extra" / "main.py").write_text(
        f"import tools.fuzz.formats\ntools.fuzz.formats.__path__.append({str(package)!r})\n{SCRIPT}"
    )
    done = subprocess.run(
        [sys.executable, str(tmp_path / "extra" / "main.py"), str(tmp_path)], capture_output=True, text=True, timeout=240, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT), "PATH": ""},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    kinds, last = done.stdout.splitlines()
    assert kinds == "['crash', 'difference', 'equal', 'hang', 'traceback']"
    assert last == "6 cases, 5 findings"
    assert "SIGKILL" in done.stderr
    saved = sorted((tmp_path / "out").iterdir())
    assert all(
        (path / "case" / "file.txt").exists() and (path / "sample" / "file.txt").exists()
        for path in saved
    )
    assert f"python -m tools.fuzz --show {saved[0]}" in done.stderr


def test_only_formats_that_there_are() -> None:
    with pytest.raises(SystemExit, match="unknown format 'gufg'"):
        campaign.all_names(["gufg"])
    assert campaign.all_names([]) == list(FORMATS)
    assert Campaign(Path(), ["lab", "npz"], cases=3).take() == ("lab", 0, 0)
