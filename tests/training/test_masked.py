"""Masking: the shares, the units, and reproducible draws."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from sightline.errors import ConfigError, InputError
from sightline.text.tokenizer import Tokenizer
from sightline.training.data.batch import IGNORED
from sightline.training.data.masked import LONGEST_SPAN, MaskedText, word_starts
from sightline.training.data.packed import PackedText, Tokens
from tests.tasks.tiny_folders import byte_pieces, word_pieces

FILES = tempfile.TemporaryDirectory()
VOCAB, MASK, SPECIAL = 40, 39, frozenset({0, 1})


@cache
def tokens(count: int = 2000, seed: int = 0, *, below: int = MASK) -> Tokens:
    place = Path(FILES.name) / f"{count}-{seed}-{below}"
    np.random.default_rng(seed).integers(0, below, count).astype(np.uint16).tofile(place)
    return Tokens.open(place, dtype="uint16", vocab_size=VOCAB)


def task(
    unit: str = "token", *, seed: int = 3, share: float = 0.15, context: int = 50
) -> MaskedText:
    begins = np.arange(VOCAB) % 3 != 0  # every third token continues a word
    text = PackedText(tokens(), tokens(500, 1), context, 4, seed)
    return MaskedText(text, MASK, VOCAB, special=SPECIAL, unit=unit, begins=begins, share=share)  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_fifteen_percent_and_eighty_ten_ten(unit: str) -> None:
    masked = task(unit)
    seen, hidden, same, other = 0, 0, 0, 0
    for step in range(200):
        plain, batch = masked.text.batch(step), masked.batch(step)
        selected = batch.targets != IGNORED
        assert torch.equal(batch.targets[selected], plain.tokens[selected])
        assert torch.equal(batch.tokens[~selected], plain.tokens[~selected])
        assert batch.count == int(selected.sum())
        assert not np.isin(batch.targets.numpy(), [*SPECIAL, MASK]).any()
        free = ~torch.isin(plain.tokens, torch.tensor(sorted(SPECIAL)))
        budget = (0.15 * free.sum(1)).round()
        assert bool((selected.sum(1) <= budget).all())
        assert unit != "token" or bool((selected.sum(1) == budget).all())
        replaced = batch.tokens[selected]
        seen += int(free.sum())
        hidden += int((replaced == MASK).sum())
        same += int((replaced == batch.targets[selected]).sum())
        new = replaced[(replaced != MASK) & (replaced != batch.targets[selected])]
        other += len(new)
        assert not np.isin(new.numpy(), sorted(SPECIAL)).any()
    targets = hidden + same + other
    assert targets / seen == pytest.approx(0.15, abs=0.02)
    assert hidden / targets == pytest.approx(0.8, abs=0.03)
    assert other / targets == pytest.approx(0.1, abs=0.03)


def test_whole_words() -> None:
    """A token that goes on with a word is selected for if and only if the token before it is."""
    masked = task("word")
    for step in range(30):
        plain, selected = (
            masked.text.batch(step).tokens.numpy(),
            masked.batch(step).targets.numpy() != IGNORED,
        )
        special = np.isin(plain, sorted(SPECIAL))
        continues = (plain[:, 1:] % 3 == 0) & ~special[:, 1:] & ~special[:, :-1]
        assert (selected[:, 1:] == selected[:, :-1])[continues].all()


def test_spans_are_longer_than_chance_and_not_too_long() -> None:
    runs: dict[str, list[int]] = {"token": [], "span": []}
    for unit, lengths in runs.items():
        masked = task(unit, context=200)
        for step in range(30):
            for row in masked.batch(step).targets.numpy() != IGNORED:
                edges = np.flatnonzero(np.diff(np.concatenate(([0], row.astype(int), [0]))))
                lengths += list(edges[1::2] - edges[::2])
    assert np.mean(runs["span"]) > 2 * np.mean(runs["token"])
    assert max(runs["span"]) <= 3 * LONGEST_SPAN  # adjacent spans may both be selected


@pytest.mark.parametrize("unit", ["token", "word", "span"])
def test_draws_depend_on_the_seed_and_the_sample_only(unit: str) -> None:
    one, again, other = task(unit), task(unit), task(unit, seed=4)
    for step in (17, 3, 17):
        a, b = one.batch(step), again.batch(step)
        assert torch.equal(a.tokens, b.tokens)
        assert torch.equal(a.targets, b.targets)
    assert not torch.equal(one.batch(3).targets, other.batch(3).targets)
    epochs = one.text.epoch_batches
    rows = {tuple(row) for step in range(3 * epochs) for row in one.batch(step).tokens.tolist()}
    assert len(rows) > 2.5 * epochs * one.text.rows  # each epoch masks other tokens
    first, second = ([batch.tokens for batch in one.validation()] for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert sum(len(x) for x in first) == 9


def test_fingerprints_differ_by_setting() -> None:
    fingerprints = {
        task().fingerprint,
        task("word").fingerprint,
        task("span").fingerprint,
        task(seed=9).fingerprint,
        task(share=0.3).fingerprint,
    }
    assert len(fingerprints) == 5


def test_rows_of_special_tokens_are_not_masked() -> None:
    masked = MaskedText(
        PackedText(tokens(300, below=1), None, 10, 2, 0), MASK, VOCAB, special=SPECIAL
    )
    batch = masked.batch(0)
    assert not batch.tokens.any()
    assert bool((batch.targets == IGNORED).all())
    assert batch.count == 1


def test_word_starts(tmp_path: Path) -> None:
    for place, make in (("w", word_pieces), ("b", byte_pieces)):
        make(tmp_path / place)
    words, pieces = (Tokenizer.from_folder(tmp_path / place) for place in ("w", "b"))
    assert words is not None
    assert pieces is not None
    begins = word_starts(words, words.vocab_size + 2)
    result = {
        piece: bool(begins[words.id_of(piece)]) for piece in ("cat", "##ing", "[MASK]", ".", "##a")
    }  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert result == {"cat": True, "##ing": False, "[MASK]": True, ".": True, "##a": False}
    begins = word_starts(pieces, pieces.vocab_size)
    result = {
        piece: bool(begins[pieces.id_of(piece)]) for piece in ("Ġcat", "cat", "he", ".", "<mask>")
    }  # pyright: ignore[reportArgumentType, reportCallIssue]
    assert result == {"Ġcat": True, "cat": False, "he": False, ".": True, "<mask>": True}


def test_held_out_masking_does_not_depend_on_the_share() -> None:
    some, many = task(share=0.15), task(share=0.4)
    for a, b in zip(some.validation(), many.validation(), strict=True):
        assert torch.equal(a.tokens, b.tokens)
        assert torch.equal(a.targets, b.targets)
    assert many.batch(0).count > 2 * some.batch(0).count


def test_invalid_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="did you mean 'token'"):
        task("tokens")
    with pytest.raises(ConfigError, match="between 0 and 1"):
        task(share=1.5)
    with pytest.raises(InputError, match="begins="):
        MaskedText(PackedText(tokens(), None, 10, 2, 0), MASK, VOCAB, unit="word")
    with pytest.raises(InputError, match="mask token 40"):
        MaskedText(PackedText(tokens(), None, 10, 2, 0), 40, VOCAB)
