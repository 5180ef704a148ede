"""`sightline quantize`: what a model weighs in each precision of the native engine, and what that
costs in quality."""

from __future__ import annotations

import json as json_library
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from sightline.cli.ui.input import read_file
from sightline.cli.ui.options.groups import OPTIONS
from sightline.cli.ui.options.model import IgnoreOptions
from sightline.cli.ui.options.text import OutputOptions
from sightline.cli.ui.options.values import Count, ModelName
from sightline.cli.ui.output import progress_bar, remark, write, write_json
from sightline.errors import InputError
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.engine.matrices import Precision
    from sightline.engine.quality import Quality
    from sightline.model import Model

ALL = "float16,int8,int8_groups,int4,int4_min"
PLAY = "Shakespeare's Macbeth"
INTERRUPTED = 130


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class QuantizeOptions:
    """Which precisions, and on which text they are measured."""

    dtype: str = ALL
    """Precisions, separated by commas."""

    report: bool = False
    """Measure the quality."""

    text: Annotated[Path | None, Parameter(show_default=f"{PLAY}, downloaded once")] = None
    """UTF-8 file to measure on."""

    limit: Annotated[Count, Parameter(show_default="4096")] = None
    """Maximum number of tokens of the text."""

    out: Path | None = None
    """Folder for report.json and the chart as errors.svg and errors.png."""

    def check(self) -> None:
        """Refuse what cannot be done before a model is loaded."""
        for name, value in (("--text", self.text), ("--limit", self.limit), ("--out", self.out)):
            if value is not None and not self.report:
                raise InputError(f"{name} without --report", expected="both", fix="add --report")
        if self.limit is not None and self.limit < 1:
            raise InputError(
                f"--limit is {self.limit}",
                expected="1 or more",
                fix="leave it out for 4,096 tokens",
            )
        if self.out is not None and self.out.exists() and not self.out.is_dir():
            raise InputError(
                f"{self.out} is a file", expected="a folder", fix="--out another place"
            )


def quantize(
    model: ModelName,
    /,
    *,
    options: QuantizeOptions = QuantizeOptions(),
    loading: IgnoreOptions = IgnoreOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Show what a model weighs in each precision of the native engine.

    With --report also the quality: perplexity on a text, KL divergence to float32, how often the
    most likely token is the same, the largest error of a logit, and the relative error of each
    matrix and after each block.

    Parameters
    ----------
    output.json
        Write JSON: bytes, or with --report every figure.
    """
    precisions = parse_precisions(options.dtype)
    options.check()
    content = None if options.text is None else read_sample(options.text)
    loaded = loading.load(model)
    if not options.report:
        show_sizes(loaded, precisions, json=output.json)
        return
    name = PLAY if options.text is None else options.text.name
    text = default_text() if content is None else content
    qualities = measure_quality(loaded, precisions, text, limit=options.limit)
    show_quality(loaded, name, qualities, json=output.json)
    if options.out is not None and qualities:
        save_quality(loaded, name, qualities, options.out)
    missing = precisions[len(qualities) :]
    if missing:
        remark(f"interrupted: {', '.join(missing)} not measured", style="")
        sys.exit(INTERRUPTED)


def parse_precisions(dtype: str) -> list[Precision]:
    """The precisions named, each once."""
    from sightline.engine.matrices import check_precision
    from sightline.kernels import library as kernels

    if not kernels.available():
        raise InputError(
            f"the native engine: {kernels.missing}",
            expected="one that was compiled",
            fix="sightline doctor",
        )
    names = dict.fromkeys(part.strip() for part in dtype.split(","))
    return [check_precision(name) for name in names]


def read_sample(file: Path) -> str:
    """The text to measure on; an empty file is refused."""
    text = read_file(file)
    if not text:
        raise InputError(
            f"{file} is empty",
            expected="some text to measure on",
            fix="--text another file, or leave it out",
        )
    return text


def default_text() -> str:
    """A play that no recipe trains on."""
    from sightline.recipes.plays import works

    return works()[1][0].read_text(encoding="utf-8")


def show_sizes(loaded: Model, precisions: Sequence[Precision], *, json: bool) -> None:
    from sightline.engine.quality import packed_bytes
    from sightline.terminal.progress import megabytes

    sizes = {
        precision: packed_bytes(loaded.transformer, precision)
        for precision in ("float32", *precisions)
    }
    if json:
        write_json({"model": loaded.name, "bytes": sizes})
        return
    for precision, size in sizes.items():
        write(f"{precision:<12} {megabytes(size):>10}   {size / sizes['float32']:6.1%}")
    remark("--report measures the quality of each")


def measure_quality(
    loaded: Model, precisions: Sequence[Precision], text: str, *, limit: int | None
) -> list[Quality]:
    """The quality of each precision, with a progress bar; after Ctrl-C those measured so far."""
    from sightline.engine.quality import LIMIT, reports

    qualities: list[Quality] = []
    with progress_bar() as progress:
        task = progress.add_task("reading", total=1)

        def report(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        try:
            for quality in reports(
                loaded,
                text,
                precisions=precisions,
                limit=LIMIT if limit is None else limit,
                progress=report,
            ):
                qualities.append(quality)  # noqa: PERF402  Ctrl-C keeps those measured so far
        except KeyboardInterrupt:
            if not qualities:
                raise
    return qualities


def quality_dict(loaded: Model, name: str, qualities: Sequence[Quality]) -> dict[str, Any]:
    """The report as a JSON object."""
    from sightline.engine.quality import packed_bytes

    float32 = {
        "bytes": packed_bytes(loaded.transformer, "float32"),
        "perplexity": qualities[0].float32_perplexity,
    }
    return {
        "model": loaded.name,
        "text": name,
        "tokens": qualities[0].tokens,
        "float32": float32,
        "precisions": [asdict(quality) for quality in qualities],
    }


def show_quality(loaded: Model, name: str, qualities: Sequence[Quality], *, json: bool) -> None:
    """The report as JSON, or as a table and bar charts."""
    from sightline.cli.ui.quantize_chart import error_chart, quality_table

    report = quality_dict(loaded, name, qualities)
    if json:
        write_json(report)
        return
    write(f"{loaded.name}, {report['tokens']:,} tokens of {name}, against float32", "")
    write(*quality_table(report["float32"], qualities))
    width = Console().width
    for quality in qualities:
        write("", *error_chart(quality, width=width))


def save_quality(loaded: Model, name: str, qualities: Sequence[Quality], out: Path) -> None:
    """Write report.json, errors.svg and errors.png."""
    from sightline.cli.ui.quantize_chart import error_figure

    report = quality_dict(loaded, name, qualities)

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_text(
            json_library.dumps(report, indent=2, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
        title = f"{loaded.name}: errors by layer, against float32, on {name}"
        figure = error_figure(title, qualities)
        figure.savefig(out / "errors.svg", metadata={"Date": None})
        figure.savefig(out / "errors.png", dpi=160)
    except OSError as error:
        raise InputError(
            f"{out} cannot be written: {error.strerror}", fix="--out another folder"
        ) from None
    remark(f"written: {out}/report.json, errors.svg, errors.png", style="")
