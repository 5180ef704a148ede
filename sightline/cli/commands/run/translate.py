"""`sightline translate`: translate texts, with the alignment of their tokens."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from rich.cells import cell_len, set_cell_size

from sightline.cli.ui.input import read_file, read_input, split_lines
from sightline.cli.ui.options.groups import OUTPUT
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.sampling import BeamTranslationOptions
from sightline.cli.ui.options.text import InputOptions, OutputOptions
from sightline.cli.ui.options.values import ModelName, OptionalText
from sightline.cli.ui.output import TextWriter, note, progress_bar, write, write_json
from sightline.errors import InputError
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.model import Model
    from sightline.tasks.translate import Translation
    from sightline.text.tokenizer import Tokenizer

SHADES = ((0.75, "██"), (0.5, "▓▓"), (0.25, "▒▒"), (0.1, "░░"), (0.0, "· "))
LEGEND = "██ from 75 %   ▓▓ 50 %   ▒▒ 25 %   ░░ 10 %   · less"
MODEL_HELP = (
    "An encoder–decoder: a folder, a name listed by `sightline models`, or OWNER/NAME on the"
    " Hugging Face Hub."
)


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class TranslationOutputOptions(OutputOptions):
    """Only the translation, the translation with its alignment, or JSON."""

    alignment: bool = False
    """Show the cross-attention of each target token (rows) to the source tokens (columns)."""


def translate(
    model: Annotated[ModelName, Parameter(help=MODEL_HELP)],
    text: OptionalText = None,
    /,
    *,
    input: InputOptions = InputOptions(),
    beam: BeamTranslationOptions = BeamTranslationOptions(),
    running: RunOptions = RunOptions(),
    output: TranslationOutputOptions = TranslationOutputOptions(),
) -> None:
    """Translate a text, or a file with one sentence per line.

    Parameters
    ----------
    text
        The text, translated as one sequence; - reads standard input, one sentence per line.
    input.file
        Translate a UTF-8 file, one sentence per line; empty lines stay empty.
    output.json
        Write JSON, for a file one object per line: text, tokens, score, the other hypotheses, the
        alignment with its tokens, and the runner.
    """
    sentences = read_sentences(text, input.file)
    loaded = running.load(model)
    is_single = input.file is None and text != "-"
    width = Console().width
    for result in translate_lines(loaded, sentences, beam):
        if output.json:
            value = None if result is None else translation_dict(result, loaded.runner.name)
            write_json(value, indent=2 if is_single else None)
        else:
            print_translation(result, alignment=output.alignment, width=width)


def read_sentences(text: str | None, file: Path | None) -> list[str]:
    """The argument as one sentence, or the lines of a file or of standard input."""
    if (text is None) == (file is None):
        raise InputError(
            "no text" if text is None else "a text and a file",
            expected="one of them",
            fix='sightline translate MODEL "Good morning"',
        )
    if file is None and text != "-":
        return [str(text)]
    return split_lines(read_input() if file is None else read_file(file))


def check_lengths(loaded: Model, tokenizer: Tokenizer, sentences: list[str]) -> None:
    """Refuse a line that is too long before the first line is translated."""
    encoder = loaded.config.encoder
    if encoder is None or len(sentences) < 2:
        return
    for number, sentence in enumerate(sentences, 1):
        length = len(tokenizer.encode(sentence, special=True))
        if length > encoder.max_positions:
            raise InputError(
                f"line {number}: a text of {length} tokens for an encoder of"
                f" {encoder.max_positions}",
                expected=f"at most {encoder.max_positions}",
                fix="split that line into sentences; nothing was translated yet",
            )


def translate_lines(
    loaded: Model, sentences: list[str], beam: BeamTranslationOptions
) -> Iterator[Translation | None]:
    """One translation after another, None for an empty line of a file. Errors in a file name the
    line."""
    if loaded.tokenizer is None:
        raise InputError(
            "a model without tokenizer",
            expected="one that reads text",
            fix="add the tokenizer's files to the folder",
        )
    check_lengths(loaded, loaded.tokenizer, sentences)
    is_file = len(sentences) > 1
    with progress_bar(shown=is_file and not sys.stdout.isatty()) as bar:
        for number, sentence in enumerate(bar.track(sentences, description="translating"), 1):
            if is_file and not sentence.strip():
                yield None
                continue
            try:
                yield loaded.translate(
                    sentence,
                    beams=beam.beams,
                    max_tokens=beam.max_tokens,
                    length_penalty=beam.length_penalty,
                )
            except InputError as error:
                if not is_file:
                    raise
                raise InputError(
                    f"line {number}: {error.seen}", expected=error.expected, fix=error.fix
                ) from None


# ---------------------------------------------------------------------------------------- results


def print_translation(result: Translation | None, *, alignment: bool, width: int) -> None:
    """The text, optionally its alignment, and a note if it was cut; an empty line for None."""
    writer = TextWriter()
    writer.write("" if result is None else result.text)
    writer.end()
    if result is None:
        return
    if alignment:
        write(*alignment_lines(result, width=width))
    if not result.finished:
        note(f"cut after {len(result.tokens)} tokens; raise --max-tokens")


def translation_dict(result: Translation, runner: str) -> dict[str, object]:
    """A translation as a JSON object."""
    return {
        "text": result.text,
        "tokens": result.tokens,
        "score": result.score,
        "finished": result.finished,
        "others": [{"text": text, "score": score} for text, score in result.others],
        "source_tokens": result.source_tokens,
        "target_tokens": result.target_tokens,
        "alignment": [[round(weight, 6) for weight in line] for line in result.alignment.tolist()],
        "runner": runner,
    }


def alignment_lines(result: Translation, *, width: int) -> Iterator[str]:
    """The alignment as shades, a row per target token; source tokens that do not fit the width
    continue in a block below."""
    sources = [column_heading(token) for token in result.source_tokens]
    targets = [column_heading(token) for token in result.target_tokens]
    margin = max(map(cell_len, targets))
    weights = result.alignment.tolist()
    widths = [max(2, cell_len(name)) for name in sources]
    for begin, end in column_blocks([size + 1 for size in widths], width - margin - 1):
        yield table_row("", sources[begin:end], margin, widths[begin:end])
        for name, line in zip(targets, weights, strict=True):
            cells = [weight_shade(weight) for weight in line[begin:end]]
            yield table_row(name, cells, margin, widths[begin:end])
        yield ""
    yield LEGEND


def column_blocks(widths: list[int], room: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the columns that fit beside each other; at least one."""
    begin = 0
    used = 0
    for column, width in enumerate(widths):
        if used + width > room and column > begin:
            yield begin, column
            begin = column
            used = 0
        used += width
    yield begin, len(widths)


def table_row(name: str, cells: list[str], margin: int, widths: list[int]) -> str:
    """One line, each cell padded to its column's width in terminal cells."""
    padded = [set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True)]
    return " ".join([set_cell_size(name, margin), *padded]).rstrip()


def column_heading(token: str) -> str:
    """A token as a heading: without the space before it, and nothing invisible."""
    label = token.strip() or ("␣" if token else "∅")
    return "".join(sign if sign.isprintable() else "�" for sign in label)


def weight_shade(weight: float) -> str:
    """Darker for larger weights."""
    return next((block for least, block in SHADES if weight >= least), "? ")
