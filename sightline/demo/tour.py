"""The data of the demo's tour of a real model: token probabilities, the heads that link a pronoun
to its referent, and one page with everything."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch.nn.functional import cross_entropy

from sightline.errors import InputError
from sightline.generation.text import Generation
from sightline.lens.draw.page import (
    ProseSection,
    Section,
    TableSection,
    TokensSection,
    TraceSection,
    save_page,
    shown_text,
)
from sightline.lens.geometry.decompose import Geometry
from sightline.lens.interventions.edits import Edits, logits_with
from sightline.lens.interventions.keys import change_keys
from sightline.lens.trace.subject import Token
from sightline.lens.trace.trace import Trace
from sightline.model import Model

STORY = "The lighthouse keeper opened the old wooden door and saw"
SENTENCE = "The animal didn't cross the street because it was too tired"
PRONOUN = "it"
REFERENT = "animal"
ENGLISH = "The cat sat on the mat."


@dataclass(frozen=True)
class LinkHead:
    """A head, and the weight of one word on another, as a share of the weight outside the first
    token."""

    layer: int
    head: int
    share: float
    strongest: bool


@dataclass(frozen=True)
class SentenceAnalysis:
    """The sentence: its trace, the heads that link the pronoun to its referent, the geometry of the
    first of them, and the loss as it is and with equal lengths or directions of the keys."""

    trace: Trace
    links: tuple[LinkHead, ...]
    geometry: Geometry
    losses: KeyLosses


@dataclass(frozen=True)
class KeyLosses:
    """Nats per token of the sentence: as it is, with equal lengths of the keys, and with equal
    directions, each from zero."""

    intact: float
    equal_lengths: float
    equal_directions: float


def analyze_sentence(model: Model) -> SentenceAnalysis:
    """Trace the sentence and analyze it."""
    trace = model.trace(SENTENCE)
    links = linking_heads(trace, PRONOUN, REFERENT)
    geometry = trace.geometry(links[0].layer, links[0].head)
    return SentenceAnalysis(trace, links, geometry, key_losses(model, trace))


def key_losses(model: Model, trace: Trace) -> KeyLosses:
    """The loss of the traced text with the keys of all layers changed."""
    targets = torch.tensor([token.id for token in trace.tokens[1:]])
    edits = (Edits(), change_keys(model, "length"), change_keys(model, "direction"))
    logits = (logits_with(model, trace, edit)[:-1].float().cpu() for edit in edits)
    return KeyLosses(*(float(cross_entropy(one, targets)) for one in logits))


def linking_heads(trace: Trace, word: str, target: str, *, count: int = 5) -> tuple[LinkHead, ...]:
    """The heads with the largest weight of `word` on `target`, strongest first. The first token,
    the usual sink, is excluded; heads whose largest weight is on `target` come first."""
    row = token_index(trace.tokens, word)
    column = token_index(trace.tokens, target)
    heads: list[LinkHead] = []
    for layer in range(trace.config.last.layers):
        for head, weights in enumerate(trace.weights(layer, rows=row).tolist()):
            others = weights[1:]
            share = weights[column] / max(sum(others), 1e-9)
            if sum(others) > 0.05:
                heads.append(LinkHead(layer, head, share, weights[column] >= max(others)))
    return tuple(sorted(heads, key=lambda link: (link.strongest, link.share), reverse=True)[:count])


def token_index(tokens: Sequence[Token], word: str) -> int:
    """The position of a word that is a single token."""
    for index, token in enumerate(tokens):
        if token.text.strip().lower() == word:
            return index
    raise InputError(
        f"no token {word!r} in the text",
        expected="the word as one token",
        fix="choose another word",
    )


def token_probabilities(
    model: Model, generation: Generation
) -> list[tuple[str, float, list[tuple[str, float]]]]:
    """Each new token as text, its probability, and its alternatives."""
    assert model.tokenizer is not None
    spell = model.tokenizer.token
    rows = zip(generation.tokens, generation.logprobs, generation.alternatives, strict=True)
    return [
        (spell(id), math.exp(logprob), [(spell(other), math.exp(log)) for other, log in others])
        for id, logprob, others in rows
    ]


def write_tour(
    file: Path,
    model: Model,
    story: Generation,
    analysis: SentenceAnalysis,
    translated: Trace | None,
) -> Path:
    """Write everything as one self-contained page."""
    best = analysis.links[0]
    rows = [
        [
            f"layer {link.layer}, head {link.head}",
            f"{link.share:.0%}",
            "yes" if link.strongest else "no",
        ]
        for link in analysis.links
    ]
    story_caption = f"{model.name} continues “{STORY}”. Hover over a token for its alternatives."
    map_caption = f"Layer {best.layer}, head {best.head}: “{PRONOUN}” attends to “{REFERENT}”."
    table_title = f"Heads that link “{PRONOUN}” to “{REFERENT}”"
    sections: list[Section] = [
        TokensSection("What it writes", story_caption, token_probabilities(model, story)),
        TraceSection(
            analysis.trace,
            "Where it looks",
            map_caption,
            "map",
            best.layer,
            best.head,
            token_index(analysis.trace.tokens, PRONOUN),
        ),
        TableSection(
            table_title,
            "Weights without the first token.",
            ("head", "share", "largest weight"),
            rows,
        ),
        ProseSection(
            "Direction and length", [analysis.geometry.line(), direction_sentence(analysis)]
        ),
    ]
    if translated is not None:
        alignment_caption = (
            f"{shown_text(translated)} Each row is a token of the translation, each column a"
            " source token."
        )
        sections.append(
            TraceSection(
                translated, "A translation and its cross-attention", alignment_caption, "alignment"
            )
        )
    return save_page(sections, file, title="Sightline: a first look")


def direction_sentence(analysis: SentenceAnalysis) -> str:
    """What the model loses in this sentence without lengths, and without directions."""
    losses = analysis.losses
    return (
        f"In this sentence the model's loss is {losses.intact:.2f} nats per token; with equal key"
        f" lengths (from zero) in all layers {losses.equal_lengths:.2f}, with equal directions"
        f" {losses.equal_directions:.2f}."
    )
