"""The differences between two models, two checkpoints of a run, or one model before and after an
edit; and the first of them in the order of computation.

    result = diff(before, after)                             two models with the same tokenizer
    result = diff(model, model, edits_b=ablate(5, 1))        the effect of an edit
    print("\n".join(result.summary()))

Heads are matched by their maps and outputs (see `matching`). Activations and weights are compared
by their relative distance, |b − a| / max(|a|, |b|). Predictions are compared by KL(a ‖ b) = Σ a
log₂(a / b), in bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import LanguageHead, MaskedHead
from sightline.errors import InputError, short_repr
from sightline.lens.heads.matching import HeadChange, HeadName, pairs_of, relative_distance
from sightline.lens.interventions.edits import Edits
from sightline.lens.trace.layer import sites_of
from sightline.lens.trace.prompt import Prompt, Text, prompt_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace, trace_of
from sightline.record import Edit, Place

TEXTS = (
    "The animal didn't cross the street because it was too tired.",
    "When Mary and John went to the store, John gave a drink to Mary.",
    "In 1905 Albert Einstein, who worked at the patent office, published four papers.",
)
STREAM = ("residual", "attention", "cross_attention", "feed_forward")
ROUNDING = 1e-5  # smaller distances count as rounding


@dataclass(frozen=True, slots=True)
class LayerChange:
    """The change of one activation: the mean cosine over tokens, Σ|b| / Σ|a|, and the relative
    distance. The layer is None for the output."""

    stack: str
    layer: int | None
    name: str
    cosine: float
    norm_ratio: float
    distance: float

    def __str__(self) -> str:
        where = self.stack if self.layer is None else f"{self.stack} layer {self.layer}"
        return f"{where} {self.name}: cosine {self.cosine:.3f}, norm × {self.norm_ratio:.3f}"


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences of two models. `heads` in the order of a; `layers` only if both models have
    the same number and width; `predictions` holds KL(a ‖ b) of each token of each text in bits,
    `weights` the relative distance of each parameter that both have."""

    a: str
    b: str
    tokens: tuple[tuple[str, ...], ...]
    heads: tuple[HeadChange, ...]
    only_a: tuple[HeadName, ...]
    only_b: tuple[HeadName, ...]
    layers: tuple[LayerChange, ...]
    predictions: tuple[tuple[float, ...], ...]
    weights: dict[str, float]
    unmatched_weights: tuple[str, ...]

    def __repr__(self) -> str:
        changed = len(self.changed(len(self.heads)))
        state = "no difference" if self.same else f"{changed} of {len(self.heads)} heads changed"
        return f"<Diff {self.a} → {self.b}: {state}>"

    @property
    def same(self) -> bool:
        """Whether all differences are within rounding."""
        unmatched = self.only_a or self.only_b or self.unmatched_weights
        changes = [
            *(head.size for head in self.heads),
            *(layer.distance for layer in self.layers),
            *self.weights.values(),
        ]
        return (
            not unmatched
            and max(changes, default=0.0) <= ROUNDING
            and max(map(max, self.predictions), default=0.0) <= ROUNDING
        )

    def changed(self, count: int = 5) -> list[HeadChange]:
        """The heads that changed most, in their maps or outputs."""
        return sorted(
            (head for head in self.heads if head.size > ROUNDING), key=lambda head: -head.size
        )[:count]

    @property
    def begins(self) -> list[HeadChange] | LayerChange | None:
        """The first difference in the order of computation: heads of one layer (which run in
        parallel), or an activation that enters or leaves it. None if there is none, or if the
        models have different shapes."""
        for layer in self.layers:
            heads = [
                head for head in self.heads if self._feeds(head, layer) and head.size > ROUNDING
            ]
            if heads or layer.distance > ROUNDING:
                return heads or layer
        return None

    @staticmethod
    def _feeds(head: HeadChange, layer: LayerChange) -> bool:
        """Whether the head's output is part of this activation."""
        return (head.stack, head.layer, "cross_attention" if head.cross else "attention") == (
            layer.stack,
            layer.layer,
            layer.name,
        )

    def summary(self, count: int = 5) -> list[str]:
        """The differences, one line each."""
        texts = len(self.tokens)
        total = sum(map(len, self.tokens))
        first = f"{self.a} → {self.b}: {texts} text{'s' * (texts != 1)}, {total} tokens"
        return [
            first,
            *self._first_change_lines(),
            *self._prediction_lines(),
            *self._head_lines(count),
            *self._stream_lines(),
            *self._weight_lines(count),
        ]

    def _first_change_lines(self) -> list[str]:
        first = self.begins
        if first is None:
            return ["no difference"] if self.same else []
        if isinstance(first, LayerChange):
            return [f"begins at {first}"]
        return [
            f"begins at {first[0].place} "
            + ("head " if len(first) == 1 else "heads ")
            + ", ".join(str(head.head) for head in first)
        ]

    def _prediction_lines(self) -> list[str]:
        if not self.predictions:
            return ["predictions: not compared, as the models do not share a vocabulary of logits"]
        divergences = [
            pair
            for text, tokens in zip(self.predictions, self.tokens, strict=True)
            for pair in zip(text, tokens, strict=True)
        ]
        largest, after = max(divergences)
        mean = sum(bits for bits, _ in divergences) / len(divergences)
        return [
            (
                f"predictions: {mean:.4f} bits per token, largest {largest:.3f} after {after!r}"
                if largest > ROUNDING
                else "predictions: the same"
            )
        ]

    def _head_lines(self, count: int) -> list[str]:
        moved = sum(head.moved for head in self.heads)
        changed = self.changed(len(self.heads))
        lines = [
            f"heads: {len(changed)} of {len(self.heads)} changed, {moved} matched at another place"
        ]
        if self.only_a or self.only_b:
            lines.append(
                f"heads without a counterpart: {len(self.only_a)} of a, {len(self.only_b)} of b"
            )
        return lines + [f"  {head}" for head in changed[:count]]

    def _stream_lines(self) -> list[str]:
        turned = min(
            (layer for layer in self.layers if layer.name == "residual"),
            key=lambda layer: layer.cosine,
            default=None,
        )
        return (
            []
            if turned is None or turned.distance <= ROUNDING
            else [f"stream, largest change of direction: {turned}"]
        )

    def _weight_lines(self, count: int) -> list[str]:
        changed = sorted(
            (name for name, apart in self.weights.items() if apart > 0),
            key=lambda name: -self.weights[name],
        )
        lines = (
            [f"weights: {len(changed)} of {len(self.weights)} tensors changed"] if changed else []
        )
        lines += [f"  {name} differs by {self.weights[name]:.3f}" for name in changed[:count]]
        return lines + (
            [f"weights that only one model has: {len(self.unmatched_weights)}"]
            if self.unmatched_weights
            else []
        )

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
        first = self.begins
        began = [first] if isinstance(first, LayerChange) else first or []
        return asdict(self) | {"same": self.same, "begins": [asdict(change) for change in began]}


