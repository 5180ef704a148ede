"""The tasks of `gpt_vs_bert` for character models: fill a gap, generate text, embed text."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from sightline.core.model import Transformer
    from sightline.training.data.packed import PackedText

CONTEXT = 32
GAPS = 512
SEARCHED = 128
PILOT_WINDOWS = 4096
PROMPTS = 48
PROMPT = 8
SWEEPS = 3
PASSAGES = 200  # per held-out play
PASSAGE = 4  # windows per passage
LONGEST = 8  # letters; longer words count as 8
SMOOTHING = 5  # pseudo-counts from the next lower order of the trigram model


def held_out_windows(text: PackedText, count: int) -> Tensor:
    """Windows evenly spread over the held-out plays."""
    import numpy as np
    import torch

    assert text.held_out is not None
    last = len(text.held_out.ids) - CONTEXT
    return torch.from_numpy(
        np.stack([text.held_out.read(last * n // count, CONTEXT) for n in range(count)])
    )


def character_log_probabilities(
    transformer: Transformer, tokens: Tensor, at: int, mask: int
) -> Tensor:
    """log p of each character at one position: GPT from the left context, BERT from both sides with
    the position masked."""
    if transformer.config.decoder is not None:
        return transformer(tokens[:, :at])[:, -1, :mask].log_softmax(-1)
    hidden = tokens.clone()
    hidden[:, at] = mask
    return transformer(hidden)[:, at, :mask].log_softmax(-1)


# ------------------------------------------------------------------------------------------- fill


def measure_fill(transformer: Transformer, windows: Tensor, mask: int) -> dict[str, Any]:
    """Nats and accuracy of a character in the middle and of the last one. GPT also by trying every
    character together with the text that follows."""
    middle = CONTEXT // 2
    last = CONTEXT - 1
    measures: dict[str, Any] = {}
    for name, at in (("fill", middle), ("next", last)):
        log_p = character_log_probabilities(transformer, windows, at, mask)
        targets = windows[:, at]
        measures[name] = -float(log_p.gather(1, targets[:, None]).mean())
        measures[f"{name} right"] = float((log_p.argmax(-1) == targets).double().mean())
        measures[f"{name} few"] = -float(
            log_p[:: GAPS // SEARCHED].gather(1, targets[:: GAPS // SEARCHED, None]).mean()
        )
    if transformer.config.decoder is not None:
        measures["fill by search"] = fill_by_search(
            transformer, windows[:: GAPS // SEARCHED], middle, mask
        )
    return measures


def character_nats(transformer: Transformer, windows: Tensor, at: int, mask: int) -> float:
    """Nats of the character at one position."""
    log_p = character_log_probabilities(transformer, windows, at, mask)
    return -float(log_p.gather(1, windows[:, at, None]).mean())


def fill_by_search(transformer: Transformer, windows: Tensor, at: int, mask: int) -> float:
    """log p(c | both sides) = log p(left, c, right) − log Σ_c' p(left, c', right): one pass per
    character of the vocabulary."""
    import torch

    total = 0.0
    for window in windows:
        candidates = window.repeat(mask, 1)
        candidates[:, at] = torch.arange(mask)
        log_p = transformer(candidates[:, :-1])[..., :mask].log_softmax(-1)
        totals = log_p.gather(2, candidates[:, 1:, None])[..., 0].sum(1)
        total -= float(totals.log_softmax(0)[window[at]])
    return total / len(windows)


# --------------------------------------------------------------------------------------- generate


def measure_writing(
    transformer: Transformer, text: PackedText, windows: Tensor, random: Generator
) -> dict[str, Any]:
    """Generated continuations of prompts and the real text, in nats per character under a trigram
    model of the plays."""
    mask = transformer.config.last.embedding.vocab_size - 1
    nats_of = trigram_judge(text, mask)
    texts = {"written": write_left_to_right(transformer, windows[:, :PROMPT], mask, random)}
    if transformer.config.decoder is None:
        texts["written by sweeps"] = write_by_sweeps(transformer, windows[:, :PROMPT], mask, random)
    return {name: nats_of(tokens) for name, tokens in texts.items()} | {"real": nats_of(windows)}


def write_left_to_right(
    transformer: Transformer, prompts: Tensor, mask: int, random: Generator
) -> Tensor:
    """Sample from left to right: GPT's next character, or for BERT the character of a mask appended
    to the text."""
    import torch

    tokens = prompts
    while tokens.shape[1] < CONTEXT:
        longer = torch.cat((tokens, tokens.new_full((len(tokens), 1), mask)), dim=1)
        log_p = character_log_probabilities(transformer, longer, tokens.shape[1], mask)
        longer[:, -1] = torch.multinomial(log_p.exp(), 1, generator=random)[:, 0]
        tokens = longer
    return tokens


def write_by_sweeps(
    transformer: Transformer, prompts: Tensor, mask: int, random: Generator
) -> Tensor:
    """Start fully masked, then resample each position in random order, several times (Wang and Cho
    2019)."""
    import torch

    tokens = torch.cat((prompts, prompts.new_full((len(prompts), CONTEXT - PROMPT), mask)), dim=1)
    for _ in range(SWEEPS):
        for at in (PROMPT + torch.randperm(CONTEXT - PROMPT, generator=random)).tolist():
            tokens[:, at] = torch.multinomial(
                character_log_probabilities(transformer, tokens, at, mask).exp(),
                1,
                generator=random,
            )[:, 0]
    return tokens


def trigram_judge(text: PackedText, vocabulary: int) -> Callable[[Tensor], float]:
    """An independent trigram model p(c | a b), smoothed with the lower orders."""
    import numpy as np

    ids = text.train.read(0, min(len(text.train.ids), 2_000_000))
    one = np.bincount(ids, minlength=vocabulary) + 1.0
    two = np.bincount(ids[:-1] * vocabulary + ids[1:], minlength=vocabulary**2).reshape(
        vocabulary, vocabulary
    )
    three = np.bincount(
        (ids[:-2] * vocabulary + ids[1:-1]) * vocabulary + ids[2:], minlength=vocabulary**3
    ).reshape(-1, vocabulary)
    first = one / one.sum()
    second = (two + SMOOTHING * first) / (two.sum(1, keepdims=True) + SMOOTHING)

    def nats(tokens: Tensor) -> float:
        """The mean over all characters after the prompt."""
        a, b, c = (tokens[:, PROMPT - 2 + n : CONTEXT - 2 + n].numpy() for n in range(3))
        rows = three[a * vocabulary + b]
        count = np.take_along_axis(rows, c[..., None], -1)[..., 0]
        total = rows.sum(-1)
        return float(-np.log((count + SMOOTHING * second[b, c]) / (total + SMOOTHING)).mean())

    return nats


# ------------------------------------------------------------------------------------------ embed


def measure_embeddings(
    transformer: Transformer, text: PackedText, windows: Tensor
) -> dict[str, float]:
    """Accuracy of linear probes: a word's length from its first letter's vector, and the play
    from a passage's mean vector."""
    import torch

    at, lengths = first_letters(windows)
    letters = transformer.hidden(windows)[at[:, 0], at[:, 1]]
    pieces, plays = passages(text)
    means = (
        torch.cat([transformer.hidden(some).mean(1) for some in pieces.split(256)])
        .unflatten(0, (-1, PASSAGE))
        .mean(1)
    )
    return {
        "word": probe_accuracy(letters, lengths),
        "word guess": majority_accuracy(lengths),
        "play": probe_accuracy(means, plays),
        "play guess": majority_accuracy(plays),
    }


