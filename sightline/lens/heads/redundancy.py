"""Which heads see the same: how alike their maps are, sinks taken out, and the groups of heads that
could stand for each other.

JS(p, q)   = H((p + q)/2) − (H(p) + H(q))/2        in bits, 0 … 1
similarity = 1 − mean over rows of √JS(p_i, q_i)     1: the same map, 0: never the same key
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sightline.errors import InputError
from sightline.lens.heads.profile import Site, own_text, special_ids, tokens_at, trace_for
from sightline.lens.heads.roles import left_of, scene_of
from sightline.lens.trace.layer import sites_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace

Place = tuple[int, int]  # layer and head
ALIKE = 0.7


@dataclass(frozen=True, slots=True)
class Redundancy:
    """How alike the heads of a stack are: `similarity[a, b]`, in the order of `places` (layer,
    head), and groups of two and more."""

    name: str
    stack: str
    cross: bool
    places: tuple[Place, ...]
    similarity: Float[Tensor, "heads heads"]
    threshold: float
    clusters: tuple[tuple[Place, ...], ...]
    text: str = ""

    def like(self, layer: int, head: int, count: int = 5) -> list[tuple[Place, float]]:
        """The heads that see most nearly the same as this one."""
        if (layer, head) not in self.places:
            raise InputError(
                f"head {layer}.{head}",
                expected=f"up to {self.places[-1]}",
                fix="layer and head count from 0",
            )
        row = self.similarity[self.places.index((layer, head))]
        order = [
            n
            for n in row.argsort(descending=True, stable=True).tolist()
            if self.places[n] != (layer, head)
        ]
        return [(self.places[n], float(row[n])) for n in order[:count]]

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "model": self.name,
            "stack": self.stack,
            "cross": self.cross,
            "text": self.text,
            "places": [list(place) for place in self.places],
            "similarity": [[round(value, 6) for value in row] for row in self.similarity.tolist()],
            "threshold": self.threshold,
            "clusters": [[list(place) for place in cluster] for cluster in self.clusters],
        }


def redundancy_of(
    subject: Subject,
    text: str | Sequence[int] | Trace | None = None,
    *,
    stack: str | None = None,
    cross: bool = False,
    threshold: float = ALIKE,
) -> Redundancy:
    """All pairs of heads of a stack, on one text (of ours if none is given)."""
    if not 0 < threshold <= 1:
        raise InputError(
            f"a threshold of {threshold}", expected="above 0, up to 1", fix=f"threshold={ALIKE}"
        )
    text = own_text(subject) if text is None else text
    if text is None:
        raise InputError(
            "no text, and a model that cannot read ours",
            expected="a text or token ids",
            fix="redundancy_of(model, [5, 17, 3, 8])",
        )
    trace = trace_for(subject, text)
    name = trace.stack_named(stack)
    sites = [site for site in sites_of(subject.running) if (site[0], site[2]) == (name, cross)]
    if not sites:
        raise InputError(
            f"the {name} has no cross-attention",
            expected="an encoder–decoder",
            fix="cross=False for its self-attention",
        )
    maps, rows = stacked(subject, trace, sites)
    similarity = similarities(maps, rows)
    places = tuple((site[1], head) for site in sites for head in range(trace.looks[site].heads))
    groups = tuple(tuple(places[n] for n in group) for group in clusters(similarity, threshold))
    return Redundancy(
        subject.name,
        name,
        cross,
        places,
        similarity,
        threshold,
        groups,
        trace.source_text or trace.text,
    )


def stacked(
    subject: Subject, trace: Trace, sites: Sequence[Site]
) -> tuple[Float[Tensor, "heads query key"], Bool[Tensor, "heads query"]]:
    """The maps of all layers without their sinks, and the rows in which each says something."""
    lefts = [
        left_of(
            trace.looks[site],
            scene_of(*tokens_at(trace, site), special_ids(subject), cross=site[2]),
        )
        for site in sites
    ]
    return torch.cat([left.weights.float() for left in lefts]), torch.cat(
        [left.rows for left in lefts]
    )


def similarities(
    maps: Float[Tensor, "heads query key"], rows: Bool[Tensor, "heads query"]
) -> Float[Tensor, "heads heads"]:
    """Every pair, over the rows in which both say something. Heads that say nothing beside their
    sink are alike, and like no other."""
    own = entropy(maps)
    found = torch.eye(len(maps))
    for head in range(len(maps) - 1):
        rest = slice(head + 1, None)
        divergence = entropy((maps[head] + maps[rest]) / 2) - (own[head] + own[rest]) / 2
        both = rows[head] & rows[rest]
        distance = torch.where(both, divergence.clamp(0, 1).sqrt(), 0).sum(-1) / both.sum(-1)
        silent = (~rows[head].any() & ~rows[rest].any(-1)).float()
        found[head, rest] = found[rest, head] = torch.where(both.any(-1), 1 - distance, silent)
    return found


def entropy(maps: Float[Tensor, "*heads query key"]) -> Float[Tensor, "*heads query"]:
    """−Σ p log₂ p"""
    return -torch.special.xlogy(maps, maps).sum(-1) / float(np.log(2))


def clusters(similarity: Float[Tensor, "heads heads"], threshold: float) -> list[list[int]]:
    """Groups in which every pair is at least so alike: the two most alike groups are joined as long
    as that holds (complete linkage)."""
    alike = similarity.double().numpy().copy()
    np.fill_diagonal(alike, -1)
    groups = {n: [n] for n in range(len(alike))}
    while groups:
        a, b = divmod(int(alike.argmax()), len(alike))
        if alike[a, b] < threshold:
            break
        groups[a] += groups.pop(b)
        alike[a] = alike[:, a] = np.minimum(alike[a], alike[b])
        alike[a, a] = -1
        alike[b] = alike[:, b] = -1
    return sorted(
        (sorted(group) for group in groups.values() if len(group) > 1),
        key=lambda group: (-len(group), group),
    )
