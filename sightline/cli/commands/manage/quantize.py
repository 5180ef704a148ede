"""`sightline quantize`: what a model weighs in each precision of the native engine, and what that
costs in quality."""

from __future__ import annotations

import json as text_of
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.ui.arguments import Count, IgnoreTensors
from sightline.cli.ui.input import read_file
from sightline.cli.ui.output import bar, remark, write, write_json
from sightline.errors import InputError
from sightline.terminal.console import Console

if TYPE_CHECKING:
    from sightline.engine.matrices import Precision
    from sightline.engine.quality import Quality
    from sightline.model import Model

ALL = "float16,int8,int8_groups,int4,int4_min"
PLAY = "Shakespeare's Macbeth"
INTERRUPTED = 130


def quantize(
    model: str,
    /,
    *,
    dtype: str = ALL,
    report: bool = False,
    text: Path | None = None,
    limit: Count = None,
    out: Path | None = None,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """What a model weighs in each precision of the native engine. With --report, what that costs:
    perplexity on a text, KL to float32, how often the likeliest token is the same, the largest
    error of a logit, and the error of each matrix and after each block.

    Parameters
    ----------
    model
        A folder, a .gguf file, a name of `sightline models`, or OWNER/NAME of the hub.
    dtype
        float16, int8, int8_groups, int4 or int4_min, or several with commas between; by default all
        of them.
    report
        Measure the quality.
    text
        The text to measure on; by default Shakespeare's Macbeth, fetched once.
    limit
        Read so many tokens of the text at most; by default 4,096.
    out
        A folder for report.json and the chart as errors.svg and errors.png.
    json
        Write JSON: bytes, or with --report every figure of it.
    """
    from sightline.cli.ui.loading import load_shown

    wanted = precisions_of(dtype)
    check_asked(report=report, text=text, limit=limit, out=out)
    written = read_file(text) if text is not None else ""
    if text is not None and not written:
        raise InputError(
            f"{text} is empty",
            expected="some text to measure on",
            fix="--text another file, or leave it out",
        )
    loaded = load_shown(model, ignore_tensors=ignore_tensors)
    if not report:
        show_sizes(loaded, wanted, json=json)
        return
    name, written = (PLAY, default_text()) if text is None else (text.name, written)
    found = measured(loaded, wanted, written, limit=limit)
    show(loaded, name, found, json=json)
    if out is not None and found:
        save(loaded, name, found, out)
    if len(found) < len(wanted):
        remark(f"interrupted: {', '.join(wanted[len(found) :])} not measured", style="")
        sys.exit(INTERRUPTED)


def precisions_of(dtype: str) -> list[Precision]:
    """The precisions that were named, each once."""
    from sightline.engine.matrices import check_precision
    from sightline.kernels import library as kernels

    if not kernels.available():
        raise InputError(
            f"the native engine: {kernels.missing}",
            expected="one that was compiled",
            fix="sightline doctor",
        )
    return [
        check_precision(name) for name in dict.fromkeys(part.strip() for part in dtype.split(","))
    ]


def check_asked(*, report: bool, text: Path | None, limit: int | None, out: Path | None) -> None:
    """Said before a model is loaded."""
    for name, value in (("--text", text), ("--limit", limit), ("--out", out)):
        if value is not None and not report:
            raise InputError(f"{name} without --report", expected="both", fix="add --report")
    if limit is not None and limit < 1:
        raise InputError(
            f"--limit is {limit}", expected="1 or more", fix="leave it out for 4,096 tokens"
        )
    if out is not None and out.exists() and not out.is_dir():
        raise InputError(f"{out} is a file", expected="a folder", fix="--out another place")


def default_text() -> str:
    """A play that no recipe of ours learns from."""
    from sightline.recipes.plays import works

    return works()[1][0].read_text(encoding="utf-8")


def show_sizes(loaded: Model, wanted: Sequence[Precision], *, json: bool) -> None:
    from sightline.engine.quality import packed_bytes
    from sightline.terminal.progress import megabytes

    sizes = {
        precision: packed_bytes(loaded.running, precision) for precision in ("float32", *wanted)
    }
    if json:
        write_json({"model": loaded.name, "bytes": sizes})
        return
    for precision, size in sizes.items():
        write(f"{precision:<12} {megabytes(size):>10}   {size / sizes['float32']:6.1%}")
    remark("what they cost: add --report")


def measured(
    loaded: Model, wanted: Sequence[Precision], text: str, *, limit: int | None
) -> list[Quality]:
    """The report, with a bar; after Ctrl-C what there is of it."""
    from sightline.engine.quality import LIMIT, reports

    found: list[Quality] = []
    with bar() as progress:
        task = progress.add_task("reading", total=1)

        def tell(what: str, done: int, total: int) -> None:
            progress.update(task, description=what, completed=done, total=total)

        try:
            for one in reports(
                loaded,
                text,
                precisions=wanted,
                limit=LIMIT if limit is None else limit,
                progress=tell,
            ):
                found.append(one)  # noqa: PERF402  Ctrl-C keeps what there is
        except KeyboardInterrupt:
            if not found:
                raise
    return found


def plain(loaded: Model, name: str, found: Sequence[Quality]) -> dict[str, Any]:
    """The report as JSON has it."""
    from sightline.engine.quality import packed_bytes

    truth = {
        "bytes": packed_bytes(loaded.running, "float32"),
        "perplexity": found[0].float32_perplexity,
    }
    return {
        "model": loaded.name,
        "text": name,
        "tokens": found[0].tokens,
        "float32": truth,
        "precisions": [asdict(one) for one in found],
    }


def show(loaded: Model, name: str, found: Sequence[Quality], *, json: bool) -> None:
    from sightline.cli.ui.quantize_chart import chart, table

    said = plain(loaded, name, found)
    if json:
        write_json(said)
        return
    write(
        f"{loaded.name}, {said['tokens']:,} tokens of {name}, against float32",
        "",
        *table(said["float32"], found),
    )
    width = Console().width
    for one in found:
        write("", *chart(one, width=width))


def save(loaded: Model, name: str, found: Sequence[Quality], out: Path) -> None:
    """report.json, errors.svg and errors.png."""
    from sightline.cli.ui.quantize_chart import figure

    try:
        out.mkdir(parents=True, exist_ok=True)
        (out / "report.json").write_text(
            text_of.dumps(plain(loaded, name, found), indent=2, ensure_ascii=False) + "\n",
            encoding="utf-8",
        )
        drawn = figure(f"{loaded.name}: errors by layer, against float32, on {name}", found)
        drawn.savefig(out / "errors.svg", metadata={"Date": None})
        drawn.savefig(out / "errors.png", dpi=160)
    except OSError as error:
        raise InputError(
            f"{out} cannot be written: {error.strerror}", fix="--out another folder"
        ) from None
    remark(f"written: {out}/report.json, errors.svg, errors.png", style="")
