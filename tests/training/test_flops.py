"""The cost of a step: against torch's own counter, the rule of thumb, and `explain`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import sightline as sl
from sightline.explain.counts import forward_flops
from sightline.training.data.batch import IGNORED, Batch
from sightline.training.flops import step_flops
from sightline.training.loop import make_train_state
from sightline.training.loss import Objective
from tests.training.small import Numbers, config, model

SIZE = {"width": 24, "layers": 2, "heads": 4, "vocab_size": 29, "max_positions": 48}
CONFIGS = {
    "tied": sl.llama(**SIZE),
    "free": sl.llama(**SIZE, tied=False),
    "grouped": sl.llama(**SIZE, kv_heads=2),
    "gpt": sl.gpt(**SIZE),
    "bert": sl.bert(**SIZE),
    "both": sl.encoder_decoder(**SIZE),
}


def batch(source: int | None = None) -> Batch:
    tokens = torch.randint(29, (3, 11))
    return Batch(
        tokens=tokens,
        targets=tokens,
        count=33,
        source=None if source is None else torch.randint(29, (3, source)),
    )


@pytest.mark.parametrize("name", CONFIGS)
def test_as_explain_counts(name: str) -> None:
    """Training is three times the forward pass, all pairs counted."""
    source = 7 if name == "both" else None
    wanted = 3 * 3 * forward_flops(CONFIGS[name], time=11, source=source, square=True)
    assert step_flops(sl.build(CONFIGS[name]), batch(source)) == pytest.approx(wanted)


def test_as_torch_counts(as_users_run_it: None) -> None:
    objective = Objective(sl.build(CONFIGS["tied"]))
    counter = FlopCounterMode(display=False)
    with counter, torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        objective(batch())[0].backward()
    assert counter.get_total_flops() == pytest.approx(
        step_flops(objective.transformer, batch()), rel=0.08
    )


def test_the_rule_of_thumb() -> None:
    """6 N + 12 · layers · width · context for each token, with N the matrices and the head, a tied
    one too."""
    transformer = sl.build(CONFIGS["tied"])
    matrices = sum(p.numel() for p in transformer.parameters() if p.ndim == 2)
    assert step_flops(transformer, batch()) == 33 * (6 * matrices + 12 * 2 * 24 * 11)


def test_only_what_is_asked_reaches_the_head() -> None:
    transformer = sl.build(CONFIGS["bert"])
    few = batch()
    few = replace(few, targets=torch.where(torch.arange(11) < 2, few.targets, IGNORED), count=6)
    head = 6 * (29 * 24 + 24 * 24)
    assert step_flops(transformer, batch()) - step_flops(transformer, few) == (33 - 6) * head


def test_frozen_matrices_cost_no_gradient_of_their_own() -> None:
    transformer = sl.build(CONFIGS["tied"])
    before = step_flops(transformer, batch())
    transformer.last_stack[0].attention.query.weight.requires_grad_(False)
    assert before - step_flops(transformer, batch()) == 2 * 33 * 24 * 24


def test_mfu_is_the_part_of_the_peak_that_was_used() -> None:
    event = next(make_train_state(model(), config()).steps(Numbers(), peak_flops=1e9))
    assert event.mfu == pytest.approx(
        step_flops(model(), Numbers().made(0, 0)) * event.tokens_per_second / 18 / 1e9
    )
    assert next(make_train_state(model(), config()).steps(Numbers())).mfu is None
