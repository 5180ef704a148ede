"""`sightline data`: text files become tokens to train on, and what such a folder holds."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.text import Text

from sightline.cli.ui.arguments import Count
from sightline.cli.ui.output import show as print_lines
from sightline.cli.ui.output import write_json
from sightline.errors import InputError, nearest
from sightline.escapes import escape_line

ACTIONS = ("prepare", "show")
WORDS = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}

data = App(
    name="data", help="Turn text files into tokens to train on, or see what such a folder holds."
)


@data.default
def other(*words: Annotated[str, Parameter(show=False)]) -> None:
    """Turn text files into tokens to train on, or see what such a folder holds."""
    if not words:
        raise InputError("nothing to do", expected="prepare or show", fix="sightline data --help")
    raise InputError(
        f"sightline data has no command {words[0][:100]!r}", fix=nearest(words[0][:100], ACTIONS)
    )


@data.command
def prepare(
    *files: Path,
    out: Path,
    tokenizer: str = "bpe",
    vocab: Count = None,
    validation: float | None = None,
    validation_file: tuple[Path, ...] = (),
    document_separator: str = "",
    overwrite: bool = False,
    json: bool = False,
) -> None:
    """Turn text files into a folder of tokens, with a datasheet: counts, checksums, a sample.

    Parameters
    ----------
    files
        Text in UTF-8. Line ends become \\n.
    out
        The folder, which must not be there yet.
    tokenizer
        characters (one token for each), bpe (learned from the files; the default), or a folder or
        model whose tokenizer is taken.
    vocab
        Tokens of a bpe tokenizer; by default 8000.
    validation
        The part that is held out, from the end of the text; by default 0.05.
    validation_file
        A whole file that is held out instead; may be given again.
    document_separator
        What parts documents within a file (\\n and \\t may be written so); without it each file is
        one.
    overwrite
        Replace a folder that this command made.
    json
        Write the datasheet as JSON.
    """
    from sightline.recipes.corpora import encoder_for
    from sightline.terminal.progress import shown
    from sightline.training.data.prepare import Plan, check_target, sources
    from sightline.training.data.prepare import prepare as write

    if validation is not None and validation_file:
        raise InputError(
            "both --validation and --validation-file are given",
            expected="one of them",
            fix="leave one out",
        )
    if vocab is not None and tokenizer != "bpe":
        raise InputError(
            f"--vocab for the tokenizer {tokenizer[:100]!r}",
            expected="--tokenizer bpe",
            fix="leave --vocab out",
        )
    check_target(out, overwrite=overwrite)
    with shown(None) as report:
        plan = Plan(
            files=sources(files, report),
            held_out=sources(validation_file, report),
            separator=unescaped(document_separator),
            validation=0.05 if validation is None else validation,
        )
        encoder = encoder_for(
            plan, tokenizer, vocab=8000 if vocab is None else vocab, progress=report
        )
        sheet = write(plan, encoder, out, progress=report, overwrite=overwrite)
    print_sheet(sheet, out, json=json)


@data.command
def show(folder: Path, /, *, json: bool = False) -> None:
    """The datasheet of a folder of tokens, and how its text begins, after every file was checked.

    Parameters
    ----------
    folder
        A folder that `sightline data prepare` made.
    json
        Write the datasheet as JSON.
    """
    from sightline.recipes.corpora import prepared_folder

    print_sheet(prepared_folder(folder).sheet, folder, json=json)


def unescaped(text: str) -> str:
    """\\n, \\t and \\r as a shell lets one write them."""
    for word, sign in WORDS.items():
        text = text.replace(word, sign)
    return text


def print_sheet(sheet: dict[str, Any], folder: Path, *, json: bool) -> None:
    """On stdout, as JSON or as lines."""
    if json:
        write_json({"folder": str(folder), **sheet})
        return
    print_lines(lambda width: lines(sheet, folder))


def lines(sheet: dict[str, Any], folder: Path) -> list[Text]:
    """What a reader wants to know first."""
    from sightline.terminal.progress import megabytes

    tokens = sheet["tokens"]
    files = sheet["files"]
    tokenizer = sheet["tokenizer"]
    size = megabytes(sum(file["bytes"] for file in files))
    named = ", ".join(file["name"] for file in files[:3]) + (
        f" and {len(files) - 3} more" if len(files) > 3 else ""
    )
    rows = {
        "folder": str(folder),
        "files": f"{len(files)} ({size}): {named}",
        "documents": f"{sheet['documents']:,}",
        "tokens": (
            f"{tokens['train']:,} to learn from, {tokens['validation']:,} held out"
            f" ({sheet['held out']})"
        ),
        "tokenizer": (
            f"{tokenizer['kind']}, {sheet['vocab_size']:,} tokens, {sheet['dtype']}, sha256"
            f" {tokenizer['sha256'][:16]}…"
        ),
        "text": repr(sheet["sample"]["text"][:60]),
        "as tokens": " ".join(map(str, sheet["sample"]["tokens"][:16])),
    }
    return [
        Text.assemble((f"{name:<10} ", "dim"), escape_line(value)) for name, value in rows.items()
    ]
