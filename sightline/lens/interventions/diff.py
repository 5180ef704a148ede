"""What is different between two models, two checkpoints of a run, or one model before and after an
edit; and where it begins.

    found = diff(before, after)                              two models that read the same tokens
    found = diff(model, model, edits_b=ablate(5, 1))         one model, and what an edit does to it
    print("\n".join(found.summary()))

Heads are matched by where they look and what they say (see `matching`). Vectors and weights are
compared by their distance, |b − a| / max(|a|, |b|): 0 means the same. Predictions are compared by
KL(a ‖ b) = Σ a log₂(a / b), in bits.
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
from sightline.lens.heads.matching import HeadChange, HeadName, distance, pairs_of
from sightline.lens.interventions.edits import Edits
from sightline.lens.trace.layer import sites_of
from sightline.lens.trace.prompt import Question, Text, question_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace, trace_of
from sightline.record import Edit, Place

TEXTS = (
    "The animal didn't cross the street because it was too tired.",
    "When Mary and John went to the store, John gave a drink to Mary.",
    "In 1905 Albert Einstein, who worked at the patent office, published four papers.",
)
STREAM = ("residual", "attention", "cross_attention", "feed_forward")
SAME = 1e-5  # a distance below which two numbers differ by rounding alone


@dataclass(frozen=True, slots=True)
class LayerChange:
    """How vectors of the stream differ: the mean cosine over tokens, Σ|b| / Σ|a|, and the distance.
    The layer is None for the output."""

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
    """`heads` in the order of a; `layers` only where both models have as many and as wide;
    `predictions` the KL(a ‖ b) of each token of each text in bits, `weights` the distance of each
    parameter, where both have it."""

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

    @property
    def same(self) -> bool:
        """No difference that is more than rounding."""
        alone = self.only_a or self.only_b or self.unmatched_weights
        changes = [
            *(head.size for head in self.heads),
            *(layer.distance for layer in self.layers),
            *self.weights.values(),
        ]
        return (
            not alone
            and max(changes, default=0.0) <= SAME
            and max(map(max, self.predictions), default=0.0) <= SAME
        )

    def changed(self, count: int = 5) -> list[HeadChange]:
        """The heads that changed most, in where they look or in what they say."""
        return sorted(
            (head for head in self.heads if head.size > SAME), key=lambda head: -head.size
        )[:count]

    @property
    def begins(self) -> list[HeadChange] | LayerChange | None:
        """The first difference on the way of the data: the heads of one layer (which cannot have
        caught it from one another), or what enters or leaves it. None where there is none, or where
        the models have other shapes."""
        for layer in self.layers:
            heads = [head for head in self.heads if self._speaks(head, layer) and head.size > SAME]
            if heads or layer.distance > SAME:
                return heads or layer
        return None

    @staticmethod
    def _speaks(head: HeadChange, layer: LayerChange) -> bool:
        """Whether what the head says is a part of what this adds to the stream."""
        return (head.stack, head.layer, "cross_attention" if head.cross else "attention") == (
            layer.stack,
            layer.layer,
            layer.name,
        )

    def summary(self, count: int = 5) -> list[str]:
        """What differs, a line each."""
        texts = len(self.tokens)
        total = sum(map(len, self.tokens))
        first = f"{self.a} → {self.b}: {texts} text{'s' * (texts != 1)}, {total} tokens"
        return [
            first,
            *self._beginning(),
            *self._saying(),
            *self._heads(count),
            *self._stream(),
            *self._weights(count),
        ]

    def _beginning(self) -> list[str]:
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

    def _saying(self) -> list[str]:
        if not self.predictions:
            return [
                "predictions: not compared, as the models do not both give logits over the same"
                " words"
            ]
        told = [
            pair
            for text, tokens in zip(self.predictions, self.tokens, strict=True)
            for pair in zip(text, tokens, strict=True)
        ]
        most, after = max(told)
        mean = sum(bits for bits, _ in told) / len(told)
        return [
            (
                f"predictions: {mean:.4f} bits a token, most {most:.3f} after {after!r}"
                if most > SAME
                else "predictions: the same"
            )
        ]

    def _heads(self, count: int) -> list[str]:
        moved = sum(head.moved for head in self.heads)
        changed = self.changed(len(self.heads))
        lines = [
            f"heads: {len(changed)} of {len(self.heads)} changed, {moved} found at another place"
        ]
        if self.only_a or self.only_b:
            lines.append(
                f"heads without a counterpart: {len(self.only_a)} of a, {len(self.only_b)} of b"
            )
        return lines + [f"  {head}" for head in changed[:count]]

    def _stream(self) -> list[str]:
        turned = min(
            (layer for layer in self.layers if layer.name == "residual"),
            key=lambda layer: layer.cosine,
            default=None,
        )
        return (
            []
            if turned is None or turned.distance <= SAME
            else [f"stream, where it turned most: {turned}"]
        )

    def _weights(self, count: int) -> list[str]:
        far = sorted(
            (name for name, apart in self.weights.items() if apart > 0),
            key=lambda name: -self.weights[name],
        )
        lines = [f"weights: {len(far)} of {len(self.weights)} tensors changed"] if far else []
        lines += [f"  {name} {self.weights[name]:.3f} apart" for name in far[:count]]
        return lines + (
            [f"weights that only one has: {len(self.unmatched_weights)}"]
            if self.unmatched_weights
            else []
        )

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON has it."""
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
    """Both models on the same tokens. Without texts, on a few sentences (or random ids where there
    is no tokenizer), which the decoder of an encoder–decoder is shown as well; for one, texts are
    traces, or ids with their `sources`."""
    questions = questions_for(a, b, texts, sources)
    pairs = pairs_of(a, b)
    places = comparable(a, b)
    tokens = list[tuple[str, ...]]()
    predictions = list[tuple[float, ...]]()
    sums = torch.zeros(len(places), 6, dtype=torch.float64)
    for question in questions:
        (ours, _), (theirs, maps) = watch(a, question), watch(b, question, edits_b)
        for group in pairs:
            group.add(ours, theirs, maps)
        sums += stream_sums(ours, theirs, places)
        predictions += [surprise(ours.logits, theirs.logits)] if has_words(a, b) else []
        tokens.append(tuple(token.text for token in ours.tokens))
    matched = [group.matched() for group in pairs]
    weights, unmatched = weight_distances(a, b)
    return Diff(
        a=a.name,
        b=b.name if edits_b is None else f"{b.name}, edited",
        tokens=tuple(tokens),
        heads=tuple(head for heads, _, _ in matched for head in heads),
        only_a=tuple(head for _, heads, _ in matched for head in heads),
        only_b=tuple(head for _, _, heads in matched for head in heads),
        layers=layer_changes(places, sums),
        predictions=tuple(predictions),
        weights=weights,
        unmatched_weights=unmatched,
    )


