"""`sightline classify`: labels for texts, or for each token of a text."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rich.text import Text

from sightline.cli.commands.run.embed import notes_shown, read_texts, say_speed
from sightline.cli.ui.arguments import Dtype, IgnoreTensors, OneText, Strict
from sightline.cli.ui.output import show, write_json
from sightline.escapes import escape_line

if TYPE_CHECKING:
    from sightline.tasks.classify import Classification

SHOWN = 10  # labels of a text


def classify(
    model: str,
    /,
    *texts: OneText,
    file: Path | None = None,
    engine: Literal["auto", "native", "torch"] = "torch",
    dtype: Dtype = "float32",
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """Give texts their labels, with the probability of each; a tagger gives one to each token.

    Parameters
    ----------
    model
        A folder, a name of `sightline models`, or OWNER/NAME of the hub, of a model with a
        classifier.
    texts
        The texts; - reads standard input, one text a line.
    file
        Read the texts from a file, one a line.
    engine
        native runs the model on Sightline's own engine, in any --dtype.
    json
        Write JSON: each text with its label and the probability of every label, or with its
        labelled tokens.
    """
    from sightline.cli.ui.loading import load_shown

    wanted = read_texts(texts, file, command="classify")
    loaded = load_shown(
        model, engine=engine, dtype=dtype, strict=strict, ignore_tensors=ignore_tensors
    )
    started = time.perf_counter()
    with notes_shown():
        found = loaded.classify(wanted)
    seconds = time.perf_counter() - started
    if json:
        write_json([plain(*pair) for pair in zip(wanted, found, strict=True)])
    else:
        show(
            lambda width: [
                line
                for pair in zip(wanted, found, strict=True)
                for line in lines_of(*pair, alone=len(wanted) == 1)
            ]
        )
    say_speed(len(wanted), seconds)


def plain(text: str, found: Classification) -> dict[str, Any]:
    """What was found, as values; only that which this model gives."""
    if found.label is None:
        return {"text": text, "tokens": [asdict(token) for token in found.tokens]}
    return {
        "text": text,
        "label": found.label,
        "probability": found.probability,
        "probabilities": found.probabilities,
    }


def lines_of(text: str, found: Classification, *, alone: bool) -> list[Text]:
    """The text, then its labels with bars, or its tokens."""
    from sightline.cli.commands.run.fill import bar_line

    head = [] if alone else [Text(" ".join(text.split()), "bold")]
    if found.label is None:
        return [*head, *tagged(found)]
    ranked = sorted(found.probabilities.items(), key=lambda pair: -pair[1])
    more = (
        [Text(f"… {len(ranked) - SHOWN} more labels: --json has them", "dim")]
        if len(ranked) > SHOWN
        else []
    )
    return [
        *head,
        *(bar_line(label, value) for label, value in ranked[:SHOWN]),
        *more,
        *([] if alone else [Text()]),
    ]


def tagged(found: Classification) -> list[Text]:
    """One line for each token: where it is, its label, how sure."""
    wide = max((len(repr(token.text)) for token in found.tokens), default=0)
    lines: list[Text] = []
    for token in found.tokens:
        line = (
            Text()
            .append(f"{token.start:>5}–{token.end:<5} ", "dim")
            .append(f"{token.text!r:<{wide}}  {token.probability:6.1%}  ")
        )
        lines.append(line.append(escape_line(token.label), "bold"))
    return lines
