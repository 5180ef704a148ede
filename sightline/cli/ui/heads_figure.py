"""The map of head roles as a picture, by matplotlib. Every cell has its letter, so that no one
needs the colours."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.commands.see.heads import COLOURS, LETTERS
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.lens.heads.profile import HeadMap, HeadRole

ENDINGS = (".svg", ".png", ".pdf")


def checked_file(path: Path) -> None:
    """Said before a model is loaded."""
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            f"{path}: no picture ends like that",
            expected=".svg, .png or .pdf",
            fix=f"--out {path.stem}.svg",
        )
    if not path.parent.is_dir():
        raise InputError(
            f"{path}: there is no folder {path.parent}",
            expected="a folder that exists",
            fix=f"mkdir -p {path.parent}",
        )


def save(found: HeadMap, path: Path) -> None:
    """One panel for each stack, side by side."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError(
            "a picture needs matplotlib, which is not installed",
            fix="pip install matplotlib, or leave --out out",
        ) from None
    mpl.rcParams["svg.hashsalt"] = "sightline"
    grids = [(stack, cross, found.grid(stack, cross=cross)) for stack, cross in found.parts]
    wide = sum(max(3.0, 0.34 * len(rows[0]) + 1) for *_, rows in grids)
    high = max(len(rows) for *_, rows in grids)
    figure: Any = Figure(
        figsize=(max(7.0, wide + 3), max(3.2, 0.3 * high + 2.2)), layout="constrained"
    )
    panels = figure.subplots(1, len(grids), squeeze=False)[0]
    for axes, (stack, cross, rows) in zip(panels, grids, strict=True):
        draw(axes, rows)
        axes.set(
            title=f"{stack}{' cross-attention' if cross else ''}", xlabel="head", ylabel="layer"
        )
    figure.suptitle(f"What the heads of {found.name or 'the model'} do")
    key(figure, found)
    figure.supxlabel(caption(found), fontsize=7)
    try:
        figure.savefig(
            path, dpi=160, metadata={"Date": None} if path.suffix.lower() == ".svg" else None
        )
    except OSError as error:
        raise InputError(
            f"{path}: cannot be written ({error.strerror})", fix="--out another file"
        ) from None


def draw(axes: Any, rows: list[list[HeadRole]]) -> None:
    """A coloured cell with its letter for each head; the paler, the less sure."""
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


def key(figure: Any, found: HeadMap) -> None:
    """The roles that there are, and how many heads have them."""
    from matplotlib.patches import Patch

    counts = [(role, sum(head.role == role for head in found.heads)) for role in LETTERS]
    patches = [
        Patch(facecolor=COLOURS[role], edgecolor="#888888", label=f"{LETTERS[role]}  {role} ({n})")
        for role, n in counts
        if n
    ]
    figure.legend(handles=patches, loc="outside right upper", fontsize=8, frameon=False)


def caption(found: HeadMap) -> str:
    """Model, text, and what colour means."""
    text = found.texts.get("text")
    judged = (
        "random repeated tokens"
        if text is None
        else f"“{textwrap.shorten(text, 110, placeholder=' …')}” and random repeated tokens"
    )
    return textwrap.fill(
        f"{found.name}: judged on {judged} (seed {found.seed}), sinks taken out. Stronger colour:"
        " surer.",
        110,
    )
