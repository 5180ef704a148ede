"""A loss, a gradient or a weight that is NaN or infinite: caught before an update,
never saved."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.training.data.batch import Batch
from sightline.training.loop import NotFiniteError, StepEvent, make_train_state
from sightline.training.state import checkpoint as state
from tests.training.small import (
    Numbers,
    Poison,
    checkpoint,
    config,
    job,
    model,
    notes,
    same,
    saved,
    stopping,
    train_all,
    weights,
)

pytestmark = pytest.mark.usefixtures("as_users_run_it")


CASES = {
    "nan loss": {},
    "inf loss": {"value": math.inf},
    "nan gradient": {"gradient": True},
    "inf gradient": {"gradient": True, "value": math.inf},
}


@pytest.mark.parametrize("case", CASES)
def test_stop(tmp_path: Path, case: str) -> None:
    """Caught before the update; what is saved are the checkpoints before."""
    poison = Poison(3, **CASES[case])
    with pytest.raises(NotFiniteError, match=r"^step 3: loss .*no weight was changed"):
        train_all(poison.job(), tmp_path)
    assert state.newest_complete(tmp_path) == (tmp_path / "checkpoints" / "step-00000002", [])
    assert all(bool(tensor.isfinite().all()) for tensor in weights(tmp_path).values())


@pytest.mark.parametrize("case", CASES)
def test_skip(tmp_path: Path, case: str) -> None:
    """The batch is left out, and only it; the learning rate goes on. By hand: no update at that
    step."""
    events = train_all(Poison(3, **CASES[case]).job(on_bad="skip"), tmp_path / "run")
    assert [event.step for event in events if isinstance(event, StepEvent) and event.skipped] == [4]
    by_hand = make_train_state(model(dropout=0.1), config())
    run_by_hand(by_hand, without={3})
    result = {
        name.removeprefix("model "): tensor
        for name, tensor in weights(tmp_path / "run").items()
        if name.startswith("model ")
    }
    assert same(result, {name: p.detach() for name, p in by_hand.transformer.named_parameters()})
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["skipped"] for line in lines if line["kind"] == "step"] == [
        False,
        False,
        False,
        True,
        False,
        False,
    ]


def run_by_hand(who: Any, without: set[int]) -> None:
    """The loop as one would write it down."""
    from sightline.training.data.order import random
    from sightline.training.schedules import factor

    for step in range(6):
        torch.manual_seed(int(random(0, 1, step, 0).integers(2**63)))
        who.optimizers.set_factor(factor(who.config.schedule, step, 6))
        if step not in without:
            assert who.backward(Numbers().made(0, step)) is not None
            who.optimizers.step()
            who.optimizers.zero()


def test_rewind(tmp_path: Path) -> None:
    """Back to the last checkpoint, and without all batches since: steps 2 and 3."""
    poison = Poison(3)
    events = train_all(poison.job(on_bad="rewind"), tmp_path / "run")
    assert "back to step 2, and the batches of steps 2 to 3 are skipped" in " ".join(notes(events))
    by_hand = make_train_state(model(dropout=0.1), config())
    run_by_hand(by_hand, without={2, 3})
    result = {
        name.removeprefix("model "): tensor
        for name, tensor in weights(tmp_path / "run").items()
        if name.startswith("model ")
    }
    assert same(result, {name: p.detach() for name, p in by_hand.transformer.named_parameters()})
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines if line["kind"] == "step"] == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("policy", ["skip", "rewind"])
@pytest.mark.parametrize("stopped", [3, 4])
def test_exact_after_leaving_out_and_being_stopped(
    tmp_path: Path, policy: str, stopped: int
) -> None:
    """Wherever the run was interrupted, also at a step that no regular checkpoint has."""
    train_all(Poison(1, 3).job(on_bad=policy), tmp_path / "whole")
    stopping(Poison(1, 3).job(on_bad=policy), tmp_path / "run", stopped)
    train_all(Poison(1, 3).job(on_bad=policy), tmp_path / "run")
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def test_rewind_before_the_first_checkpoint_goes_back_to_step_0(tmp_path: Path) -> None:
    events = train_all(Poison(1).job(on_bad="rewind"), tmp_path)
    assert "back to step 0" in " ".join(notes(events))
    assert saved(events) == [0, 2, 4, 6]


@pytest.mark.parametrize("policy", ["skip", "rewind"])
def test_a_run_that_breaks_at_every_step_ends(tmp_path: Path, policy: str) -> None:
    with pytest.raises(NotFiniteError, match="lr"):
        train_all(Poison(*range(100)).job(on_bad=policy, steps=100), tmp_path)


@pytest.mark.parametrize("policy", ["stop", "skip", "rewind"])
def test_a_weight_that_is_not_finite_is_never_saved(tmp_path: Path, policy: str) -> None:
    """The row of a token that no text has becomes NaN at step 3, once. No loss and no gradient
    shows it."""
    made: list[Any] = []

    def make() -> Any:
        made.append(model(vocab_size=14, tied=False, dropout=0.1))
        return made[-1]

    def spoil(step: int, batch: Batch) -> Batch:
        if step == 3 and len(made) == 1:
            made.append(None)
            with torch.no_grad():
                made[0].decoder.embedding.tokens.weight[13] = math.nan
        return batch

    what = job(Numbers(before=spoil), make=make, on_bad=policy)
    if policy == "rewind":
        assert "back to step 2, and the batches of steps 2 to 3 are skipped" in " ".join(
            notes(train_all(what, tmp_path))
        )
    else:
        with pytest.raises(
            NotFiniteError, match=r"step 4: decoder.embedding.tokens.weight is not finite"
        ):
            train_all(what, tmp_path)
    assert all(
        bool(t.isfinite().all())
        for path in state.checkpoints(tmp_path)
        for t in checkpoint(path).values()
    )
