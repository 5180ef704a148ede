"""`sightline explain`: a model as equations, on the screen, as Markdown or as JSON."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from sightline.architectures import PUBLISHED
from sightline.checkpoints.sources.catalogue import CATALOGUE
from sightline.cli.ui.arguments import Count
from sightline.cli.ui.output import show, write, write_json
from sightline.config import ModelConfig
from sightline.config.values import read
from sightline.errors import InputError, nearest
from sightline.explain import example, listing, summary, terminal, to_markdown


def explain(
    model: str | None = None,
    /,
    *,
    time: Count = None,
    source: Count = None,
    batch: Count = None,
    json: bool = False,
    markdown: bool = False,
    attention: bool = False,
    names: Annotated[bool, Parameter(name="--list")] = False,
) -> None:
    """A model as equations with shapes: its parameters, FLOPs and memory.

    Parameters
    ----------
    model
        A published model's name, a checkpoint (folder, .gguf, catalogue name, hub id), or a .json
        or .toml file that describes one.
    time
        Tokens of a sequence; by default as many as the model was made for.
    source
        Tokens that an encoder beside a decoder reads; by default as many.
    batch
        Sequences at once; by default 1.
    json
        Write JSON.
    markdown
        Write Markdown.
    attention
        Explain self-attention itself, on three words.
    names
        List the published models.
    """
    check_choices(
        model,
        lengths=(time, source, batch),
        json=json,
        markdown=markdown,
        attention=attention,
        names=names,
    )
    if names:
        answer = Answer(
            plain=lambda: listing.model_values(PUBLISHED),
            page=lambda: listing.models_markdown(PUBLISHED),
            screen=lambda width: listing.render_models(PUBLISHED, width=width),
        )
    elif model is None:
        answer = Answer(
            plain=example.three_words_values,
            page=example.three_words_markdown,
            screen=lambda width: example.render_three_words(),
        )
    else:
        about = summary.explain(
            find(model),
            name=label(model),
            time=time,
            source=source,
            batch=1 if batch is None else batch,
        )
        answer = Answer(
            plain=about.to_plain,
            page=lambda: to_markdown(about),
            screen=lambda width: terminal.render_explanation(about, width=width),
        )
    answer.write(json=json, markdown=markdown)


@dataclass(frozen=True)
class Answer:
    """One result in three forms, made when it is asked for."""

    plain: Callable[[], Any]
    page: Callable[[], str]
    screen: Callable[[int], list[Text]]

    def write(self, *, json: bool, markdown: bool) -> None:
        if json:
            write_json(self.plain())
        elif markdown:
            write(self.page().removesuffix("\n"))
        else:
            show(self.screen)


def check_choices(
    model: str | None,
    *,
    lengths: tuple[int | None, ...],
    json: bool,
    markdown: bool,
    attention: bool,
    names: bool,
) -> None:
    """Exactly one thing to explain, in one form; lengths only for a model."""
    if (model is not None) + attention + names != 1:
        seen = (
            "nothing to explain"
            if model is None and not (attention or names)
            else "more than one thing to explain"
        )
        raise InputError(
            seen,
            expected="a model's name, a .json or .toml file, --list or --attention",
            fix="sightline explain gpt2",
        )
    if json and markdown:
        raise InputError(
            "--json and --markdown together", expected="one form", fix="leave one of them out"
        )
    if model is None and any(length is not None for length in lengths):
        raise InputError(
            "--time, --source or --batch without a model", fix="sightline explain gpt2 --time 512"
        )


def find(model: str) -> ModelConfig:
    """A published model by its name, or one that a file describes."""
    if model in PUBLISHED:
        return PUBLISHED[model]()
    if Path(model).suffix.lower() in (".json", ".toml"):
        return read(ModelConfig, model)
    if os.path.exists(model) or "/" in model or model in CATALOGUE:
        return checkpoint_config(model)
    expected = "a published model, a checkpoint, or a .json or .toml file"
    raise InputError(
        f"no model is called {model!r}", expected=expected, fix=nearest(model.lower(), PUBLISHED)
    )


def checkpoint_config(model: str) -> ModelConfig:
    """What a checkpoint's own config.json or metadata describes; its weights are not read."""
    from sightline.checkpoints.identity import identify
    from sightline.checkpoints.open import open_source
    from sightline.checkpoints.sources.reference import resolve

    return identify(open_source(resolve(model))).config


def label(model: str) -> str:
    return model if model in PUBLISHED or model in CATALOGUE else Path(model).stem
