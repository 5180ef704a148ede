"""`sightline tokenizer`: train a tokenizer on text files, or see how one splits a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.text import Text

from sightline.cli.ui.options.groups import command_with_actions
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import Count, ModelName
from sightline.cli.ui.output import show_lines, write, write_json
from sightline.errors import CheckpointError, InputError, nearest
from sightline.text.tokenizer import Tokenizer

ACTIONS = ("train", "show")
VOCAB = 8000
MODEL_HELP = (
    "A folder with a tokenizer, a checkpoint (folder or .gguf file), a name listed by `sightline"
    " models`, or OWNER/NAME on the Hugging Face Hub."
)

tokenizer = command_with_actions("tokenizer")


@tokenizer.default
def refuse_tokenizer_action(*words: Annotated[str, Parameter(show=False)]) -> None:
    """Train a tokenizer, or see how one splits a text."""
    if not words:
        raise InputError(
            "nothing to do", expected="train or show", fix="sightline tokenizer --help"
        )
    raise InputError(
        f"sightline tokenizer has no command {words[0][:100]!r}",
        fix=nearest(words[0][:100], ACTIONS),
    )


@tokenizer.command
def train(
    *files: Path,
    out: Path,
    vocab: Annotated[Count, Parameter(show_default=str(VOCAB))] = None,
    kind: Literal["bpe", "unigram"] = "bpe",
    uncased: bool = False,
    output: OutputOptions = OutputOptions(),
) -> None:
    """Train a tokenizer on text files, and write it to a folder.

    Parameters
    ----------
    files
        UTF-8 text files.
    out
        The folder to write; it must not contain a tokenizer.
    vocab
        Vocabulary size, including the 256 bytes and four special tokens.
    kind
        The algorithm; both are byte-level.
    uncased
        Lower-case all text, and treat a text's first word like any other.
    output.json
        Write JSON: path, kind, tokens.
    """
    from sightline.terminal.progress import reporting
    from sightline.text.training import subwords as training

    training.check_output_folder(out)
    with reporting(None) as report:
        trained = training.train_tokenizer(
            files,
            vocab_size=VOCAB if vocab is None else vocab,
            kind=kind,
            uncased=uncased,
            progress=report,
        )
    path = training.save_tokenizer(trained, out)
    if output.json:
        write_json({"path": str(path), "kind": kind, "tokens": trained.get_vocab_size()})
    else:
        write(path)


@tokenizer.command
def show(
    model: Annotated[ModelName, Parameter(help=MODEL_HELP)],
    text: str,
    /,
    *,
    output: OutputOptions = OutputOptions(),
) -> None:
    """Show the tokens of a text: id, position, the token and the characters it stands for.

    Parameters
    ----------
    text
        The text to split.
    output.json
        Write JSON: one object per token.
    """
    rows = token_rows(open_tokenizer(model), text)
    if output.json:
        write_json(rows)
    else:
        show_lines(lambda width: token_table(rows))


def open_tokenizer(model: str) -> Tokenizer:
    """The tokenizer of a folder, or of a checkpoint whose weights are not read."""
    opened = Tokenizer.from_folder(model) if Path(model).is_dir() else None
    if opened is None:
        from sightline.checkpoints.open import open_source
        from sightline.checkpoints.sources.reference import resolve
        from sightline.checkpoints.tokenizer_files import tokenizer_of

        opened = tokenizer_of(open_source(resolve(model)))
    if opened is None:
        raise CheckpointError(
            f"{model[:100]}: has no tokenizer", expected="a folder with a tokenizer.json"
        )
    return opened


def token_rows(tokenizer: Tokenizer, text: str) -> list[dict[str, Any]]:
    """The tokens as JSON objects; tokens that share a character all show that character."""
    ids = tokenizer.encode(text)
    spans = tokenizer.offsets(text)
    return [
        {
            "id": id,
            "begin": begin,
            "end": end,
            "token": tokenizer.token(id, source=True),
            "characters": text[begin:end],
        }
        for id, (begin, end) in zip(ids, spans, strict=True)
    ]


def token_table(rows: list[dict[str, Any]]) -> list[Text]:
    """A line per token."""
    lines = [("id", "position", "token", "characters")]
    lines += [
        (
            str(row["id"]),
            f"{row['begin']}–{row['end']}",
            repr(row["token"]),
            repr(row["characters"]),
        )
        for row in rows
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    table: list[Text] = []
    for number, (id, place, token, characters) in enumerate(lines):
        columns = f"{id:>{widths[0]}}   {place:>{widths[1]}}   {token:<{widths[2]}}"
        table.append(Text(f"{columns}   {characters}", "dim" if number == 0 else ""))
    return table