def first_letters(windows: Tensor) -> tuple[Tensor, Tensor]:
    """The (row, position) of words that end within their window, and their lengths."""
    import torch

    is_letter = letter_table()[windows]
    words = list[list[int]]()
    for row, place in (is_letter[:, 1:] & ~is_letter[:, :-1]).nonzero().tolist():
        ends = (~is_letter[row, place + 1 :]).nonzero()
        if len(ends):
            words.append([row, place + 1, min(LONGEST, int(ends[0]))])
    table = torch.tensor(words)
    return table[:, :2], table[:, 2]


def letter_table() -> Tensor:
    """For each token id, whether it is a letter."""
    import json

    import torch

    from sightline.recipes.corpora import prepared_characters

    data = prepared_characters(None)
    vocabulary = json.loads(data.tokenizer_files["tokenizer.json"])["model"]["vocab"]
    table = torch.zeros(data.vocab_size, dtype=torch.bool)
    table[[id for sign, id in vocabulary.items() if len(sign) == 1 and sign.isalpha()]] = True
    return table


def passages(text: PackedText) -> tuple[Tensor, Tensor]:
    """Evenly spread passages of each held-out play as consecutive windows, and the index of the
    play of each passage."""
    import numpy as np
    import torch

    assert text.held_out is not None
    ids = np.asarray(text.held_out.ids)
    ends = [*np.flatnonzero(ids == text.end).tolist(), len(ids)]
    starts = [0, *(end + 1 for end in ends)]
    plays = [
        (a, b) for a, b in zip(starts, ends, strict=False) if b - a > PASSAGES * PASSAGE * CONTEXT
    ]
    pieces = [
        ids[at : at + PASSAGE * CONTEXT]
        for a, b in plays
        for at in np.linspace(a, b - PASSAGE * CONTEXT, PASSAGES).astype(int)
    ]
    return torch.from_numpy(np.stack(pieces).astype(np.int64)).reshape(-1, CONTEXT), torch.arange(
        len(plays)
    ).repeat_interleave(PASSAGES)


def probe_accuracy(vectors: Tensor, classes: Tensor) -> float:
    """Accuracy of a ridge regression to one-hot classes, fitted to every other vector and tested on
    the rest."""
    import torch

    vectors = torch.cat(
        (vectors - vectors[::2].mean(0), torch.ones(len(vectors), 1)), dim=1
    ).double()
    training = vectors[::2]
    targets = torch.nn.functional.one_hot(classes)[::2].double()
    gram = training.T @ training
    weights = torch.linalg.solve(
        gram + 1e-3 * gram.trace() / len(gram) * torch.eye(len(gram), dtype=torch.float64),
        training.T @ targets,
    )
    return float(((vectors[1::2] @ weights).argmax(-1) == classes[1::2]).double().mean())


def majority_accuracy(classes: Tensor) -> float:
    """Accuracy of always predicting the most common class."""
    return float(classes[1::2].bincount().max() / len(classes[1::2]))
