"""`sightline classify`: labels for texts, or for each token of a text."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.text import Text as StyledText

from sightline.cli.ui.input import read_texts
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.text import InputOptions, OutputOptions
from sightline.cli.ui.options.values import ModelName, Text
from sightline.cli.ui.output import report_speed, show_lines, warnings_as_notes, write_json
from sightline.cli.ui.probability_bars import probability_line
from sightline.escapes import escape_line

if TYPE_CHECKING:
    from sightline.tasks.classify import Classification

SHOWN_LABELS = 10  # per text


def classify(
    model: ModelName,
    /,
    *texts: Text,
    input: InputOptions = InputOptions(),
    running: RunOptions = RunOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Label texts with the probability of each label; a tagger labels each token.

    Parameters
    ----------
    texts
        The texts; - reads standard input, one text per line.
    input.file
        Read the texts from a UTF-8 file, one per line.
    output.json
        Write JSON: each text with its label and the probability of every label, or with its
        labelled tokens, and the runner.
    """
    inputs = read_texts(texts, input.file, command="classify")
    loaded = running.load(model)
    started = time.perf_counter()
    with warnings_as_notes():
        results = loaded.classify(inputs)
    seconds = time.perf_counter() - started
    pairs = list(zip(inputs, results, strict=True))
    if output.json:
        runner = loaded.runner.name
        write_json([{**classification_dict(*pair), "runner": runner} for pair in pairs])
    else:
        alone = len(inputs) == 1
        lines = [line for pair in pairs for line in classification_lines(*pair, alone=alone)]
        show_lines(lambda width: lines)
    report_speed(len(inputs), seconds)


def classification_dict(text: str, result: Classification) -> dict[str, Any]:
    """A result as a JSON object: one label per text, or one per token."""
    if result.label is None:
        return {"text": text, "tokens": [asdict(token) for token in result.tokens]}
    return {
        "text": text,
        "label": result.label,
        "probability": result.probability,
        "probabilities": result.probabilities,
    }


def classification_lines(text: str, result: Classification, *, alone: bool) -> list[StyledText]:
    """The text, then its labels with bars, or its tokens; a single text is not repeated."""
    lines = [] if alone else [StyledText(" ".join(text.split()), "bold")]
    if result.label is None:
        return [*lines, *token_lines(result)]
    ranked = sorted(result.probabilities.items(), key=lambda pair: -pair[1])
    lines += [probability_line(label, value) for label, value in ranked[:SHOWN_LABELS]]
    more = len(ranked) - SHOWN_LABELS
    if more > 0:
        lines.append(StyledText(f"… {more} more labels: --json lists them", "dim"))
    return lines if alone else [*lines, StyledText()]


def token_lines(result: Classification) -> list[StyledText]:
    """One line per token: its position, its label and the label's probability."""
    width = max((len(repr(token.text)) for token in result.tokens), default=0)
    lines: list[StyledText] = []
    for token in result.tokens:
        line = StyledText()
        line.append(f"{token.start:>5}–{token.end:<5} ", "dim")
        line.append(f"{token.text!r:<{width}}  {token.probability:6.1%}  ")
        lines.append(line.append(escape_line(token.label), "bold"))
    return lines
