"""Watching a model changes nothing, and what is seen is what was computed."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.core.attention import attention_weights
from tests.support.tiny import ALL, ENCODER_DECODERS, GENERATORS, distance, inputs, make

SEEN_BESIDE_THE_KERNEL = set(sl.QUANTITIES) - {"weights", "cross_weights"}


@pytest.mark.parametrize("name", ALL)
def test_recording_everything_changes_no_bit(name: str) -> None:
    model, arguments = make(ALL[name]), inputs(ALL[name])
    seen = sl.Recorder(SEEN_BESIDE_THE_KERNEL)
    assert torch.equal(model(**arguments), model(**arguments, record=seen))
    assert torch.equal(model(**arguments), model(**arguments, record=sl.NOTHING))
    assert not seen.equation_layers


@pytest.mark.parametrize("name", ALL)
def test_weights_rebuilt_beside_the_fused_kernel_are_the_equations(name: str) -> None:
    model, arguments = make(ALL[name]), inputs(ALL[name])
    crossed = name in ENCODER_DECODERS
    beside, inside = (
        sl.Recorder(SEEN_BESIDE_THE_KERNEL),
        sl.Recorder({"weights"} | ({"cross_weights"} if crossed else set())),
    )
    fused, slow = model(**arguments, record=beside), model(**arguments, record=inside)
    assert distance(fused, slow) < 1e-5
    stacks = {"encoder": model.encoder, "decoder": model.decoder}
    result = 0
    for (stack, layer, what), weights in inside.kept.items():
        prefix = what.removesuffix("weights")
        query, key, mask, bias = (
            beside[stack, layer, prefix + part] for part in ("query", "key", "mask", "bias")
        )
        block = stacks[stack][layer]
        attention = block.cross_attention if prefix else block.attention
        rebuilt = attention_weights(query, key, attention.scoring(mask, bias))
        assert float((rebuilt - weights).detach().abs().max()) < 1e-5
        result += 1
    assert result == sum(s.layers for s in model.config.stacks.values()) + (
        model.config.decoder.layers if crossed else 0
    )
    assert len(inside.equation_layers) == sum(s.layers for s in model.config.stacks.values())


@pytest.mark.parametrize("name", GENERATORS)
def test_every_quantity_has_the_axes_that_it_states(name: str) -> None:
    model, arguments = make(GENERATORS[name]), inputs(GENERATORS[name])
    seen = sl.Recorder(SEEN_BESIDE_THE_KERNEL)
    model(**arguments, record=seen)
    for (stack, _, what), value in seen.kept.items():
        if isinstance(value, torch.Tensor):
            axes = sl.QUANTITIES[what].axes.split()
            assert value.dim() == len(axes), what
            assert value.shape[0] == 3
            if "width" in axes:
                assert value.shape[-1] == model.config.stacks.get(stack, model.config.last).width
            if "head_dim" in axes:
                assert value.shape[-1] == model.config.stacks[stack].block(0).attention.head_dim


def test_the_stream_is_the_sum_of_what_was_added() -> None:
    model, arguments = make(GENERATORS["layer-pre"]), inputs(GENERATORS["layer-pre"])
    seen = sl.Recorder({"residual", "attention", "feed_forward"})
    model(**arguments, record=seen)
    first, second = seen["decoder", 0, "residual"], seen["decoder", 1, "residual"]
    torch.testing.assert_close(
        first + seen["decoder", 0, "attention"] + seen["decoder", 0, "feed_forward"], second
    )


def test_two_recorders_do_not_meet() -> None:
    model = make(GENERATORS["rotary"])
    one, two = sl.Recorder({"query"}), sl.Recorder({"query"}, layers={1})
    a, b = (
        inputs(GENERATORS["rotary"], seed=5)["tokens"],
        inputs(GENERATORS["rotary"], seed=6)["tokens"],
    )
    model(a, record=one)
    model(b, record=two)
    again = sl.Recorder({"query"})
    model(a, record=again)
    assert torch.equal(one["decoder", 1, "query"], again["decoder", 1, "query"])
    assert set(two.kept) == {("decoder", 1, "query")}


def test_an_edit_is_a_function_of_the_value() -> None:
    model, arguments = make(GENERATORS["rotary"]), inputs(GENERATORS["rotary"])
    ablate = sl.Recorder(
        {"heads"},
        edits={
            ("decoder", 0, "heads"): lambda heads: torch.cat(
                (heads[:, :1] * 0, heads[:, 1:]), dim=1
            )
        },
    )
    edited = model(**arguments, record=ablate)
    ablate.finish()
    assert distance(model(**arguments), edited) > 1e-4
    assert bool((ablate["decoder", 0, "heads"][:, 0] == 0).all())
    same = sl.Recorder(edits={("decoder", 1, "weights"): lambda weights: weights})
    assert distance(model(**arguments), model(**arguments, record=same)) < 1e-5
    assert same.equation_layers == {("decoder", 1)}, (
        "only the edited layer leaves the fused kernel, and the recording says so"
    )


def test_silence_is_not_an_answer() -> None:
    with pytest.raises(sl.RecordError, match=r"nothing named 'qeury'.*did you mean 'query'"):
        sl.Recorder({"qeury"})
    model, arguments = make(GENERATORS["rotary"]), inputs(GENERATORS["rotary"])
    for wrong in (
        sl.Recorder({"cross_query"}),
        sl.Recorder(edits={("decoder", 9, "query"): lambda x: x}),
    ):
        model(**arguments, record=wrong)
        with pytest.raises(sl.RecordError, match="never computed it"):
            wrong.finish()
    with pytest.raises(sl.RecordError, match="was not recorded"):
        sl.Recorder({"query"})["decoder", 0, "query"]