# --------------------------------------------------------------------------------- the comparison


def diff(
    a: Subject,
    b: Subject,
    texts: Sequence[Text | Trace] | None = None,
    *,
    sources: Sequence[Text] | None = None,
    edits_b: Mapping[Place, Edit] | None = None,
) -> Diff:
    """Compare both models on the same tokens. By default on a few built-in sentences (random ids
    without a tokenizer), which an encoder–decoder gets as source and target. For an
    encoder–decoder, texts are traces, or ids with their `sources`."""
    prompts = prompts_for(a, b, texts, sources)
    pairs = pairs_of(a, b)
    places = shared_places(a, b)
    tokens = list[tuple[str, ...]]()
    predictions = list[tuple[float, ...]]()
    sums = torch.zeros(len(places), 6, dtype=torch.float64)
    for prompt in prompts:
        (a_trace, _), (b_trace, maps) = (
            trace_for_diff(a, prompt),
            trace_for_diff(b, prompt, edits_b),
        )
        for group in pairs:
            group.add(a_trace, b_trace, maps)
        sums += stream_sums(a_trace, b_trace, places)
        predictions += (
            [prediction_divergence(a_trace.logits, b_trace.logits)]
            if share_vocabulary(a, b)
            else []
        )
        tokens.append(tuple(token.text for token in a_trace.tokens))
    matches = [group.match() for group in pairs]
    weights, unmatched = weight_distances(a, b)
    return Diff(
        a=a.name,
        b=b.name if edits_b is None else f"{b.name}, edited",
        tokens=tuple(tokens),
        heads=tuple(head for heads, _, _ in matches for head in heads),
        only_a=tuple(head for _, heads, _ in matches for head in heads),
        only_b=tuple(head for _, _, heads in matches for head in heads),
        layers=layer_changes(places, sums),
        predictions=tuple(predictions),
        weights=weights,
        unmatched_weights=unmatched,
    )


