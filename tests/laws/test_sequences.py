"""Cached = whole = chunked; a padded row = the row alone; the future cannot change the past."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from tests.support.pairwise import pairwise
from tests.support.tiny import (
    ALL,
    BATCH,
    DECODERS,
    ENCODER_DECODERS,
    GENERATORS,
    TIME,
    distance,
    inputs,
    left_padding,
    make,
)

CACHES = {
    "growing": sl.Cache.growing,
    "preallocated": lambda config: sl.Cache.preallocated(config, TIME + 3),
    "windowed": sl.Cache.windowed,
}
CUTS = {"steps": list(range(1, TIME)), "chunks": [4, 9], "two": [7]}


def run(
    model: sl.Transformer, arguments: dict[str, torch.Tensor], cuts: list[int], cache: sl.Cache
) -> torch.Tensor:
    """The tokens in pieces; the source only in the first call."""
    outputs, start = [], 0
    for stop in [*cuts, arguments["tokens"].shape[1]]:
        piece = {
            name: x[:, start:stop] for name, x in arguments.items() if name in ("tokens", "padding")
        }
        first = (
            {name: x for name, x in arguments.items() if name.startswith("source")}
            if start == 0
            else {}
        )
        outputs.append(model(**piece, **first, cache=cache))
        start = stop
    return torch.cat(outputs, dim=1)


@pytest.mark.parametrize(
    ("name", "kind", "rows", "cuts"),
    pairwise({"name": GENERATORS, "kind": CACHES, "rows": ("whole", "padded"), "cuts": CUTS}),
)
def test_cached_is_whole(name: str, kind: str, rows: str, cuts: str) -> None:
    model, arguments = make(GENERATORS[name]), inputs(GENERATORS[name])
    padded = rows == "padded"
    if padded:
        arguments["padding"] = left_padding()
        if "source" in arguments:
            arguments["source_padding"] = left_padding(time=arguments["source"].shape[1])
    cache = CACHES[kind](model.config)
    whole = model(**arguments)
    pieces = run(model, arguments, CUTS[cuts], cache)
    real = ~left_padding() if padded else torch.ones(BATCH, TIME, dtype=torch.bool)
    assert distance(whole[real], pieces[real]) < 1e-5
    assert cache.length == TIME
    assert cache.bytes > 0


def test_a_ring_forgets_what_no_window_sees() -> None:
    config = DECODERS["window"]
    model, cache = make(config), sl.Cache.windowed(config)
    for _ in range(20):
        model(torch.zeros(1, 1, dtype=torch.long), cache=cache)
    assert cache.bytes == 2 * config.decoder.layers * 24 * 4 * 4, (
        "2 · layers · width · window · bytes"
    )


@pytest.mark.parametrize("name", ALL)
def test_a_left_padded_row_is_the_row_alone(name: str) -> None:
    model, arguments = make(ALL[name]), inputs(ALL[name])
    padding = left_padding()
    together = model(**arguments, padding=padding)
    for row in range(BATCH):
        real = ~padding[row]
        alone = {key: x[row : row + 1] for key, x in arguments.items()}
        alone["tokens"] = alone["tokens"][:, real]
        expected = model(**alone)[0]
        assert (
            distance(expected, together[row] if together.dim() == 2 else together[row, real]) < 1e-5
        )


@pytest.mark.parametrize("name", ENCODER_DECODERS)
def test_a_padded_source_is_the_source_alone(name: str) -> None:
    model, arguments = make(ENCODER_DECODERS[name]), inputs(ENCODER_DECODERS[name])
    padding = torch.zeros_like(arguments["source"], dtype=torch.bool)
    padding[1, 4:] = True
    together = model(**arguments, source_padding=padding)
    alone = model(arguments["tokens"][1:2], source=arguments["source"][1:2, :4])
    assert distance(alone[0], together[1]) < 1e-5


@pytest.mark.parametrize("kernel", ["equation", "fused"])
@pytest.mark.parametrize("name", GENERATORS)
def test_the_future_cannot_change_the_past_by_one_bit(name: str, kernel: str) -> None:
    model, arguments = make(GENERATORS[name]), inputs(GENERATORS[name])
    before = model(**arguments, kernel=kernel)
    changed = dict(arguments, tokens=arguments["tokens"].clone())
    changed["tokens"][:, 6:] = (changed["tokens"][:, 6:] + 1) % 29
    after = model(**changed, kernel=kernel)
    assert torch.equal(before[:, :6], after[:, :6])
    assert not torch.equal(before[:, 6:], after[:, 6:])


@pytest.mark.parametrize("kind", ["growing", "preallocated"])
def test_tokens_can_be_taken_back(kind: str) -> None:
    config = GENERATORS["t5"]
    model, arguments = make(config), inputs(config)
    cache = CACHES[kind](config)
    model(arguments["tokens"][:, :8], source=arguments["source"], cache=cache)
    cache.truncate(5)
    again = model(arguments["tokens"][:, 5:], cache=cache)
    assert distance(model(**arguments)[:, 5:], again) < 1e-5


def test_an_interrupted_pass_leaves_the_cache_as_it_was() -> None:
    config = DECODERS["rotary"]
    model, tokens = make(config), inputs(config)["tokens"]
    cache = sl.Cache.growing(config)
    model(tokens[:, :5], cache=cache)

    def interrupt(x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        model(
            tokens[:, 5:9],
            cache=cache,
            record=sl.Recorder(edits={("decoder", 1, "residual"): interrupt}),
        )
    assert distance(model(tokens)[:, 5:], model(tokens[:, 5:], cache=cache)) < 1e-5
