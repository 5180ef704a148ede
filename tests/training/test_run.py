"""A run from the first step to the last: what it writes, how it goes on, what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.checkpoints.formats.safetensors import open_safetensors
from sightline.errors import InputError
from sightline.training.config import AdamW, Muon
from sightline.training.run import Evaluated, Event, Note, Saved, train
from sightline.training.state import checkpoint as state
from tests.training.small import Numbers, job, model, same, train_all, weights

pytestmark = pytest.mark.usefixtures("as_users_run_it")


def stopped(what: Any, folder: Path, step: int) -> list[Event]:
    seen: list[Event] = []
    for event in train(
        what, folder, stop=lambda: any(getattr(event, "step", 0) >= step for event in seen)
    ):
        seen.append(event)  # noqa: PERF402
    return seen


def lines(folder: Path) -> list[tuple[str, int]]:
    return [
        (line["kind"], line["step"])
        for line in map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    ]


def test_a_run_leaves_what_it_says(tmp_path: Path) -> None:
    events = train_all(job(), tmp_path)
    assert [event.step for event in events if isinstance(event, Saved)] == [2, 4, 6]
    assert [event.step for event in events if isinstance(event, Evaluated)] == [3, 6]
    steps = [("step", n) for n in range(1, 7)]
    assert lines(tmp_path) == [*steps[:3], ("validation", 3), *steps[3:], ("validation", 6)]
    output = json.loads((tmp_path / "run.json").read_text())
    assert output["training"]["optimizer"] == {
        "type": "AdamW",
        "lr": 0.01,
        "betas": [0.9, 0.99],
        "eps": 1e-8,
        "weight_decay": 0.1,
    }
    assert "save_every" not in output["training"]
    handed, last = sl.load(tmp_path / "model").transformer, weights(tmp_path)
    assert all(torch.equal(p, last[f"model {name}"]) for name, p in handed.named_parameters())


def test_started_is_called_once_before_the_first_event_and_the_first_stop(tmp_path: Path) -> None:
    def calls(**how: Any) -> list[str]:
        reported: list[str] = []
        for _ in train(
            job(),
            tmp_path,
            started=lambda transformer: reported.append(f"start {type(transformer).__name__}"),
            stop=lambda: bool(reported.append("stop")),
            **how,
        ):
            reported.append("event")  # noqa: PERF401
        return reported

    for reported in (calls(), calls()):  # a new run, and the same again
        assert reported[0] == "start Transformer"
        assert reported.count("start Transformer") == 1
    assert calls(overwrite=True).count("stop") >= 6
    reported: list[object] = []
    with pytest.raises(InputError, match="holds a run already"):
        list(train(job(), tmp_path, resume="never", started=reported.append))
    assert not reported


@pytest.mark.parametrize(
    "optimizer", [AdamW(lr=0.01), Muon(rest=AdamW(lr=0.01))], ids=["adamw", "muon"]
)
def test_the_same_seed_gives_the_same_bits_and_another_does_not(
    tmp_path: Path, optimizer: Any
) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        train_all(job(seed=seed, optimizer=optimizer, ema=0.9), tmp_path / name)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_the_seed_decides_the_first_weights(tmp_path: Path) -> None:
    made: list[torch.Tensor] = []
    for seed in (1, 2):
        what = job(
            seed=seed,
            make=lambda: sl.build(
                sl.llama(width=16, layers=1, heads=2, vocab_size=13, max_positions=8)
            ),
        )
        train_all(replace(what, config=replace(what.config, steps=1)), tmp_path / str(seed))
        made.append(next(iter(weights(tmp_path / str(seed)).values())))
    assert not torch.equal(*made)


@pytest.mark.parametrize("at", range(1, 6))
def test_stopped_anywhere_the_rest_gives_the_same_bits_and_lines(tmp_path: Path, at: int) -> None:
    what = job(ema=0.9)
    train_all(what, tmp_path / "whole")
    stopped(what, tmp_path / "run", at)
    assert train_all(what, tmp_path / "run")[0] == Note(f"resumed at step {at}")
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert lines(tmp_path / "run") == lines(tmp_path / "whole")


def test_how_often_one_looks_changes_nothing(tmp_path: Path) -> None:
    train_all(job(save_every=1, eval_every=1, keep=3), tmp_path / "often")
    train_all(job(save_every=100, eval_every=100), tmp_path / "once")
    assert same(weights(tmp_path / "often"), weights(tmp_path / "once"))


def test_a_finished_run_is_left_as_it_is(tmp_path: Path) -> None:
    train_all(job(), tmp_path)
    before = lines(tmp_path)
    assert train_all(job(), tmp_path) == [Note("resumed at step 6")]
    assert lines(tmp_path) == before


def test_the_model_is_the_best_by_validation(tmp_path: Path) -> None:
    """The learning rate is so high that the loss grows: the first evaluation stays the best."""
    what = job(optimizer=AdamW(lr=1.0), eval_every=1, save_every=1)
    seen = train_all(what, tmp_path)
    losses = {event.step: event.loss for event in seen if isinstance(event, Evaluated)}
    best = min(losses, key=lambda step: losses[step])
    assert best < 6
    assert [event.step for event in seen if isinstance(event, Evaluated) and event.best][-1] == best
    kept = {path.name for path in state.checkpoints(tmp_path)}
    assert f"step-{best:08d}" in kept
    saved = open_safetensors(tmp_path / "checkpoints" / f"step-{best:08d}" / "model.safetensors")[
        "decoder.norm.weight"
    ].read()
    handed = open_safetensors(tmp_path / "model" / "model.safetensors")
    assert any(
        entry.shape == saved.shape and torch.equal(entry.read(), saved) for entry in handed.values()
    )


def test_without_held_out_data_the_model_is_the_last(tmp_path: Path) -> None:
    """Also after going on: the copy of an interrupted run is replaced."""
    what = job(Numbers(held_out=0))
    stopped(what, tmp_path / "run", 3)
    half = (tmp_path / "run/model/model.safetensors").read_bytes()
    train_all(what, tmp_path / "run")
    train_all(what, tmp_path / "whole")
    last = (tmp_path / "run/model/model.safetensors").read_bytes()
    assert half != last == (tmp_path / "whole/model/model.safetensors").read_bytes()


def test_averaged_weights_are_handed_out(tmp_path: Path) -> None:
    train_all(job(ema=0.9), tmp_path)
    kept = {name: tensor for name, tensor in weights(tmp_path).items() if name.startswith("ema ")}
    handed = [
        entry.read()
        for entry in open_safetensors(tmp_path / "model" / "model.safetensors").values()
    ]
    assert all(
        any(torch.equal(tensor, other) for other in handed if other.shape == tensor.shape)
        for tensor in kept.values()
    )


def test_an_existing_run_is_not_overwritten_unasked(tmp_path: Path) -> None:
    train_all(job(), tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds a run already.*--overwrite"):
        train_all(job(), tmp_path, resume="never")
    events = train_all(job(seed=5), tmp_path, overwrite=True)
    assert [event.step for event in events if isinstance(event, Saved)] == [2, 4, 6]
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_a_stop_before_the_first_step_can_be_resumed(tmp_path: Path) -> None:
    train_all(job(), tmp_path / "run", stop=lambda: True)
    train_all(job(), tmp_path / "run")
    train_all(job(), tmp_path / "whole")
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    first = train(job(), tmp_path)
    next(first)
    first.close()  # type: ignore[attr-defined]
    assert train_all(job(), tmp_path)[0] == Note("no checkpoint yet: the run starts at step 0")


def test_the_newest_checkpoint_is_broken(tmp_path: Path) -> None:
    """A warning names it, and the run resumes from the one before."""
    train_all(job(), tmp_path / "whole")
    stopped(job(), tmp_path / "run", 4)
    file = tmp_path / "run" / "checkpoints" / "step-00000004" / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    texts = [event.text for event in train_all(job(), tmp_path / "run") if isinstance(event, Note)]
    assert texts == [
        "step-00000004 is skipped: model.safetensors was changed or truncated",
        "resumed at step 2",
    ]
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def test_the_clock_ends_a_run(tmp_path: Path) -> None:
    """A tenth of a second, and a million steps to do in it."""
    events = train_all(
        job(steps=1_000_000, minutes=0.002, save_every=10_000, eval_every=10_000), tmp_path
    )
    assert isinstance(events[-1], Saved)
    assert [event.step for event in events if isinstance(event, Evaluated)] == [events[-1].step]
    assert train_all(
        job(steps=1_000_000, minutes=0.002, save_every=10_000, eval_every=10_000), tmp_path
    ) == [Note(f"resumed at step {events[-1].step}")]


def test_the_parts_of_a_batch_may_change(tmp_path: Path) -> None:
    """What only rounds otherwise is said, not refused."""
    make = model
    stopped(job(make=make), tmp_path, 3)
    texts = [
        e.text
        for e in train_all(job(make=make, accumulate=3, checkpoint_activations=True), tmp_path)
        if isinstance(e, Note)
    ]
    assert sum("results may differ in the last bits" in text for text in texts) == 2
