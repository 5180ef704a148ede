"""Self-contained HTML pages: interactive attention, and tokens, figures, tables and prose around
it.

write_page(trace, "trace.html", view="map", layer=5, head=1)
page_of([TokensSection(…), TraceSection(trace), FigureSection(…)], title="Attention of a model")

The file holds q and k, not the maps (see page_data), and makes no network requests.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from sightline.errors import InputError
from sightline.files.atomic import write_text
from sightline.lens.draw.page_data import BUDGET, language, trace_data
from sightline.lens.trace.trace import Trace

SCRIPTS = (
    "attention",
    "shares",
    "sphere_points",
    "paint",
    "strips",
    "map",
    "heads",
    "lines",
    "geometry",
    "sphere",
    "text",
    "panel",
    "viewer",
    "page",
)
MAX_TEXT = 300  # characters of a text below the title


@dataclass(frozen=True, slots=True)
class TraceSection:
    """An interactive trace, and its initial view ("alignment" is the map of cross-attention),
    layer, head, and row (query)."""

    trace: Trace
    title: str = ""
    caption: str = ""
    view: str = "map"
    layer: int | None = None
    head: int | None = None
    row: int | None = None


@dataclass(frozen=True, slots=True)
class TokensSection:
    """Tokens coloured by their probability: (text, probability, [(alternative, its probability),
    …])."""

    title: str
    caption: str
    tokens: Sequence[tuple[str, float, Sequence[tuple[str, float]]]]


@dataclass(frozen=True, slots=True)
class FigureSection:
    """An SVG figure, shown as an image, so that ids of several figures cannot clash."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True, slots=True)
class ProseSection:
    title: str
    paragraphs: Sequence[str]


@dataclass(frozen=True, slots=True)
class TableSection:
    title: str
    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str | int | float]]


Section = TraceSection | TokensSection | FigureSection | ProseSection | TableSection


def write_page(
    trace: Trace,
    file: str | Path,
    *,
    view: str = "map",
    layer: int | None = None,
    head: int | None = None,
    title: str | None = None,
) -> Path:
    """Write a trace as a page that fills the window."""
    section = TraceSection(trace, view=view, layer=layer, head=head, caption=shown_text(trace))
    return save_page(
        [section], Path(file), title=title or f"Attention of {trace.name or 'a model'}"
    )


def save_page(sections: Sequence[Section], file: Path, *, title: str) -> Path:
    """Write several sections as one page, atomically."""
    return save_text(file, page_of(sections, title=title))


def save_text(file: Path, text: str) -> Path:
    """Write a text file atomically."""
    try:
        write_text(file, text)
    except OSError as error:
        raise InputError(
            f"{file} cannot be written: {error.strerror or error}",
            fix="give a place that can be written to",
        ) from None
    return file