def trace_for_diff(
    subject: Subject, prompt: Prompt, edits: Mapping[Place, Edit] | None = None
) -> tuple[Trace, dict[Place, Tensor]]:
    """A trace with maps, head outputs and stream; and the maps that an edit changed, which q and k
    do not reproduce."""
    edited_maps: dict[Place, Tensor] = {}

    def keep(place: Place) -> Edit:
        return lambda weights: edited_maps.setdefault(place, weights)

    edited = Edits(edits or {}) | {
        place: keep(place) for place in edits or {} if place[2].endswith("weights")
    }
    has_cross = any(cross for _, _, cross in sites_of(subject.transformer))
    names = [*STREAM, "heads", "cross_heads", "output"]
    what = ("query", "key", *(name for name in names if has_cross or not name.startswith("cross_")))
    return (
        trace_of(
            subject,
            prompt.ids,
            source=prompt.source,
            text=prompt.text,
            what=what,
            edits=edited or None,
        ),
        edited_maps,
    )


def prompts_for(
    a: Subject, b: Subject, texts: Sequence[Text | Trace] | None, sources: Sequence[Text] | None
) -> list[Prompt]:
    """The texts as ids, which must be the same for both models; built-in texts are cut to what both
    can read."""
    if isinstance(texts, (str, Trace)) or (texts is not None and not texts):
        raise InputError(
            f"texts={short_repr(texts)}", expected="a list of texts", fix="diff(a, b, [text])"
        )
    given_texts = texts
    if texts is None:
        texts, sources = default_texts(a, b)
    elif sources is not None and len(sources) != len(texts):
        raise InputError(
            f"{len(texts)} texts and {len(sources)} sources",
            expected="a source for each",
            fix="sources=[…]",
        )
    max_length = (
        min(stack.max_positions for x in (a, b) for stack in x.transformer.config.stacks.values())
        if given_texts is None
        else None
    )
    prompts: list[Prompt] = []
    for text, source in zip(texts, sources or [None] * len(texts), strict=True):
        a_prompt = prompt_of(a, text, source)
        b_prompt = prompt_of(b, text, source)
        if (a_prompt.ids, a_prompt.source) != (b_prompt.ids, b_prompt.source):
            text_shown = short_repr(a_prompt.text or a_prompt.source_text)
            mismatch = (
                f"{text_shown}, which is {len(a_prompt.ids)} tokens for {a.name} and"
                f" {len(b_prompt.ids)} different ones for {b.name}"
            )
            raise InputError(
                mismatch,
                expected="models that read the same tokens",
                fix="compare models that share a tokenizer, or give ids",
            )
        prompts.append(
            replace(
                a_prompt,
                ids=a_prompt.ids[:max_length],
                source=a_prompt.source and a_prompt.source[:max_length],
            )
        )
    return prompts


def default_texts(a: Subject, b: Subject) -> tuple[list[Text], list[Text] | None]:
    """A few sentences, or random ids; an encoder–decoder gets the same text as source and
    target."""
    config = a.transformer.config
    texts: list[Text] = list(TEXTS)
    if a.tokenizer is None or b.tokenizer is None:
        size = min(
            stack.embedding.vocab_size
            for x in (a, b)
            for stack in x.transformer.config.stacks.values()
        )
        texts = torch.randint(0, size, (3, 24), generator=torch.Generator().manual_seed(0)).tolist()
    if config.encoder is None or config.decoder is None:
        return texts, None
    target_ids = [
        a.tokenizer.encode(text, special=True) if isinstance(text, str) and a.tokenizer else text
        for text in texts
    ]
    return target_ids, texts


