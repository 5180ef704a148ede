"""Lengths and angles of whole models: they multiply back to the scores, and say what they should of
models that are all direction."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from sightline.core.cache.kv_cache import Cache
from sightline.lens.geometry.decompose import (
    Shares,
    geometry_by_layer,
    geometry_of,
    measure_head,
    shares_sentence,
    site_name,
)
from sightline.lens.trace.layer import look_at
from sightline.lens.trace.trace import Trace, trace_of
from tests.support.tiny import ALL, ENCODER_DECODERS, SIZE, inputs, make


def traced(
    config: sl.ModelConfig, model: sl.Transformer | None = None, ids: list[int] | None = None
) -> Trace:
    arguments = inputs(config, batch=1)
    source = arguments["source"][0].tolist() if "source" in arguments else None
    model = make(config) if model is None else model
    return trace_of(
        SimpleNamespace(transformer=model, tokenizer=None, name="tiny"),
        ids or arguments["tokens"][0].tolist(),
        source=source,
    )


@pytest.mark.parametrize("name", ALL)
def test_the_parts_multiply_back_to_the_scores(name: str) -> None:
    trace = traced(ALL[name])
    for stack, layer, cross in trace.looks:
        look = trace.looks[stack, layer, cross]
        for head in (0, look.heads - 1):
            result, scores = (
                geometry_of(trace, layer, head, stack=stack, cross=cross),
                look.scores(head),
            )
            torch.testing.assert_close(result.scores(), scores, atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(result.scores(centred=True), scores, atol=1e-5, rtol=1e-5)
            assert torch.equal(result.allowed, scores.isfinite())


@pytest.mark.parametrize("name", ["grouped", "soft-cap", "alibi", "bert", "transformer"])
def test_lengths_and_angles_one_pair_at_a_time(name: str) -> None:
    trace = traced(ALL[name])
    look, result = trace.look(1), geometry_of(trace, 1, 3)
    query, key = look.query[0, 3].double().numpy(), look.keys[0, 3].double().numpy()
    for i, q in enumerate(query):
        assert float(result.query_length[i]) == pytest.approx(
            math.sqrt(sum(x * x for x in q)), rel=1e-5
        )
        for j, k in enumerate(key):
            dot, norms = (
                sum(a * b for a, b in zip(q, k, strict=True)),
                math.sqrt(sum(x * x for x in q) * sum(x * x for x in k)),
            )
            assert float(result.cosine[i, j]) == pytest.approx(dot / norms, abs=1e-6)
            assert float(result.products()[i, j]) == pytest.approx(dot * result.scale, abs=1e-5)
    assert (result.bias is not None) == (name == "alibi")
    assert (result.softcap is not None) == (name == "soft-cap")


@pytest.mark.parametrize("name", ["cosine", "cosine-fixed"])
def test_in_cosine_attention_all_is_direction(name: str) -> None:
    trace = traced(ALL[name])
    for layer in range(2):
        for head in range(4):
            result = trace.geometry(layer, head)
            torch.testing.assert_close(result.key_length, torch.ones(11))
            assert result.on_sphere
            assert result.shares == result.raw.shares
            assert result.length == pytest.approx(0, abs=1e-5)
            assert result.shares.norms_equalised == pytest.approx(0, abs=1e-9)
            assert result.shares.attention_length == pytest.approx(0, abs=1e-5)
            assert geometry_by_layer(trace)[layer].shares.length == pytest.approx(0, abs=1e-5)
            assert result.line().startswith(
                f"In layer {layer}, head {head}, lengths from zero: direction explains 100% of"
                " the score variance, length 0%; from the mean key: "
            )


def fresh(config: sl.ModelConfig) -> sl.Transformer:
    torch.manual_seed(0)
    model = sl.build(config)
    model.normalize_weights()
    return model.eval()


def train_to_repeat(model: sl.Transformer, steps: int) -> float:
    """Random tokens twice: the second half can be known."""
    torch.manual_seed(1)
    optimizer, loss = torch.optim.Adam(model.parameters(), lr=0.01), torch.tensor(0.0)
    for _ in range(steps):
        half = torch.randint(0, 29, (16, 8))
        tokens = torch.cat((half, half), dim=1)
        loss = F.cross_entropy(model(tokens)[:, 8:-1].flatten(0, 1), tokens[:, 9:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.normalize_weights()
    return float(loss.detach())


def test_in_ngpt_all_is_direction_until_training_moves_s_qk() -> None:
    config = sl.ngpt(**SIZE)
    model = fresh(config)
    before = [
        traced(config, model).geometry(layer, head) for layer in range(2) for head in range(4)
    ]
    assert all(result.on_sphere for result in before)
    assert all(result.length == pytest.approx(0, abs=1e-5) for result in before)
    assert train_to_repeat(model, 200) < 1
    after = [
        traced(config, model.eval()).geometry(layer, head)
        for layer in range(2)
        for head in range(4)
    ]
    assert not any(result.on_sphere for result in after), (
        "s_qk has moved: it is learned per dimension"
    )
    raw = [result.raw.shares.length for result in after]
    assert 1e-4 < max(abs(share) for share in raw) < 0.1, (
        "keys differ in length by s_qk alone, and little of the choice is length"
    )


def test_a_dot_product_model_uses_length() -> None:
    config = ALL["rotary"]
    assert max(abs(traced(config).geometry(1, head).raw.shares.length) for head in range(4)) > 0.02


@pytest.mark.parametrize("name", ["rotary", "bert", "transformer", "sinks"])
def test_the_summary_is_the_mean_over_heads(name: str) -> None:
    trace = traced(ALL[name])
    result = geometry_by_layer(trace)
    assert [layer.site for layer in result] == list(trace.looks)
    for layer in result:
        stack, number, cross = layer.site
        heads = [trace.geometry(number, head, stack=stack, cross=cross) for head in range(4)]
        assert layer.query_length == pytest.approx(
            sum(float(head.query_length.mean()) for head in heads) / 4
        )
        assert layer.key_length == pytest.approx(
            sum(float(head.key_length.mean()) for head in heads) / 4
        )
        seen = [float(head.cosine[head.allowed].mean()) for head in heads]
        assert layer.cosine == pytest.approx(sum(seen) / 4)
        for part in (
            "direction",
            "length",
            "attention_direction",
            "norms_equalised",
            "angles_flattened",
        ):
            assert getattr(layer.raw, part) == pytest.approx(
                sum(getattr(head.raw.shares, part) for head in heads) / 4
            )
            assert getattr(layer.shares, part) == getattr(layer.centred, part)
            assert getattr(layer.centred, part) == pytest.approx(
                sum(getattr(head.centred.shares, part) for head in heads) / 4
            )


def test_one_head_at_a_time_is_in_memory() -> None:
    """No tensor of a geometry has an axis of heads, and the maps are float32."""
    result = traced(ALL["rotary"]).geometry(0, 0)
    for x in (result.cosine, result.centred.cosine, result.centred.key_length):
        assert x.shape == (11, 11)
        assert x.dtype == torch.float32
    assert result.raw.key_length.shape == (1, 11)


def test_long_texts_are_measured_in_bands(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = traced(ALL["alibi-grouped"]).geometry(1, 5)
    monkeypatch.setattr(
        "sightline.lens.geometry.decompose.PAIRS_PER_BAND", 40
    )  # three rows of eleven keys
    banded = traced(ALL["alibi-grouped"]).geometry(1, 5)
    torch.testing.assert_close(banded.scores(), at_once.scores())
    assert banded.bias is not None
    assert banded.bias.shape == (11, 11)
    assert banded.shares.direction == pytest.approx(at_once.shares.direction)


def test_a_trace_of_some_rows_is_measured() -> None:
    """While a text is written a pass has few queries and many keys."""
    model = make(ALL["rotary"])
    look = traced(ALL["rotary"], model).look(1)
    last = sl.Recorder({"query", "key", "mask", "bias"})
    cache, tokens = Cache.growing(model.config), inputs(ALL["rotary"], batch=1)["tokens"]
    model(tokens[:, :-1], cache=cache)
    model(tokens[:, -1:], cache=cache, record=last)
    short, long = (
        measure_head(look_at(last, model, ("decoder", 1, False)), 2),
        measure_head(look, 2),
    )
    torch.testing.assert_close(short.scores()[0], long.scores()[-1], atol=1e-5, rtol=1e-5)
    assert float(short.centred.rows.direction[0]) == pytest.approx(
        float(long.centred.rows.direction[-1]), rel=1e-3
    )


@pytest.mark.parametrize("name", ["none", "rotary"])
def test_one_token_has_nothing_to_tell_apart(name: str) -> None:
    trace = traced(ALL[name], ids=[3])
    assert (
        trace.geometry(0, 1).line()
        == "In layer 0, head 1, no query sees two keys that differ, so there is nothing to decompose."
    )
    assert math.isnan(geometry_by_layer(trace)[0].centred.direction)


def test_equal_tokens_without_positions_have_nothing_to_tell_apart() -> None:
    assert math.isnan(traced(ALL["none"], ids=[3] * 9).geometry(1, 0).direction)


def shares(direction: float) -> Shares:
    return Shares(direction, 1 - direction, direction, 1 - direction, 0.1, 0.2)


def test_the_sentence() -> None:
    assert (
        shares_sentence(shares(0.834)) == "direction explains 83% of the score variance, length 17%"
    )
    assert (
        shares_sentence(shares(1.0)) == "direction explains 100% of the score variance, length 0%"
    )
    assert (
        shares_sentence(shares(1.12))
        == "direction explains 112% of the score variance, and length opposes it (−12%)"
    )
    assert (
        shares_sentence(shares(-0.3))
        == "length explains 130% of the score variance, and direction opposes it (−30%)"
    )
    assert site_name(("decoder", 5, False), multiple_stacks=False) == "layer 5"
    assert site_name(("encoder", 5, False), multiple_stacks=True) == "the encoder's layer 5"
    assert (
        site_name(("decoder", 5, True), multiple_stacks=True)
        == "the decoder's layer 5, cross-attention"
    )


def test_the_line_names_the_place() -> None:
    assert traced(ALL["rotary"]).geometry(-1, -2).line().startswith("In layer 1, head 2, ")
    line = traced(ENCODER_DECODERS["transformer"]).geometry(0, 1, cross=True).line()
    assert line.startswith("In the decoder's layer 0, cross-attention, head 1, ")


def test_bad_places_list_the_valid_ones() -> None:
    trace = traced(ALL["rotary"])
    with pytest.raises(sl.InputError, match=r"head 4; expected 0 to 3\. Fix: head=3 is the last"):
        trace.geometry(0, 4)
    with pytest.raises(sl.InputError, match=r"layer 2; expected 0 to 1"):
        trace.geometry(2, 0)
    with pytest.raises(sl.InputError, match="has no cross-attention"):
        trace.geometry(0, 0, cross=True)


# ---------------------------------------------------------------------------- origin and first token


def test_the_origin_is_a_choice() -> None:
    trace = traced(ALL["rotary"])
    usual, zero = trace.geometry(1, 2), trace.geometry(1, 2, origin="zero")
    assert usual.origin == "mean"
    assert usual.shares == trace.geometry(1, 2, origin="mean").shares == zero.centred.shares
    assert zero.shares == zero.raw.shares != usual.shares
    assert "lengths from zero: " in zero.line()
    assert "; from the mean key: " in zero.line()
    assert "lengths from the mean key: " in usual.line()
    assert repr(zero).endswith("from zero, 11 queries × 11 keys>")
    by_layer = geometry_by_layer(trace, origin="zero")[1]
    assert by_layer.shares == by_layer.raw
    with pytest.raises(sl.InputError, match=r"origin='middle'; expected mean or zero"):
        trace.geometry(1, 2, origin="middle")  # pyright: ignore[reportArgumentType]


def test_on_a_sphere_the_mean_can_be_chosen_too() -> None:
    trace = traced(ALL["cosine"])
    assert trace.geometry(1, 0).origin == "zero"
    assert abs(trace.geometry(1, 0, origin="mean").length) > 1e-4


@pytest.mark.parametrize("name", ["rotary", "grouped", "bert", "sinks", "soft-cap"])
def test_without_the_first_token_is_as_if_it_were_masked(name: str) -> None:
    """A model of the remaining keys: the same keys, of which the first is cut off."""
    trace = traced(ALL[name])
    look = trace.look(1)
    result = trace.geometry(1, 1, sink=False)
    assert not bool(result.allowed[:, 0].any())
    assert "without the first token" in result.line()
    key = look.keys[0, 1, 1:].double()
    for row in range(3, look.queries):
        seen = result.allowed[row, 1:]
        lengths = (key[seen] - key[seen].mean(0)).norm(dim=-1)
        torch.testing.assert_close(
            result.centred.key_length[row, 1:][seen], lengths.float(), atol=1e-5, rtol=1e-4
        )
    assert result.shares != trace.geometry(1, 1).shares
