"""The map of head roles as a matplotlib figure. Every cell has a letter besides its colour."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.commands.see.heads import COLOURS, LETTERS
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.lens.heads.profile import HeadMap, HeadRole

ENDINGS = (".svg", ".png", ".pdf")


def check_figure_file(path: Path) -> None:
    """Refuse a file that cannot be drawn, before a model is loaded."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            f"{path}: not a figure format",
            expected=".svg, .png or .pdf",
            fix=f"--out {path.stem}.svg",
        )
    if not path.parent.is_dir():
        raise InputError(
            f"{path}: the folder {path.parent} does not exist",
            expected="an existing folder",
            fix=f"mkdir -p {path.parent}",
        )


def save_heads_figure(head_map: HeadMap, path: Path) -> None:
    """One panel per stack, side by side."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "a figure needs matplotlib, which is not installed",
            fix="pip install matplotlib, or leave --out out",
        ) from None
    mpl.rcParams["svg.hashsalt"] = "sightline"
    grids = [(stack, cross, head_map.grid(stack, cross=cross)) for stack, cross in head_map.parts]
    wide = sum(max(3.0, 0.34 * len(rows[0]) + 1) for *_, rows in grids)
    high = max(len(rows) for *_, rows in grids)
    figure: Any = Figure(
        figsize=(max(7.0, wide + 3), max(3.2, 0.3 * high + 2.2)), layout="constrained"
    )
    panels = figure.subplots(1, len(grids), squeeze=False)[0]
    for axes, (stack, cross, rows) in zip(panels, grids, strict=True):
        draw_cells(axes, rows)
        axes.set(
            title=f"{stack}{' cross-attention' if cross else ''}", xlabel="head", ylabel="layer"
        )
    figure.suptitle(f"What the heads of {head_map.name or 'the model'} do")
    draw_legend(figure, head_map)
    figure.supxlabel(figure_caption(head_map), fontsize=7)
    try:
        figure.savefig(
            path, dpi=160, metadata={"Date": None} if path.suffix.lower() == ".svg" else None
        )
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror})", fix="--out another file"
        ) from None


def draw_cells(axes: Any, rows: list[list[HeadRole]]) -> None:
    """A coloured cell with its letter per head; paler for a lower confidence."""
    from matplotlib.colors import to_rgb

    def shade(head: HeadRole) -> list[float]:
        strength = 0.35 + 0.65 * min(1.0, head.confidence)
        return [1 - strength * (1 - channel) for channel in to_rgb(COLOURS[head.role])]

    axes.imshow(
        [[shade(head) for head in row] for row in rows], aspect="auto", interpolation="nearest"
    )
    for y, row in enumerate(rows):
        for x, head in enumerate(row):
            axes.text(x, y, LETTERS[head.role], ha="center", va="center", fontsize=8)
    axes.set_xticks(range(len(rows[0])))
    axes.set_yticks(range(len(rows)), [row[0].layer for row in rows], fontsize=7)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def draw_legend(figure: Any, head_map: HeadMap) -> None:
    """The roles on the map, and how many heads have each."""
    from matplotlib.patches import Patch

    counts = [(role, sum(head.role == role for head in head_map.heads)) for role in LETTERS]
    patches = [
        Patch(facecolor=COLOURS[role], edgecolor="#888888", label=f"{LETTERS[role]}  {role} ({n})")
        for role, n in counts
        if n
    ]
    figure.legend(handles=patches, loc="outside right upper", fontsize=8, frameon=False)


def figure_caption(head_map: HeadMap) -> str:
    """Model, text, and what the colours mean."""
    text = head_map.texts.get("text")
    judged = (
        "random repeated tokens"
        if text is None
        else f"“{textwrap.shorten(text, 110, placeholder=' …')}” and random repeated tokens"
    )
    return textwrap.fill(
        f"{head_map.name}: measured on {judged} (seed {head_map.seed}), sinks removed. Stronger"
        " colour: higher confidence.",
        110,
    )
