"""The published models: name, parameters, the paper's own count, kind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from rich.text import Text

from sightline.config import ModelConfig
from sightline.explain.counts import total_parameters
from sightline.explain.markdown import markdown_table
from sightline.explain.published import published
from sightline.explain.wording import model_kind

Makers = Mapping[str, Callable[[], ModelConfig]]


def model_values(makers: Makers) -> list[dict[str, Any]]:
    """Name, kind, parameters and the paper's own count of each model."""
    configs = {name: make() for name, make in makers.items()}
    papers = {name: published(name, config) for name, config in configs.items()}
    return [
        {
            "name": name,
            "kind": model_kind(config),
            "parameters": total_parameters(config),
            "published": paper.count if (paper := papers[name]) else "",
        }
        for name, config in configs.items()
    ]


def render_models(makers: Makers, *, width: int) -> list[Text]:
    """One line per model; a kind that does not fit is truncated."""
    models = model_values(makers)
    longest = max(len(model["name"]) for model in models)
    widest = max(len(f"{model['parameters']:,}") for model in models)
    papers = max(len("paper"), *(len(model["published"]) for model in models))
    left = longest + widest + papers + 9
    header = ("name".ljust(longest), "parameters".rjust(widest), "paper".rjust(papers), "kind")
    lines = [Text("   ".join(header), "dim")]
    for model in models:
        line = Text.assemble(
            (model["name"].ljust(longest), "bold"),
            "   ",
            (f"{model['parameters']:,}".rjust(widest), "cyan"),
            "   ",
            model["published"].rjust(papers),
            "   ",
        )
        about = Text(model["kind"], "dim")
        about.truncate(max(width - left, 8), overflow="ellipsis")
        lines.append(line.append_text(about))
    return lines


def models_markdown(makers: Makers) -> str:
    """The index of the model pages."""
    rows = [
        (
            f"[{model['name']}]({model['name']}.md)",
            f"{model['parameters']:,}",
            model["published"],
            model["kind"],
        )
        for model in model_values(makers)
    ]
    header = ("model", "parameters", "paper", "kind")
    lines = markdown_table(header, rows, right=frozenset({1, 2}))
    origin = (
        "Each page is written by `sightline explain NAME --markdown`, and this one by `sightline"
        " explain --list --markdown`."
    )
    return "\n".join(["# Published models as equations", "", origin, "", *lines]) + "\n"