def watch(
    subject: Subject, question: Question, edits: Mapping[Place, Edit] | None = None
) -> tuple[Trace, dict[Place, Tensor]]:
    """A pass of which maps, heads and stream are kept; and the maps that an edit made, which q and
    k know nothing of."""
    made: dict[Place, Tensor] = {}

    def keep(place: Place) -> Edit:
        return lambda weights: made.setdefault(place, weights)

    edited = Edits(edits or {}) | {
        place: keep(place) for place in edits or {} if place[2].endswith("weights")
    }
    crossed = any(cross for _, _, cross in sites_of(subject.running))
    names = [*STREAM, "heads", "cross_heads", "output"]
    what = ("query", "key", *(name for name in names if crossed or not name.startswith("cross_")))
    return (
        trace_of(
            subject,
            question.ids,
            source=question.source,
            text=question.text,
            what=what,
            edits=edited or None,
        ),
        made,
    )


def questions_for(
    a: Subject, b: Subject, texts: Sequence[Text | Trace] | None, sources: Sequence[Text] | None
) -> list[Question]:
    """The texts as ids, which must be the same for both; if they are our own choice, cut to what
    both can read."""
    if isinstance(texts, (str, Trace)) or (texts is not None and not texts):
        raise InputError(
            f"texts={short_repr(texts)}", expected="a list of texts", fix="diff(a, b, [text])"
        )
    chosen = texts
    if texts is None:
        texts, sources = usual(a, b)
    elif sources is not None and len(sources) != len(texts):
        raise InputError(
            f"{len(texts)} texts and {len(sources)} sources",
            expected="a source for each",
            fix="sources=[…]",
        )
    most = (
        min(stack.max_positions for x in (a, b) for stack in x.running.config.stacks.values())
        if chosen is None
        else None
    )
    found: list[Question] = []
    for text, source in zip(texts, sources or [None] * len(texts), strict=True):
        ours = question_of(a, text, source)
        theirs = question_of(b, text, source)
        if (ours.ids, ours.source) != (theirs.ids, theirs.source):
            shown = short_repr(ours.text or ours.source_text)
            seen = (
                f"{shown}, which is {len(ours.ids)} tokens for {a.name} and {len(theirs.ids)} other"
                f" ones for {b.name}"
            )
            raise InputError(
                seen,
                expected="models that read the same tokens",
                fix="compare models that share a tokenizer, or give ids",
            )
        found.append(replace(ours, ids=ours.ids[:most], source=ours.source and ours.source[:most]))
    return found


