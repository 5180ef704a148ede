"""The published models: name, kind, parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text

from sightline.config import ModelConfig
from sightline.explain.counts import total_parameters
from sightline.explain.markdown import grid
from sightline.explain.wording import kind

Makers = Mapping[str, Callable[[], ModelConfig]]


def to_plain(makers: Makers) -> list[dict[str, Any]]:
    """Name, kind and parameters of each model."""
    configs = {name: make() for name, make in makers.items()}
    return [
        {"name": name, "kind": kind(config), "parameters": total_parameters(config)}
        for name, config in configs.items()
    ]


def render(makers: Makers, *, width: int) -> list[Text]:
    """One line for each model; what does not fit of its kind is cut off."""
    models = to_plain(makers)
    longest = max(len(model["name"]) for model in models)
    widest = max(len(f"{model['parameters']:,}") for model in models)
    left = longest + widest + 6
    lines = [Text("name".ljust(longest) + "   " + "parameters".rjust(widest) + "   kind", "dim")]
    for model in models:
        line = Text.assemble(
            (model["name"].ljust(longest), "bold"),
            "   ",
            (f"{model['parameters']:,}".rjust(widest), "cyan"),
            "   ",
        )
        about = Text(model["kind"], "dim")
        about.truncate(max(width - left, 8), overflow="ellipsis")
        lines.append(line.append_text(about))
    return lines


def to_markdown(makers: Makers) -> str:
    """An index of the models' pages."""
    rows = [
        (f"[{model['name']}]({model['name']}.md)", f"{model['parameters']:,}", model["kind"])
        for model in to_plain(makers)
    ]
    lines = grid(("model", "parameters", "kind"), rows, right=frozenset({1}))
    made = (
        "Each page is written by `sightline explain NAME --markdown`, and this one by `sightline"
        " explain --list --markdown`."
    )
    return "\n".join(["# Published models as equations", "", made, "", *lines]) + "\n"
