"""What a model of characters is asked for in `gpt_vs_bert`: to fill a gap, to go on writing, to
give vectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from sightline.core.model import Transformer
    from sightline.training.data.packed import PackedText

CONTEXT = 32
GAPS = 512
SEARCHED = 48
PROMPTS = 48
PROMPT = 8
SWEEPS = 3
PASSAGES = 200  # of each held-out play, so many windows long
PASSAGE = 4
LONGEST = 8  # letters; longer words count as this
LEAN = 5  # counts by which each order of the trigrams leans on the one below it


def held_out_windows(text: PackedText, count: int) -> Tensor:
    """Windows evenly spread over the held-out plays."""
    import numpy as np
    import torch

    assert text.held_out is not None
    last = len(text.held_out.ids) - CONTEXT
    return torch.from_numpy(
        np.stack([text.held_out.read(last * n // count, CONTEXT) for n in range(count)])
    )


def log_odds(transformer: Transformer, tokens: Tensor, at: int, mask: int) -> Tensor:
    """log p of each character at one place: GPT from what is left of it, BERT from all the rest
    with the place hidden."""
    if transformer.config.decoder is not None:
        return transformer(tokens[:, :at])[:, -1, :mask].log_softmax(-1)
    hidden = tokens.clone()
    hidden[:, at] = mask
    return transformer(hidden)[:, at, :mask].log_softmax(-1)


# ------------------------------------------------------------------------------------------- fill


def filled(transformer: Transformer, windows: Tensor, mask: int) -> dict[str, Any]:
    """A character in the middle, and the last one, in nats and how often right. GPT also by trying
    every character, with what follows."""
    middle = CONTEXT // 2
    last = CONTEXT - 1
    found: dict[str, Any] = {}
    for name, at in (("fill", middle), ("next", last)):
        odds = log_odds(transformer, windows, at, mask)
        wanted = windows[:, at]
        found[name] = -float(odds.gather(1, wanted[:, None]).mean())
        found[f"{name} right"] = float((odds.argmax(-1) == wanted).double().mean())
        found[f"{name} few"] = -float(
            odds[:: GAPS // SEARCHED].gather(1, wanted[:: GAPS // SEARCHED, None]).mean()
        )
    if transformer.config.decoder is not None:
        found["fill by search"] = searched(transformer, windows[:: GAPS // SEARCHED], middle, mask)
    return found


def gap(transformer: Transformer, windows: Tensor, mask: int) -> float:
    """The character in the middle, in nats."""
    return -float(
        log_odds(transformer, windows, CONTEXT // 2, mask)
        .gather(1, windows[:, CONTEXT // 2, None])
        .mean()
    )


def searched(transformer: Transformer, windows: Tensor, at: int, mask: int) -> float:
    """log p(c | both sides) = log p(left, c, right) − log Σ_c' p(left, c', right): as many passes
    as there are characters."""
    import torch

    total = 0.0
    for window in windows:
        tried = window.repeat(mask, 1)
        tried[:, at] = torch.arange(mask)
        odds = transformer(tried[:, :-1])[..., :mask].log_softmax(-1)
        whole = odds.gather(2, tried[:, 1:, None])[..., 0].sum(1)
        total -= float(whole.log_softmax(0)[window[at]])
    return total / len(windows)


# --------------------------------------------------------------------------------------- generate


def continued(
    transformer: Transformer, text: PackedText, windows: Tensor, random: Generator
) -> dict[str, Any]:
    """Texts written behind a prompt, and how a trigram model of the plays finds them, in nats a
    character; and what was really there."""
    mask = transformer.config.last.embedding.vocab_size - 1
    judge_of = trigrams(text, mask)
    made = {"written": one_by_one(transformer, windows[:, :PROMPT], mask, random)}
    if transformer.config.decoder is None:
        made["written by sweeps"] = by_sweeps(transformer, windows[:, :PROMPT], mask, random)
    return {name: judge_of(tokens) for name, tokens in made.items()} | {"real": judge_of(windows)}


def one_by_one(transformer: Transformer, prompts: Tensor, mask: int, random: Generator) -> Tensor:
    """From left to right: GPT's next character; for BERT, a mask is put behind the text, and what
    it hides is drawn."""
    import torch

    tokens = prompts
    while tokens.shape[1] < CONTEXT:
        longer = torch.cat((tokens, tokens.new_full((len(tokens), 1), mask)), dim=1)
        odds = log_odds(transformer, longer, tokens.shape[1], mask)
        longer[:, -1] = torch.multinomial(odds.exp(), 1, generator=random)[:, 0]
        tokens = longer
    return tokens


def by_sweeps(transformer: Transformer, prompts: Tensor, mask: int, random: Generator) -> Tensor:
    """All hidden at first, then each place drawn anew in random order, several times over (Wang and
    Cho 2019)."""
    import torch

    tokens = torch.cat((prompts, prompts.new_full((len(prompts), CONTEXT - PROMPT), mask)), dim=1)
    for _ in range(SWEEPS):
        for at in (PROMPT + torch.randperm(CONTEXT - PROMPT, generator=random)).tolist():
            tokens[:, at] = torch.multinomial(
                log_odds(transformer, tokens, at, mask).exp(), 1, generator=random
            )[:, 0]
    return tokens


def trigrams(text: PackedText, vocabulary: int) -> Callable[[Tensor], float]:
    """A judge that is neither of the two: p(c | a b), each order leaning on the one below it."""
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
    second = (two + LEAN * first) / (two.sum(1, keepdims=True) + LEAN)

    def nats(tokens: Tensor) -> float:
        """The mean over all characters behind the prompt."""
        a, b, c = (tokens[:, PROMPT - 2 + n : CONTEXT - 2 + n].numpy() for n in range(3))
        rows = three[a * vocabulary + b]
        count = np.take_along_axis(rows, c[..., None], -1)[..., 0]
        seen = rows.sum(-1)
        return float(-np.log((count + LEAN * second[b, c]) / (seen + LEAN)).mean())

    return nats


# ------------------------------------------------------------------------------------------ embed


def embedded(transformer: Transformer, text: PackedText, windows: Tensor) -> dict[str, float]:
    """What a linear probe reads: the length of a word from its first letter's vector, and the play
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
        "word": probed(letters, lengths),
        "word guess": guessed(lengths),
        "play": probed(means, plays),
        "play guess": guessed(plays),
    }