def usual(a: Subject, b: Subject) -> tuple[list[Text], list[Text] | None]:
    """A few sentences, or ids by chance; an encoder–decoder reads and writes the same."""
    config = a.running.config
    texts: list[Text] = list(TEXTS)
    if a.tokenizer is None or b.tokenizer is None:
        size = min(
            stack.embedding.vocab_size for x in (a, b) for stack in x.running.config.stacks.values()
        )
        texts = torch.randint(0, size, (3, 24), generator=torch.Generator().manual_seed(0)).tolist()
    if config.encoder is None or config.decoder is None:
        return texts, None
    written = [
        a.tokenizer.encode(text, special=True) if isinstance(text, str) and a.tokenizer else text
        for text in texts
    ]
    return written, texts


def comparable(a: Subject, b: Subject) -> list[Place]:
    """Where both have vectors of the same stream, in the order of the data; nowhere if their shapes
    differ."""
    shapes = [
        {name: (stack.layers, stack.width) for name, stack in x.running.config.stacks.items()}
        for x in (a, b)
    ]
    if shapes[0] != shapes[1]:
        return []
    found: list[Place] = []
    for name, stack in a.running.config.stacks.items():
        for layer in range(stack.layers):
            crossed = stack.block(layer).cross_attention is not None
            found += [
                (name, layer, part) for part in STREAM if crossed or part != "cross_attention"
            ]
        found.append((name, None, "output"))
    return found


def stream_sums(a: Trace, b: Trace, places: Sequence[Place]) -> Float[Tensor, "places 6"]:
    """For each place, over the tokens: how many, Σ cos, Σ|a|, Σ|b|, Σ|b − a|², and the larger of
    Σ|a|² and Σ|b|²."""
    found = torch.zeros(len(places), 6, dtype=torch.float64)
    for row, place in enumerate(places):
        x = a.kept[place].double()
        y = b.kept[place].double()
        cosine = torch.where(
            (x == y).all(-1), 1.0, torch.cosine_similarity(x, y, dim=-1).clamp(max=1)
        )
        largest = torch.maximum(x.square().sum(), y.square().sum())
        lengths = x.norm(dim=-1).sum(), y.norm(dim=-1).sum()
        found[row] = torch.stack(
            (torch.tensor(len(x)).double(), cosine.sum(), *lengths, (y - x).square().sum(), largest)
        )
    return found


def layer_changes(
    places: Sequence[Place], sums: Float[Tensor, "places 6"]
) -> tuple[LayerChange, ...]:
    """The sums as means and ratios; a length of nothing against nothing is 1."""
    far = distance(sums[:, 4], sums[:, 5])
    ratios = torch.where(sums[:, 2] == sums[:, 3], 1.0, sums[:, 3] / sums[:, 2].clamp(min=1e-30))
    cosines = sums[:, 1] / sums[:, 0].clamp(min=1)
    return tuple(
        LayerChange(*place, float(cosines[n]), float(ratios[n]), float(far[n]))
        for n, place in enumerate(places)
    )


def has_words(a: Subject, b: Subject) -> bool:
    """Whether both give logits over the same words."""
    configs = [x.running.config for x in (a, b)]
    sizes = {config.last.embedding.vocab_size for config in configs}
    return (
        all(isinstance(config.head, (LanguageHead, MaskedHead)) for config in configs)
        and len(sizes) == 1
    )


def surprise(
    a: Float[Tensor, "time vocab_size"], b: Float[Tensor, "time vocab_size"]
) -> tuple[float, ...]:
    """KL(a ‖ b) of each token's prediction, in bits."""
    p = a.double().log_softmax(-1)
    q = b.double().log_softmax(-1)
    return tuple(((p.exp() * (p - q)).sum(-1).clamp(min=0) / math.log(2)).tolist())


def weight_distances(a: Subject, b: Subject) -> tuple[dict[str, float], tuple[str, ...]]:
    """Of each parameter that both have in the same shape; and the names of the others."""
    ours = dict(a.running.named_parameters())
    theirs = dict(b.running.named_parameters())
    both = [name for name in ours if name in theirs and ours[name].shape == theirs[name].shape]
    alone = tuple(sorted((ours.keys() | theirs.keys()) - set(both)))
    return {
        name: 0.0 if ours[name] is theirs[name] else weight_distance(ours[name], theirs[name])
        for name in both
    }, alone


@torch.no_grad()
def weight_distance(a: Tensor, b: Tensor) -> float:
    """|b − a| / max(|a|, |b|)"""
    a = a.float()
    b = b.float()
    return float((b - a).norm() / torch.maximum(a.norm(), b.norm()).clamp(min=1e-30))
