"""Run folders: run.json and metrics.jsonl are read as far as they are valid; a checkpoint is equal
to the saved one, or skipped."""

from __future__ import annotations

import contextlib
import io
import json
from pathlib import Path

import torch
from safetensors.torch import load_file

import sightline as sl
from sightline.cli.commands.train.compare import CurveOutputOptions, compare
from sightline.cli.ui.runs import read_run
from sightline.config.values import to_plain
from sightline.training.state import checkpoint as state
from tools.fuzz.formats.tensors import require_same
from tools.fuzz.outcome import require


def make(place: Path) -> None:
    folder = place / "shakespeare"
    folder.mkdir()
    config = sl.gpt(width=16, layers=1, heads=2, vocab_size=30, max_positions=16)
    run = {
        "recipe": "shakespeare",
        "settings": {"steps": 20, "width": 16},
        "model": to_plain(config),
        "parameters": 1234,
    }
    (folder / "run.json").write_text(json.dumps(run, indent=1))
    lines = [
        {"kind": "step", "step": n, "loss": 4 - n / 10, "seconds": n * 0.5, "lr": 1e-3}
        for n in range(1, 21)
    ]
    lines += [{"kind": "validation", "step": n, "loss": 4 - n / 11} for n in (10, 20)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files = {
        name: {"a.weight": torch.arange(8.0).view(2, 4) + n}
        for n, name in enumerate(("model", "optimizer"))
    }
    for step in (10, 20):
        checkpoint = folder / state.FOLDER / f"step-{step:08d}"
        checkpoint.parent.mkdir(exist_ok=True)
        state.write_checkpoint(
            checkpoint,
            files,
            state.Manifest(step=step, seconds=1.5, run=run, versions={"torch": "2"}),
        )


def check(case: Path, sample: Path) -> None:
    newest, _ = state.newest_complete(case)
    if newest is not None:
        same = sample / newest.relative_to(case)
        require(state.read_manifest(newest) == state.read_manifest(same), "a different manifest")
        for file in same.glob("*.safetensors"):
            require_same(load_file(newest / file.name), load_file(file))
    run = read_run(case)
    assert run.config is None or run.config.head is not None
    with contextlib.redirect_stdout(io.StringIO()):
        compare(case)
        compare(case, output=CurveOutputOptions(json=True), of="training")
    run.settings()
