"""HTML tables of results for notebooks: escaped text, no scripts, at most 20 kB."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.html import cell

MAX_LENGTH = 20_000  # characters of one table
MAX_CELL = 60  # characters of one cell, before escaping
MAX_TITLE = 300
MAX_COLUMNS = 40
ROOM = 300  # characters kept for the closing rows


def result_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table with a caption; rows and columns that do not fit are counted, not shown."""
    hidden_columns = max(0, len(header) - MAX_COLUMNS)
    notes = [f"{hidden_columns} more columns"] if hidden_columns else []
    head = _table_row("th", header)
    parts = [f"<table><caption>{cell(title[:MAX_TITLE])}</caption><thead>{head}</thead><tbody>"]
    length = len(parts[0])
    shown = 0
    for row in rows:
        line = _table_row("td", row)
        if length + len(line) > MAX_LENGTH - ROOM:
            break
        parts.append(line)
        length += len(line)
        shown += 1
    if shown < len(rows):
        notes.append(f"{len(rows) - shown} more rows")
    if notes:
        parts.append(f'<tr><td colspan="{len(header)}">… {", ".join(notes)}</td></tr>')
    return "".join(parts) + "</tbody></table>"


def _table_row(tag: str, cells: Sequence[object]) -> str:
    shown = cells[:MAX_COLUMNS]
    return "<tr>" + "".join(f"<{tag}>{_cell_text(value)}</{tag}>" for value in shown) + "</tr>"


def _cell_text(value: object) -> str:
    """A value as escaped text: numbers with four digits, long text shortened."""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    return cell(text if len(text) <= MAX_CELL else text[: MAX_CELL - 1] + "…")
