"""Interventions: edits that change nothing change nothing, and the others do what the same change
of the weights would do."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.core.attention import masked_softmax
from sightline.lens.interventions.edits import (
    Edits,
    ablate,
    logits_with,
    mask_cell,
    patch,
    replace,
    scale,
    steer,
)
from sightline.lens.trace.trace import trace_of
from tests.support.tiny import ALL, ENCODER_DECODERS, ENCODERS, distance, inputs, make

EACH = (
    "rotary",
    "layer-post",
    "parallel",
    "grouped",
    "sinks",
    "alibi",
    "window",
    "ngpt",
    "bert",
    "bert-pooled",
    "transformer",
    "t5",
    "tagger",
)


@dataclass
class Tiny:
    """A model without tokenizer."""

    transformer: sl.Transformer
    name: str = "tiny"
    tokenizer: Any = None


def tiny(name: str) -> tuple[Tiny, list[int], list[int] | None]:
    """A subject, ids, and a source where there is one."""
    given = inputs(ALL[name], batch=1)
    source = given["source"][0].tolist() if "source" in given else None
    return Tiny(make(ALL[name])), given["tokens"][0].tolist(), source


def stack_of(name: str) -> str:
    return "encoder" if ALL[name].decoder is None else "decoder"


def plain(subject: Tiny, ids: list[int], source: list[int] | None) -> Tensor:
    return logits_with(subject, ids, Edits(), source=source)


def recorded(subject: Tiny, ids: list[int], source: list[int] | None, *names: str) -> sl.Recorder:
    recorder = sl.Recorder(names)
    with torch.inference_mode():
        subject.transformer(
            torch.tensor([ids]),
            source=None if source is None else torch.tensor([source]),
            record=recorder,
        )
    return recorder


# --------------------------------------------------------------------------- what changes nothing


@pytest.mark.parametrize("name", EACH)
def test_edits_that_change_nothing_change_no_bit(name: str) -> None:
    subject, ids, source = tiny(name)
    stack, width = stack_of(name), subject.transformer.config.last.width
    own = recorded(subject, ids, source, "residual", "heads", "query", "value", "feed_forward")
    whole = plain(subject, ids, source)
    with torch.no_grad():
        assert torch.equal(
            whole,
            subject.transformer(
                torch.tensor([ids]), source=None if source is None else torch.tensor([source])
            )[0],
        )
    for edits in (
        scale(1, 2, 1.0, stack=stack),
        steer(1, torch.zeros(width), stack=stack),
        steer(0, torch.randn(len(ids), width), scale=0.0, positions=[0, -1], stack=stack),
        replace(0, 1, own[stack, 0, "heads"][0, 1], stack=stack),
        *(
            patch((stack, 1, what), own[stack, 1, what])
            for what in ("residual", "heads", "query", "value", "feed_forward")
        ),
        patch((stack, 1, "heads"), own[stack, 1, "heads"][0], head=-1, positions=[3, -1]),
        patch((stack, 0, "residual"), own[stack, 0, "residual"][0], positions=2),
    ):
        assert torch.equal(logits_with(subject, ids, edits, source=source), whole), list(edits)


@pytest.mark.parametrize("name", ["rotary", "grouped", "sinks", "alibi", "transformer"])
def test_masking_what_could_not_be_seen_changes_nothing(name: str) -> None:
    subject, ids, source = tiny(name)
    result = logits_with(subject, ids, mask_cell(1, 2, 3, 7), source=source)
    assert distance(plain(subject, ids, source), result) < 1e-6


# --------------------------------------------------------- what is the same change of the weights


@pytest.mark.parametrize("name", EACH)
@pytest.mark.parametrize("head", [0, -1])
def test_ablating_a_head_is_zeroing_its_columns_of_the_output_projection(
    name: str, head: int
) -> None:
    subject, ids, source = tiny(name)
    stack = stack_of(name)
    without = copy.deepcopy(subject.transformer)
    layer = getattr(without, stack)[1].attention
    columns = layer.output.weight.view(layer.width, layer.config.heads, -1)
    with torch.no_grad():
        columns[:, head] = 0
    expected = plain(Tiny(without), ids, source)
    assert (
        distance(expected, logits_with(subject, ids, ablate(1, head, stack=stack), source=source))
        < 1e-6
    )
    assert (
        distance(
            expected, logits_with(subject, ids, scale(1, head, 0.0, stack=stack), source=source)
        )
        < 1e-6
    )
    nothing = replace(1, head, torch.zeros(layer.config.value_width), stack=stack)
    assert distance(expected, logits_with(subject, ids, nothing, source=source)) < 1e-6
    assert distance(expected, plain(subject, ids, source)) > 1e-5


def test_ablating_a_cross_attention_head() -> None:
    subject, ids, source = tiny("transformer")
    without = copy.deepcopy(subject.transformer)
    with torch.no_grad():
        without.decoder[0].cross_attention.output.weight.view(24, 4, 6)[:, 3] = 0
    result = logits_with(subject, ids, ablate(0, 3, cross=True), source=source)
    assert distance(plain(Tiny(without), ids, source), result) < 1e-6


def test_an_encoders_head_of_an_encoder_decoder_reaches_the_decoder() -> None:
    subject, ids, source = tiny("t5")
    without = copy.deepcopy(subject.transformer)
    with torch.no_grad():
        without.encoder[1].attention.output.weight.view(24, 4, 6)[:, 0] = 0
    result = logits_with(subject, ids, ablate(1, 0, stack="encoder"), source=source)
    assert distance(plain(Tiny(without), ids, source), result) < 1e-6


@pytest.mark.parametrize("factor", [-1.0, 0.5, 3.0])
def test_scaling_a_head_is_scaling_its_columns(factor: float) -> None:
    subject, ids, _ = tiny("grouped")
    scaled = copy.deepcopy(subject.transformer)
    with torch.no_grad():
        scaled.decoder[0].attention.output.weight.view(24, 4, 6)[:, 2] *= factor
    assert (
        distance(plain(Tiny(scaled), ids, None), logits_with(subject, ids, scale(0, 2, factor)))
        < 1e-6
    )


@pytest.mark.parametrize("name", ["layer-pre", "transformer-pre"])
def test_steering_is_adding_a_bias_where_the_layer_before_writes(name: str) -> None:
    subject, ids, source = tiny(name)
    vector = torch.randn(24)
    biased = copy.deepcopy(subject.transformer)
    with torch.no_grad():
        biased.decoder[0].feed_forward.down.bias += 1.5 * vector
    result = logits_with(subject, ids, steer(1, vector, scale=1.5), source=source)
    assert distance(plain(Tiny(biased), ids, source), result) < 1e-5
    assert distance(plain(subject, ids, source), result) > 1e-3


def test_steering_some_positions_leaves_the_causal_past_alone() -> None:
    subject, ids, _ = tiny("rotary")
    whole, result = (
        plain(subject, ids, None),
        logits_with(subject, ids, steer(1, torch.randn(24), positions=[6])),
    )
    assert torch.equal(whole[:6], result[:6])
    assert distance(whole[6:], result[6:]) > 1e-3


def test_the_mean_hides_where_a_head_looked() -> None:
    subject, ids, _ = tiny("bert")
    mixed = recorded(subject, ids, None, "heads")["encoder", 1, "heads"][0, 2]
    by_hand = replace(1, 2, torch.from_numpy(np.mean(mixed.numpy(), axis=0)), stack="encoder")
    result = logits_with(subject, ids, ablate(1, 2, stack="encoder", by="mean"))
    assert distance(logits_with(subject, ids, by_hand), result) < 1e-6
    assert distance(plain(subject, ids, None), result) > 1e-5


# ------------------------------------------------------------------------------ patching, masking


@pytest.mark.parametrize(
    "name", [*ENCODERS, "rotary", "layer-post", "parallel", "ngpt", "learned", "relative"]
)
def test_the_whole_stream_of_another_run_gives_the_other_runs_logits(name: str) -> None:
    subject, ids, _ = tiny(name)
    stack, other = stack_of(name), list(reversed(ids))
    theirs = recorded(subject, other, None, "residual")[stack, 1, "residual"]
    result = logits_with(subject, ids, patch((stack, 1, "residual"), theirs))
    assert torch.equal(result, plain(subject, other, None))
    assert distance(result, plain(subject, ids, None)) > 1e-3


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_the_encoders_output_of_another_source_is_that_source(name: str) -> None:
    subject, ids, source = tiny(name)
    other = [(id + 3) % 29 for id in source or []]
    theirs = recorded(subject, ids, other, "output")["encoder", None, "output"]
    result = logits_with(subject, ids, patch(("encoder", None, "output"), theirs), source=source)
    assert torch.equal(result, plain(subject, ids, other))
    assert distance(result, plain(subject, ids, source)) > 1e-4


def test_a_longer_run_may_lend_some_of_its_positions() -> None:
    subject, ids, _ = tiny("rotary")
    longer = recorded(subject, [*ids, 4, 9], None, "residual")["decoder", 0, "residual"]
    result = logits_with(subject, ids, patch(("decoder", 0, "residual"), longer, positions=[-1]))
    assert torch.equal(result, plain(subject, [*ids[:-1], 9], None)), (
        "the last position of one run goes to the last of the other"
    )


@pytest.mark.parametrize(
    "name", ["rotary", "grouped", "sinks", "soft-cap", "alibi", "bert", "transformer"]
)
def test_a_masked_cell_is_a_score_of_minus_infinity(name: str) -> None:
    subject, ids, source = tiny(name)
    stack = stack_of(name)
    edited = sl.Recorder(
        {"weights", "query", "key", "mask", "bias"},
        edits=mask_cell(0, 2, 8, 3, stack=stack) | mask_cell(0, 2, -3, 5, stack=stack),
    )
    with torch.inference_mode():
        subject.transformer(
            torch.tensor([ids]),
            source=None if source is None else torch.tensor([source]),
            record=edited,
        )
    edited.finish()
    trace = trace_of(subject, ids, source=source)
    scores = trace.scores(0, 2, stack=stack)
    scores[8, [3, 5]] = -torch.inf
    sinks = trace.look(0, stack=stack).scoring.sinks
    expected = masked_softmax(
        scores[None, None], ~scores.isneginf()[None, None], None if sinks is None else sinks[2:3]
    )[0, 0]
    assert float((edited[stack, 0, "weights"][0, 2] - expected).detach().abs().max()) < 1e-6
    assert edited[stack, 0, "weights"][0, 2, 8, 3] == 0 == edited[stack, 0, "weights"][0, 2, 8, 5]
    assert (stack, 0) in edited.equation_layers


def test_a_row_with_nothing_left_to_see_is_zeros() -> None:
    subject, ids, _ = tiny("rotary")
    edited = sl.Recorder({"weights"}, edits=mask_cell(1, 0, 0, 0))
    subject.transformer(torch.tensor([ids]), record=edited)
    assert bool((edited["decoder", 1, "weights"][0, 0, 0] == 0).all())


def test_cross_attention_can_be_blinded_to_a_source_token() -> None:
    subject, ids, source = tiny("transformer")
    edits = Edits()
    for head in range(4):
        for query in range(len(ids)):
            for layer in range(2):
                edits = edits | mask_cell(layer, head, query, 6, cross=True)
    expected = torch.tensor([source])
    padding = torch.zeros_like(expected, dtype=torch.bool)
    padding[0, 6] = True
    seen = sl.Recorder({"output"})
    subject.transformer(torch.tensor([ids]), source=expected, record=seen)
    memory = seen["encoder", None, "output"]
    hidden = sl.Recorder(edits={("encoder", None, "output"): lambda _: memory})
    blind = subject.transformer(
        torch.tensor([ids]), source=expected, source_padding=padding, record=hidden
    )[0]
    assert distance(blind, logits_with(subject, ids, edits, source=source)) < 1e-5


# ------------------------------------------------------------------------------ merging, mistakes


def test_edits_of_one_place_are_composed_in_order() -> None:
    subject, ids, _ = tiny("rotary")
    one = torch.ones(6)
    first = logits_with(subject, ids, replace(0, 1, one) | scale(0, 1, 2.0))
    then = logits_with(subject, ids, scale(0, 1, 2.0) | replace(0, 1, one))
    assert torch.equal(first, logits_with(subject, ids, replace(0, 1, 2 * one)))
    assert torch.equal(then, logits_with(subject, ids, replace(0, 1, one)))
    both = ablate(0, 1) | ablate(1, 1) | {("decoder", 1, "heads"): lambda heads: heads * 0}
    assert len(both) == 2
    assert list(both) == [("decoder", 0, "heads"), ("decoder", 1, "heads")]
    assert torch.equal(trace_of(subject, ids, edits=both).logits, logits_with(subject, ids, both))


def test_an_edit_of_what_is_not_there_raises() -> None:
    subject, ids, _ = tiny("rotary")
    for edits in (
        ablate(7, 0),
        ablate(0, 0, stack="encoder"),
        ablate(0, 0, cross=True),
        steer(2, torch.zeros(24)),
    ):
        with pytest.raises(sl.RecordError, match="never computed it"):
            logits_with(subject, ids, edits)
        with pytest.raises(sl.RecordError, match="never computed it"):
            trace_of(subject, ids, edits=edits)


def test_wrong_arguments_are_refused_when_the_edit_is_made() -> None:
    for mistake, message in (
        (lambda: ablate(-1, 0), "layer -1 of an edit; expected 0 or more"),
        (lambda: ablate(0, 0, by="median"), "by='median'; expected zero or mean"),  # pyright: ignore[reportArgumentType]
        (
            lambda: replace(0, 0, torch.zeros(1, 2, 3)),
            r"shape \[1, 2, 3\]; expected \[query, value_dim\]",
        ),
        (lambda: steer(0, torch.zeros(1, 2, 3)), r"shape \[1, 2, 3\]; expected \[width\]"),
        (
            lambda: patch(("decoder", 0, "residual"), torch.zeros(2, 3, 4)),
            r"\[2, 3, 4\]; expected \[time, width\]",
        ),
        (
            lambda: patch(("decoder", 0, "heads"), torch.zeros(3)),
            r"\[3\]; expected \[heads, query, value_dim\]",
        ),
        (
            lambda: patch(("decoder", 0, "residual"), torch.zeros(3, 4), head=1),
            "which has no heads",
        ),
        (lambda: patch(("decoder", 0, "mask"), torch.zeros(3, 4)), "no tensor.*mask_cell"),
    ):
        with pytest.raises(sl.InputError, match=message):
            mistake()
    with pytest.raises(sl.RecordError, match="did you mean 'residual'"):
        patch(("decoder", 0, "residul"), torch.zeros(3, 4))


def test_wrong_shapes_are_refused_when_the_edit_fires() -> None:
    subject, ids, _ = tiny("rotary")
    for edits, message in (
        (ablate(0, 4), "head 4; expected 0 to 3"),
        (
            replace(0, 0, torch.zeros(5)),
            r"shape \[5\] for the head's output; expected \[6\]. Fix: take it",
        ),
        (
            replace(0, 0, torch.zeros(9, 6)),
            r"shape \[9, 6\] .*expected \[11, 6\]. Fix: use the same number",
        ),
        (steer(0, torch.zeros(23)), r"shape \[23\] for the residual stream; expected \[24\]"),
        (steer(0, torch.zeros(24), positions=[11]), "position 11; expected 0 to 10"),
        (
            patch(("decoder", 0, "residual"), torch.zeros(9, 24)),
            r"shape \[9, 24\] for residual; expected \[11, 24\]. Fix: .*positions=",
        ),
        (
            patch(("decoder", 0, "residual"), torch.zeros(11, 20), positions=[1]),
            r"\[11, 20\] for residual; expected \[11, 24\]",
        ),
        (
            patch(("decoder", 0, "heads"), torch.zeros(3, 11, 6), head=0),
            r"\[3, 11, 6\] for heads; expected \[4, 11, 6\]",
        ),
        (
            patch(("decoder", 0, "residual"), torch.zeros(9, 24), positions=[9]),
            "position 9; expected 0 to 8",
        ),
        (mask_cell(0, 0, 11, 0), "query 11; expected 0 to 10"),
        (mask_cell(0, 0, 0, 11), "key 11; expected 0 to 10"),
    ):
        with pytest.raises(sl.InputError, match=message):
            logits_with(subject, ids, edits)


def test_the_model_is_left_as_it_was() -> None:
    subject, ids, _ = tiny("rotary")
    before = plain(subject, ids, None)
    logits_with(subject, ids, ablate(0, 0) | steer(1, torch.ones(24)) | mask_cell(1, 1, 5, 2))
    assert torch.equal(before, plain(subject, ids, None))


# ------------------------------------------------------------------ what a trace shows of an edit


def test_a_trace_shows_the_map_that_an_edit_made(tmp_path: Path) -> None:
    subject, ids, _ = tiny("rotary")
    before, after = trace_of(subject, ids), trace_of(subject, ids, edits=mask_cell(1, 2, 5, 3))
    assert float(before.weights(1, 2)[5, 3]) > 0
    assert (
        float(after.weights(1, 2)[5, 3])
        == float(after.weights(1, 2, 5)[3])
        == float(after.weights(1, rows=5)[2, 3])
        == 0
    )
    torch.testing.assert_close(after.weights(1, 2).sum(-1), torch.ones(len(ids)))
    torch.testing.assert_close(after.weights(1, 3), before.weights(1, 3))
    again = sl.Trace.open(after.save(tmp_path / "edited.trace"))
    assert torch.equal(again.weights(1), after.weights(1))
