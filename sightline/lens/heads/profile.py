"""What every head does: scores on a text and on random repeated tokens, and from these a role with
its confidence.

heads = heads_of(model, "The cat sat on the mat, and the cat slept.")
heads.top("induction", 3)                   the three heads that do it most
heads.grid("decoder")                       roles by layer and head
heads.to_dict()                             all of it as JSON has it
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError, nearest
from sightline.lens.heads.patterns import Measured
from sightline.lens.heads.probes import Probe, probes_for
from sightline.lens.heads.roles import (
    ROLES,
    gathered,
    label,
    left_of,
    measure,
    offsets_within,
    scene_of,
)
from sightline.lens.trace.layer import Site, sites_of
from sightline.lens.trace.subject import Subject, Token
from sightline.lens.trace.trace import Trace, trace_of

TEXT = (
    "The old lighthouse stood on a cliff above the sea, and its keeper, a quiet man, lit the lamp"
    " every night. When the storm came, the ships saw the lamp; when the storm left, the ships were"
    " safe, and the keeper slept."
)
MOST = 1024  # tokens: more make no head clearer, and the maps grow with the square
FEW = 8  # words of our text
SCORED = ROLES[:-1]


@runtime_checkable
class Reader(Protocol):
    """A subject that reads a text by itself, as a `Model` does: an encoder–decoder translates it
    first."""

    def trace(self, text: str | Sequence[int]) -> Trace: ...


@dataclass(frozen=True, slots=True)
class HeadRole:
    """One head. `sink` is the share of its attention on the first and special tokens; `offset` the
    fixed offset that suits it best."""

    stack: str
    layer: int
    head: int
    cross: bool
    role: str
    confidence: float
    sink: float
    offset: int | None = None

    @property
    def site(self) -> Site:
        return self.stack, self.layer, self.cross

    def __str__(self) -> str:
        return f"{self.stack}{' cross' if self.cross else ''} {self.layer}.{self.head}"


@dataclass(frozen=True, slots=True)
class HeadMap:
    """All heads. `scores[head, role, text]` and `confidences[head, role]` in the order of `heads`,
    `roles` and `texts`; NaN where a role makes no sense or a text could not show it."""

    name: str
    heads: tuple[HeadRole, ...]
    scores: Float[Tensor, "heads roles texts"]
    confidences: Float[Tensor, "heads roles"]
    texts: dict[str, str]
    seed: int = 0
    roles: tuple[str, ...] = SCORED

    def top(self, role: str, count: int = 3) -> list[HeadRole]:
        """The heads that do this most surely, also if they do something else more."""
        column = self.confidences[:, self.column(role)].nan_to_num(-1)
        order = column.argsort(descending=True, stable=True)[:count].tolist()
        return [self.heads[place] for place in order if column[place] > 0]

    def score(self, head: HeadRole, role: str) -> float:
        """A head's score for a role, of the texts that are evidence for it."""
        row = self.scores[self.heads.index(head), self.column(role)].tolist()
        return gathered(role, dict(zip(self.texts, row, strict=True)))

    def confidence(self, head: HeadRole, role: str) -> float:
        """How sure a role is for a head, whatever its label is."""
        return float(self.confidences[self.heads.index(head), self.column(role)])

    def column(self, role: str) -> int:
        if role not in self.roles:
            raise InputError(
                f"a role named {role!r}",
                expected="one of heads.roles",
                fix=nearest(role, self.roles),
            )
        return self.roles.index(role)

    def grid(self, stack: str, *, cross: bool = False) -> list[list[HeadRole]]:
        """The heads of a stack, a row for each layer."""
        rows: dict[int, list[HeadRole]] = {}
        for head in self.heads:
            if (head.stack, head.cross) == (stack, cross):
                rows.setdefault(head.layer, []).append(head)
        if not rows:
            there = sorted({f"stack={one.stack!r}, cross={one.cross}" for one in self.heads})
            raise InputError(
                f"no {'cross-' if cross else ''}attention in {stack!r}",
                expected=" or ".join(there),
                fix=there[0],
            )
        return list(rows.values())

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """The stacks, and whether it is their cross-attention."""
        return list(dict.fromkeys((head.stack, head.cross) for head in self.heads))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it: NaN is null."""
        rows = zip(self.heads, self.scores.tolist(), self.confidences.tolist(), strict=True)
        return {
            "model": self.name,
            "texts": self.texts,
            "seed": self.seed,
            "heads": [
                {
                    **asdict(head),
                    "confidence": plain(head.confidence),
                    "sink": plain(head.sink),
                    "scores": {
                        role: dict(zip(self.texts, map(plain, row), strict=True))
                        for role, row in zip(self.roles, of_head, strict=True)
                    },
                    "confidences": dict(zip(self.roles, map(plain, sure), strict=True)),
                }
                for head, of_head, sure in rows
            ],
        }


def plain(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def heads_of(
    subject: Subject, text: str | Sequence[int] | Trace | None = None, *, seed: int = 0
) -> HeadMap:
    """The role of every head, from a text (of ours if none is given; a trace of one will do) and
    two probes of random repeated tokens."""
    traces = texts_of(subject, text, seed)
    names = list(traces)
    heads = list[HeadRole]()
    scores = list[Tensor]()
    sure = list[Tensor]()
    for site in sites_of(subject.running):
        by_text = measured(subject, traces, site)
        for number in range(next(iter(traces.values())).looks[site].heads):
            head, of_head, confident = judge(site, number, by_text)
            heads.append(head)
            scores.append(
                torch.tensor([[of_head[role][name] for name in names] for role in SCORED])
            )
            sure.append(torch.tensor([confident[role] for role in SCORED]))
    shown = {
        name: trace.source_text or trace.text or f"{len(trace.tokens)} tokens"
        for name, trace in traces.items()
    }
    return HeadMap(subject.name, tuple(heads), torch.stack(scores), torch.stack(sure), shown, seed)


def texts_of(
    subject: Subject, text: str | Sequence[int] | Trace | None, seed: int
) -> dict[str, Trace]:
    """The traces to judge by: the text's, and those of the probes. A model that is given no text
    and cannot read ours has only these."""
    if not sites_of(subject.running):
        raise InputError(
            "a model without attention",
            expected="at least one layer",
            fix="take a model that has layers",
        )
    text = own_text(subject) if text is None else text
    given = None if text is None else trace_for(subject, text)
    start = 0 if given is None else given.tokens[0].id
    probes = {
        name: trace_probe(subject, probe)
        for name, probe in probes_for(subject, seed=seed, start=start).items()
    }
    return probes if given is None else {"text": given, **probes}


def own_text(subject: Subject) -> str | None:
    """As much of our text as the model can read and has room for; nothing if that is too little to
    judge by."""
    tokenizer = subject.tokenizer
    words = TEXT.split()
    while tokenizer is not None and len(words) >= FEW:
        ids = tokenizer.encode(" ".join(words), special=True)
        if len(ids) <= most_tokens(subject) and tokenizer.unknown not in ids:
            return " ".join(words)
        words.pop()
    return None


def trace_for(subject: Subject, text: str | Sequence[int] | Trace) -> Trace:
    """A trace of a text, as the subject reads it. One that is too long is said before it is
    read."""
    if isinstance(text, Trace):
        return whole(subject, text)
    if isinstance(text, str) and subject.tokenizer is None:
        raise InputError(
            "a text, for a model without tokenizer",
            expected="token ids",
            fix="heads_of(model, [5, 17, 3, 5, 17])",
        )
    ids = (
        subject.tokenizer.encode(text, special=True)
        if isinstance(text, str) and subject.tokenizer
        else [int(id) for id in text]
    )
    if not ids or (isinstance(text, str) and not text.strip()):
        raise InputError(
            "an empty text", expected="some words", fix="leave the text out, or give a sentence"
        )
    checked_length(len(ids), most_tokens(subject))
    if isinstance(subject, Reader):
        return subject.trace(text)
    if len(subject.running.config.stacks) == 2:
        raise InputError(
            "a text alone, for an encoder–decoder",
            expected="a trace of it",
            fix="heads_of(model, model.trace(text))",
        )
    return trace_of(subject, ids, text=text if isinstance(text, str) else "")


def whole(subject: Subject, trace: Trace) -> Trace:
    """A trace that has every layer and every row, and whose maps have memory."""
    checked_length(max(len(trace.tokens), len(trace.source or ())), MOST)
    if len(trace.rows) != len(trace.tokens) or any(
        site not in trace.looks for site in sites_of(subject.running)
    ):
        raise InputError(
            "a trace of a part of the model or of the text",
            expected="all layers and rows",
            fix="model.trace(text)",
        )
    return trace


def most_tokens(subject: Subject) -> int:
    """What every stack has room for, and maps have memory for."""
    return min(MOST, *(stack.max_positions for stack in subject.running.config.stacks.values()))


def checked_length(length: int, most: int) -> None:
    if length > most:
        raise InputError(
            f"a text of {length:,} tokens",
            expected=f"at most {most:,}",
            fix="give a part of it: roles show in a few sentences",
        )


def trace_probe(subject: Subject, probe: Probe) -> Trace:
    return trace_of(subject, probe.ids, source=probe.source, what=("query", "key"))


def measured(
    subject: Subject, traces: Mapping[str, Trace], site: Site
) -> dict[str, dict[str, Measured]]:
    """The scores of one layer's heads, by text and role."""
    special = special_ids(subject)
    offsets = [] if site[2] else offsets_in(traces, site)
    found: dict[str, dict[str, Measured]] = {}
    for name, trace in traces.items():
        queries, keys = tokens_at(trace, site)
        scene = scene_of(queries, keys, special, cross=site[2])
        found[name] = measure(left_of(trace.looks[site], scene), scene, offsets)
    return found


