"""`sightline translate`: a text in another language, and which word came from which."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from rich.cells import cell_len, set_cell_size

from sightline.cli.ui.arguments import Count, Dtype, IgnoreTensors, Strict, Words
from sightline.cli.ui.input import read_file, read_input
from sightline.cli.ui.output import TextWriter, bar, note, write, write_json
from sightline.errors import InputError
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.model import Model
    from sightline.tasks.translate import Translation
    from sightline.text.tokenizer import Tokenizer

SHADES = ((0.75, "██"), (0.5, "▓▓"), (0.25, "▒▒"), (0.1, "░░"), (0.0, "· "))
LEGEND = "██ from 75 %   ▓▓ 50 %   ▒▒ 25 %   ░░ 10 %   · less"


def translate(
    model: str,
    text: Words = None,
    /,
    *,
    file: Path | None = None,
    beams: Count = None,
    max_tokens: Count = None,
    length_penalty: float | None = None,
    alignment: bool = False,
    engine: Literal["auto", "native", "torch"] = "torch",
    dtype: Dtype = "float32",
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """Translate a text. It is an argument, or one sentence a line: a file (--file) or standard
    input (-).

    Parameters
    ----------
    model
        An encoder–decoder: a folder, a name of `sightline models`, or OWNER/NAME of the hub.
    text
        The text to translate, as one; - reads standard input, a sentence a line.
    file
        Translate a file, a sentence a line; an empty line stays empty.
    beams
        How many beginnings are kept at each step; 1 takes the likeliest token each time. By default
        as the model recommends, or 4.
    max_tokens
        At most so many tokens a sentence.
    length_penalty
        Above 1 favours long translations, below it short ones. By default as the model recommends,
        or 1.
    alignment
        Show where each token of the translation looked: rows are the translation's, columns the
        source's.
    engine
        native runs the model on Sightline's own engine, in any --dtype.
    json
        Write JSON, for a file one object a line: text, tokens, score, others, and the alignment
        with its tokens.
    """
    from sightline.cli.ui.loading import load_shown

    sentences = read_sentences(text, file)
    loaded = load_shown(
        model, engine=engine, dtype=dtype, strict=strict, ignore_tensors=ignore_tensors
    )
    one = file is None and text != "-"
    for found in translated(
        loaded, sentences, beams=beams, max_tokens=max_tokens, length_penalty=length_penalty
    ):
        if json:
            write_json(None if found is None else plain(found), indent=2 if one else None)
            continue
        writer = TextWriter()
        writer.write("" if found is None else found.text)
        writer.end()
        if alignment and found is not None:
            write(*heat(found, width=Console().width))
        if found is not None and not found.finished:
            note(f"cut after {len(found.tokens)} tokens; --max-tokens gives it more room")


def read_sentences(text: str | None, file: Path | None) -> list[str]:
    """The sentences, from wherever they come."""
    if (text is None) == (file is None):
        seen = "no text" if text is None else "a text and a file"
        raise InputError(
            seen, expected="one of them", fix='sightline translate MODEL "Good morning"'
        )
    if file is None and text != "-":
        return [str(text)]
    return lines_of(read_input() if file is None else read_file(file))


def lines_of(text: str) -> list[str]:
    """The lines, without their ends; only a line feed ends one."""
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    return lines[:-1] if lines[-1] == "" else lines


def check_sentences(loaded: Model, tokenizer: Tokenizer, sentences: list[str]) -> None:
    """A sentence that is too long is said before the first is translated, with its line."""
    encoder = loaded.config.encoder
    for number, sentence in enumerate(
        sentences if len(sentences) > 1 and encoder is not None else (), 1
    ):
        length = len(tokenizer.encode(sentence, special=True))
        if encoder is not None and length > encoder.max_positions:
            raise InputError(
                f"line {number}: a text of {length} tokens for an encoder of"
                f" {encoder.max_positions}",
                expected=f"at most {encoder.max_positions}",
                fix="cut that line into sentences; nothing was translated yet",
            )


def translated(
    loaded: Model,
    sentences: list[str],
    *,
    beams: int | None,
    max_tokens: int | None,
    length_penalty: float | None,
) -> Iterator[Translation | None]:
    """One translation after the other, None for an empty line in a file; a mistake in a file is
    said with its line."""
    from sightline.tasks.translate import translate as translate_text

    if loaded.tokenizer is None:
        raise InputError(
            "a model without tokenizer",
            expected="one that reads text",
            fix="add the tokenizer's files to the folder",
        )
    check_sentences(loaded, loaded.tokenizer, sentences)
    with bar(shown=len(sentences) > 1 and not sys.stdout.isatty()) as shown:
        for number, sentence in enumerate(shown.track(sentences, description="translating"), 1):
            if len(sentences) > 1 and not sentence.strip():
                yield None
                continue
            try:
                yield translate_text(
                    loaded.runner,
                    loaded.tokenizer,
                    loaded.defaults,
                    sentence,
                    beams=beams,
                    max_tokens=max_tokens,
                    length_penalty=length_penalty,
                )
            except InputError as error:
                if len(sentences) > 1:
                    raise InputError(
                        f"line {number}: {error.seen}", expected=error.expected, fix=error.fix
                    ) from None
                raise


def heat(found: Translation, *, width: int) -> Iterator[str]:
    """The alignment as shades, a row for each token of the translation; a source that is too wide
    goes on below."""
    sources = [label(token) for token in found.source_tokens]
    targets = [label(token) for token in found.target_tokens]
    margin = max(map(cell_len, targets))
    weights = found.alignment.tolist()
    for begin, end in column_blocks(
        [max(2, cell_len(name)) + 1 for name in sources], width - margin - 1
    ):
        sizes = [max(2, cell_len(name)) for name in sources[begin:end]]
        yield row("", sources[begin:end], margin, sizes)
        for name, line in zip(targets, weights, strict=True):
            yield row(name, [shade(weight) for weight in line[begin:end]], margin, sizes)
        yield ""
    yield LEGEND


def column_blocks(sizes: list[int], room: int) -> Iterator[tuple[int, int]]:
    """Begin and end of the columns that fit beside each other; at least one."""
    begin = 0
    used = 0
    for n, size in enumerate(sizes):
        if used + size > room and n > begin:
            yield begin, n
            begin = n
            used = 0
        used += size
    yield begin, len(sizes)


def row(name: str, cells: list[str], margin: int, sizes: list[int]) -> str:
    """One line, each cell in as many places of the terminal as its column has; a Japanese letter
    takes two."""
    parts = [
        set_cell_size(name, margin),
        *(set_cell_size(cell, size) for cell, size in zip(cells, sizes, strict=True)),
    ]
    return " ".join(parts).rstrip()


def label(token: str) -> str:
    """A token as a heading: without the space before it, nothing invisible."""
    shown = token.strip() or ("␣" if token else "∅")
    return "".join(sign if sign.isprintable() else "�" for sign in shown)


def shade(weight: float) -> str:
    """The darker, the more it was looked at."""
    return next((block for least, block in SHADES if weight >= least), "? ")


def plain(found: Translation) -> dict[str, object]:
    """A translation as JSON has it."""
    return {
        "text": found.text,
        "tokens": found.tokens,
        "score": found.score,
        "finished": found.finished,
        "others": [{"text": text, "score": score} for text, score in found.others],
        "source_tokens": found.source_tokens,
        "target_tokens": found.target_tokens,
        "alignment": [[round(weight, 6) for weight in line] for line in found.alignment.tolist()],
    }
