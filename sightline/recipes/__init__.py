"""Recipes: each is a dataclass of settings with good defaults, and builds a Job from them.

    job = RECIPES["shakespeare"](steps=500, width=256).job()
    for event in train(job, Path("runs/a")): …

To add one: a file beside this one with such a class, and a line in RECIPES.
"""

from __future__ import annotations

from sightline.recipes.bert_tiny import BertTiny
from sightline.recipes.classify import Classify
from sightline.recipes.finetune import Finetune
from sightline.recipes.settings import Recipe
from sightline.recipes.shakespeare import Shakespeare
from sightline.recipes.stories import Stories
from sightline.recipes.translate import Translate

RECIPES: dict[str, type[Recipe]] = {
    "shakespeare": Shakespeare,
    "stories": Stories,
    "bert-tiny": BertTiny,
    "translate": Translate,
    "classify": Classify,
    "finetune": Finetune,
}

__all__ = ["RECIPES", "Recipe"]
