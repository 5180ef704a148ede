"""Encoders and encoder–decoders on the engine, against core."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sightline.engine import matrices
from sightline.engine.encoder import NativeEncoder, groups
from sightline.engine.encoder_runners import PairCache, encoder_runner, pair_runner
from sightline.engine.matrices import Precision
from sightline.generation.beam import search
from sightline.kernels import library as kernels
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
READERS = {
    name: config
    for name, config in (tiny.ENCODERS | tiny.CLASSIFIERS).items()
    if config.decoder is None
}
ERRORS = {
    "float32": 1e-5,
    "float16": 5e-3,
    "int8": 0.15,
    "int8_groups": 0.1,
    "int4": 0.6,
    "int4_min": 0.6,
}  # of tiny models with random weights


def off(ours: Tensor, theirs: Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm())


def right_padding(tokens: Tensor) -> Tensor:
    return (
        torch.arange(tokens.shape[1])[None]
        >= tokens.shape[1] - 2 * torch.arange(len(tokens))[:, None]
    )


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", READERS)
@torch.no_grad()
def test_an_encoder_in_float32_is_core(name: str, padded: bool) -> None:
    model = tiny.make(READERS[name])
    tokens = tiny.inputs(model.config)["tokens"]
    padding = right_padding(tokens) if padded else None
    twin = encoder_runner(model)
    ours, theirs = twin.hidden(tokens, padding=padding), model.hidden(tokens, padding=padding)
    real = torch.ones_like(tokens, dtype=torch.bool) if padding is None else ~padding
    assert float((ours[real] - theirs[real]).abs().max()) < 1e-4
    assert not ours[~real].any()
    headed = [twin.head(ours, padding=padding), model(tokens, padding=padding)]
    assert tiny.distance(*(one[real] if one.dim() == 3 else one for one in headed)) < 1e-4


@pytest.mark.parametrize("precision", matrices.PRECISIONS)
@torch.no_grad()
def test_a_sentence_is_the_same_alone_and_in_a_batch(precision: Precision) -> None:
    model = tiny.make(tiny.ENCODERS["bert-rotary-window"])
    encoder = NativeEncoder.of(model, precision)
    x = torch.randn(60, model.config.last.width, generator=torch.Generator().manual_seed(0))
    lengths = [1, 7, 32, 3, 17]
    together, start = encoder.run(x, lengths), 0
    for length in lengths:
        assert torch.equal(
            encoder.run(x[start : start + length], [length]), together[start : start + length]
        )
        start += length
    assert encoder.engine.cache_bytes == 0


@pytest.mark.parametrize("precision", matrices.PRECISIONS)
@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
@torch.no_grad()
def test_a_pair_is_core_and_steps_change_no_bit(name: str, precision: Precision) -> None:
    model = tiny.make(tiny.ENCODER_DECODERS[name])
    given, twin = tiny.inputs(model.config), pair_runner(model, precision)
    tokens, source = given["tokens"], given["source"]
    padding, cache = right_padding(source), twin.new_cache()
    whole = twin.head(twin.hidden(tokens, source=source, source_padding=padding, cache=cache))
    assert off(whole, model(tokens, source=source, source_padding=padding)) < ERRORS[precision]
    steps, result = twin.new_cache(), list[Tensor]()
    for n in range(tokens.shape[1]):
        first = {"source": source, "source_padding": padding} if n == 0 else {}
        result.append(twin.head(twin.hidden(tokens[:, n : n + 1], **first, cache=steps)))
    assert torch.equal(torch.cat(result, dim=1), whole)
    alone = twin.head(
        twin.hidden(
            tokens[1:], source=source[1:], source_padding=padding[1:], cache=twin.new_cache()
        )
    )
    assert torch.equal(alone, whole[1:])


@pytest.mark.parametrize("name", tiny.ENCODER_DECODERS)
def test_beams_are_those_of_core(name: str) -> None:
    model = tiny.make(tiny.ENCODER_DECODERS[name])
    source, start = tiny.inputs(model.config)["source"], torch.tensor([[1], [1]])
    twin = pair_runner(model)
    asked = {"beams": 3, "max_tokens": 8, "end": (0,), "count": 3}
    ours, theirs = (search(one, start, source=source[:2], **asked) for one in (twin, model))
    assert [[path.tokens for path in row] for row in ours] == [
        [path.tokens for path in row] for row in theirs
    ]
    assert twin.engine.cache_bytes == twin.native.engine.cache_bytes == 0


@torch.no_grad()
def test_sources_are_given_back() -> None:
    model = tiny.make(tiny.ENCODER_DECODERS["t5"])
    twin, given = pair_runner(model), tiny.inputs(model.config)
    cache = twin.new_cache()
    assert isinstance(cache, PairCache)
    twin.hidden(given["tokens"], source=given["source"], cache=cache)
    assert twin.native.engine.cache_bytes > 0
    cache.reorder(torch.tensor([0, 0, 1]))
    assert [cache.sources[0]] * 2 == cache.sources[:2]
    cache.close()
    assert twin.native.engine.cache_bytes == twin.engine.cache_bytes == 0


def test_groups_of_sentences() -> None:
    assert groups([2000, 40, 9, 3000, 1]) == [[2000, 40], [9], [3000], [1]]
    assert [length for group in groups(list(range(1, 200))) for length in group] == list(
        range(1, 200)
    )
