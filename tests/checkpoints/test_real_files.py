"""The catalogue's real files, where they were fetched before: known answers of the readers and
their tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sightline.checkpoints.open import open_source
from sightline.checkpoints.source import Source
from sightline.checkpoints.sources import fetch
from sightline.checkpoints.sources.reference import resolve
from sightline.text.tokenizer import Tokenizer


def opened(name: str) -> Source:
    """A catalogue model that is on the disk; otherwise the test is skipped."""
    if not fetch.on_disk(name):
        pytest.skip(f"{name} was not fetched: sightline models get {name}")
    return open_source(resolve(Path(fetch.where(name))))


def test_smollm2() -> None:
    source = opened("smollm2-135m-instruct")
    assert sum(entry.numbers for entry in source.tensors.values()) == 134_515_008
    assert source.keys["rms_norm_eps"] == 1e-05
    tokenizer = Tokenizer.from_gguf(source.tokenizer)
    assert tokenizer.encode("The capital of France is") == [504, 3575, 282, 4649, 314]
    assert tokenizer.encode("<|im_start|>user\nhi<|im_end|>", control=True) == [
        1,
        4093,
        198,
        6004,
        2,
    ]
    assert tokenizer.vocabulary().split == "smollm"


def test_stories15m() -> None:
    source = opened("stories15m")
    assert sum(entry.numbers for entry in source.tensors.values()) == 15_191_712
    tokenizer = Tokenizer.from_llama2c(source.tokenizer)
    assert tokenizer.encode("Once upon a time,", special=True) == [1, 9038, 2501, 263, 931, 29892]


def test_letters_to_sounds() -> None:
    source = opened("g2p-bart")
    assert sum(entry.numbers for entry in source.tensors.values()) == 751_551
    assert Tokenizer.from_vocabulary(source.tokenizer).encode("transformer", special=True) == [
        1,
        21,
        56,
        50,
        18,
        20,
        11,
        54,
        56,
        17,
        52,
        56,
        2,
    ]