def shared_places(a: Subject, b: Subject) -> list[Place]:
    """The places of activations that both models have, in the order of computation; none if their
    shapes differ."""
    shapes = [
        {name: (stack.layers, stack.width) for name, stack in x.transformer.config.stacks.items()}
        for x in (a, b)
    ]
    if shapes[0] != shapes[1]:
        return []
    places: list[Place] = []
    for name, stack in a.transformer.config.stacks.items():
        for layer in range(stack.layers):
            has_cross = stack.block(layer).cross_attention is not None
            places += [
                (name, layer, part) for part in STREAM if has_cross or part != "cross_attention"
            ]
        places.append((name, None, "output"))
    return places


def stream_sums(a: Trace, b: Trace, places: Sequence[Place]) -> Float[Tensor, "places 6"]:
    """For each place, over the tokens: count, Σ cos, Σ|a|, Σ|b|, Σ|b − a|², and the larger of Σ|a|²
    and Σ|b|²."""
    sums = torch.zeros(len(places), 6, dtype=torch.float64)
    for row, place in enumerate(places):
        x = a.kept[place].double()
        y = b.kept[place].double()
        cosine = torch.where(
            (x == y).all(-1), 1.0, torch.cosine_similarity(x, y, dim=-1).clamp(max=1)
        )
        largest = torch.maximum(x.square().sum(), y.square().sum())
        lengths = x.norm(dim=-1).sum(), y.norm(dim=-1).sum()
        sums[row] = torch.stack(
            (torch.tensor(len(x)).double(), cosine.sum(), *lengths, (y - x).square().sum(), largest)
        )
    return sums


def layer_changes(
    places: Sequence[Place], sums: Float[Tensor, "places 6"]
) -> tuple[LayerChange, ...]:
    """The sums as means and ratios; 0 / 0 counts as a ratio of 1."""
    distances = relative_distance(sums[:, 4], sums[:, 5])
    ratios = torch.where(sums[:, 2] == sums[:, 3], 1.0, sums[:, 3] / sums[:, 2].clamp(min=1e-30))
    cosines = sums[:, 1] / sums[:, 0].clamp(min=1)
    return tuple(
        LayerChange(*place, float(cosines[n]), float(ratios[n]), float(distances[n]))
        for n, place in enumerate(places)
    )


def share_vocabulary(a: Subject, b: Subject) -> bool:
    """Whether both have logits over vocabularies of the same size."""
    configs = [x.transformer.config for x in (a, b)]
    sizes = {config.last.embedding.vocab_size for config in configs}
    return (
        all(isinstance(config.head, (LanguageHead, MaskedHead)) for config in configs)
        and len(sizes) == 1
    )


def prediction_divergence(
    a: Float[Tensor, "time vocab_size"], b: Float[Tensor, "time vocab_size"]
) -> tuple[float, ...]:
    """KL(a ‖ b) of each token's prediction, in bits."""
    p = a.double().log_softmax(-1)
    q = b.double().log_softmax(-1)
    return tuple(((p.exp() * (p - q)).sum(-1).clamp(min=0) / math.log(2)).tolist())


def weight_distances(a: Subject, b: Subject) -> tuple[dict[str, float], tuple[str, ...]]:
    """The distance of each parameter that both have in the same shape; and the names of the
    others."""
    a_weights = dict(a.transformer.named_parameters())
    b_weights = dict(b.transformer.named_parameters())
    both = [
        name
        for name in a_weights
        if name in b_weights and a_weights[name].shape == b_weights[name].shape
    ]
    unmatched = tuple(sorted((a_weights.keys() | b_weights.keys()) - set(both)))
    return {
        name: 0.0
        if a_weights[name] is b_weights[name]
        else weight_distance(a_weights[name], b_weights[name])
        for name in both
    }, unmatched


@torch.no_grad()
def weight_distance(a: Tensor, b: Tensor) -> float:
    """|b − a| / max(|a|, |b|)"""
    a = a.float()
    b = b.float()
    return float((b - a).norm() / torch.maximum(a.norm(), b.norm()).clamp(min=1e-30))
