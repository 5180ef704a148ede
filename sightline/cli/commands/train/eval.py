"""`sightline eval`: a model measured on data. What was measured when Ctrl-C came is reported, and
of how much."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from sightline.cli.commands.run.score import finite
from sightline.cli.commands.run.translate import lines_of
from sightline.cli.ui.arguments import Count, IgnoreTensors, Strict
from sightline.cli.ui.input import read_file
from sightline.cli.ui.output import bar, write, write_json
from sightline.cli.ui.runs import is_run
from sightline.errors import InputError
from sightline.escapes import escape_line
from sightline.text.rows import csv_rows, jsonl_rows

if TYPE_CHECKING:
    from sightline.model import Model
    from sightline.text.tokenizer import Tokenizer

Result = TypeVar("Result")
COLUMNS = {"labels": ("text", "label"), "pairs": ("source", "target")}
INTERRUPTED = 130
SHOWN = 3


@dataclass(frozen=True, slots=True)
class Data:
    """A text; or pairs of source and reference; or texts with their labels."""

    kind: Literal["text", "pairs", "labels"]
    text: str = ""
    rows: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Figures under their names, lines to show with them, and how much of the data they are of."""

    figures: dict[str, Any]
    lines: list[str]
    done: int
    total: int
    what: str


def eval(
    model: str,
    data: Path | None = None,
    /,
    *,
    source: Path | None = None,
    target: Path | None = None,
    tokenize: str | None = None,
    words: bool = False,
    beams: Count = None,
    max_tokens: Count = None,
    stride: Count = None,
    limit: Count = None,
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """Measure a model: perplexity on a text file, BLEU and chrF on a .tsv of pairs, accuracy on a
    .csv or .jsonl of texts and labels. A run of `sightline train` without data is measured on all
    that it held out.

    Parameters
    ----------
    model
        A folder, a run of `sightline train`, a .gguf file, a name of `sightline models`, or
        OWNER/NAME of the hub.
    data
        A text file; a .tsv of source and target; a .csv or .jsonl with text and label, or with
        source and target.
    source
        Sentences to translate, one a line; with --target.
    target
        Their references, one a line; with --source.
    tokenize
        How sacrebleu cuts words for BLEU: 13a (the default), intl, char, zh, ja-mecab, none …
    words
        Part translations where the model's own words begin, for references that are parted so
        (Japanese); BLEU then cuts at spaces.
    beams
        Beams of the translations; by default as the model recommends, or 4.
    max_tokens
        At most so many tokens a translation.
    stride
        A text longer than the context is read in windows so many tokens apart; by default half the
        context.
    limit
        Only the first so many lines or rows.
    json
        Write JSON: the figures, done, total, complete.
    """
    from sightline.cli.ui.loading import load_shown
    from sightline.tasks.evaluate import bleu_with

    if data is None and source is None and target is None and is_run(model):
        from sightline.cli.ui.eval_run import of_run

        show(
            of_run(Path(model), tokenize=tokenize, beams=beams, max_tokens=max_tokens, limit=limit),
            json=json,
        )
        return
    found = read_data(data, source, target, limit=limit)
    tokenize = tokenize or ("none" if words else "13a")
    if found.kind == "pairs":
        bleu_with(tokenize)
    loaded = load_shown(model, strict=strict, ignore_tensors=ignore_tensors)
    if loaded.tokenizer is None:
        raise InputError(
            "a model without tokenizer",
            expected="one that reads text",
            fix="add the tokenizer's files to the folder",
        )
    if found.kind == "text":
        report = of_text(loaded, loaded.tokenizer, found.text, stride=stride)
    elif found.kind == "pairs":
        report = of_pairs(
            loaded,
            loaded.tokenizer,
            found.rows,
            tokenize=tokenize,
            beams=beams,
            max_tokens=max_tokens,
            words=words,
        )
    else:
        report = of_labels(loaded, loaded.tokenizer, found.rows)
    show(report, json=json)


def show(report: Report, *, json: bool) -> None:
    """The figures on stdout; that they are of a part only, in so many words and by the exit
    code."""
    write_report(report, json=json)
    if report.done < report.total:
        sys.exit(INTERRUPTED)


def write_report(report: Report, *, json: bool) -> None:
    complete = report.done == report.total
    if json:
        plain = {
            name: finite(value) if isinstance(value, float) else value
            for name, value in report.figures.items()
        }
        write_json({**plain, "done": report.done, "total": report.total, "complete": complete})
        return
    write(*report.lines)
    write(
        f"measured       {report.done} of {report.total}"
        f" {report.what}{'' if complete else ': interrupted, the rest was not measured'}"
    )


# -------------------------------------------------------------------------------------- measuring


def of_text(loaded: Model, tokenizer: Tokenizer, text: str, *, stride: int | None) -> Report:
    """Loss, perplexity and bits per byte."""
    from sightline.tasks.evaluate import perplexity

    results = perplexity(loaded.transformer, tokenizer, text, stride=stride)
    last = followed(results, at=lambda found: (found[-1].done, found[-1].total))[-1]
    lines = [
        f"loss           {last.loss:.4f} nats a token",
        f"perplexity     {last.perplexity:.4f}",
        f"bits per byte  {last.bits_per_byte:.4f}",
    ]
    figures = {
        "loss": last.loss,
        "perplexity": last.perplexity,
        "bits_per_byte": last.bits_per_byte,
        "bytes": last.bytes,
    }
    return Report(figures, lines, last.done, last.total, "tokens")


def of_pairs(
    loaded: Model,
    tokenizer: Tokenizer,
    rows: Sequence[tuple[str, str]],
    *,
    tokenize: str,
    beams: int | None,
    max_tokens: int | None,
    words: bool = False,
) -> Report:
    """BLEU and chrF, with the first few translations."""
    from sightline.tasks.evaluate import quality, translations

    results = translations(
        loaded.runner,
        tokenizer,
        loaded.defaults,
        rows,
        beams=beams,
        max_tokens=max_tokens,
        words=words,
    )
    samples = followed(results, at=lambda found: (len(found), len(rows)))
    found = quality(samples, tokenize=tokenize)
    lines = list[str]()
    for sample in samples[:SHOWN]:
        source, translation, reference = map(
            escape_line, (sample.source, sample.hypothesis, sample.reference)
        )
        lines += [
            f"source         {source}",
            f"translation    {translation}",
            f"reference      {reference}",
            "",
        ]
    lines += [
        f"{metric.name:<14} {metric.score:.2f}   {metric.signature}"
        for metric in (found.bleu, found.chrf)
    ]
    figures: dict[str, Any] = {
        "bleu": found.bleu.score,
        "bleu_signature": found.bleu.signature,
        "chrf": found.chrf.score,
        "chrf_signature": found.chrf.signature,
        "samples": [
            {"source": one.source, "translation": one.hypothesis, "reference": one.reference}
            for one in samples
        ],
    }
    return Report(figures, lines, found.done, len(rows), "sentences")


def of_labels(loaded: Model, tokenizer: Tokenizer, rows: Sequence[tuple[str, str]]) -> Report:
    """How often the label is right."""
    from sightline.tasks.evaluate import accuracy

    results = accuracy(loaded.transformer, tokenizer, rows, labels=loaded.labels)
    last = followed(results, at=lambda found: (found[-1].done, found[-1].total))[-1]
    lines = [f"accuracy       {last.accuracy:.4f}, {last.right} right"]
    return Report(
        {"accuracy": last.accuracy, "right": last.right}, lines, last.done, last.total, "rows"
    )


def followed(
    results: Iterator[Result], *, at: Callable[[list[Result]], tuple[int, int]]
) -> list[Result]:
    """All results, with a bar and the time that is left; after Ctrl-C those that there are."""
    found = list[Result]()
    with bar() as shown:
        task = shown.add_task("measuring", total=1)
        try:
            for result in results:
                found.append(result)
                done, total = at(found)
                shown.update(task, completed=done, total=total)
        except KeyboardInterrupt:
            if not found:
                raise
    return found


# ---------------------------------------------------------------------------------------- reading


def read_data(
    data: Path | None, source: Path | None, target: Path | None, *, limit: int | None
) -> Data:
    """The data, and what kind it is: by the file's name, and by its columns."""
    check_limit(limit)
    if (source is None) != (target is None) or (data is None) == (source is None):
        fix = "sightline eval MODEL text.txt, or --source A --target B"
        raise InputError(
            "not one set of data", expected="a file, or --source and --target", fix=fix
        )
    if source is not None and target is not None:
        return Data("pairs", rows=beside(source, target)[:limit])
    assert data is not None
    text = read_file(data)
    if data.suffix.lower() not in READERS:
        return Data("text", text="\n".join(text.split("\n")[:limit]))
    found = READERS[data.suffix.lower()](data, text)
    if not found.rows:
        raise InputError(f"{data} has no rows", expected="one or more", fix="check the file")
    return Data(found.kind, rows=found.rows[:limit])


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InputError(
            f"--limit is {limit}", expected="1 or more", fix="leave it out for all of the data"
        )


def beside(source: Path, target: Path) -> list[tuple[str, str]]:
    """Two files, line by line."""
    sources = lines_of(read_file(source))
    targets = lines_of(read_file(target))
    if len(sources) != len(targets) or not sources:
        seen = f"{source} has {len(sources)} lines, {target} has {len(targets)}"
        raise InputError(
            seen,
            expected="as many in both, and at least one",
            fix="check that they belong together",
        )
    return list(zip(sources, targets, strict=True))


def read_tsv(where: Path, text: str) -> Data:
    """A line: source, tab, target."""
    rows = [tuple(line.split("\t")) for line in lines_of(text)]
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise InputError(
                f"{where}, line {number}: {len(row)} columns",
                expected="source, one tab, target",
                fix="correct the line",
            )
    return Data("pairs", rows=[(row[0], row[1]) for row in rows])


def read_csv(where: Path, text: str) -> Data:
    """A head that names the columns, then the rows."""
    return from_columns(where, [row for _, row in csv_rows(where, text)])


def read_jsonl(where: Path, text: str) -> Data:
    """An object a line."""
    return from_columns(
        where, [row for _, row in jsonl_rows(where, text, shape='{"text": …, "label": …}')]
    )


def from_columns(where: Path, rows: list[dict[str, Any]]) -> Data:
    """The two columns that are there: text and label, or source and target."""
    kind = "pairs" if rows and {"source", "target"} <= rows[0].keys() else "labels"
    first, second = COLUMNS[kind]
    found = list[tuple[str, str]]()
    for number, row in enumerate(rows, 1):
        values = (row.get(first), row.get(second))
        if not isinstance(values[0], str) or not isinstance(
            values[1], str if kind == "pairs" else (str, int)
        ):
            raise InputError(
                f"{where}, row {number}: no {first} or no {second}",
                expected="both in every row",
                fix="correct the row",
            )
        found.append((values[0], str(values[1])))
    return Data(kind, rows=found)


READERS = {".tsv": read_tsv, ".csv": read_csv, ".jsonl": read_jsonl}
