"""Whether the contestants run the same model, and what a precision costs: greedy tokens compared,
and perplexity on the same tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from bench import peers
from bench.native.channel import Contestant, ContestantError
from bench.native.contests import CT2, DECODERS, LLAMA, OURS, Entry
from bench.native.models import Prepared
from bench.native.race import load_arguments, start

WINDOW, SAME = 512, 24  # tokens of a window; tokens that must be the same


@dataclass(frozen=True, slots=True)
class Perplexity:
    """exp of the mean negative log-likelihood, and the bytes of weights read per token."""

    entry: Entry
    perplexity: float
    bytes: int

    def plain(self) -> dict[str, Any]:
        return {"who": self.entry.label, "perplexity": self.perplexity, "bytes": self.bytes}


def held_out(model: Prepared, count: int) -> list[int]:
    """The first tokens of a play that our recipes hold out."""
    import sightline as sl
    from sightline.recipes.plays import works

    _, unseen = works()
    tokenizer = sl.load(model.folder).tokenizer
    assert tokenizer is not None
    ids = tokenizer.encode(unseen[0].read_text(encoding="utf-8")[: 8 * count])
    assert len(ids) >= count
    return ids[:count]


def perplexity(tokens: list[int], model: Prepared, entry: Entry, *, threads: int) -> Perplexity:
    """Windows of 512 tokens, or of the model's context, each evaluated independently; the first
    token of each is not scored."""
    member = start(entry.who, threads)
    try:
        read = member.ask("load", **load_arguments(model, entry))["bytes"]
        size = min(WINDOW, model.context or WINDOW)
        windows = [tokens[first : first + size] for first in range(0, len(tokens) - size + 1, size)]
        nats = sum(member.ask("surprise", tokens=window)["nats"] for window in windows)
    finally:
        member.close()
    return Perplexity(entry, math.exp(nats / (len(windows) * (size - 1))), int(read))


def perplexities(
    model: Prepared, count: int, *, threads: int
) -> tuple[list[Perplexity], dict[str, str]]:
    """Perplexity of every precision of ours and of the peers that can compute it; and the reasons
    of those that could not."""
    tokens = held_out(model, count)
    results = list[Perplexity]()
    absent = dict[str, str]()
    for entry in (
        entry
        for entries in DECODERS.values()
        for entry in entries
        if entry.who in (OURS, LLAMA, CT2)
    ):
        missing = "" if entry.who == OURS else peers.missing_reason(entry.who)
        try:
            if missing:
                raise ContestantError(missing)
            results.append(perplexity(tokens, model, entry, threads=threads))
        except ContestantError as error:
            absent[entry.label] = str(error)
    return results, absent


def agreement(model: Prepared, prompts: list[list[int]], *, threads: int) -> dict[str, str]:
    """Greedy tokens of each peer in full precision against ours in float32: evidence that both have
    the same weights."""
    ours = greedy(Entry(OURS, "float32"), model, prompts, threads)
    results = dict[str, str]()
    for entry in (Entry(LLAMA, "as it is"), Entry(CT2, "float32")):
        if peers.missing_reason(entry.who):
            continue
        try:
            theirs = greedy(entry, model, prompts, threads)
        except ContestantError as error:
            results[entry.who] = str(error)
            continue
        same = sum(a == b for a, b in zip(ours, theirs, strict=True))
        results[entry.who] = f"{same} of {len(prompts)} texts of {SAME} greedy tokens match ours"
    return results


def greedy(
    entry: Entry, model: Prepared, prompts: list[list[int]], threads: int
) -> list[list[int]]:
    member: Contestant = start(entry.who, threads)
    try:
        member.ask("load", **load_arguments(model, entry), exact=True)
        return [member.ask("decode", prompt=prompt, count=SAME - 1)["tokens"] for prompt in prompts]
    finally:
        member.close()
