"""llama2.c's files: the values after the header, without the rotary tables, in any order."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np

from sightline.checkpoints.formats import llama2c
from tools.fuzz.formats.tensors import read_all
from tools.fuzz.outcome import require

WIDTH = 16
HIDDEN = 24
LAYERS = 2
HEADS = 4
KV_HEADS = 2
VOCABULARY = 40
POSITIONS = 8
START = 28


def make(place: Path) -> None:
    layer = (
        WIDTH
        + 2 * WIDTH * WIDTH
        + 2 * WIDTH * (WIDTH * KV_HEADS // HEADS)
        + WIDTH
        + 3 * WIDTH * HIDDEN
    )
    numbers = VOCABULARY * WIDTH + LAYERS * layer + WIDTH + POSITIONS * WIDTH // HEADS
    generator = np.random.default_rng(0)
    for name, tied in (("tied", True), ("untied", False)):
        header = struct.pack(
            "<7i",
            WIDTH,
            HIDDEN,
            LAYERS,
            HEADS,
            KV_HEADS,
            VOCABULARY if tied else -VOCABULARY,
            POSITIONS,
        )
        values = generator.standard_normal(
            numbers + (0 if tied else VOCABULARY * WIDTH), dtype=np.float32
        )
        (place / name).mkdir()
        (place / name / "model.bin").write_bytes(header + values.tobytes())


def check(case: Path, sample: Path) -> None:
    tensors = read_all(llama2c.read_llama2c(case / "model.bin").tensors)
    ours = np.sort(np.concatenate([tensor.numpy().ravel() for tensor in tensors.values()]))
    require(
        np.array_equal(ours, np.sort(reference((case / "model.bin").read_bytes())), equal_nan=True),
        "other values",
    )


def reference(data: bytes) -> np.ndarray:
    width, _, _, heads, _, vocabulary, positions = struct.unpack("<7i", data[:START])
    values = np.frombuffer(data[START:], np.float32)
    own = -vocabulary * width if vocabulary < 0 else 0
    tables = positions * (width // heads)
    end = len(values) - own
    return np.concatenate([values[: end - tables], values[end:]])
