"""What a head does, in one word, with a confidence: the pattern that stands out most, after its
sink was taken out.

    1  each pattern has a confidence in each text (see `patterns`); the mean over the texts in
    EVIDENCE is the pattern's 2  the surest pattern is the role, if its confidence is at least CLEAR
    3  else it is a sink, if that has at least RESTS (the head rests there more than half of the
    time), or broad, if at least CLEAR 4  else it is unclear, with 1 − the largest confidence there
    was

Induction and duplicates are judged by the worse of the two probes: a fixed offset can pass for them
in one, not in both.
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
    Left,
    Measured,
    at_offset,
    broad,
    duplicates,
    inductions,
    monotone,
    on_pattern,
    others,
    without_sink,
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
    "previous": "looks at the token before",
    "next": "looks at the token after",
    "self": "looks at the token itself",
    "duplicate": "looks at other places of the same token",
    "induction": "looks at what came after the same token elsewhere",
    "offset": "looks a fixed number of tokens away",
    "punctuation": "looks at punctuation",
    "monotone": "follows the source from left to right",
    "sink": "looks at the first or a special token, and at nothing else in particular",
    "broad": "looks at everything alike",
    "unclear": "none of these stands out",
}
EVIDENCE = {
    "punctuation": ("text",),
    "monotone": ("text",),
    "induction": ("probe", "short probe"),
    "duplicate": ("probe", "short probe"),
}
WORST = ("induction", "duplicate")
CLEAR = 0.3
RESTS = 0.5
FARTHEST = 16  # the largest fixed offset that is looked for


@dataclass(frozen=True, slots=True)
class Scene:
    """One text as one attention layer meets it: who asks, who can be looked at, and which keys are
    sinks or punctuation."""

    ids: Int[Tensor, " key"]
    sink: Bool[Tensor, " key"]
    asked: Bool[Tensor, " query"]
    punctuation: Bool[Tensor, " key"]
    cross: bool = False


def scene_of(
    queries: Sequence[Token], keys: Sequence[Token], special: frozenset[int], *, cross: bool
) -> Scene:
    """Sinks are the special tokens and, where a text looks at itself, its first token. Special
    tokens are not asked."""
    sink = torch.tensor([token.id in special for token in keys])
    if not cross:
        sink[0] = True
    return Scene(
        ids=torch.tensor([token.id for token in keys]),
        sink=sink,
        asked=torch.tensor([token.id not in special for token in queries]),
        punctuation=torch.tensor(
            [token.id not in special and is_punctuation(token.text) for token in keys]
        ),
        cross=cross,
    )


def is_punctuation(text: str) -> bool:
    """Signs and nothing else: of Unicode's classes P and S."""
    text = text.strip().removeprefix("##")
    return bool(text) and all(unicodedata.category(sign)[0] in "PS" for sign in text)


def left_of(look: Look, scene: Scene) -> Left:
    """One layer's attention without its sink."""
    return without_sink(look.weights(), look.scoring.mask.allowed()[0, 0], scene.sink, scene.asked)


def measure(left: Left, scene: Scene, offsets: Sequence[int]) -> dict[str, Measured]:
    """Every score of every head of a layer, by role; those of fixed offsets under their number."""
    queries = left.visible.shape[0]
    found = {
        "punctuation": on_pattern(
            left, others(scene.punctuation, queries=queries, cross=scene.cross)
        ),
        "sink": left.sink,
        "broad": broad(left),
    }
    if scene.cross:
        return found | {"monotone": monotone(left)}
    found |= {
        name: at_offset(left, by) for name, by in (("previous", -1), ("self", 0), ("next", 1))
    }
    found |= {
        "duplicate": on_pattern(left, duplicates(scene.ids)),
        "induction": on_pattern(left, inductions(scene.ids)),
    }
    return found | {str(by): at_offset(left, by) for by in offsets}


def offsets_within(lengths: Sequence[int], *, causal: bool) -> list[int]:
    """−2, −3, … and, where tokens may look ahead, 2, 3, …; too short to be mistaken for a
    repetition in a probe."""
    farthest = min(FARTHEST, min(lengths) // 2 - 2)
    behind = [-by for by in range(2, farthest + 1)]
    return behind if causal else [*behind, *(-by for by in behind)]


def gathered(name: str, by_text: Mapping[str, float]) -> float:
    """The confidence in a role: the mean over its texts (the worst for a repetition), NaN where
    none of them could say."""
    wanted = [by_text[text] for text in EVIDENCE.get(name, tuple(by_text)) if text in by_text]
    said = [value for value in wanted if not math.isnan(value)] or [
        value for value in by_text.values() if not math.isnan(value)
    ]
    if not said:
        return math.nan
    return min(said) if name in WORST else sum(said) / len(said)


def label(confidences: Mapping[str, float]) -> tuple[str, float]:
    """The role and how sure it is."""
    sure = {name: value for name, value in confidences.items() if not math.isnan(value)}
    best = max((name for name in PATTERNS if name in sure), key=sure.__getitem__, default=None)
    for name, least in ((best, CLEAR), ("sink", RESTS), ("broad", CLEAR)):
        if name is not None and sure.get(name, 0.0) >= least:
            return name, sure[name]
    return "unclear", 1 - max(sure.values(), default=0.0)
