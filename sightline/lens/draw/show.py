"""A trace where it is wanted: in a notebook, in a terminal, or in a file whose ending says how.

.html            a page to walk through (logit-lens and rollout: the figure on a page)
.svg .png .pdf   a figure
.json            the tokens and numbers of the view
.safetensors     the trace itself
"""

from __future__ import annotations

import json
import math
import sys
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import InputError, nearest
from sightline.lens.draw.figure import write_figure
from sightline.lens.draw.page import FigureSection, TraceSection, page_of, save_text, write_page
from sightline.lens.draw.terminal import print_view
from sightline.lens.draw.view import View
from sightline.lens.draw.views import VIEWS, view_of
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace

ENDINGS = (".html", ".svg", ".png", ".pdf", ".json", ".safetensors")
FIGURES_ONLY = ("logit-lens", "rollout")  # views that the page shows as figures
HEIGHT = 760  # pixels of a page in a notebook
NUMBERS = {"geometry": "cosine", "logit-lens": "probability", "rollout": "share"}
MOST = 20_000_000  # numbers in one JSON file


def show(
    trace: Trace,
    view: str = "map",
    *,
    layer: int | None = None,
    head: int | None = None,
    file: str | Path | None = None,
) -> None:
    """In a file if one is named, else in the notebook, else in the terminal."""
    if file is not None:
        write(trace, file, view=view, layer=layer, head=head)
    elif in_notebook():
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        page = frame(page_text(trace, view, layer=layer, head=head))
        display(
            {"text/html": page, "text/plain": repr(trace)}, raw=True
        )  # IPython's HTML(…) warns of every <iframe>
    else:
        print_view(view_of(trace, view, layer=layer, head=head))


def write(
    trace: Trace,
    file: str | Path,
    *,
    view: str = "map",
    layer: int | None = None,
    head: int | None = None,
    stack: str | None = None,
    subject: Subject | None = None,
) -> Path:
    """A view in a file."""
    file = checked_file(file)
    seen = checked_view(view)

    def make(**more: Any) -> View:
        return view_of(trace, seen, layer=layer, head=head, stack=stack, subject=subject, **more)

    match file.suffix.lower():
        case ".html" if seen not in FIGURES_ONLY:
            layer, head = place_on_page(trace, seen, layer, head, stack)
            return write_page(trace, file, view=seen, layer=layer, head=head)
        case ".html":
            return save_text(file, figure_page(make()))
        case ".json":
            return save_text(
                file, json.dumps(plain(trace, make(most=None)), ensure_ascii=False) + "\n"
            )
        case ".safetensors":
            return trace.save(file)
        case _:
            return write_figure(make(), file)


def checked_file(file: str | Path) -> Path:
    """A file whose ending is known."""
    file = Path(file)
    if file.suffix.lower() not in ENDINGS:
        seen = f"{file} ends in {file.suffix!r}" if file.suffix else f"{file} has no ending"
        raise InputError(seen, expected=", ".join(ENDINGS), fix=f"{file.stem}.html")
    return file


def checked_view(view: str) -> str:
    if view not in VIEWS:
        raise InputError(f"no view is called {view!r}", fix=nearest(view, VIEWS))
    return view


def place_on_page(
    trace: Trace, view: str, layer: int | None, head: int | None, stack: str | None
) -> tuple[int | None, int | None]:
    """Where a page opens: where the other pictures do. Another stack than the last can be chosen on
    the page itself."""
    if view in ("heads", "alignment") or trace.stack_named(stack) != trace.stack_named(None):
        return layer, head
    about = view_of(trace, "map", layer=layer, head=head, most=8).about
    return about["layer"], about["head"]


def page_text(trace: Trace, view: str, *, layer: int | None = None, head: int | None = None) -> str:
    """The page of a view, as text."""
    if checked_view(view) in FIGURES_ONLY:
        return figure_page(view_of(trace, view, layer=layer, head=head))
    layer, head = place_on_page(trace, view, layer, head, None)
    section = TraceSection(trace, view=view, layer=layer, head=head)
    return page_of([section], title=f"Attention of {trace.name or 'a model'}")


def figure_page(view: View) -> str:
    """A figure on a page of its own."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        svg = write_figure(view, Path(folder) / "view.svg").read_text(encoding="utf-8")
    return page_of([FigureSection("", view.caption, svg)], title=view.title)


def frame(page: str) -> str:
    """A page inside another, of which it can neither read nor change anything."""
    style = f"width:100%;height:{HEIGHT}px;border:0"
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(page)}" style="{style}"'
        ' title="attention"></iframe>'
    )


def in_notebook() -> bool:
    """Whether someone looks at this through a browser."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def plain(trace: Trace, view: View) -> dict[str, Any]:
    """A view as JSON can hold it: null where a token may not look."""
    if view.values.size > MOST:
        raise InputError(
            f"{view.values.size:,} numbers as JSON",
            expected=f"at most {MOST:,}",
            fix="one --layer and --head, or .safetensors",
        )
    return {
        "model": trace.name,
        "view": view.kind,
        "text": trace.text,
        "source_text": trace.source_text or None,
        "tokens": [token.text for token in trace.tokens],
        "source_tokens": None if trace.source is None else [token.text for token in trace.source],
        **{name: finite(value) for name, value in view.about.items()},
        "rows": list(view.rows),
        "columns": list(view.columns),
        NUMBERS.get(view.kind, "weights"): numbers(view.values),
        **({"words": [list(row) for row in view.cells]} if view.cells else {}),
        **{
            f"{name}_{'length' if view.kind == 'geometry' else 'point'}": numbers(value)
            for name, value in view.extra.items()
        },
        "notes": list(view.notes),
    }


def numbers(values: np.ndarray) -> Any:
    """Six digits after the point."""
    return finite(np.round(values.astype(np.float64), 6).tolist())


def finite(value: Any) -> Any:
    """The same, with None for what JSON has no number for."""
    if isinstance(value, dict):
        return {name: finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
