"""Sizes that no tile fits, and sizes drawn at random, against the NumPy oracle."""

import copy
import functools
import random

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.engine import matrices
from sightline.engine.engine import NativeEngine, Rows
from sightline.kernels import library as kernels
from tests.support import numpy_reference as reference
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
NAMED = {
    "width 20": {"width": 20, "heads": 2, "head_dim": 6},
    "width 13": {"width": 13, "heads": 1, "head_dim": 2},
    "one head": {"width": 64, "heads": 1},
    "head_dim 40": {"width": 80, "heads": 2},
    "head_dim 96": {"width": 96, "heads": 3, "head_dim": 96, "kv_heads": 1},
    "seven to one": {"width": 56, "heads": 7, "kv_heads": 1, "head_dim": 8},
    "fifteen to five": {"width": 60, "heads": 15, "kv_heads": 5},
    "50257 words": {"width": 24, "heads": 2, "vocab_size": 50257},
    "nine words": {"width": 24, "heads": 2, "vocab_size": 9},
    "hidden 1": {"width": 24, "heads": 2, "hidden": 1},
    "hidden 83": {"width": 24, "heads": 2, "hidden": 83},
}
EXACT, MOST = 2e-5, 0.7
# steps of a row's largest weight; float16's are of each weight
STEPS = {"float16": None, "int8": 127, "int8_groups": 127, "int4": 7, "int4_min": 7}
# more than 1, because activations, keys and values are rounded too
TIMES = {"float16": 2.0, "int8": 3.5, "int8_groups": 2.5, "int4": 1.25, "int4_min": 1.25}


def drawn(seed: int) -> dict[str, int]:
    """A shape drawn at random."""
    dice = random.Random(seed)
    kv_heads = dice.randint(1, 3)
    return {
        "width": dice.randint(3, 130),
        "heads": kv_heads * dice.randint(1, 5),
        "kv_heads": kv_heads,
        "head_dim": 2 * dice.randint(1, 50),
        "hidden": dice.randint(1, 300),
        "vocab_size": dice.randint(2, 700),
        "layers": dice.randint(1, 3),
    }


def by_hand(model, tokens: list[int]):
    """A decoder's logits, in float64."""
    state = {name: value.double().numpy() for name, value in model.state_dict().items()}
    return reference.forward(model.config, state, tokens=np.array([tokens]))[0]


def made(shape: dict[str, int], count: int = 19):
    model = tiny.make(sl.llama(**({"layers": 2, "vocab_size": 31, "max_positions": 64} | shape)))
    return model, np.random.default_rng(0).integers(
        model.config.decoder.embedding.vocab_size, size=count
    ).tolist()


def error(result, wanted) -> float:
    return float(np.linalg.norm(result - wanted) / np.linalg.norm(wanted))


def allowed(shape: dict[str, int], precision: matrices.Precision) -> float:
    return (
        EXACT
        if precision == "float32"
        else min(MOST, TIMES[precision] * from_half_a_step(tuple(shape.items()), STEPS[precision]))
    )


@functools.cache
def from_half_a_step(shape: tuple[tuple[str, int], ...], steps: int | None) -> float:
    """The error of the oracle itself, in float64, when each weight is off by up to half a step:
    what rounding costs at these sizes. Some cost much more than others, because a norm makes a
    vector that is nearly 0 as large as all others, with its errors."""
    model, tokens = made(dict(shape))
    wanted, errors = by_hand(model, tokens), []
    for seed in range(3):
        chance, moved = torch.Generator().manual_seed(seed), copy.deepcopy(model)
        for weight in (one.data for one in moved.parameters() if one.ndim == 2):
            step = (
                weight.abs() * 2**-10
                if steps is None
                else weight.abs().amax(1, keepdim=True) / steps
            )
            weight += step * (torch.rand(weight.shape, generator=chance) - 0.5)
        errors.append(error(by_hand(moved, tokens), wanted))
    return float(np.sqrt(np.mean(np.square(errors))))


def check(shape: dict[str, int], precision: matrices.Precision) -> None:
    model, tokens = made(shape)
    engine = NativeEngine.of(model, precision)
    whole = engine.run([Rows(engine.begin(), tokens, len(tokens))])
    assert error(whole.numpy(), by_hand(model, tokens)) < allowed(shape, precision)
    if precision == "float16":
        check_halves(model, tokens)
    stepped = engine.begin()
    assert torch.equal(whole, torch.cat([engine.run([Rows(stepped, [token])]) for token in tokens]))


def check_halves(model, tokens: list[int]) -> None:
    """With keys and values in float32, rounding the weights is all that float16 does."""
    rounded = copy.deepcopy(model)
    for parameter in rounded.parameters():
        if parameter.ndim == 2:
            parameter.data = parameter.data.half().float()
    engine, same = NativeEngine.of(model, "float16", half_cache=False), by_hand(rounded, tokens)
    assert error(engine.run([Rows(engine.begin(), tokens, len(tokens))]).numpy(), same) < EXACT


@pytest.mark.parametrize("precision", matrices.PRECISIONS)
@pytest.mark.parametrize("name", NAMED)
def test_sizes_that_no_tile_fits(name: str, precision: matrices.Precision) -> None:
    check(NAMED[name], precision)


def test_a_vocabulary_of_one() -> None:
    """In float32 alone: a single logit may be nearly 0, and then no error is small beside it."""
    check({"width": 24, "heads": 2, "vocab_size": 1}, "float32")


@pytest.mark.parametrize("precision", matrices.PRECISIONS)
@pytest.mark.parametrize("seed", range(20))
def test_sizes_drawn_at_random(seed: int, precision: matrices.Precision) -> None:
    check(drawn(seed), precision)


@pytest.mark.long
@pytest.mark.parametrize("kind", kernels._native.instruction_sets() if kernels.available() else [])
@pytest.mark.parametrize("seed", range(20, 220))
def test_many_sizes_on_every_kind_of_processor(seed: int, kind: str) -> None:
    before = kernels._native.instruction_set()
    try:
        kernels._native.select_instruction_set(kind)
        for precision in matrices.PRECISIONS:
            check(drawn(seed), precision)
    finally:
        kernels._native.select_instruction_set(before)
