"""Which fonts a figure is written in: those that are installed, and a word where a letter has
none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

FONTS = (
    "DejaVu Sans",
    "Noto Sans CJK JP",
    "Noto Sans JP",
    "IPAexGothic",
    "Hiragino Sans",
    "Yu Gothic",
    "MS Gothic",
)
_told: set[str] = set()  # so that a missing font is said once


def settings(text: str) -> dict[str, Any]:
    """Text stays text, identifiers do not change, and the fonts are those that are there."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "sightline",
        "font.family": fonts_for(text),
        "axes.unicode_minus": False,
    }


def fonts_for(text: str) -> list[str]:
    """The installed ones of FONTS. Where the text has letters that none of them draws, that is said
    once, with the fix."""
    from matplotlib.font_manager import fontManager

    missing = undrawn(text)
    if missing:
        for file in new_fonts():
            fontManager.addfont(file)
        missing = undrawn(text)
    if missing and "fonts" not in _told:
        _told.add("fonts")
        shown = "".join(missing[:8])
        print(  # noqa: T201
            f"note: no font here draws {shown}: boxes stand for it. Fix: install Noto Sans CJK JP"
            " (fonts-noto-cjk)",
            file=sys.stderr,
        )
    return [name for name in FONTS if name in installed()]


def installed() -> dict[str, str]:
    """Those of FONTS that Matplotlib knows, with their files."""
    from matplotlib.font_manager import fontManager

    return {entry.name: entry.fname for entry in fontManager.ttflist if entry.name in FONTS}


def undrawn(text: str) -> list[str]:
    """The letters that no font has."""
    from matplotlib.ft2font import FT2Font

    known = {code for file in installed().values() for code in FT2Font(file).get_charmap()}
    return sorted({sign for sign in text if ord(sign) not in known and not sign.isspace()})


def new_fonts() -> list[str]:
    """Files of FONTS that were installed after Matplotlib made its list."""
    from matplotlib.font_manager import findSystemFonts

    named = tuple(name.replace(" JP", "").replace(" ", "").lower() for name in FONTS)
    known = set(installed().values())
    return [
        file
        for file in sorted(findSystemFonts())
        if file not in known and Path(file).stem.lower().replace(" ", "").startswith(named)
    ]
