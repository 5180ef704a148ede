"""`sightline tokenizer`: train one from text files, or see what one makes of a text."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.text import Text

from sightline.cli.ui.arguments import Count
from sightline.cli.ui.output import show as print_lines
from sightline.cli.ui.output import write, write_json
from sightline.errors import CheckpointError, InputError, nearest
from sightline.text.tokenizer import Tokenizer

ACTIONS = ("train", "show")

tokenizer = App(name="tokenizer", help="Train a tokenizer, or see what one makes of a text.")


@tokenizer.default
def other(*words: Annotated[str, Parameter(show=False)]) -> None:
    """Train a tokenizer, or see what one makes of a text."""
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
    vocab: Count = None,
    kind: Literal["bpe", "unigram"] = "bpe",
    json: bool = False,
) -> None:
    """Learn a tokenizer from text files, and write it into a folder.

    Parameters
    ----------
    files
        Text in UTF-8.
    out
        The folder; it must not have a tokenizer yet.
    vocab
        Tokens, the 256 bytes and four special ones among them; by default 8000.
    kind
        bpe or unigram, both over bytes.
    json
        Write JSON.
    """
    from sightline.terminal.progress import shown
    from sightline.text.training import subwords as training

    training.writable(out)
    with shown(None) as report:
        made = training.train(
            files, vocab_size=8000 if vocab is None else vocab, kind=kind, progress=report
        )
    place = training.save(made, out)
    if json:
        write_json({"path": str(place), "kind": kind, "tokens": made.get_vocab_size()})
    else:
        write(place)


@tokenizer.command
def show(model: str, text: str, /, *, json: bool = False) -> None:
    """Each token of a text: its id, its place, the token itself and the characters that it stands
    for.

    Parameters
    ----------
    model
        A folder with a tokenizer, a checkpoint (folder, .gguf), a name of `sightline models`, or
        OWNER/NAME of the hub.
    text
        The text.
    json
        Write JSON.
    """
    rows = tokens_of(opened(model), text)
    if json:
        write_json(rows)
    else:
        print_lines(lambda width: table(rows))


def opened(model: str) -> Tokenizer:
    """The tokenizer of a folder, or of a model without its weights."""
    found = Tokenizer.from_folder(model) if Path(model).is_dir() else None
    if found is None:
        from sightline.checkpoints.open import open_source
        from sightline.checkpoints.sources.reference import resolve
        from sightline.checkpoints.tokenizer_files import tokenizer_of

        found = tokenizer_of(open_source(resolve(model)))
    if found is None:
        raise CheckpointError(
            f"{model[:100]}: has no tokenizer", expected="a folder with a tokenizer.json"
        )
    return found


def tokens_of(tokenizer: Tokenizer, text: str) -> list[dict[str, Any]]:
    """The tokens as plain values; several that share a character each have the whole of it."""
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


def table(rows: list[dict[str, Any]]) -> list[Text]:
    """A line for each token."""
    lines = [("id", "place", "token", "characters")]
    lines += [
        (
            str(row["id"]),
            f"{row['begin']}–{row['end']}",
            repr(row["token"]),
            repr(row["characters"]),
        )
        for row in rows
    ]
    wide = [max(len(line[column]) for line in lines) for column in range(3)]
    made: list[Text] = []
    for number, (id, place, token, characters) in enumerate(lines):
        plain = f"{id:>{wide[0]}}   {place:>{wide[1]}}   {token:<{wide[2]}}   {characters}"
        made.append(Text(plain, "dim" if number == 0 else ""))
    return made
