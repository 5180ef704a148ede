"""`sightline train`: train a model by a recipe; run the same command again to resume."""

from __future__ import annotations

import shlex
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter

from sightline.cli.ui.completion import RECIPE_NAMES, recipe_names
from sightline.cli.ui.options.groups import OPTIONS
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import Count
from sightline.cli.ui.output import write
from sightline.errors import InputError, nearest, short_reason, short_repr
from sightline.files.regular import read_text_file

if TYPE_CHECKING:
    from sightline.recipes import Recipe

LIST = "list"
Tracker = Literal["tensorboard", "wandb", "trackio"]


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Where a run is written, how it is resumed, and what it runs on."""

    out: Annotated[Path | None, Parameter(show_default="runs/NAME")] = None
    """Folder of the run. An existing run is resumed if its settings match."""

    resume: Literal["auto", "never"] = "auto"
    """never: refuse a folder that contains a run."""

    overwrite: bool = False
    """Start again; the run in the folder is deleted."""

    accept_data_change: bool = False
    """Resume although the data has changed."""

    accept_changes: bool = False
    """Resume although settings have changed."""

    dry_run: bool = False
    """Show parameters, FLOPs, memory, disk and time without writing anything."""

    track: Annotated[tuple[Tracker, ...], Parameter(negative=())] = ()
    """Also log metrics to an installed tracker; may be repeated."""

    threads: Annotated[Count, Parameter(show_default="torch's choice")] = None
    """Number of threads. Results are bit-reproducible only for the same number of threads."""

    strategy: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: ddp replicates the model in every process, fsdp shards it across them."""

    @property
    def accepted(self) -> frozenset[str]:
        """The changes with which a run may be resumed."""
        changes = {"data": self.accept_data_change, "settings": self.accept_changes}
        return frozenset(name for name, accepted in changes.items() if accepted)


def train(
    name: Annotated[str | None, Parameter(completer=recipe_names)] = None,
    /,
    *,
    settings: Annotated[
        tuple[str, ...], Parameter(name="--set", consume_multiple=True, negative=())
    ] = (),
    config: Path | None = None,
    options: TrainOptions = TrainOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Train a model by a recipe; run the same command again to resume.

    Recipes: shakespeare, stories, bert-tiny, translate, classify, finetune. `sightline train list`
    describes each of them with its settings and their defaults.

    Parameters
    ----------
    name
        A recipe, or list.
    settings
        Settings of the recipe, such as steps=500 width=256 text=my.txt
    config
        A .toml file of settings; --set takes precedence.
    output.json
        Write every event as one line of JSON.
    """
    if name == LIST and not settings:
        from sightline.cli.ui.recipe_list import recipe_list

        write(recipe_list())
        return
    recipe = read_recipe(name, settings, config)
    from sightline.cli.ui import training_session

    again = resume_command(str(name), settings, config, options)
    folder = options.out or Path("runs") / str(name)
    training_session.run(recipe, folder, options, again=again, json=output.json)


def read_recipe(name: str | None, words: tuple[str, ...], file: Path | None) -> Recipe:
    """The recipe with the settings of the file, overridden by those of the command line."""
    if name is None:
        raise InputError(
            "no recipe was named",
            expected=f"one of {', '.join(RECIPE_NAMES)}",
            fix="sightline train list",
        )
    if name not in RECIPE_NAMES:
        raise InputError(
            f"no recipe is called {short_repr(name)}", fix=nearest(name[:60], [*RECIPE_NAMES, LIST])
        )
    from sightline.recipes import RECIPES
    from sightline.recipes.settings import key_values

    from_file = {} if file is None else read_toml(file)
    return RECIPES[name].from_settings({**from_file, **key_values(words)})


def read_toml(file: Path) -> dict[str, Any]:
    """Settings from a file."""
    try:
        return tomllib.loads(read_text_file(file, encoding="utf-8-sig"))
    except OSError as error:
        raise InputError(
            f"{file}: cannot be read ({error.strerror})",
            expected="a .toml file",
            fix="check the path",
        ) from None
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{file}: is not TOML ({short_reason(error)})",
            expected="lines like steps = 500",
            fix="correct the file",
        ) from None


def resume_command(
    name: str, words: tuple[str, ...], config: Path | None, options: TrainOptions
) -> str:
    """The command line that resumes a run."""
    line = ["sightline", "train", name]
    if words:
        line += ["--set", *words]
    values = {"--out": options.out, "--config": config, "--threads": options.threads}
    for option, value in values.items():
        if value is not None:
            line += [option, str(value)]
    for tracker in options.track:
        line += ["--track", tracker]
    return shlex.join(line)
