"""Showing a trace in a notebook, in a terminal, or in a file, whose suffix selects the format.

.html            an interactive page (logit-lens and rollout: a figure on a page)
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
FIGURES_ONLY = ("logit-lens", "rollout")  # views that a page shows as a static figure
HEIGHT = 760  # pixels of the frame in a notebook
VALUE_KEYS = {"geometry": "cosine", "logit-lens": "probability", "rollout": "share"}
MAX_JSON_NUMBERS = 20_000_000  # per JSON file


def show_trace(
    trace: Trace,
    view: str = "map",
    *,
    layer: int | None = None,
    head: int | None = None,
    file: str | Path | None = None,
) -> None:
    """Write to `file` if given, else display in the notebook, else print to the terminal."""
    if file is not None:
        write_view(trace, file, view=view, layer=layer, head=head)
    elif in_notebook():
        from IPython.display import display  # pyright: ignore[reportMissingImports]

        page = sandboxed_iframe(page_text(trace, view, layer=layer, head=head))
        display(
            {"text/html": page, "text/plain": repr(trace)}, raw=True
        )  # IPython's HTML(…) warns about every <iframe>
    else:
        print_view(view_of(trace, view, layer=layer, head=head))


def write_view(
    trace: Trace,
    file: str | Path,
    *,
    view: str = "map",
    layer: int | None = None,
    head: int | None = None,
    stack: str | None = None,
    subject: Subject | None = None,
) -> Path:
    """Write a view to a file; its suffix selects the format."""
    file = checked_view_file(file)
    view_name = checked_view(view)

    def make(**more: Any) -> View:
        return view_of(
            trace, view_name, layer=layer, head=head, stack=stack, subject=subject, **more
        )

    match file.suffix.lower():
        case ".html" if view_name not in FIGURES_ONLY:
            layer, head = initial_head(trace, view_name, layer, head, stack)
            return write_page(trace, file, view=view_name, layer=layer, head=head)
        case ".html":
            return save_text(file, figure_page(make()))
        case ".json":
            return save_text(
                file, json.dumps(view_json(trace, make(max_size=None)), ensure_ascii=False) + "\n"
            )
        case ".safetensors":
            return trace.save(file)
        case _:
            return write_figure(make(), file)


def checked_view_file(file: str | Path) -> Path:
    """The path, if its suffix is supported."""
    file = Path(file)
    if file.suffix.lower() not in ENDINGS:
        ending = f"{file} ends in {file.suffix!r}" if file.suffix else f"{file} has no suffix"
        raise InputError(ending, expected=", ".join(ENDINGS), fix=f"{file.stem}.html")
    return file


def checked_view(view: str) -> str:
    if view not in VIEWS:
        raise InputError(f"no view is called {view!r}", fix=nearest(view, VIEWS))
    return view


def initial_head(
    trace: Trace, view: str, layer: int | None, head: int | None, stack: str | None
) -> tuple[int | None, int | None]:
    """The layer and head that a page opens with: those of the other views. The stack is chosen on
    the page."""
    if view in ("heads", "alignment") or trace.stack_named(stack) != trace.stack_named(None):
        return layer, head
    about = view_of(trace, "map", layer=layer, head=head, max_size=8).about
    return about["layer"], about["head"]


def page_text(trace: Trace, view: str, *, layer: int | None = None, head: int | None = None) -> str:
    """The HTML page of a view."""
    if checked_view(view) in FIGURES_ONLY:
        return figure_page(view_of(trace, view, layer=layer, head=head))
    layer, head = initial_head(trace, view, layer, head, None)
    section = TraceSection(trace, view=view, layer=layer, head=head)
    return page_of([section], title=f"Attention of {trace.name or 'a model'}")


def figure_page(view: View) -> str:
    """An HTML page with one figure."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        svg = write_figure(view, Path(folder) / "view.svg").read_text(encoding="utf-8")
    return page_of([FigureSection("", view.caption, svg)], title=view.title)


def sandboxed_iframe(page: str) -> str:
    """A page in a sandboxed iframe, without access to the surrounding document."""
    style = f"width:100%;height:{HEIGHT}px;border:0"
    return (
        f'<iframe sandbox="allow-scripts" srcdoc="{escape(page)}" style="{style}"'
        ' title="attention"></iframe>'
    )


def in_notebook() -> bool:
    """Whether the code runs in a Jupyter kernel."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


def view_json(trace: Trace, view: View) -> dict[str, Any]:
    """A view as a JSON-serializable dict; null where masked."""
    if view.values.size > MAX_JSON_NUMBERS:
        raise InputError(
            f"{view.values.size:,} numbers as JSON",
            expected=f"at most {MAX_JSON_NUMBERS:,}",
            fix="one --layer and --head, or .safetensors",
        )
    return {
        "model": trace.name,
        "view": view.kind,
        "text": trace.text,
        "source_text": trace.source_text or None,
        "tokens": [token.text for token in trace.tokens],
        "source_tokens": None if trace.source is None else [token.text for token in trace.source],
        **{name: json_finite(value) for name, value in view.about.items()},
        "rows": list(view.rows),
        "columns": list(view.columns),
        VALUE_KEYS.get(view.kind, "weights"): json_numbers(view.values),
        **({"words": [list(row) for row in view.cells]} if view.cells else {}),
        **{
            f"{name}_{'length' if view.kind == 'geometry' else 'point'}": json_numbers(value)
            for name, value in view.extra.items()
        },
        "notes": list(view.notes),
    }


def json_numbers(values: np.ndarray) -> Any:
    """An array as nested lists, rounded to six decimals."""
    return json_finite(np.round(values.astype(np.float64), 6).tolist())


def json_finite(value: Any) -> Any:
    """The value with None instead of NaN and infinities."""
    if isinstance(value, dict):
        return {name: json_finite(part) for name, part in value.items()}
    if isinstance(value, list):
        return [json_finite(part) for part in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
