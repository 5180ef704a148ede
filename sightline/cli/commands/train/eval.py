"""`sightline eval`: measure a model on data. After Ctrl-C the figures cover the part measured so
far."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

from cyclopts import Parameter

from sightline.cli.ui.input import read_file, split_lines
from sightline.cli.ui.options.groups import OPTIONS
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.sampling import TranslationOptions
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import Count, ModelName, Stride
from sightline.cli.ui.output import finite_or_none, progress_bar, write, write_json
from sightline.cli.ui.runs import is_run
from sightline.config import MaskedHead
from sightline.errors import InputError
from sightline.escapes import escape_line
from sightline.text.rows import csv_rows, jsonl_rows

if TYPE_CHECKING:
    from sightline.model import Model
    from sightline.text.tokenizer import Tokenizer

Result = TypeVar("Result")
COLUMNS = {"labels": ("text", "label"), "pairs": ("source", "target")}
INTERRUPTED = 130
SHOWN_SAMPLES = 3
MODEL_HELP = (
    "A run of `sightline train`, a folder, a .gguf file, a name listed by `sightline models`, or"
    " OWNER/NAME on the Hugging Face Hub."
)


@dataclass(frozen=True, slots=True)
class EvalData:
    """A text; or pairs of source and reference; or texts with their labels."""

    kind: Literal["text", "pairs", "labels"]
    text: str = ""
    rows: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """Figures by name, the lines that show them, and how much of the data was measured."""

    figures: dict[str, Any]
    lines: list[str]
    done: int
    total: int
    what: str


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class DataOptions:
    """Which data, and how it is compared."""

    source: Path | None = None
    """File of sentences to translate, one per line; with --target."""

    target: Path | None = None
    """File of reference translations, one per line; with --source."""

    limit: Annotated[Count, Parameter(show_default="all of them")] = None
    """Use only the first N lines or rows."""

    stride: Stride = None

    tokenize: Annotated[str | None, Parameter(show_default="13a")] = None
    """sacreBLEU's tokenizer: 13a, intl, char, zh, ja-mecab, none …"""

    words: bool = False
    """Split translations at the model's own word boundaries, for references that are split into
    words (Japanese); BLEU then uses --tokenize none."""


