"""Maps rebuilt beside the fused kernel are the equation's: for every model, mask, batch and cache,
and in any part."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.core import packed_weights as packing
from sightline.core.attention import Scoring
from sightline.core.masks import Mask
from sightline.core.packed_weights import pack
from sightline.core.positions import TensorBias
from sightline.lens.trace import layer as looking
from sightline.lens.trace.layer import (
    HeadBias,
    Look,
    attention_at,
    checked_index,
    checked_rows,
    look_at,
    sites_of,
)
from tests.families.oracle import ours, tokens
from tests.support import (
    decoder_configs,
    encoder_configs,
    encoder_decoder_configs,
    more_decoder_configs,
)
from tests.support.tiny import ALL, ENCODER_DECODERS, inputs, left_padding, make

Q_K_V = {"query", "key", "value", "mask", "bias"}
CASES = (
    decoder_configs.CASES
    | more_decoder_configs.CASES
    | encoder_configs.CASES
    | encoder_decoder_configs.CASES
)
HEADLESS = (
    "bare",
    "sequence",
    "tokens",
    "answers",
    "one number",
    "gelu",
    "relu",
    "epsilon",
    "untied",
    "silu",
    "activation",
)
FAMILIES = {
    name: case for name, case in CASES.items() if not any(word in name for word in HEADLESS)
}  # attention is the same in those
pytestmark = pytest.mark.usefixtures(
    "as_users_run_it"
)  # the shapes are checked elsewhere; here they would take half of the time
NEAR = 1e-5


def names_of(model: sl.Transformer) -> set[str]:
    crossed = any(cross for _, _, cross in sites_of(model))
    return Q_K_V | ({"cross_" + name for name in Q_K_V} if crossed else set())


@torch.no_grad()
def looks(model: sl.Transformer, **arguments: Any) -> dict[Any, Look]:
    """Every layer of one fused pass."""
    seen = sl.Recorder(names_of(model))
    model.hidden(**arguments, record=seen)
    seen.finish()
    assert not seen.equation_layers
    return {site: look_at(seen, model, site) for site in sites_of(model)}


@torch.no_grad()
def equations(model: sl.Transformer, **arguments: Any) -> dict[Any, torch.Tensor]:
    """The weights that the equation kernel itself used."""
    crossed = any(cross for _, _, cross in sites_of(model))
    seen = sl.Recorder({"weights"} | ({"cross_weights"} if crossed else set()))
    model.hidden(**arguments, record=seen)
    assert seen.equation_layers
    return {
        (stack, layer, cross): seen[stack, layer, "cross_weights" if cross else "weights"]
        for stack, layer, cross in sites_of(model)
    }


def equal(result: dict[Any, Look], expected: dict[Any, torch.Tensor]) -> None:
    assert result.keys() == expected.keys()
    for site, look in result.items():
        for text in range(expected[site].shape[0]):
            assert float((look.of(text).weights() - expected[site][text]).abs().max()) < NEAR, (
                site,
                text,
            )


def paddings(name: str) -> Iterator[dict[str, torch.Tensor]]:
    yield {}
    yield {"padding": left_padding()}
    if name in ENCODER_DECODERS:
        padding = torch.zeros(3, 7, dtype=torch.bool)
        padding[1, 4:] = True
        yield {"source_padding": padding, "padding": left_padding().flip(1)}


@pytest.mark.parametrize("name", ALL)
def test_weights_are_the_equations_in_batches_padded_or_not(name: str) -> None:
    model, arguments = make(ALL[name]), inputs(ALL[name])
    for padding in paddings(name):
        equal(looks(model, **arguments, **padding), equations(model, **arguments, **padding))


@pytest.mark.parametrize("name", FAMILIES)
def test_weights_are_the_equations_for_every_family(name: str) -> None:
    theirs, changes = encoder_decoder_configs.example(*FAMILIES[name])
    model = ours(theirs, **changes).transformer
    both = model.config.encoder is not None and model.config.decoder is not None
    arguments = {"tokens": tokens(model.config.last.embedding.vocab_size)} | (
        {"source": tokens(40, 9, seed=2)} if both else {}
    )
    padding = torch.zeros(2, 12, dtype=torch.bool)
    padding[1, 8:] = True
    for stated in ({}, {"padding": padding}):
        equal(looks(model, **arguments, **stated), equations(model, **arguments, **stated))


@pytest.mark.parametrize(
    "name",
    [
        "gpt2",
        "llama",
        "mistral",
        "gemma2",
        "bloom",
        "neox",
        "bert",
        "modernbert",
        "t5",
        "bart",
        "marian",
    ],
)
def test_weights_are_what_transformers_shows(name: str) -> None:
    """An oracle that shares no line with us: eager attention with `output_attentions`."""
    theirs, _ = encoder_decoder_configs.example(*CASES[name])
    model, ids, source = ours(theirs).transformer, tokens(40)[:1], tokens(40, 9, seed=2)[:1]
    both = model.config.encoder is not None and model.config.decoder is not None
    stated = {"input_ids": source, "decoder_input_ids": ids} if both else {"input_ids": ids}
    with torch.no_grad():
        maps = theirs(**stated, output_attentions=True)
    for (stack, layer, cross), look in looks(
        model, tokens=ids, **({"source": source} if both else {})
    ).items():
        kind = "cross_attentions" if cross else f"{stack}_attentions" if both else "attentions"
        assert float((look.weights() - getattr(maps, kind)[layer][0]).abs().max()) < 1e-4


@pytest.mark.parametrize("positions", ["none", "learned", "rotary", "alibi", "relative"])
@pytest.mark.parametrize("maker", [sl.gpt, sl.bert])
def test_documents_that_share_a_row_stay_apart(maker: Any, positions: str) -> None:
    model = make(
        maker(width=24, layers=2, heads=4, vocab_size=29, max_positions=48, positions=positions)
    )
    row, documents = (
        inputs(model.config, batch=2)["tokens"],
        torch.tensor([[0] * 4 + [1] * 7, [0] * 9 + [1] * 2]),
    )
    result = looks(model, tokens=row, documents=documents)
    equal(result, equations(model, tokens=row, documents=documents))
    whole = result[sites_of(model)[0]].of(0).weights()
    assert bool((whole[:, 4:, :4] == 0).all())
    alone = looks(model, tokens=row[:1, 4:])
    for site, look in result.items():
        torch.testing.assert_close(
            look.of(0).weights()[:, 4:, 4:], alone[site].weights(), atol=NEAR, rtol=0
        )


CACHES = {
    "growing": sl.Cache.growing,
    "preallocated": lambda config: sl.Cache.preallocated(config, 20),
    "ring": sl.Cache.windowed,
    "quantised": sl.Cache.quantised,
}


@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize(
    "name",
    [
        "learned",
        "alibi",
        "window",
        "window-alternating",
        "sinks",
        "soft-cap",
        "relative",
        "t5",
        "ngpt-grouped",
    ],
)
def test_weights_are_the_equations_with_a_cache(name: str, kind: str) -> None:
    model, arguments = make(ALL[name]), inputs(ALL[name])
    source = {"source": arguments["source"]} if "source" in arguments else {}
    caches = [CACHES[kind](model.config) for _ in range(2)]
    pieces = arguments["tokens"].split([5, 1, 3, 1, 1], dim=1)
    for n, piece in enumerate(pieces):
        stated = {"tokens": piece} | (source if n == 0 else {})
        recorders = [
            sl.Recorder(names_of(model)),
            sl.Recorder({"weights"} | ({"cross_weights"} if source else set())),
        ]
        with torch.no_grad():
            for cache, recorder in zip(caches, recorders, strict=True):
                model.hidden(**stated, cache=cache, record=recorder)
        for (stack, layer, what), weights in recorders[1].kept.items():
            look = look_at(recorders[0], model, (stack, layer, what != "weights"))
            for text in range(3):
                assert float((look.of(text).weights() - weights[text]).abs().max()) < NEAR


def test_the_packed_copy_is_traced_as_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SMALLEST", 1)
    for name in ("grouped", "t5", "bert", "sinks"):
        model, arguments = make(ALL[name]), inputs(ALL[name], batch=1)
        fast = pack(model)
        assert any(isinstance(part, packing.PackedLinear) for part in fast.modules())
        equal(looks(fast, **arguments), equations(fast, **arguments))
        for site, look in looks(model, **arguments).items():
            torch.testing.assert_close(
                look.weights(), looks(fast, **arguments)[site].weights(), atol=NEAR, rtol=0
            )


PARTS: dict[str, Any] = {
    "one": 3,
    "the last": -1,
    "some": slice(2, 6),
    "from the end": slice(-3, None),
    "backwards": slice(None, None, -2),
    "past the end": slice(5, 99),
    "out of order and twice": [5, 0, 1, 2, 2, -1, 6],
    "none": [],
    "an array": np.array([4, 5, 1]),
    "a number of an array": np.int64(6),
    "a tensor": torch.tensor([4, 5, 1]),
    "a number of a tensor": torch.tensor(6),
}


@pytest.mark.parametrize("tile", [60, looking.TILE])
@pytest.mark.parametrize(
    "name", ["grouped", "alibi-grouped", "sinks", "soft-cap", "window", "t5", "bert-relative"]
)
def test_a_head_and_some_rows_are_parts_of_the_whole(
    name: str, tile: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, arguments = make(ALL[name]), inputs(ALL[name], batch=1)
    result = looks(model, **arguments)
    whole = {site: (look.weights(), look.scores()) for site, look in result.items()}
    monkeypatch.setattr(looking, "TILE", tile)
    for site, look in result.items():
        for kind, expected in zip((look.weights, look.scores), whole[site], strict=True):
            np.testing.assert_allclose(kind(), expected, atol=1e-6)
            for head in (0, look.heads - 1, -2):
                np.testing.assert_allclose(kind(head=head), expected[head], atol=1e-6)
            for rows in PARTS.values():
                plain = rows.numpy() if isinstance(rows, torch.Tensor) else rows
                picked = np.arange(look.queries)[
                    rows if isinstance(rows, slice) else np.array(plain, dtype=int)
                ]
                np.testing.assert_allclose(kind(rows=rows), expected.numpy()[:, picked], atol=1e-6)
                np.testing.assert_allclose(kind(1, rows), expected.numpy()[1][picked], atol=1e-6)


def test_bands_are_no_larger_than_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    look = looks(make(ALL["rotary"]), tokens=inputs(ALL["rotary"], batch=1)["tokens"])[
        "decoder", 0, False
    ]
    monkeypatch.setattr(looking, "TILE", 3 * 4 * 11)
    assert look.bands(range(11)) == [slice(0, 3), slice(3, 6), slice(6, 9), slice(9, 11)]
    assert look.only(1).bands(range(11)) == [slice(0, 11)]
    assert look.bands([5, 6, 2, 2, 3]) == [slice(5, 7), slice(2, 3), slice(2, 4)]


@pytest.mark.parametrize(
    "name", ["grouped", "value-dim", "sinks", "alibi", "bert", "t5", "transformer-rotary", "ngpt"]
)
def test_weights_times_values_through_the_output_is_what_attention_added(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looking, "TILE", 100)
    model, arguments = make(ALL[name]), inputs(ALL[name], batch=1)
    crossed = any(cross for _, _, cross in sites_of(model))
    seen = sl.Recorder(
        names_of(model) | {"heads", "attention"} | ({"cross_heads"} if crossed else set())
    )
    with torch.no_grad():
        model(**arguments, record=seen)
        for site in sites_of(model):
            look, part = look_at(seen, model, site), attention_at(model, site)
            by_hand = torch.einsum(
                "hqk,hkd->hqd",
                look.weights(),
                look.value[0].repeat_interleave(look.heads // look.key.shape[1], 0),
            )
            torch.testing.assert_close(look.mixed(), by_hand, atol=NEAR, rtol=NEAR)
            torch.testing.assert_close(look.mixed(head=1), by_hand[1], atol=NEAR, rtol=NEAR)
            torch.testing.assert_close(
                by_hand,
                seen[site[0], site[1], "cross_heads" if site[2] else "heads"][0],
                atol=NEAR,
                rtol=NEAR,
            )
            if not site[2] and name in (
                "grouped",
                "value-dim",
                "sinks",
            ):  # pre-norm: nothing stands between W_O and the stream
                added = part.output(by_hand.transpose(0, 1).flatten(1))
                torch.testing.assert_close(
                    added, seen[site[0], site[1], "attention"][0], atol=NEAR, rtol=NEAR
                )


def test_scores_are_the_formula_by_hand() -> None:
    model = make(ALL["alibi-grouped"])
    look = looks(model, tokens=inputs(model.config, batch=1)["tokens"])["decoder", 1, False]
    slopes = [2 ** (-2 * h) for h in range(1, 5)] + [2**-1, 2**-3]
    for head in range(6):
        q, k = (
            look.query[0, head].numpy().astype(np.float64),
            look.key[0, head // 3].numpy().astype(np.float64),
        )
        at = np.arange(11)
        far = at[:, None] - at[None]
        scores = np.where(
            (far < 0) | (far >= 6), -np.inf, q @ k.T / np.sqrt(4) - slopes[head] * np.abs(far)
        )
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        np.testing.assert_allclose(look.scores(head).numpy(), scores, atol=1e-5)
        np.testing.assert_allclose(
            look.weights(head).numpy(), weights / weights.sum(-1, keepdims=True), atol=1e-6
        )


def test_a_given_bias_may_hide_keys_and_belongs_to_its_head() -> None:
    values = torch.randn(1, 4, 5, 5)
    values[0, 2, :, 1] = -torch.inf
    query, key = torch.randn(1, 4, 5, 6), torch.randn(1, 2, 5, 6)
    at = torch.arange(5)[None]
    look = Look(
        ("decoder", 0, False),
        query,
        key,
        None,
        Scoring(Mask(at, at, causal=True), 0.4, TensorBias(values)),
    )
    assert isinstance(look.only(2).scoring.bias, HeadBias)
    torch.testing.assert_close(look.weights(2), look.weights()[2])
    assert bool((look.weights(2)[:, 1] == 0).all())
    one = Look(look.site, query, key, None, Scoring(Mask(at, at), 0.4, TensorBias(values[:, :1])))
    torch.testing.assert_close(one.weights(3), one.weights()[3])


def test_a_map_is_plain_to_use() -> None:
    """For NumPy, for a plot, for a gradient later: no graph, no inference tensor, even where a
    parameter is in the formula."""
    for name in ("sinks", "relative", "t5"):
        model, arguments = make(ALL[name]), inputs(ALL[name], batch=1)
        model.requires_grad_(True)
        for look in looks(model, **arguments).values():
            for result in (look.weights(), look.scores(0), look.mixed()):
                assert not result.requires_grad
                assert not result.is_inference()
                assert isinstance(result.numpy(), np.ndarray)


def test_training_later_changes_no_look() -> None:
    for name in ("sinks", "relative"):
        model, arguments = make(ALL[name]), inputs(ALL[name], batch=1)
        look = looks(model, **arguments)["decoder", 1, False]
        before = look.weights()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        assert torch.equal(look.weights(), before)


@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float64, torch.float64)]
)
def test_other_precisions(dtype: torch.dtype, wide: torch.dtype) -> None:
    model = make(ALL["rotary"]).to(dtype)
    result, expected = (
        looks(model, **inputs(ALL["rotary"])),
        equations(model, **inputs(ALL["rotary"])),
    )
    assert result["decoder", 0, False].of(0).weights().dtype == wide
    first = (
        "decoder",
        0,
        False,
    )  # in bfloat16 the kernels differ, and with them what the next layer reads
    equal({first: result[first]}, {first: expected[first].to(wide)})


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda look: look.weights(head=4), r"head 4; expected 0 to 3. Fix: head=3 is the last"),
        (lambda look: look.weights(head=-5), r"head -5; expected 0 to 3"),
        (lambda look: look.weights(head=True), r"head True; expected 0 to 3"),
        (lambda look: look.weights(head=1.0), r"head 1\.0; expected 0 to 3"),
        (lambda look: look.weights(head="1"), r"head '1'; expected 0 to 3"),
        (lambda look: look.weights(rows=11), r"row 11; expected 0 to 10"),
        (lambda look: look.weights(rows=[0, 99]), r"row 99; expected 0 to 10"),
        (lambda look: look.weights(rows=True), r"row True; expected"),
        (lambda look: look.weights(rows=2.5), r"rows 2\.5; expected a number, a slice or a list"),
        (lambda look: look.weights(rows="all"), r"rows 'all'; expected a number"),
        (
            lambda look: look.weights(rows=slice(0, 1.5)),
            r"rows slice\(0, 1\.5, None\); expected a slice of integers",
        ),
        (
            lambda look: look.weights(rows=slice(0, 5, 0)),
            r"rows slice\(0, 5, 0\); expected a slice",
        ),
        (lambda look: look.of(1), r"text 1; expected 0 to 0"),
        (
            lambda look: looking.replace(look, value=None).mixed(),
            r"a trace without values.*Fix: trace again and keep the values",
        ),
    ],
)
def test_what_is_not_there_is_refused_in_one_line(ask: Any, words: str) -> None:
    look = looks(make(ALL["rotary"]), tokens=inputs(ALL["rotary"], batch=1)["tokens"])[
        "decoder", 0, False
    ]
    with pytest.raises(sl.InputError, match=words) as refusal:
        ask(look)
    assert "\n" not in str(refusal.value)


def test_numbers_and_sites_that_there_are() -> None:
    assert sites_of(make(ALL["t5"])) == [
        *(("encoder", layer, False) for layer in range(2)),
        *(("decoder", layer, cross) for layer in range(2) for cross in (False, True)),
    ]
    assert [checked_index("layer", number, 5) for number in (0, 4, -1, -5, np.int32(2))] == [
        0,
        4,
        4,
        0,
        2,
    ]
    assert list(checked_rows(None, 3)) == [0, 1, 2]
    assert list(checked_rows(range(1, 3), 5)) == [1, 2]
