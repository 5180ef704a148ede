"""What the shell offers when Tab is pressed: models of the catalogue and on disk, runs, recipes.

Only names are looked at, never weights, and torch is not imported.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext

RUNS = "runs"
RECIPE_NAMES = ("shakespeare", "stories", "bert-tiny", "translate", "classify", "finetune")


def model_names(context: CompletionContext) -> dict[str, str]:
    """Names of the catalogue, then model folders, runs and .gguf files near what was typed."""
    paths = [path for path in nearby(context.incomplete) if is_model(Path(path))]
    return catalogue_names(context) | dict.fromkeys(paths, "")


def catalogue_names(context: CompletionContext) -> dict[str, str]:
    """Names listed by `sightline models`, with their descriptions."""
    from sightline.checkpoints.sources.catalogue import CATALOGUE

    return {entry.name: entry.what for entry in CATALOGUE.values()}


def published_names(context: CompletionContext) -> dict[str, str]:
    """Published architectures, and everything that `model_names` offers."""
    from sightline.architectures import PUBLISHED

    return dict.fromkeys(PUBLISHED, "published architecture") | model_names(context)


def run_folders(context: CompletionContext) -> list[str]:
    """Folders of `sightline train`."""
    return [path for path in nearby(context.incomplete) if (Path(path) / "run.json").is_file()]


def recipe_names(context: CompletionContext) -> tuple[str, ...]:
    """Recipes of `sightline train`, and `list`."""
    return (*RECIPE_NAMES, "list")


def experiment_names(context: CompletionContext) -> tuple[str, ...]:
    """Experiments of `sightline lab`, and `all`."""
    from sightline.lab.catalogue import EXPERIMENTS

    return (*EXPERIMENTS, "all")


def nearby(incomplete: str) -> Iterator[str]:
    """Visible entries of the folder that was typed so far, and of its `runs`."""
    base = os.path.dirname(incomplete)
    for folder in (base, os.path.join(base, RUNS)):
        try:
            names = sorted(os.listdir(os.path.expanduser(folder) or os.curdir))
        except OSError:
            continue
        yield from (os.path.join(folder, name) for name in names if not name.startswith("."))


def is_model(path: Path) -> bool:
    """A .gguf file, a folder with a config.json, or a run that holds such a folder."""
    path = path.expanduser()
    if path.suffix.lower() == ".gguf":
        return path.is_file()
    return any((path / name).is_file() for name in ("config.json", "run.json"))
