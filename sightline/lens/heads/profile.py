"""The role of every head, with its confidence: from scores on a text and on random repeated tokens.

heads = heads_of(model, "The cat sat on the mat, and the cat slept.")
heads.top("induction", 3)                   the three strongest induction heads
heads.grid("decoder")                       roles by layer and head
heads.to_dict()                             a JSON-serializable dict
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError, nearest
from sightline.lens.heads.patterns import PatternScore
from sightline.lens.heads.probes import Probe, probes_for
from sightline.lens.heads.roles import (
    ROLES,
    attention_without_sink,
    choose_role,
    combine_evidence,
    layer_tokens,
    offsets_within,
    role_scores,
)
from sightline.lens.trace.layer import Site, sites_of
from sightline.lens.trace.subject import Subject, Token
from sightline.lens.trace.trace import Trace, TracingSubject, trace_of

BUILT_IN_TEXT = (
    "The old lighthouse stood on a cliff above the sea, and its keeper, a quiet man, lit the lamp"
    " every night. When the storm came, the ships saw the lamp; when the storm left, the ships were"
    " safe, and the keeper slept."
)
MAX_TOKENS = 1024  # longer texts add no information, and the maps grow quadratically
MIN_WORDS = 8  # of the built-in text
SCORED_ROLES = ROLES[:-1]


@dataclass(frozen=True, slots=True)
class HeadRole:
    """One head. `sink` is the share of its attention on the first and special tokens, `offset` the
    best-fitting fixed offset."""

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
    """The roles of all heads. `scores[head, role, text]` and `confidences[head, role]` in the order
    of `heads`, `roles` and `texts`; NaN where a role does not apply or a text gives no evidence."""

    name: str
    heads: tuple[HeadRole, ...]
    scores: Float[Tensor, "heads roles texts"]
    confidences: Float[Tensor, "heads roles"]
    texts: dict[str, str]
    seed: int = 0
    roles: tuple[str, ...] = SCORED_ROLES

    def __repr__(self) -> str:
        counts = Counter(head.role for head in self.heads)
        roles = ", ".join(f"{count} {role}" for role, count in counts.most_common())
        return f"<HeadMap of {self.name or 'a model'}: {len(self.heads)} heads ({roles})>"

    def _repr_html_(self) -> str:
        """Every head with its role, for notebooks."""
        from sightline.lens.draw.result_table import result_table

        rows = [(str(head), head.role, head.confidence, head.sink) for head in self.heads]
        return result_table(repr(self), ("head", "role", "confidence", "sink"), rows)

    def top(self, role: str, count: int = 3) -> list[HeadRole]:
        """The heads with the highest confidence for a role, regardless of their own role."""
        column = self.confidences[:, self.column(role)].nan_to_num(-1)
        order = column.argsort(descending=True, stable=True)[:count].tolist()
        return [self.heads[place] for place in order if column[place] > 0]

    def score(self, head: HeadRole, role: str) -> float:
        """A head's score for a role, over the texts that are evidence for it."""
        row = self.scores[self.heads.index(head), self.column(role)].tolist()
        return combine_evidence(role, dict(zip(self.texts, row, strict=True)))

    def confidence(self, head: HeadRole, role: str) -> float:
        """The confidence of a role for a head, regardless of the head's own role."""
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
        """The heads of a stack, one row per layer."""
        rows: dict[int, list[HeadRole]] = {}
        for head in self.heads:
            if (head.stack, head.cross) == (stack, cross):
                rows.setdefault(head.layer, []).append(head)
        if not rows:
            there = sorted({f"stack={head.stack!r}, cross={head.cross}" for head in self.heads})
            raise InputError(
                f"no {'cross-' if cross else ''}attention in {stack!r}",
                expected=" or ".join(there),
                fix=there[0],
            )
        return list(rows.values())

    @property
    def parts(self) -> list[tuple[str, bool]]:
        """(stack, is cross-attention), for every kind of attention of the model."""
        return list(dict.fromkeys((head.stack, head.cross) for head in self.heads))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict; NaN is null."""
        rows = zip(self.heads, self.scores.tolist(), self.confidences.tolist(), strict=True)
        return {
            "model": self.name,
            "texts": self.texts,
            "seed": self.seed,
            "heads": [
                {
                    **asdict(head),
                    "confidence": rounded_or_none(head.confidence),
                    "sink": rounded_or_none(head.sink),
                    "scores": {
                        role: dict(zip(self.texts, map(rounded_or_none, row), strict=True))
                        for role, row in zip(self.roles, head_scores, strict=True)
                    },
                    "confidences": dict(
                        zip(self.roles, map(rounded_or_none, confidences), strict=True)
                    ),
                }
                for head, head_scores, confidences in rows
            ],
        }


def rounded_or_none(value: float) -> float | None:
    return None if math.isnan(value) else round(value, 6)


def heads_of(
    subject: Subject, text: str | Sequence[int] | Trace | None = None, *, seed: int = 0
) -> HeadMap:
    """The role of every head, from a text (or its trace; a built-in text by default) and two probes
    of random repeated tokens."""
    traces = evidence_traces(subject, text, seed)
    names = list(traces)
    heads = list[HeadRole]()
    scores = list[Tensor]()
    confidences = list[Tensor]()
    for site in sites_of(subject.transformer):
        scores_by_text = layer_scores(subject, traces, site)
        for head_index in range(next(iter(traces.values())).looks[site].heads):
            head, head_scores, head_confidences = classify_head(site, head_index, scores_by_text)
            heads.append(head)
            scores.append(
                torch.tensor([[head_scores[role][name] for name in names] for role in SCORED_ROLES])
            )
            confidences.append(torch.tensor([head_confidences[role] for role in SCORED_ROLES]))
    descriptions = {
        name: trace.source_text or trace.text or f"{len(trace.tokens)} tokens"
        for name, trace in traces.items()
    }
    return HeadMap(
        subject.name,
        tuple(heads),
        torch.stack(scores),
        torch.stack(confidences),
        descriptions,
        seed,
    )


def evidence_traces(
    subject: Subject, text: str | Sequence[int] | Trace | None, seed: int
) -> dict[str, Trace]:
    """The traces that are evidence: the text's and the probes'. Only the probes' if no text is
    given and the tokenizer cannot encode the built-in one."""
    if not sites_of(subject.transformer):
        raise InputError(
            "a model without attention",
            expected="at least one layer",
            fix="take a model that has layers",
        )
    text = built_in_text(subject) if text is None else text
    trace = None if text is None else trace_text(subject, text)
    start = 0 if trace is None else trace.tokens[0].id
    probes = {
        name: trace_probe(subject, probe)
        for name, probe in probes_for(subject, seed=seed, start=start).items()
    }
    return probes if trace is None else {"text": trace, **probes}


def built_in_text(subject: Subject) -> str | None:
    """As much of the built-in text as the model can encode and has positions for; None if that is
    too little."""
    tokenizer = subject.tokenizer
    words = BUILT_IN_TEXT.split()
    while tokenizer is not None and len(words) >= MIN_WORDS:
        ids = tokenizer.encode(" ".join(words), special=True)
        if len(ids) <= max_text_tokens(subject) and tokenizer.unknown not in ids:
            return " ".join(words)
        words.pop()
    return None


def trace_text(subject: Subject, text: str | Sequence[int] | Trace) -> Trace:
    """A trace of a text. The length is checked before the pass."""
    if isinstance(text, Trace):
        return require_complete(subject, text)
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
    check_text_length(len(ids), max_text_tokens(subject))
    if isinstance(subject, TracingSubject):
        return subject.trace(text)
    if len(subject.transformer.config.stacks) == 2:
        raise InputError(
            "only a text, for an encoder–decoder",
            expected="a trace of it",
            fix="heads_of(model, model.trace(text))",
        )
    return trace_of(subject, ids, text=text if isinstance(text, str) else "")


def require_complete(subject: Subject, trace: Trace) -> Trace:
    """The trace, if it has every layer and every row and is not too long."""
    check_text_length(max(len(trace.tokens), len(trace.source or ())), MAX_TOKENS)
    if len(trace.rows) != len(trace.tokens) or any(
        site not in trace.looks for site in sites_of(subject.transformer)
    ):
        raise InputError(
            "a trace of a part of the model or of the text",
            expected="all layers and rows",
            fix="model.trace(text)",
        )
    return trace


def max_text_tokens(subject: Subject) -> int:
    """The tokens that fit into every stack, at most MAX_TOKENS."""
    return min(
        MAX_TOKENS, *(stack.max_positions for stack in subject.transformer.config.stacks.values())
    )


def check_text_length(length: int, most: int) -> None:
    if length > most:
        raise InputError(
            f"a text of {length:,} tokens",
            expected=f"at most {most:,}",
            fix="give a part of it: roles show in a few sentences",
        )


def trace_probe(subject: Subject, probe: Probe) -> Trace:
    if probe.source is None and isinstance(subject, TracingSubject):
        return subject.trace(probe.ids, what=("query", "key"))
    return trace_of(subject, probe.ids, source=probe.source, what=("query", "key"))


def layer_scores(
    subject: Subject, traces: Mapping[str, Trace], site: Site
) -> dict[str, dict[str, PatternScore]]:
    """The scores of one layer's heads, by text and role."""
    special = special_ids(subject)
    offsets = [] if site[2] else offsets_in(traces, site)
    scores: dict[str, dict[str, PatternScore]] = {}
    for name, trace in traces.items():
        queries, keys = tokens_at(trace, site)
        tokens = layer_tokens(queries, keys, special, cross=site[2])
        scores[name] = role_scores(
            attention_without_sink(trace.looks[site], tokens), tokens, offsets
        )
    return scores


