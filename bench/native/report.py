"""The table of results and goals, printed and saved as `bench/results/native.json`. Workloads that
were not run keep their previous rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measure import RESULTS
from bench.native.models import PLACE
from bench.native.verdict import Row, Spread

MIN_ROUNDS = 5  # shorter runs are trials, saved outside bench/results
UNITS = {
    "decode": "tokens/s",
    "prefill": "tokens/s",
    "8 streams": "tokens/s",
    "32 streams": "tokens/s",
    "lookup": "tokens/s",
    "encode": "texts/s",
    "translate": "tokens/s",
}
ELSEWHERE = {
    "training": "python -m bench.training",
    "seeing everything": "python -m bench.seeing",
}


def spread(x: Spread | None, form: str = ".0f") -> str:
    return "–" if x is None else f"{x.median:{form}} ({x.low:{form}}–{x.high:{form}})"


def table(rows: Sequence[Row]) -> str:
    """The rows as text, with columns as wide as their content."""
    head = (
        "work",
        "model",
        "ours",
        "speed",
        "of bandwidth",
        "best peer",
        "speed",
        "ratio",
        "goal",
        "verdict",
    )
    cells = [head, *(cells_of(row) for row in rows)]
    widths = [max(len(line[n]) for line in cells) for n in range(len(head))]
    return "\n".join(
        "  ".join(f"{cell:{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )


def cells_of(row: Row) -> tuple[str, ...]:
    """The cells of one row."""
    unit = UNITS[row.work.split(",")[0]]
    ratio = (
        "–"
        if row.ratio is None
        else f"{row.ratio.median:.2f}× ({row.ratio.low:.2f}–{row.ratio.high:.2f})"
    )
    goal = (
        "–"
        if row.goal is None
        else f"≥ {row.goal:.2f}×" + (f" {row.goal_peer}" if row.goal_peer else "")
    )
    own = spread(row.speed) + (f" {unit}" if row.speed else "")
    share = "–" if row.bandwidth is None else f"{row.bandwidth.median:.0%}"
    return (
        row.work,
        row.model,
        row.ours.removeprefix("ours "),
        own,
        share,
        row.peer or "–",
        spread(row.peer_speed),
        ratio,
        goal,
        row.verdict,
    )


def quality_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Perplexity by precision, the increase over ours in float32, and the size."""
    exact = next((row["perplexity"] for row in results if row["who"] == "ours float32"), None)
    lines = [f"{'':24}{'perplexity':>11}{'loss':>9}{'MB read':>9}"]
    for row in results:
        loss = "" if exact is None else f"{row['perplexity'] / exact - 1:+.2%}"
        lines.append(f"{row['who']:24}{row['perplexity']:11.3f}{loss:>9}{row['bytes'] / 1e6:9.1f}")
    return "\n".join(lines)


def missing_lines(absent: Mapping[str, str]) -> str:
    """The contestants that did not run, with the reasons."""
    return "\n".join(f"not measured: {name}: {reason}" for name, reason in absent.items())


def results_path(rounds: int) -> Path:
    """The path of the results, without its suffix."""
    return (RESULTS if rounds >= MIN_ROUNDS else PLACE) / "native"


def load(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def merge(
    before: Mapping[str, Any], now: Mapping[str, Any], works: Sequence[str]
) -> dict[str, Any]:
    """Replace the old rows of the measured workloads; the other rows stay, with verdicts by the
    current rules."""
    old = [
        row for row in before.get("rows", []) if row["work"].split(",")[0].split()[-1] not in works
    ]
    old_rows = [Row.of(row).plain() for row in old]
    measured = {**before.get("measured", {}), **now.get("measured", {})}
    return {
        **before,
        **now,
        "rows": [*old_rows, *now["rows"]],
        "measured": measured,
        "elsewhere": ELSEWHERE,
    }


def save(results: Mapping[str, Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
