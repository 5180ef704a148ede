"""`sightline fill`: the most likely tokens for the masks of a text."""

from __future__ import annotations

import shlex
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.text import Text as StyledText

from sightline.cli.ui.input import refuse_misspelt_options
from sightline.cli.ui.loading import checkpoint_config
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.text import InputOptions, OutputOptions
from sightline.cli.ui.options.values import Count, ModelName, Text
from sightline.cli.ui.output import show_lines, write_json
from sightline.cli.ui.probability_bars import probability_line
from sightline.config import MaskedHead
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.tasks.fill import Filling

TOP_K = 5


def fill(
    model: ModelName,
    text: Annotated[Text | None, Parameter(show_default=False)] = None,
    /,
    *,
    top_k: Count = TOP_K,
    input: InputOptions = InputOptions(),
    running: RunOptions = RunOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Fill in the masked words of a text, with a masked language model such as BERT.

    Parameters
    ----------
    text
        A text with masks, such as "The capital of [MASK] is Paris."; - reads standard input. A mask
        is [MASK], <mask>, three or more underscores, or the tokenizer's own mask token.
    top_k
        Number of candidates per mask.
    output.json
        Write JSON: per mask its position, its candidates with id and probability, the text with all
        masks filled, and the runner.
    """
    refuse_misspelt_options([] if text is None else [text])
    masked = input.read_prompt(text, fix='sightline fill MODEL "The capital of [MASK] is Paris."')
    refuse_unless_masked(model)
    loaded = running.load(model)
    fillings = loaded.fill(masked, top_k=TOP_K if top_k is None else top_k)
    if output.json:
        runner = loaded.runner.name
        write_json([{**asdict(filling), "runner": runner} for filling in fillings])
    else:
        show_lines(lambda width: filling_lines(fillings))


def refuse_unless_masked(model: str) -> None:
    """Refuse a model without a masked-token head by its config, before its weights are read."""
    from sightline.tasks.purpose import purpose

    config = checkpoint_config(model)
    if isinstance(config.head, MaskedHead):
        return
    kind, command = purpose(config)
    usage = command.replace("MODEL", shlex.quote(model))
    raise InputError(
        f"filling in masks with {kind}",
        expected="a masked language model, such as BERT",
        fix=f"sightline fill bert-tiny …; this model answers {usage}",
    )


def filling_lines(fillings: list[Filling]) -> list[StyledText]:
    """The text with its best candidates, then the candidates of each mask."""
    lines = [StyledText(fillings[0].text, "bold")]
    for number, filling in enumerate(fillings, start=1):
        position = f"mask {number}, characters {filling.start} to {filling.end}"
        lines.append(StyledText(position if len(fillings) > 1 else "", "dim"))
        lines += [
            probability_line(repr(candidate.text), candidate.probability)
            for candidate in filling.candidates
        ]
    return lines