def special_ids(subject: Subject) -> frozenset[int]:
    return frozenset() if subject.tokenizer is None else subject.tokenizer.special_ids


def tokens_at(trace: Trace, site: Site) -> tuple[Sequence[Token], Sequence[Token]]:
    """The queries and the keys of an attention layer, as tokens."""
    stack, _, cross = site
    queries = trace.tokens_of(stack)
    return queries, (trace.source or ()) if cross else queries


def offsets_in(traces: Mapping[str, Trace], site: Site) -> list[int]:
    lengths = [len(trace.tokens_of(site[0])) for name, trace in traces.items() if name != "text"]
    return offsets_within(
        lengths, causal=next(iter(traces.values())).looks[site].scoring.mask.causal
    )


def classify_head(
    site: Site, head_index: int, scores_by_text: Mapping[str, Mapping[str, PatternScore]]
) -> tuple[HeadRole, dict[str, dict[str, float]], dict[str, float]]:
    """One head: its role, its scores by role and text, its confidences by role."""
    names = {name for scores_of_text in scores_by_text.values() for name in scores_of_text}

    def values(name: str, what: str) -> dict[str, float]:
        return {
            text: float(getattr(scores_of_text[name], what)[head_index])
            if name in scores_of_text
            else math.nan
            for text, scores_of_text in scores_by_text.items()
        }

    confidence_by_name = {
        name: combine_evidence(name, values(name, "confidence")) for name in names
    }
    offset = max(
        (name for name in names if name not in ROLES and not math.isnan(confidence_by_name[name])),
        key=confidence_by_name.__getitem__,
        default=None,
    )
    score_names = {role: offset if role == "offset" else role for role in SCORED_ROLES}
    confidences = {
        role: confidence_by_name.get(name, math.nan) if name else math.nan
        for role, name in score_names.items()
    }
    scores = {role: values(name or "", "value") for role, name in score_names.items()}
    role, confidence = choose_role(confidences)
    sink = combine_evidence("sink", scores["sink"])
    return (
        HeadRole(
            *site[:2],
            head_index,
            site[2],
            role,
            confidence,
            sink,
            None if offset is None else int(offset),
        ),
        scores,
        confidences,
    )
