"""`sightline train list`: the recipes with their settings and defaults."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any

from sightline.recipes import RECIPES, Recipe
from sightline.recipes.settings import spelled
from sightline.terminal.console import Console


def recipe_list() -> str:
    """Every recipe, what it trains, and the settings in which it differs from the common
    defaults."""
    width = Console().width
    common = Recipe.defaults()
    lines = ["Recipes, with their settings:"]
    for name, recipe in RECIPES.items():
        own = {
            key: value
            for key, value in recipe.defaults().items()
            if key not in common or common[key] != value
        }
        title = f"{name}: {recipe_summary(recipe)}"
        lines += ["", *textwrap.wrap(title, width, subsequent_indent="  ")]
        lines += wrap_settings(own, width)
    heading = (
        "Settings of all recipes, with the defaults that apply unless a recipe overrides them:"
    )
    lines += ["", *textwrap.wrap(heading, width), *wrap_settings(common, width)]
    return "\n".join(lines)


def recipe_summary(recipe: type[Recipe]) -> str:
    """The first line of the docstring of the recipe's module."""
    return (inspect.getdoc(inspect.getmodule(recipe)) or "").splitlines()[0]


def wrap_settings(settings: dict[str, Any], width: int) -> list[str]:
    """`name=value` side by side, as many as fit a line."""
    lines = [""]
    for name, value in settings.items():
        word = f"  {name}={'' if value is None else spelled(value)}"
        if lines[-1] and len(lines[-1]) + len(word) > width:
            lines.append("")
        lines[-1] += word
    return lines