def page_of(sections: Sequence[Section], *, title: str) -> str:
    """The page as HTML. A single trace gets the whole window."""
    traces = sum(isinstance(section, TraceSection) for section in sections)
    rendered = [
        _section_html(section, f"trace-{n}", BUDGET // max(1, traces))
        for n, section in enumerate(sections)
    ]
    style = "\n" + asset("page.css")
    script = "\n" + "\n".join(asset(f"{name}.js") for name in SCRIPTS)
    parts = {
        "title": escape(title),
        "kind": "alone" if traces == len(sections) == 1 else "several",
        "style": style,
        "style_hash": policy_hash(style),
        "sections": "\n".join(html for html, _ in rendered),
        "data": "\n".join(scripts for _, scripts in rendered if scripts),
        "script": script,
        "script_hash": policy_hash(script),
    }
    return re.sub(r"\{(\w+)\}", lambda match: parts[match[1]], asset("page.html"))


def policy_hash(text: str) -> str:
    """The hash by which a Content Security Policy allows an inline script or style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def asset(name: str) -> str:
    return (files("sightline.lens.draw") / "assets" / name).read_text(encoding="utf-8")


def shown_text(trace: Trace) -> str:
    """The traced texts, source first, shortened."""
    texts = [text for text in (trace.source_text, trace.text) if text]
    return " → ".join(
        text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…" for text in texts
    )


# --------------------------------------------------------------------------------------- sections


def _section_html(section: Section, name: str, budget: int) -> tuple[str, str]:
    """The HTML of a section, and its data elements."""
    match section:
        case TraceSection():
            return _trace_html(section, name, budget)
        case TokensSection():
            words = "".join(_token_html(*token) for token in section.tokens)
            lang = language("".join(text for text, _, _ in section.tokens))
            return (
                _wrap_section(
                    section.title, section.caption, f'<p class="tokens" lang="{lang}">{words}</p>'
                ),
                "",
            )
        case FigureSection():
            image = base64.b64encode(section.svg.encode()).decode()
            alt = escape(f"{section.title}. {section.caption}")
            return (
                _wrap_section(
                    section.title,
                    section.caption,
                    f'<figure><img alt="{alt}" src="data:image/svg+xml;base64,{image}"></figure>',
                ),
                "",
            )
        case ProseSection():
            return (
                _wrap_section(
                    section.title,
                    "",
                    "".join(f"<p>{escape(text)}</p>" for text in section.paragraphs),
                    kind="prose",
                ),
                "",
            )
        case TableSection():
            return (
                _wrap_section(
                    section.title,
                    section.caption,
                    _table_html(section.head, section.rows),
                    kind="plain",
                ),
                "",
            )


def _wrap_section(title: str, caption: str, body: str, kind: str = "") -> str:
    lang = language(title + caption + body)
    heading = f"<h2>{escape(title)}</h2>" if title else ""
    below = f'<p class="caption">{escape(caption)}</p>' if caption else ""
    return f'<section class="{kind}" lang="{lang}">{heading}{below}{body}</section>'


def _trace_html(section: TraceSection, name: str, budget: int) -> tuple[str, str]:
    """The element for the viewer, and the trace as data in script elements: one per array."""
    arrays: list[str] = []
    data = trace_data(
        section.trace,
        arrays,
        view=section.view,
        layer=section.layer,
        head=section.head,
        row=section.row,
        budget=budget,
    )
    scripts = [f'<script type="application/json" id="{name}-data">{script_json(data)}</script>']
    scripts += [
        f'<script type="text/plain" id="{name}-{n}">{array}</script>'
        for n, array in enumerate(arrays)
    ]
    return _wrap_section(
        section.title, section.caption, f'<div data-trace="{name}"></div>'
    ), "\n".join(scripts)


def _token_html(text: str, probability: float, alternatives: Sequence[tuple[str, float]]) -> str:
    """A token, coloured by its probability."""
    alternatives_json = escape(
        json.dumps(
            [list(pair) for pair in alternatives] or [[text, probability]], ensure_ascii=False
        )
    )
    spoken = escape(f"{text.strip()}, {100 * probability:.1f} %")
    part = f"{60 * min(1.0, max(0.0, probability)):.1f}"
    return (
        f'<span tabindex="0" aria-label="{spoken}" data-part="{part}"'
        f' data-alternatives="{alternatives_json}">{escape(text)}</span>'
    )


def _table_html(head: Sequence[str], rows: Sequence[Sequence[str | int | float]]) -> str:
    titles = "".join(f'<th scope="col">{escape(title)}</th>' for title in head)
    lines = "".join(f"<tr>{''.join(_cell(value) for value in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{titles}</tr></thead>'
        f"<tbody>{lines}</tbody></table></div>"
    )


def _cell(value: str | int | float) -> str:
    if isinstance(value, str):
        return f"<td>{escape(value)}</td>"
    return (
        f'<td class="number">{value:,}</td>'
        if isinstance(value, int)
        else f'<td class="number">{value:.4g}</td>'
    )


def script_json(value: Any) -> str:
    """JSON for a script element: escaped so that it cannot end the element or a line."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text