def special_ids(subject: Subject) -> frozenset[int]:
    return frozenset() if subject.tokenizer is None else subject.tokenizer.special_ids


def tokens_at(trace: Trace, site: Site) -> tuple[Sequence[Token], Sequence[Token]]:
    """Who asks and who is looked at in an attention layer."""
    stack, _, cross = site
    queries = trace.tokens_of(stack)
    return queries, (trace.source or ()) if cross else queries


def offsets_in(traces: Mapping[str, Trace], site: Site) -> list[int]:
    lengths = [len(trace.tokens_of(site[0])) for name, trace in traces.items() if name != "text"]
    return offsets_within(
        lengths, causal=next(iter(traces.values())).looks[site].scoring.mask.causal
    )


def judge(
    site: Site, number: int, by_text: Mapping[str, Mapping[str, Measured]]
) -> tuple[HeadRole, dict[str, dict[str, float]], dict[str, float]]:
    """One head: its role, its scores by role and text, its confidence by role."""
    names = {name for found in by_text.values() for name in found}

    def of(name: str, what: str) -> dict[str, float]:
        return {
            text: float(getattr(found[name], what)[number]) if name in found else math.nan
            for text, found in by_text.items()
        }

    sure = {name: gathered(name, of(name, "confidence")) for name in names}
    offset = max(
        (name for name in names if name not in ROLES and not math.isnan(sure[name])),
        key=sure.__getitem__,
        default=None,
    )
    source = {role: offset if role == "offset" else role for role in SCORED}
    confidences = {
        role: sure.get(name, math.nan) if name else math.nan for role, name in source.items()
    }
    scores = {role: of(name or "", "value") for role, name in source.items()}
    role, confidence = label(confidences)
    sink = gathered("sink", scores["sink"])
    return (
        HeadRole(
            *site[:2],
            number,
            site[2],
            role,
            confidence,
            sink,
            None if offset is None else int(offset),
        ),
        scores,
        confidences,
    )
