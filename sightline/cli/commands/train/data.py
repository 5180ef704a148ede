"""`sightline data`: tokenize text files for training, and inspect a prepared folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from sightline.cli.ui.options.groups import OPTIONS, command_with_actions
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import Count
from sightline.cli.ui.output import show_lines, write_json
from sightline.errors import InputError, nearest
from sightline.escapes import escape_line

ACTIONS = ("prepare", "show")
ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r"}
VOCAB = 8000
VALIDATION = 0.05

data = command_with_actions("data")


@data.default
def refuse_data_action(*words: Annotated[str, Parameter(show=False)]) -> None:
    """Tokenize text files for training, or inspect a prepared folder."""
    if not words:
        raise InputError("nothing to do", expected="prepare or show", fix="sightline data --help")
    raise InputError(
        f"sightline data has no command {words[0][:100]!r}", fix=nearest(words[0][:100], ACTIONS)
    )


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class TokenOptions:
    """How texts become tokens, and which are held out."""

    tokenizer: str = "bpe"
    """characters (one token per character), bpe (trained on the files), or a folder or model whose
    tokenizer is used."""

    vocab: Annotated[Count, Parameter(show_default=str(VOCAB))] = None
    """Vocabulary size of a bpe tokenizer."""

    validation: Annotated[float | None, Parameter(show_default=str(VALIDATION))] = None
    """Fraction of the text, from its end, held out for validation."""

    validation_file: tuple[Path, ...] = ()
    """Hold out this file instead; may be repeated."""

    document_separator: str = ""
    """String between the documents of a file (\\n is a newline, \\t a tab); by default each file is
    one document."""

    def check(self) -> None:
        """Refuse options that exclude each other."""
        if self.validation is not None and self.validation_file:
            raise InputError(
                "both --validation and --validation-file are given",
                expected="one of them",
                fix="leave one out",
            )
        if self.vocab is not None and self.tokenizer != "bpe":
            raise InputError(
                f"--vocab for the tokenizer {self.tokenizer[:100]!r}",
                expected="--tokenizer bpe",
                fix="leave --vocab out",
            )


@data.command
def prepare(
    *files: Path,
    out: Path,
    tokens: TokenOptions = TokenOptions(),
    overwrite: bool = False,
    output: OutputOptions = OutputOptions(),
) -> None:
    """Tokenize text files into a folder, with a datasheet: counts, checksums, a sample.

    Parameters
    ----------
    files
        UTF-8 text files. Line ends become \\n.
    out
        The folder to write; it must not exist.
    overwrite
        Replace a folder written by this command.
    output.json
        Write the datasheet as JSON.
    """
    from sightline.recipes.corpora import encoder_for
    from sightline.terminal.progress import reporting
    from sightline.training.data.prepare import Plan, check_target, sources
    from sightline.training.data.prepare import prepare as write_tokens

    tokens.check()
    check_target(out, overwrite=overwrite)
    with reporting(None) as report:
        plan = Plan(
            files=sources(files, report),
            held_out=sources(tokens.validation_file, report),
            separator=unescape(tokens.document_separator),
            validation=VALIDATION if tokens.validation is None else tokens.validation,
        )
        vocab = VOCAB if tokens.vocab is None else tokens.vocab
        encoder = encoder_for(plan, tokens.tokenizer, vocab=vocab, progress=report)
        sheet = write_tokens(plan, encoder, out, progress=report, overwrite=overwrite)
    show_sheet(sheet, out, json=output.json)


@data.command
def show(folder: Path, /, *, output: OutputOptions = OutputOptions()) -> None:
    """Verify every file of a prepared folder, and show its datasheet and the start of its text.

    Parameters
    ----------
    folder
        A folder written by `sightline data prepare`.
    output.json
        Write the datasheet as JSON.
    """
    from sightline.recipes.corpora import prepared_folder

    show_sheet(prepared_folder(folder).sheet, folder, json=output.json)


def unescape(text: str) -> str:
    """Replace \\n, \\t and \\r, as typed in a shell, by the characters."""
    for word, sign in ESCAPES.items():
        text = text.replace(word, sign)
    return text


def show_sheet(sheet: dict[str, Any], folder: Path, *, json: bool) -> None:
    """The datasheet on stdout, as JSON or as lines."""
    if json:
        write_json({"folder": str(folder), **sheet})
        return
    show_lines(lambda width: sheet_lines(sheet, folder))


def sheet_lines(sheet: dict[str, Any], folder: Path) -> list[Text]:
    """The main facts of a datasheet."""
    from sightline.terminal.progress import megabytes

    tokens = sheet["tokens"]
    files = sheet["files"]
    tokenizer = sheet["tokenizer"]
    size = megabytes(sum(file["bytes"] for file in files))
    names = ", ".join(file["name"] for file in files[:3])
    more = f" and {len(files) - 3} more" if len(files) > 3 else ""
    rows = {
        "folder": str(folder),
        "files": f"{len(files)} ({size}): {names}{more}",
        "documents": f"{sheet['documents']:,}",
        "tokens": (
            f"{tokens['train']:,} for training, {tokens['validation']:,} held out"
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