def first_letters(windows: Tensor) -> tuple[Tensor, Tensor]:
    """Where words begin that also end within their window, as (row, place), and how long they
    are."""
    import torch

    is_letter = letter_table()[windows]
    found = list[list[int]]()
    for row, place in (is_letter[:, 1:] & ~is_letter[:, :-1]).nonzero().tolist():
        ends = (~is_letter[row, place + 1 :]).nonzero()
        if len(ends):
            found.append([row, place + 1, min(LONGEST, int(ends[0]))])
    table = torch.tensor(found)
    return table[:, :2], table[:, 2]


def letter_table() -> Tensor:
    """Whether an id is a letter."""
    import json

    import torch

    from sightline.recipes.corpora import prepared_characters

    data = prepared_characters(None)
    known = json.loads(data.tokenizer_files["tokenizer.json"])["model"]["vocab"]
    table = torch.zeros(data.vocab_size, dtype=torch.bool)
    table[[id for sign, id in known.items() if len(sign) == 1 and sign.isalpha()]] = True
    return table


def passages(text: PackedText) -> tuple[Tensor, Tensor]:
    """Passages of each held-out play, evenly spread, as windows in a row; and the number of the
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
    cut = [
        ids[at : at + PASSAGE * CONTEXT]
        for a, b in plays
        for at in np.linspace(a, b - PASSAGE * CONTEXT, PASSAGES).astype(int)
    ]
    return torch.from_numpy(np.stack(cut).astype(np.int64)).reshape(-1, CONTEXT), torch.arange(
        len(plays)
    ).repeat_interleave(PASSAGES)


def probed(vectors: Tensor, classes: Tensor) -> float:
    """Ridge regression to one-hot classes, learned from every other vector: how often the largest
    answer is right on the rest."""
    import torch

    vectors = torch.cat(
        (vectors - vectors[::2].mean(0), torch.ones(len(vectors), 1)), dim=1
    ).double()
    known = vectors[::2]
    wanted = torch.nn.functional.one_hot(classes)[::2].double()
    gram = known.T @ known
    weights = torch.linalg.solve(
        gram + 1e-3 * gram.trace() / len(gram) * torch.eye(len(gram), dtype=torch.float64),
        known.T @ wanted,
    )
    return float(((vectors[1::2] @ weights).argmax(-1) == classes[1::2]).double().mean())


def guessed(classes: Tensor) -> float:
    """How often the most common class is right."""
    return float(classes[1::2].bincount().max() / len(classes[1::2]))
