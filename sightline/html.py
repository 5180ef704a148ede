"""Small HTML tables for notebooks: every cell is escaped, and there is no script."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from sightline.escapes import escape_controls

MAX_ROWS = 50


def html_table(headers: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "") -> str:
    """A table of texts. Rows beyond `MAX_ROWS` are counted, not shown."""
    all_rows = list(rows)
    title = f"<caption>{cell(caption)}</caption>" if caption else ""
    head = "".join(f"<th>{cell(header)}</th>" for header in headers)
    body = "".join(
        "<tr>" + "".join(f"<td>{cell(text)}</td>" for text in row) + "</tr>"
        for row in all_rows[:MAX_ROWS]
    )
    left_out = len(all_rows) - MAX_ROWS
    foot = f"<p>and {left_out:,} more rows</p>" if left_out > 0 else ""
    return f"<table>{title}<tr>{head}</tr>{body}</table>{foot}"


def paragraph(text: str) -> str:
    """A block of text with its line breaks."""
    return f'<div style="white-space:pre-wrap">{cell(text)}</div>'


def cell(text: str) -> str:
    """A text as HTML, with control characters escaped."""
    return escape(escape_controls(text))
