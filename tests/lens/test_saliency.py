"""Gradients against finite differences and a long even sum; completeness; nothing left behind."""

from __future__ import annotations

import json

import pytest
import torch

import sightline as sl
from sightline.lens.attributions.saliency import gradient_input, integrated_gradients
from sightline.lens.trace.trace import trace_of
from tests.lens.asked import Tiny, ids_of, source_of, tiny
from tests.support.tiny import ALL, make

SOME = [
    "layer-pre",
    "rms-post",
    "parallel",
    "grouped",
    "logit-cap",
    "bert",
    "transformer-pre",
    "tagger",
    "classifier",
    "decoder-classifier",
]


def answer_with(
    subject: Tiny,
    ids: list[int],
    stack: str,
    x: torch.Tensor,
    position: int,
    token: int,
    **source: list[int],
) -> torch.Tensor:
    """The logit with these embeddings, in float64."""
    record = sl.Recorder(edits={(stack, None, "embedding"): lambda _: x[None]})
    given = {key: torch.tensor([value]) for key, value in source.items()}
    out = subject.transformer(torch.tensor([ids]), **given, record=record)[0]
    return out[token] if out.dim() == 1 else out[position, token]


def doubled(name: str) -> tuple[Tiny, list[int], torch.Tensor]:
    subject, ids = Tiny(make(ALL[name]).double()), ids_of(name, 4)
    seen = sl.Recorder({"embedding"})
    given = {key: torch.tensor([value]) for key, value in source_of(name).items()}
    subject.transformer(torch.tensor([ids]), **given, record=seen)
    return subject, ids, seen[subject.transformer.last_stack.name, None, "embedding"][0].detach()


@pytest.mark.parametrize("name", SOME)
def test_gradient_times_input_is_the_slope_along_each_token(name: str) -> None:
    subject, ids, x = doubled(name)
    source, stack = source_of(name), subject.transformer.last_stack.name
    result = gradient_input(subject, ids, **source, token=2, position=-1)
    step = 1e-5
    for t in range(len(ids)):
        up, down = x.clone(), x.clone()
        up[t], down[t] = x[t] * (1 + step), x[t] * (1 - step)
        with torch.no_grad():
            values = [
                float(answer_with(subject, ids, stack, y, -1, 2, **source)) for y in (up, down)
            ]
        assert float(result.scores[t]) == pytest.approx(
            (values[0] - values[1]) / (2 * step), abs=1e-6
        )


@pytest.mark.parametrize("name", ["layer-pre", "bert", "layer-post"])
def test_integrated_gradients_are_the_long_even_sum(name: str) -> None:
    subject, ids, x = doubled(name)
    stack, steps = subject.transformer.last_stack.name, 1000
    points = (torch.arange(steps)[:, None, None] + 0.5) / steps * x
    points.requires_grad_()
    record = sl.Recorder(edits={(stack, None, "embedding"): lambda _: points})
    answers = subject.transformer(torch.tensor([ids]).expand(steps, -1), record=record)[:, 1, 5]
    total = torch.autograd.grad(answers.sum(), points)[0].mean(0)
    result = integrated_gradients(subject, ids, token=5, position=1, tolerance=1e-4)
    torch.testing.assert_close(result.scores, (total * x).sum(-1), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", [*SOME, "swiglu", "t5", "no-norm", "ngpt", "sinks"])
def test_the_scores_add_up(name: str) -> None:
    subject, ids, source = tiny(name), ids_of(name), source_of(name)
    result = integrated_gradients(subject, ids, **source, baseline=3 if name == "ngpt" else None)
    total = float(result.scores.sum()) + (
        0.0 if result.source_scores is None else float(result.source_scores.sum())
    )
    assert abs(total - (result.value - result.baseline_value)) == pytest.approx(
        result.gap, abs=1e-5
    )
    assert result.complete
    assert (
        result.gap
        <= result.allowed
        == pytest.approx(0.05 * max(1, abs(result.value - result.baseline_value)))
    )
    assert (result.source_scores is None) == (not source)


def test_it_asks_for_the_models_own_answer_unless_told() -> None:
    subject, ids = tiny("layer-pre"), ids_of("layer-pre")
    logits = trace_of(subject, ids).logits
    result = gradient_input(subject, ids)
    assert (result.answer.id, result.position) == (int(logits[-1].argmax()), len(ids) - 1)
    assert result.value == pytest.approx(float(logits[-1].max()), abs=1e-5)
    share = gradient_input(subject, ids, token=4, position=2, of="log-probability")
    assert share.value == pytest.approx(float(logits[2].log_softmax(-1)[4]), abs=1e-5)
    assert bool((share.scores[3:] == 0).all()), "a causal model does not look ahead"
    assert not share.complete, "gradient × input promises no sum"


def test_a_tokens_embeddings_as_baseline() -> None:
    subject, ids = tiny("swiglu"), ids_of("swiglu")
    ids[2] = 6
    result = integrated_gradients(subject, ids, baseline=6, token=1, tolerance=1e-3)
    assert result.complete
    assert float(result.scores[2]) == 0, "where the text has the baseline's token, nothing changes"
    assert result.baseline_value == pytest.approx(
        float(trace_of(subject, [6] * len(ids)).logits[-1, 1]), abs=1e-5
    )


def test_nothing_is_left_behind() -> None:
    subject, ids = Tiny(make(ALL["layer-pre"])), ids_of("layer-pre")
    before = trace_of(subject, ids).logits
    with torch.inference_mode():
        result = integrated_gradients(subject, ids)
    assert all(
        parameter.grad is None and parameter.requires_grad
        for parameter in subject.transformer.parameters()
    )
    assert not result.scores.requires_grad
    assert torch.equal(before, trace_of(subject, ids).logits)
    assert json.loads(json.dumps(result.to_dict()))["complete"] is True


def test_bad_questions() -> None:
    for wrong, message in (
        ({"of": "loss"}, "of is 'loss'"),
        ({"token": 29}, "token 29"),
        ({"position": 5}, "position 5"),
        ({"baseline": 99}, "token 99"),
    ):
        with pytest.raises(sl.InputError, match=message):
            integrated_gradients(tiny("layer-pre"), [1, 2], **wrong)
    with pytest.raises(sl.InputError, match=r"zeros for an nGPT.*Fix: baseline=0"):
        integrated_gradients(tiny("ngpt"), [1, 2])
    with pytest.raises(sl.InputError, match="expected a language model"):
        gradient_input(tiny("bert-mean"), [1, 2])
