"""The role of a head, with a confidence: its most pronounced attention pattern after the sink is
removed.

    1  every pattern gets a confidence in each text (see `patterns`), averaged over the texts in
       EVIDENCE
    2  the pattern with the highest confidence is the role, if it reaches PATTERN_THRESHOLD
    3  otherwise sink, if that reaches SINK_THRESHOLD, or broad, if that reaches PATTERN_THRESHOLD
    4  otherwise unclear, with 1 − the highest confidence

Induction and duplicate take the lower confidence of the two probes: a fixed offset can look like
them in one probe, not in both.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from sightline.lens.heads.patterns import (
    PatternScore,
    SinkFreeAttention,
    duplicate_pattern,
    induction_pattern,
    marked_keys_pattern,
    remove_sink,
    score_breadth,
    score_monotone,
    score_offset,
    score_pattern,
)
from sightline.lens.trace.layer import Look
from sightline.lens.trace.subject import Token

PATTERNS = (
    "previous",
    "next",
    "self",
    "duplicate",
    "induction",
    "offset",
    "punctuation",
    "monotone",
)
ROLES = (*PATTERNS, "sink", "broad", "unclear")
MEANING = {
    "previous": "attends to the previous token",
    "next": "attends to the next token",
    "self": "attends to the token itself",
    "duplicate": "attends to other occurrences of the same token",
    "induction": "attends to the token that followed an earlier occurrence",
    "offset": "attends at a fixed distance",
    "punctuation": "attends to punctuation",
    "monotone": "moves through the source from left to right",
    "sink": "attends mostly to the first or a special token",
    "broad": "attends to all tokens about equally",
    "unclear": "no pattern reaches the threshold",
}
EVIDENCE = {
    "punctuation": ("text",),
    "monotone": ("text",),
    "induction": ("probe", "short probe"),
    "duplicate": ("probe", "short probe"),
}
JUDGED_BY_MINIMUM = ("induction", "duplicate")
PATTERN_THRESHOLD = 0.3
SINK_THRESHOLD = 0.5
MAX_OFFSET = 16  # the largest fixed offset that is tested


@dataclass(frozen=True, slots=True)
class LayerTokens:
    """The tokens of one attention layer: which queries are scored, and which keys are sinks or
    punctuation."""

    ids: Int[Tensor, " key"]
    sink: Bool[Tensor, " key"]
    is_query: Bool[Tensor, " query"]
    punctuation: Bool[Tensor, " key"]
    cross: bool = False


def layer_tokens(
    queries: Sequence[Token], keys: Sequence[Token], special: frozenset[int], *, cross: bool
) -> LayerTokens:
    """Sinks are the special tokens and, in self-attention, the first token. Special tokens are not
    scored as queries."""
    sink = torch.tensor([token.id in special for token in keys])
    if not cross:
        sink[0] = True
    return LayerTokens(
        ids=torch.tensor([token.id for token in keys]),
        sink=sink,
        is_query=torch.tensor([token.id not in special for token in queries]),
        punctuation=torch.tensor(
            [token.id not in special and is_punctuation(token.text) for token in keys]
        ),
        cross=cross,
    )


def is_punctuation(text: str) -> bool:
    """Whether a token consists of Unicode punctuation (P) and symbols (S) only."""
    text = text.strip().removeprefix("##")
    return bool(text) and all(unicodedata.category(character)[0] in "PS" for character in text)


def attention_without_sink(look: Look, tokens: LayerTokens) -> SinkFreeAttention:
    """The attention of one layer with the sink removed."""
    return remove_sink(
        look.weights(), look.scoring.mask.allowed()[0, 0], tokens.sink, tokens.is_query
    )


def role_scores(
    attention: SinkFreeAttention, tokens: LayerTokens, offsets: Sequence[int]
) -> dict[str, PatternScore]:
    """The scores of a layer's heads, by role; fixed offsets under their number."""
    queries = attention.visible.shape[0]
    scores = {
        "punctuation": score_pattern(
            attention, marked_keys_pattern(tokens.punctuation, queries=queries, cross=tokens.cross)
        ),
        "sink": attention.sink,
        "broad": score_breadth(attention),
    }
    if tokens.cross:
        return scores | {"monotone": score_monotone(attention)}
    scores |= {
        name: score_offset(attention, by)
        for name, by in (("previous", -1), ("self", 0), ("next", 1))
    }
    scores |= {
        "duplicate": score_pattern(attention, duplicate_pattern(tokens.ids)),
        "induction": score_pattern(attention, induction_pattern(tokens.ids)),
    }
    return scores | {str(by): score_offset(attention, by) for by in offsets}


def offsets_within(lengths: Sequence[int], *, causal: bool) -> list[int]:
    """−2, −3, … and, without a causal mask, 2, 3, …; too short to be confused with a probe's
    repetition."""
    farthest = min(MAX_OFFSET, min(lengths) // 2 - 2)
    behind = [-by for by in range(2, farthest + 1)]
    return behind if causal else [*behind, *(-by for by in behind)]


def combine_evidence(name: str, by_text: Mapping[str, float]) -> float:
    """The confidence in a role: the mean over its texts (the minimum for repetition), NaN without
    any value."""
    values = [by_text[text] for text in EVIDENCE.get(name, tuple(by_text)) if text in by_text]
    values = [value for value in values if not math.isnan(value)] or [
        value for value in by_text.values() if not math.isnan(value)
    ]
    if not values:
        return math.nan
    return min(values) if name in JUDGED_BY_MINIMUM else sum(values) / len(values)


def choose_role(confidences: Mapping[str, float]) -> tuple[str, float]:
    """The role and its confidence."""
    known = {name: value for name, value in confidences.items() if not math.isnan(value)}
    best = max((name for name in PATTERNS if name in known), key=known.__getitem__, default=None)
    for name, threshold in (
        (best, PATTERN_THRESHOLD),
        ("sink", SINK_THRESHOLD),
        ("broad", PATTERN_THRESHOLD),
    ):
        if name is not None and known.get(name, 0.0) >= threshold:
            return name, known[name]
    return "unclear", 1 - max(known.values(), default=0.0)
