"""`sightline explain`: a model, or one block of it, as equations with shapes and numbers."""

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
from sightline.cli.ui.completion import published_names
from sightline.cli.ui.loading import checkpoint_config
from sightline.cli.ui.options.groups import OPTIONS, OUTPUT
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import Count
from sightline.cli.ui.output import show_lines, write, write_json
from sightline.config import ModelConfig
from sightline.config.values import read
from sightline.errors import InputError, nearest
from sightline.explain import example, listing, summary, terminal, to_markdown
from sightline.explain.block import block_numbers, block_page
from sightline.explain.block.markdown import block_markdown
from sightline.explain.block.terminal import render_block


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class SizeOptions:
    """The sizes for which FLOPs and memory are computed."""

    time: Annotated[Count, Parameter(show_default="the model's context length")] = None
    """Sequence length in tokens."""

    source: Annotated[Count, Parameter(show_default="the encoder's context length")] = None
    """Source length in tokens, for an encoder–decoder."""

    batch: Annotated[Count, Parameter(show_default="1")] = None
    """Batch size."""

    @property
    def is_set(self) -> bool:
        return any(size is not None for size in (self.time, self.source, self.batch))


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class BlockOptions:
    """One block instead of the whole model."""

    block: bool = False
    """Walk through one block of MODEL, symbol by symbol: formulas and shapes."""

    numbers: bool = False
    """With --block: every symbol with its numbers, for 4 tokens, width 8 and 2 heads."""

    seed: Annotated[Count, Parameter(show_default="0")] = None
    """With --numbers: the seed of the input and of the parameters."""

    @property
    def is_set(self) -> bool:
        return self.block or self.numbers or self.seed is not None


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class PageOptions(OutputOptions):
    """On the screen, as JSON or as Markdown."""

    markdown: bool = False
    """Write Markdown."""


def explain(
    model: Annotated[str | None, Parameter(completer=published_names)] = None,
    /,
    *,
    attention: bool = False,
    names: Annotated[bool, Parameter(name="--list")] = False,
    walk: BlockOptions = BlockOptions(),
    sizes: SizeOptions = SizeOptions(),
    output: PageOptions = PageOptions(),
) -> None:
    """Explain a model as equations with shapes: its parameters, FLOPs and memory.

    Parameters
    ----------
    model
        A published architecture (see --list), a checkpoint (folder, .gguf file, name listed by
        `sightline models`, OWNER/NAME on the Hugging Face Hub), or a .json or .toml file with a
        ModelConfig.
    attention
        Explain self-attention itself, on three words.
    names
        List the published architectures.
    """
    check_walk(model, walk, sizes)
    check_choices(model, sizes, output, attention=attention, names=names)
    if names:
        page = Page(
            plain=lambda: listing.model_values(PUBLISHED),
            markdown=lambda: listing.models_markdown(PUBLISHED),
            screen=lambda width: listing.render_models(PUBLISHED, width=width),
        )
    elif model is None:
        page = Page(
            plain=example.three_words_values,
            markdown=example.three_words_markdown,
            screen=lambda width: example.render_three_words(),
        )
    elif walk.block:
        page = walk_page(model, walk, sizes)
    else:
        page = model_page(model, sizes)
    page.write(output)


@dataclass(frozen=True)
class Page:
    """One explanation in three forms, rendered on demand."""

    plain: Callable[[], Any]
    markdown: Callable[[], str]
    screen: Callable[[int], list[Text]]

    def write(self, output: PageOptions) -> None:
        if output.json:
            write_json(self.plain())
        elif output.markdown:
            write(self.markdown().removesuffix("\n"))
        else:
            show_lines(self.screen)


def model_page(model: str, sizes: SizeOptions) -> Page:
    """A model, explained."""
    explanation = summary.explain(
        find_config(model),
        name=model_label(model),
        time=sizes.time,
        source=sizes.source,
        batch=1 if sizes.batch is None else sizes.batch,
    )
    return Page(
        plain=explanation.to_plain,
        markdown=lambda: to_markdown(explanation),
        screen=lambda width: terminal.render_explanation(explanation, width=width),
    )


def walk_page(model: str, walk: BlockOptions, sizes: SizeOptions) -> Page:
    """One block of a model, with or without numbers."""
    config, name = find_config(model), model_label(model)
    about = (
        block_numbers(config, name=name, seed=0 if walk.seed is None else walk.seed)
        if walk.numbers
        else block_page(config, name=name, time=sizes.time)
    )
    return Page(
        plain=about.to_plain,
        markdown=lambda: block_markdown(about),
        screen=lambda width: render_block(about, width=width),
    )


def check_choices(
    model: str | None,
    sizes: SizeOptions,
    output: PageOptions,
    *,
    attention: bool,
    names: bool,
) -> None:
    """Exactly one thing to explain, in one form; sizes only for a model."""
    count = (model is not None) + attention + names
    if count != 1:
        raise InputError(
            "nothing to explain" if count == 0 else "more than one thing to explain",
            expected="a model's name, a .json or .toml file, --list or --attention",
            fix="sightline explain gpt2",
        )
    if output.json and output.markdown:
        raise InputError(
            "--json and --markdown together", expected="one form", fix="leave one of them out"
        )
    if model is None and sizes.is_set:
        raise InputError(
            "--time, --source or --batch without a model", fix="sightline explain gpt2 --time 512"
        )


def check_walk(model: str | None, walk: BlockOptions, sizes: SizeOptions) -> None:
    """--block needs a model, --numbers a block, --seed numbers; the numbers have sizes of their
    own."""
    example = "sightline explain --block gpt2 --numbers"
    if walk.is_set and (model is None or not walk.block):
        seen = "--block without a model" if walk.block else "--numbers or --seed without --block"
        raise InputError(seen, fix=example)
    if walk.seed is not None and not walk.numbers:
        raise InputError("--seed without --numbers", fix=f"{example} --seed {walk.seed}")
    if walk.block and (sizes.source is not None or sizes.batch is not None):
        raise InputError("--source or --batch with --block", fix="leave them out")
    if walk.numbers and sizes.time is not None:
        raise InputError(
            "--time with --numbers", expected="4 tokens", fix="leave --time or --numbers out"
        )


def find_config(model: str) -> ModelConfig:
    """The configuration of a published architecture, a file or a checkpoint."""
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


def model_label(model: str) -> str:
    return model if model in PUBLISHED or model in CATALOGUE else Path(model).stem
