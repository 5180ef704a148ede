"""`python -m bench.native [decode prefill streams lookup encode translate quality] [--rounds 7]
[--threads 2] [--large] [--models …]`."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from bench import peers
from bench.measure import machine
from bench.native import report
from bench.native.contests import LARGE, PROMPT, SMALL, contests
from bench.native.figure import draw
from bench.native.limits import Bandwidth
from bench.native.models import prepare_model
from bench.native.quality import agreement, perplexities
from bench.native.verdict import Row, Spread
from bench.native.works import drawn, measure

WORKS = ("decode", "prefill", "streams", "lookup", "encode", "translate")
ALL = (*WORKS, "quality")
REAL = ("smollm2", "trained")  # perplexity means something


def main(words: Sequence[str] | None = None) -> None:
    given = arguments(words)
    works = tuple(given.works) or ALL
    began = time.time()
    said = {
        "machine": {**machine(), "threads": given.threads},
        "rounds": given.rounds,
        "peers": peers.install(()),
    }
    print(
        "peers:",
        ", ".join(f"{name} {what}" for name, what in said["peers"].items()),
        file=sys.stderr,
    )
    rows, absent, measured = run(works, given)
    said |= {"rows": [row.plain() for row in rows], "measured": measured}
    if "quality" in works:
        said |= quality(given, absent)
    said |= {"absent": absent, "seconds": round(time.time() - began)}
    place = report.results_path(given.rounds)
    whole = report.merge(report.load(place.with_suffix(".json")), said, works)
    show(rows, said)
    print(
        "\nwritten:",
        report.save(whole, place.with_suffix(".json")),
        draw(whole["rows"], place.with_suffix(".svg")),
    )


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.native")
    parser.add_argument("works", nargs="*", help=f"of {', '.join(ALL)}; unsaid, all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--large",
        action="store_true",
        help="one billion parameters too: 10 GB of memory, 15 GB of disk",
    )
    parser.add_argument("--models", nargs="*", default=[], help="these alone")
    parser.add_argument(
        "--tokens", type=int, default=4096, help="of the text that perplexity is measured on"
    )
    given = parser.parse_args(words)
    if unknown := set(given.works) - set(ALL):
        parser.error(f"no work is called {', '.join(sorted(unknown))}: there are {', '.join(ALL)}")
    return given


def run(
    works: Sequence[str], given: argparse.Namespace
) -> tuple[list[Row], dict[str, str], dict[str, Any]]:
    """Every contest, one after the other."""
    rows = list[Row]()
    absent = dict[str, str]()
    measured = dict[str, Any]()
    bandwidth = Bandwidth(given.threads)
    try:
        for contest in contests(tuple(works), large=given.large, models=tuple(given.models)):
            name = f"{contest.model} {contest.precision}"
            print(
                f"{name}: {', '.join(entry.label for entry in contest.entries)} …",
                file=sys.stderr,
                flush=True,
            )
            found, also, away = measure(
                contest, rounds=given.rounds, threads=given.threads, bandwidth=bandwidth
            )
            rows = rows + found
            measured = measured | also
            absent |= {f"{who} on {contest.model}": why for who, why in away.items()}
    finally:
        bandwidth.close()
    return rows, absent, measured


def quality(given: argparse.Namespace, absent: dict[str, str]) -> dict[str, Any]:
    """Whether all run the same models, and what precisions cost."""
    agree = {}
    for name in [name for name in given.models if name in (*SMALL, LARGE)] or (*SMALL, "trained"):
        model = prepare_model(name)
        agree[name] = agreement(
            model, [drawn(model, PROMPT, seed) for seed in range(3)], threads=given.threads
        )
    tables = {}
    for name in REAL:
        model = prepare_model(name)
        found, away = perplexities(model, given.tokens, threads=given.threads)
        absent |= {f"{who}, perplexity of {name}": why for who, why in away.items()}
        tables[model.title] = [one.plain() for one in found]
    return {"agreement": agree, "perplexity": {"tokens": given.tokens, "found": tables}}


def show(rows: Sequence[Row], said: dict[str, Any]) -> None:
    """What this run found."""
    for name, unit in (("bandwidth_gb_s", "GB/s read"), ("peak_gflops", "GFLOP/s in float32")):
        figures = [figure for one in said["measured"].values() for figure in one[name]]
        if figures:
            print(f"the machine: {report.spread(Spread.of(figures), '.1f')} {unit}")
    if rows:
        print("\n" + report.table(rows))
    for model, who in said.get("agreement", {}).items():
        print(
            f"\nsame weights, {model}: "
            + "; ".join(f"{name}: {what}" for name, what in who.items())
        )
    for model, found in said.get("perplexity", {}).get("found", {}).items():
        print(f"\n{model}\n" + report.quality_table(found))
    if said["absent"]:
        print("\n" + report.missing_lines(said["absent"]))


if __name__ == "__main__":
    main()
