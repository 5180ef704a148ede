"""Sweeps find what was planted, equal one change at a time, and keep what was measured."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.lens.interventions.edits import ablate, logits_with, patch
from sightline.lens.interventions.sweep import Sweep, ablation_sweep, logit_difference, sweep
from sightline.lens.trace.trace import trace_of
from sightline.text.tokenizer import Tokenizer
from tests.support.tiny import ALL, make

LETTERS = Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy")
CLEAN, CORRUPTED = [5, 9, 14, 3, 22, 8, 17], [5, 9, 21, 3, 22, 8, 17]
SOURCES = [4, 7, 12, 19, 2], [4, 7, 25, 19, 2]


@dataclass
class Tiny:
    transformer: sl.Transformer
    tokenizer: Any = None
    name: str = "tiny"


def metric(logits: Tensor) -> float:
    return float(logits[-1, 3] - logits[-1, 11])


def stacks(name: str) -> list[str]:
    return list(ALL[name].stacks)


def other(logits: Tensor) -> float:
    """For any shape that a head gives."""
    return float(logits.flatten()[-3] + 2 * logits.flatten()[1])


# ------------------------------------------------------------------------- one at a time, by hand


@pytest.mark.parametrize(
    "name", ["rotary", "grouped", "ngpt", "bert", "bert-pooled", "tagger", "window-alternating"]
)
@pytest.mark.parametrize("what", ["heads", "residual", "feed_forward"])
def test_a_sweep_is_each_patch_alone(name: str, what: Any) -> None:
    subject, stack = Tiny(make(ALL[name])), stacks(name)[-1]
    result = sweep(subject, CLEAN, CORRUPTED, other, what=what, batch=5)
    seen = trace_of(subject, CLEAN, what=(what,))
    layers, columns = ALL[name].last.layers, 4 if what == "heads" else len(CLEAN)
    assert result.raw.shape == (layers, columns)
    assert result.complete
    for layer in range(layers):
        for column in range(columns):
            value = seen.kept[stack, layer, what]
            alone = patch(
                (stack, layer, what),
                value,
                **({"head": column} if what == "heads" else {"positions": column}),
            )
            expected = other(logits_with(subject, CORRUPTED, alone))
            assert float(result.raw[layer, column]) == pytest.approx(expected, abs=1e-5)
    clean, corrupted = (other(logits_with(subject, ids, {})) for ids in (CLEAN, CORRUPTED))
    torch.testing.assert_close(result.values, (result.raw - corrupted) / (clean - corrupted))


@pytest.mark.parametrize("name", ["transformer", "t5"])
@pytest.mark.parametrize(
    ("what", "stack"),
    [
        ("heads", "decoder"),
        ("cross_heads", "decoder"),
        ("heads", "encoder"),
        ("residual", "encoder"),
    ],
)
def test_an_encoder_decoder(name: str, what: Any, stack: str) -> None:
    subject, target = Tiny(make(ALL[name])), CLEAN
    traces = [trace_of(subject, target, source=source) for source in SOURCES]
    result = sweep(subject, *traces, metric, what=what, stack=stack)
    again = sweep(subject, target, target, metric, what=what, stack=stack, sources=SOURCES, batch=1)
    torch.testing.assert_close(result.raw, again.raw, rtol=1e-5, atol=1e-5)
    seen = trace_of(subject, target, source=SOURCES[0], what=(what,)).kept
    where = {"head": 2} if "heads" in what else {"positions": 2}
    alone = logits_with(
        subject, target, patch((stack, 1, what), seen[stack, 1, what], **where), source=SOURCES[1]
    )
    assert float(result.raw[1, 2]) == pytest.approx(metric(alone), abs=1e-5)
    assert result.raw.shape == (2, 4 if "heads" in what else 5)


@pytest.mark.parametrize("batch", [1, 3, None])
def test_the_size_of_the_batch_changes_nothing(batch: int | None) -> None:
    subject = Tiny(make(ALL["rotary"]))
    one, more = (
        sweep(subject, CLEAN, CORRUPTED, metric, batch=1),
        sweep(subject, CLEAN, CORRUPTED, metric, batch=batch),
    )
    torch.testing.assert_close(one.raw, more.raw, rtol=1e-5, atol=1e-5)


# ----------------------------------------------------------------------------- what must come out


@pytest.mark.parametrize("name", ["rotary", "alibi", "parallel", "bert"])
def test_at_the_first_layer_only_the_token_that_differs_matters(name: str) -> None:
    values = sweep(Tiny(make(ALL[name])), CLEAN, CORRUPTED, metric, what="residual").values
    torch.testing.assert_close(
        values[0], torch.tensor([0.0, 0, 1, 0, 0, 0, 0]), rtol=1e-4, atol=1e-4
    )


def only_head(layer: int, head: int) -> Tiny:
    """A decoder in which one head alone carries anything from token to token."""
    model = make(ALL["rotary"])
    with torch.no_grad():
        for n in range(2):
            columns = model.decoder[n].attention.output.weight.view(24, 4, 6)
            for other in range(4):
                if (n, other) != (layer, head):
                    columns[:, other] = 0
    return Tiny(model)


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 3)])
def test_the_only_head_that_carries_the_difference_is_found(layer: int, head: int) -> None:
    subject = only_head(layer, head)
    result = sweep(subject, CLEAN, CORRUPTED, metric)
    expected = torch.zeros(2, 4)
    expected[layer, head] = 1
    torch.testing.assert_close(result.values, expected, rtol=1e-4, atol=1e-4)
    assert result.top(1)[0][:2] == (layer, head)
    last = sweep(subject, CLEAN, CORRUPTED, metric, positions=[-1]).values
    early = sweep(subject, CLEAN, CORRUPTED, metric, positions=[0, 1]).values
    assert float(early.abs().max()) < 1e-4, "before the token that differs there is nothing to lend"
    assert float(last[layer, head]) == pytest.approx(
        1 if layer == 1 else float(last[0, 1]), abs=1e-4
    )


def test_the_positions_of_the_stream_are_columns() -> None:
    subject = Tiny(make(ALL["rotary"]), LETTERS)
    every = sweep(subject, CLEAN, CORRUPTED, metric, what="attention")
    some = sweep(subject, CLEAN, CORRUPTED, metric, what="attention", positions=[2, -1])
    assert some.columns == (2, 6)
    torch.testing.assert_close(some.values, every.values[:, [2, 6]], rtol=1e-4, atol=1e-5)
    assert some.label(2) == "position 2 'r'"


@pytest.mark.parametrize("by", ["zero", "mean"])
def test_an_ablation_sweep_is_each_ablation_alone(by: Any) -> None:
    subject = Tiny(make(ALL["transformer"]))
    for what, cross in (("heads", False), ("cross_heads", True)):
        result = ablation_sweep(
            subject, CLEAN, metric, source=SOURCES[0], what=what, by=by, batch=3
        )
        intact = metric(logits_with(subject, CLEAN, {}, source=SOURCES[0]))
        for layer in range(2):
            for head in range(4):
                alone = metric(
                    logits_with(
                        subject, CLEAN, ablate(layer, head, cross=cross, by=by), source=SOURCES[0]
                    )
                )
                assert float(result.values[layer, head]) == pytest.approx(alone - intact, abs=1e-5)
        assert result.corrupted is None
        assert result.summary()[0].startswith(f"tiny decoder {what}: metric, intact")


# -------------------------------------------------------------------------- on the way, and after


def test_progress_is_reported_and_control_c_keeps_the_measured_cells() -> None:
    subject, reported = Tiny(make(ALL["rotary"])), list[tuple[int, int]]()
    whole = sweep(
        subject,
        CLEAN,
        CORRUPTED,
        metric,
        batch=3,
        progress=lambda done, of: reported.append((done, of)),
    )
    assert reported == [(3, 8), (6, 8), (8, 8)]

    def stop(done: int, of: int) -> None:
        if done == 6:
            raise KeyboardInterrupt

    part = sweep(subject, CLEAN, CORRUPTED, metric, batch=3, progress=stop)
    assert not part.complete
    assert torch.equal(part.raw.flatten()[:6], whole.raw.flatten()[:6])
    assert bool(part.raw.flatten()[6:].isnan().all())
    assert "interrupted after 6 cells" in part.summary()[0]
    assert all(math.isfinite(value) for _, _, value in part.top(8))
    assert len(part.top(8)) == 6
    assert json.loads(json.dumps(part.to_dict()))["values"][1][3] is None


def test_what_was_found_as_lines_and_as_json() -> None:
    subject = Tiny(make(ALL["rotary"]), LETTERS)
    result = sweep(subject, CLEAN, CORRUPTED, logit_difference(subject, "a", "b"))
    assert isinstance(result, Sweep)
    values = [abs(value) for _, _, value in result.top(8)]
    assert values == sorted(values, reverse=True)
    assert result.summary(2)[0].startswith(
        "tiny decoder heads: logit 'a' − logit 'b' at -1, corrupted "
    )
    layer, head, value = result.top(1)[0]
    assert result.summary(1)[1] == f"layer {layer:2d} head {head}  {value:+.3f}"
    facts = json.loads(json.dumps(result.to_dict()))
    assert facts["tokens"] == ["b", "f", "r", "<unk>", "s", "e", "n"]
    assert torch.tensor(facts["raw"]).shape == (2, 4)
    assert facts["complete"] is True


# --------------------------------------------------------------------------------------- mistakes


def test_mistakes_are_one_line_with_the_fix() -> None:
    subject = Tiny(make(ALL["rotary"]), LETTERS)
    pair = Tiny(make(ALL["transformer"]))
    for mistake, message in (
        (
            lambda: sweep(subject, "abc", "abcd", metric),
            r"3 clean tokens \('a' 'b' 'c'\) and 4 corrupted \('a' 'b' 'c' 'd'\).*Fix: ",
        ),
        (
            lambda: sweep(subject, "abc", "abc", metric),
            "for the clean and the corrupted text; expected two different numbers",
        ),
        (
            lambda: sweep(subject, "abc", "abd", metric, what="haeds"),
            "what='haeds'; expected heads, ",
        ),  # pyright: ignore[reportArgumentType]
        (
            lambda: sweep(subject, "abc", "abd", metric, stack="encoder"),
            "a stack named 'encoder'; expected decoder",
        ),
        (
            lambda: sweep(subject, "abc", "abd", metric, what="cross_heads"),
            "has no cross-attention.*Fix: what='heads'",
        ),
        (
            lambda: sweep(
                pair, CLEAN, CORRUPTED, metric, what="cross_heads", stack="encoder", sources=SOURCES
            ),
            "no cross-attention",
        ),
        (
            lambda: sweep(subject, "abc", "abd", metric, positions=[3], what="residual"),
            "position 3; expected 0 to 2",
        ),
        (
            lambda: sweep(subject, "abc", "abd", metric, positions=[3]),
            "position 3; expected 0 to 2",
        ),
        (lambda: sweep(pair, CLEAN, CORRUPTED, metric), "for an encoder–decoder"),
        (
            lambda: ablation_sweep(subject, "abc", metric, what="residual"),
            "expected heads or cross_heads",
        ),  # pyright: ignore[reportArgumentType]
        (lambda: sweep(subject, "abc", "abd", lambda _: math.inf), "a metric of inf"),
    ):
        with pytest.raises(sl.InputError, match=message):
            mistake()
    assert sweep(pair, CLEAN, CLEAN, metric, sources=([4, 7, 12], SOURCES[1])).complete, (
        "sources of other lengths are no hindrance to a decoder"
    )
    with pytest.raises(sl.InputError, match="3 clean tokens"):
        sweep(pair, CLEAN, CLEAN, metric, stack="encoder", sources=([4, 7, 12], SOURCES[1]))
