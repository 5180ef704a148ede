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
from bench.native.works import measure, random_ids

WORKS = ("decode", "prefill", "streams", "lookup", "encode", "translate")
ALL = (*WORKS, "quality")
REAL = ("smollm2", "trained")  # perplexity means something


def main(words: Sequence[str] | None = None) -> None:
    options = arguments(words)
    works = tuple(options.works) or ALL
    began = time.time()
    results = {
        "machine": {**machine(), "threads": options.threads},
        "rounds": options.rounds,
        "peers": peers.install(()),
    }
    print(
        "peers:",
        ", ".join(f"{name} {what}" for name, what in results["peers"].items()),
        file=sys.stderr,
    )
    rows, absent, measured = run(works, options)
    results |= {"rows": [row.plain() for row in rows], "measured": measured}
    if "quality" in works:
        results |= quality(options, absent)
    results |= {"absent": absent, "seconds": round(time.time() - began)}
    place = report.results_path(options.rounds)
    whole = report.merge(report.load(place.with_suffix(".json")), results, works)
    show(rows, results)
    print(
        "\nwritten:",
        report.save(whole, place.with_suffix(".json")),
        draw(whole["rows"], place.with_suffix(".svg")),
    )


def arguments(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.native")
    parser.add_argument("works", nargs="*", help=f"of {', '.join(ALL)}; default: all")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument(
        "--large",
        action="store_true",
        help="one billion parameters too: 10 GB of memory, 15 GB of disk",
    )
    parser.add_argument("--models", nargs="*", default=[], help="only these models")
    parser.add_argument(
        "--tokens", type=int, default=4096, help="of the text on which perplexity is measured"
    )
    options = parser.parse_args(words)
    if unknown := set(options.works) - set(ALL):
        parser.error(f"unknown workload {', '.join(sorted(unknown))}: choose from {', '.join(ALL)}")
    return options


def run(
    works: Sequence[str], options: argparse.Namespace
) -> tuple[list[Row], dict[str, str], dict[str, Any]]:
    """Run every contest, one after another."""
    rows = list[Row]()
    absent = dict[str, str]()
    measured = dict[str, Any]()
    bandwidth = Bandwidth(options.threads)
    try:
        for contest in contests(tuple(works), large=options.large, models=tuple(options.models)):
            name = f"{contest.model} {contest.precision}"
            print(
                f"{name}: {', '.join(entry.label for entry in contest.entries)} …",
                file=sys.stderr,
                flush=True,
            )
            new_rows, also, away = measure(
                contest, rounds=options.rounds, threads=options.threads, bandwidth=bandwidth
            )
            rows = rows + new_rows
            measured = measured | also
            absent |= {f"{who} on {contest.model}": why for who, why in away.items()}
    finally:
        bandwidth.close()
    return rows, absent, measured


def quality(options: argparse.Namespace, absent: dict[str, str]) -> dict[str, Any]:
    """Check that all run the same models, and measure the cost of each precision."""
    agree = {}
    for name in [name for name in options.models if name in (*SMALL, LARGE)] or (*SMALL, "trained"):
        model = prepare_model(name)
        agree[name] = agreement(
            model, [random_ids(model, PROMPT, seed) for seed in range(3)], threads=options.threads
        )
    tables = {}
    for name in REAL:
        model = prepare_model(name)
        table, away = perplexities(model, options.tokens, threads=options.threads)
        absent |= {f"{who}, perplexity of {name}": why for who, why in away.items()}
        tables[model.title] = [entry.plain() for entry in table]
    return {"agreement": agree, "perplexity": {"tokens": options.tokens, "found": tables}}


def show(rows: Sequence[Row], results: dict[str, Any]) -> None:
    """Print the results of this run."""
    for name, unit in (("bandwidth_gb_s", "GB/s read"), ("peak_gflops", "GFLOP/s in float32")):
        figures = [figure for measured in results["measured"].values() for figure in measured[name]]
        if figures:
            print(f"the machine: {report.spread(Spread.of(figures), '.1f')} {unit}")
    if rows:
        print("\n" + report.table(rows))
    for model, who in results.get("agreement", {}).items():
        print(
            f"\nsame weights, {model}: "
            + "; ".join(f"{name}: {what}" for name, what in who.items())
        )
    for model, table in results.get("perplexity", {}).get("found", {}).items():
        print(f"\n{model}\n" + report.quality_table(table))
    if results["absent"]:
        print("\n" + report.missing_lines(results["absent"]))


if __name__ == "__main__":
    main()
