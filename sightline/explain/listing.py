"""The published models: name, kind, parameters."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text

from sightline.config import ModelConfig
from sightline.explain.counts import total_parameters
from sightline.explain.markdown import markdown_table
from sightline.explain.wording import model_kind

Makers = Mapping[str, Callable[[], ModelConfig]]


def model_values(makers: Makers) -> list[dict[str, Any]]:
    """Name, kind and parameters of each model."""
    configs = {name: make() for name, make in makers.items()}
    return [
        {"name": name, "kind": model_kind(config), "parameters": total_parameters(config)}
        for name, config in configs.items()
    ]


def render_models(makers: Makers, *, width: int) -> list[Text]:
    """One line per model; a kind that does not fit is truncated."""
    models = model_values(makers)
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


def models_markdown(makers: Makers) -> str:
    """The index of the model pages."""
    rows = [
        (f"[{model['name']}]({model['name']}.md)", f"{model['parameters']:,}", model["kind"])
        for model in model_values(makers)
    ]
    lines = markdown_table(("model", "parameters", "kind"), rows, right=frozenset({1}))
    origin = (
        "Each page is written by `sightline explain NAME --markdown`, and this one by `sightline"
        " explain --list --markdown`."
    )
    return "\n".join(["# Published models as equations", "", origin, "", *lines]) + "\n"