def eval(
    model: Annotated[ModelName, Parameter(help=MODEL_HELP)],
    data: Path | None = None,
    /,
    *,
    options: DataOptions = DataOptions(),
    beam: TranslationOptions = TranslationOptions(),
    running: RunOptions = RunOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Evaluate a model: perplexity on a text file, BLEU and chrF on pairs, accuracy on labels.

    A masked model is asked for every token of every line in turn, hidden while the rest is visible.

    Without data, a run of `sightline train` is evaluated on all of its held-out data.

    Parameters
    ----------
    data
        A text file (perplexity, or hidden tokens); a .tsv of source and target (BLEU, chrF); a .csv
        or .jsonl with the columns text and label (accuracy), or source and target.
    output.json
        Write JSON: the figures, done, total, complete.
    """
    from sightline.tasks.evaluate import bleu_with

    has_data = any(file is not None for file in (data, options.source, options.target))
    if not has_data and is_run(model):
        from sightline.cli.ui.eval_run import evaluate_run

        show_report(evaluate_run(Path(model), options, beam), json=output.json)
        return
    evaluation = read_data(data, options.source, options.target, limit=options.limit)
    tokenize = options.tokenize or ("none" if options.words else "13a")
    if evaluation.kind == "pairs":
        bleu_with(tokenize)
    loaded = running.load(model)
    tokenizer = require_tokenizer(loaded)
    if evaluation.kind == "text" and isinstance(loaded.config.head, MaskedHead):
        report = evaluate_masked(loaded, tokenizer, evaluation.text)
    elif evaluation.kind == "text":
        report = evaluate_text(loaded, tokenizer, evaluation.text, stride=options.stride)
    elif evaluation.kind == "pairs":
        report = evaluate_pairs(
            loaded, tokenizer, evaluation.rows, beam, tokenize=tokenize, words=options.words
        )
    else:
        report = evaluate_labels(loaded, tokenizer, evaluation.rows)
    show_report(report, json=output.json)


def require_tokenizer(loaded: Model) -> Tokenizer:
    if loaded.tokenizer is None:
        raise InputError(
            "a model without tokenizer",
            expected="one that reads text",
            fix="add the tokenizer's files to the folder",
        )
    return loaded.tokenizer


def show_report(report: Report, *, json: bool) -> None:
    """The figures on stdout; exit code 130 if only a part was measured."""
    write_report(report, json=json)
    if report.done < report.total:
        sys.exit(INTERRUPTED)


def write_report(report: Report, *, json: bool) -> None:
    is_complete = report.done == report.total
    if json:
        figures = {
            name: finite_or_none(value) if isinstance(value, float) else value
            for name, value in report.figures.items()
        }
        progress = {"done": report.done, "total": report.total, "complete": is_complete}
        write_json({**figures, **progress})
        return
    rest = "" if is_complete else ": interrupted, the rest was not measured"
    write(*report.lines)
    write(f"measured       {report.done} of {report.total} {report.what}{rest}")


# -------------------------------------------------------------------------------------- measuring


def evaluate_text(loaded: Model, tokenizer: Tokenizer, text: str, *, stride: int | None) -> Report:
    """Loss, perplexity and bits per byte."""
    from sightline.tasks.evaluate import perplexity

    results = perplexity(loaded.runner, tokenizer, text, stride=stride)
    last = collect_results(results, at=lambda partial: (partial[-1].done, partial[-1].total))[-1]
    lines = [
        f"loss           {last.loss:.4f} nats per token",
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


def evaluate_masked(loaded: Model, tokenizer: Tokenizer, text: str) -> Report:
    """How well hidden tokens are found again: every token of every line is hidden once."""
    from sightline.tasks.evaluate import masked_scores

    results = masked_scores(loaded.runner, tokenizer, [line for line in split_lines(text) if line])
    last = collect_results(results, at=lambda partial: (partial[-1].done, partial[-1].total))[-1]
    lines = [
        f"right          {last.accuracy:.4f}, {last.right} tokens",
        f"among five     {last.top_5:.4f}, {last.among_five} tokens",
        f"loss           {last.loss:.4f} nats per hidden token",
        f"perplexity     {last.pseudo_perplexity:.4f} (pseudo-perplexity)",
    ]
    figures = {
        "accuracy": last.accuracy,
        "top_5": last.top_5,
        "loss": last.loss,
        "pseudo_perplexity": last.pseudo_perplexity,
    }
    return Report(figures, lines, last.done, last.total, "tokens, each hidden once")


def evaluate_pairs(
    loaded: Model,
    tokenizer: Tokenizer,
    rows: Sequence[tuple[str, str]],
    beam: TranslationOptions,
    *,
    tokenize: str,
    words: bool = False,
) -> Report:
    """BLEU and chrF, with the first few translations."""
    from sightline.tasks.evaluate import quality, translations

    results = translations(
        loaded.runner,
        tokenizer,
        loaded.defaults,
        rows,
        beams=beam.beams,
        max_tokens=beam.max_tokens,
        words=words,
    )
    samples = collect_results(results, at=lambda partial: (len(partial), len(rows)))
    scores = quality(samples, tokenize=tokenize)
    lines = list[str]()
    for sample in samples[:SHOWN_SAMPLES]:
        lines += [
            f"source         {escape_line(sample.source)}",
            f"translation    {escape_line(sample.hypothesis)}",
            f"reference      {escape_line(sample.reference)}",
            "",
        ]
    lines += [
        f"{metric.name:<14} {metric.score:.2f}   {metric.signature}"
        for metric in (scores.bleu, scores.chrf)
    ]
    figures: dict[str, Any] = {
        "bleu": scores.bleu.score,
        "bleu_signature": scores.bleu.signature,
        "chrf": scores.chrf.score,
        "chrf_signature": scores.chrf.signature,
        "samples": [
            {
                "source": sample.source,
                "translation": sample.hypothesis,
                "reference": sample.reference,
            }
            for sample in samples
        ],
    }
    return Report(figures, lines, scores.done, len(rows), "sentences")


def evaluate_labels(loaded: Model, tokenizer: Tokenizer, rows: Sequence[tuple[str, str]]) -> Report:
    """The fraction of correct labels."""
    from sightline.tasks.evaluate import accuracy

    results = accuracy(loaded.runner, tokenizer, rows, labels=loaded.labels)
    last = collect_results(results, at=lambda partial: (partial[-1].done, partial[-1].total))[-1]
    lines = [f"accuracy       {last.accuracy:.4f}, {last.right} correct"]
    return Report(
        {"accuracy": last.accuracy, "right": last.right}, lines, last.done, last.total, "rows"
    )


def collect_results(
    results: Iterator[Result], *, at: Callable[[list[Result]], tuple[int, int]]
) -> list[Result]:
    """All results, with a progress bar; after Ctrl-C those measured so far."""
    partial = list[Result]()
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=1)
        try:
            for result in results:
                partial.append(result)
                done, total = at(partial)
                bar.update(task, completed=done, total=total)
        except KeyboardInterrupt:
            if not partial:
                raise
    return partial


# ---------------------------------------------------------------------------------------- reading


def read_data(
    data: Path | None, source: Path | None, target: Path | None, *, limit: int | None
) -> EvalData:
    """The data; its kind follows from the file's suffix and columns."""
    check_limit(limit)
    is_half = (source is None) != (target is None)
    if is_half or (data is None) == (source is None):
        raise InputError(
            "not one set of data",
            expected="a file, or --source and --target",
            fix="sightline eval MODEL text.txt, or --source A --target B",
        )
    if source is not None and target is not None:
        return EvalData("pairs", rows=read_parallel(source, target)[:limit])
    assert data is not None
    text = read_file(data)
    if data.suffix.lower() not in READERS:
        return EvalData("text", text="\n".join(text.split("\n")[:limit]))
    content = READERS[data.suffix.lower()](data, text)
    if not content.rows:
        raise InputError(f"{data} has no rows", expected="one or more", fix="check the file")
    return EvalData(content.kind, rows=content.rows[:limit])


def check_limit(limit: int | None) -> None:
    if limit is not None and limit < 1:
        raise InputError(
            f"--limit is {limit}", expected="1 or more", fix="leave it out for all of the data"
        )


def read_parallel(source: Path, target: Path) -> list[tuple[str, str]]:
    """Two files, line by line."""
    sources = split_lines(read_file(source))
    targets = split_lines(read_file(target))
    if len(sources) != len(targets) or not sources:
        seen = f"{source} has {len(sources)} lines, {target} has {len(targets)}"
        raise InputError(
            seen,
            expected="the same number in both, and at least one",
            fix="check that the files belong together",
        )
    return list(zip(sources, targets, strict=True))


def read_tsv(where: Path, text: str) -> EvalData:
    """Lines of source, tab, target."""
    rows = [tuple(line.split("\t")) for line in split_lines(text)]
    for number, row in enumerate(rows, 1):
        if len(row) != 2:
            raise InputError(
                f"{where}, line {number}: {len(row)} columns",
                expected="source, one tab, target",
                fix="correct the line",
            )
    return EvalData("pairs", rows=[(row[0], row[1]) for row in rows])


def read_csv(where: Path, text: str) -> EvalData:
    """A header with the column names, then the rows."""
    return from_columns(where, [row for _, row in csv_rows(where, text)])


def read_jsonl(where: Path, text: str) -> EvalData:
    """One object per line."""
    return from_columns(
        where, [row for _, row in jsonl_rows(where, text, shape='{"text": …, "label": …}')]
    )


def from_columns(where: Path, rows: list[dict[str, Any]]) -> EvalData:
    """Columns text and label, or source and target."""
    kind = "pairs" if rows and {"source", "target"} <= rows[0].keys() else "labels"
    first, second = COLUMNS[kind]
    second_types = (str,) if kind == "pairs" else (str, int)
    values = list[tuple[str, str]]()
    for number, row in enumerate(rows, 1):
        left = row.get(first)
        right = row.get(second)
        if not isinstance(left, str) or not isinstance(right, second_types):
            raise InputError(
                f"{where}, row {number}: no {first} or no {second}",
                expected="both in every row",
                fix="correct the row",
            )
        values.append((left, str(right)))
    return EvalData(kind, rows=values)


READERS = {".tsv": read_tsv, ".csv": read_csv, ".jsonl": read_jsonl}
