"""Packed weights of the native engine: equal to what was packed, or refused. There are checksums,
so nothing else may be accepted."""

from __future__ import annotations

from pathlib import Path

import torch

import sightline as sl
from sightline.engine import store
from sightline.engine.engine import NativeEngine, Rows
from tools.fuzz.outcome import RefusedError, require

KEY = {"files": [], "of": "a sample"}
PROMPT = [1, 5, 2, 7]
CONFIG = sl.llama(width=32, layers=1, heads=2, vocab_size=40, max_positions=16)


def make(place: Path) -> None:
    torch.manual_seed(0)
    model = sl.build(CONFIG).eval()
    for precision in ("float32", "int8", "int4"):
        (place / precision).mkdir()
        store.write(place / precision / "entry", KEY, NativeEngine.of(model, precision))


def read(place: Path) -> store.Entry | None:
    assert CONFIG.decoder is not None
    return store.read(place / "entry", KEY, CONFIG.decoder)


def check(case: Path, sample: Path) -> None:
    try:
        loaded = read(case)
    except store.BrokenError as error:
        raise RefusedError(str(error)) from None
    if loaded is None:
        raise RefusedError("of something else")
    expected = read(sample)
    assert expected is not None
    require(loaded.notes == expected.notes, "other notes")
    require(loaded.engine.half_cache == expected.engine.half_cache, "another cache")
    require(
        loaded.engine.program.operations == expected.engine.program.operations, "another program"
    )
    require(torch.equal(logits(loaded.engine), logits(expected.engine)), "other logits")
    require(all(map(torch.equal, memory(loaded.engine), memory(expected.engine))), "other weights")


def memory(engine: NativeEngine) -> list[torch.Tensor]:
    packed = [part for matrix in engine.packed for part in (matrix.data, matrix.scales)]
    return [
        part.contiguous().view(torch.uint8)
        for part in (*packed, *(tensor.flatten() for tensor in engine.program.tensors))
        if part.numel()
    ]


def logits(engine: NativeEngine) -> torch.Tensor:
    return engine.run([Rows(engine.begin(), PROMPT, len(PROMPT))])
