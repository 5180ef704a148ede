"""Texts for real language models, one per seed, and their loss after an edit.

A passage of Shakespeare for SmolLM2, which has read books; for stories15m, which has read only
short stories, a story that it tells at temperature 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch.nn.functional import cross_entropy

from sightline.lab.learning import seeded_generator
from sightline.lens.interventions.edits import logits_with
from sightline.loading import load

if TYPE_CHECKING:
    from sightline.lens.trace.subject import Subject
    from sightline.model import Model
    from sightline.record import Edit, Place

TOKENS = 128
CHARACTERS = 2000  # more than 128 tokens
FRONT_MATTER = 5000  # characters of title and persons
TELLERS = ("stories15m",)  # models that tell their own text


@cache
def real_model(name: str) -> Model:
    """A model by torch, so that it can be edited."""
    return load(name, engine="torch")


def text_ids(name: str, seed: int) -> list[int]:
    """128 tokens (of a story that ends earlier, fewer)."""
    model = real_model(name)
    assert model.tokenizer is not None
    if name in TELLERS:
        start = model.tokenizer.encode("", special=True)
        story = model.generate("", max_tokens=TOKENS - len(start), temperature=1.0, seed=seed)
        return [*start, *story.tokens]
    return model.tokenizer.encode(passage(seed), special=True)[:TOKENS]


def passage(seed: int) -> str:
    """Some lines of a play or poem."""
    from sightline.recipes.plays import works

    train, held_out = works()
    random = seeded_generator(seed, TOKENS)
    files = [file for file in sorted(train + held_out) if file.stat().st_size > 2 * FRONT_MATTER]
    file = files[int(torch.randint(len(files), (), generator=random))]
    text = file.read_text(encoding="utf-8")
    last = len(text) - CHARACTERS
    at = int(torch.randint(FRONT_MATTER, last, (), generator=random))
    return text[text.index("\n", at) :][:CHARACTERS].strip()


def loss_with(subject: Subject, ids: list[int], edits: Mapping[Place, Edit]) -> float:
    """Nats per token of the whole text but its first token."""
    logits = logits_with(subject, ids, edits)
    return float(cross_entropy(logits[:-1].float(), torch.tensor(ids[1:])))
