"""Redundant heads: the pairwise similarity of attention maps without their sinks, and clusters of
similar heads.

JS(p, q)   = H((p + q)/2) − (H(p) + H(q))/2        in bits, 0 … 1
similarity = 1 − mean over rows of √JS(p_i, q_i)     1: the same map, 0: disjoint keys
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
from sightline.lens.heads.profile import Site, built_in_text, special_ids, tokens_at, trace_text
from sightline.lens.heads.roles import attention_without_sink, layer_tokens
from sightline.lens.trace.layer import sites_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace

Place = tuple[int, int]  # layer and head
THRESHOLD = 0.7


@dataclass(frozen=True, slots=True)
class Redundancy:
    """The similarity of a stack's heads: `similarity[a, b]`, in the order of `places` (layer,
    head), and clusters of two or more."""

    name: str
    stack: str
    cross: bool
    places: tuple[Place, ...]
    similarity: Float[Tensor, "heads heads"]
    threshold: float
    clusters: tuple[tuple[Place, ...], ...]
    text: str = ""

    def __repr__(self) -> str:
        name = self.name or "a model"
        sizes = f"{len(self.places)} heads, {len(self.clusters)} clusters"
        return f"<Redundancy of {name} {self.stack}: {sizes} at {self.threshold:g}>"

    def like(self, layer: int, head: int, count: int = 5) -> list[tuple[Place, float]]:
        """The heads most similar to this one, with their similarities."""
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
        """A JSON-serializable dict."""
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
    threshold: float = THRESHOLD,
) -> Redundancy:
    """The similarity of all pairs of heads of a stack, on one text (a built-in one by default)."""
    if not 0 < threshold <= 1:
        raise InputError(
            f"a threshold of {threshold}", expected="above 0, up to 1", fix=f"threshold={THRESHOLD}"
        )
    text = built_in_text(subject) if text is None else text
    if text is None:
        raise InputError(
            "no text, and a tokenizer that cannot encode the built-in one",
            expected="a text or token ids",
            fix="redundancy_of(model, [5, 17, 3, 8])",
        )
    trace = trace_text(subject, text)
    name = trace.stack_named(stack)
    sites = [site for site in sites_of(subject.transformer) if (site[0], site[2]) == (name, cross)]
    if not sites:
        raise InputError(
            f"the {name} has no cross-attention",
            expected="an encoder–decoder",
            fix="cross=False for its self-attention",
        )
    maps, rows = stack_maps(subject, trace, sites)
    similarity = similarities(maps, rows)
    places = tuple((site[1], head) for site in sites for head in range(trace.looks[site].heads))
    grouped = tuple(tuple(places[n] for n in group) for group in clusters(similarity, threshold))
    return Redundancy(
        subject.name,
        name,
        cross,
        places,
        similarity,
        threshold,
        grouped,
        trace.source_text or trace.text,
    )


def stack_maps(
    subject: Subject, trace: Trace, sites: Sequence[Site]
) -> tuple[Float[Tensor, "heads query key"], Bool[Tensor, "heads query"]]:
    """The maps of all layers without their sinks, and the active rows of each."""
    attentions = [
        attention_without_sink(
            trace.looks[site],
            layer_tokens(*tokens_at(trace, site), special_ids(subject), cross=site[2]),
        )
        for site in sites
    ]
    return torch.cat([attention.weights.float() for attention in attentions]), torch.cat(
        [attention.rows for attention in attentions]
    )


def similarities(
    maps: Float[Tensor, "heads query key"], rows: Bool[Tensor, "heads query"]
) -> Float[Tensor, "heads heads"]:
    """1 − mean √JS of every pair, over the rows in which both are active. Heads that are nothing
    but sink are similar to each other and to no other head."""
    own = entropy(maps)
    similarity = torch.eye(len(maps))
    for head in range(len(maps) - 1):
        rest = slice(head + 1, None)
        divergence = entropy((maps[head] + maps[rest]) / 2) - (own[head] + own[rest]) / 2
        both = rows[head] & rows[rest]
        distance = torch.where(both, divergence.clamp(0, 1).sqrt(), 0).sum(-1) / both.sum(-1)
        both_silent = (~rows[head].any() & ~rows[rest].any(-1)).float()
        similarity[head, rest] = similarity[rest, head] = torch.where(
            both.any(-1), 1 - distance, both_silent
        )
    return similarity


def entropy(maps: Float[Tensor, "*heads query key"]) -> Float[Tensor, "*heads query"]:
    """−Σ p log₂ p"""
    return -torch.special.xlogy(maps, maps).sum(-1) / float(np.log(2))


def clusters(similarity: Float[Tensor, "heads heads"], threshold: float) -> list[list[int]]:
    """Clusters in which every pair reaches the threshold (complete linkage): the two most similar
    clusters are merged as long as that holds."""
    scores = similarity.double().numpy().copy()
    np.fill_diagonal(scores, -1)
    groups = {n: [n] for n in range(len(scores))}
    while groups:
        a, b = divmod(int(scores.argmax()), len(scores))
        if scores[a, b] < threshold:
            break
        groups[a] += groups.pop(b)
        scores[a] = scores[:, a] = np.minimum(scores[a], scores[b])
        scores[a, a] = -1
        scores[b] = scores[:, b] = -1
    return sorted(
        (sorted(group) for group in groups.values() if len(group) > 1),
        key=lambda group: (-len(group), group),
    )
