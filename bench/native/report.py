"""The table of goals, on the screen and as `bench/results/native.json`. Works that were not run
this time keep their last lines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.measure import RESULTS
from bench.native.models import PLACE
from bench.native.verdict import Row, Spread

ENOUGH = 5  # rounds; fewer are a try, which is not kept among the results
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
    """Columns as wide as what is in them."""
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
    """One line, in words and figures."""
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


def quality_table(found: Sequence[Mapping[str, Any]]) -> str:
    """Perplexity by precision, the loss against ours in float32, and the size."""
    exact = next((one["perplexity"] for one in found if one["who"] == "ours float32"), None)
    lines = [f"{'':24}{'perplexity':>11}{'loss':>9}{'MB read':>9}"]
    for one in found:
        lost = "" if exact is None else f"{one['perplexity'] / exact - 1:+.2%}"
        lines.append(f"{one['who']:24}{one['perplexity']:11.3f}{lost:>9}{one['bytes'] / 1e6:9.1f}")
    return "\n".join(lines)


def absent_lines(absent: Mapping[str, str]) -> str:
    """Who is left out, by name, with the reason."""
    return "\n".join(f"left out: {name}: {reason}" for name, reason in absent.items())


def place(rounds: int) -> Path:
    """Where results go, without their ending."""
    return (RESULTS if rounds >= ENOUGH else PLACE) / "native"


def stored(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def merged(
    before: Mapping[str, Any], now: Mapping[str, Any], works: Sequence[str]
) -> dict[str, Any]:
    """What was measured now in place of the same works' old lines; the rest stays, judged by the
    rules of now."""
    old = [
        row for row in before.get("rows", []) if row["work"].split(",")[0].split()[-1] not in works
    ]
    kept = [Row.of(row).plain() for row in old]
    measured = {**before.get("measured", {}), **now.get("measured", {})}
    return {
        **before,
        **now,
        "rows": [*kept, *now["rows"]],
        "measured": measured,
        "elsewhere": ELSEWHERE,
    }


def save(said: Mapping[str, Any], path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return path
