"""The fonts of a figure: those that are installed, with a note about characters that none of them
has."""

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
_warned: set[str] = set()  # so that a missing font is reported once


def font_settings(text: str) -> dict[str, Any]:
    """Matplotlib settings: text stays text, ids are deterministic, installed fonts only."""
    return {
        "svg.fonttype": "none",
        "svg.hashsalt": "sightline",
        "font.family": fonts_for(text),
        "axes.unicode_minus": False,
    }


def fonts_for(text: str) -> list[str]:
    """The installed ones of FONTS. Characters of the text that none of them has are reported once,
    with the fix."""
    from matplotlib.font_manager import fontManager

    missing = missing_glyphs(text)
    if missing:
        for file in unlisted_fonts():
            fontManager.addfont(file)
        missing = missing_glyphs(text)
    if missing and "fonts" not in _warned:
        _warned.add("fonts")
        characters = "".join(missing[:8])
        print(  # noqa: T201
            f"note: no installed font has {characters}: boxes are drawn instead. Fix: install"
            " Noto Sans CJK JP (fonts-noto-cjk)",
            file=sys.stderr,
        )
    return [name for name in FONTS if name in installed_fonts()]


def installed_fonts() -> dict[str, str]:
    """Those of FONTS that Matplotlib knows, with their files."""
    from matplotlib.font_manager import fontManager

    return {entry.name: entry.fname for entry in fontManager.ttflist if entry.name in FONTS}


def missing_glyphs(text: str) -> list[str]:
    """The characters that no installed font has."""
    from matplotlib.ft2font import FT2Font

    known = {code for file in installed_fonts().values() for code in FT2Font(file).get_charmap()}
    return sorted(
        {character for character in text if ord(character) not in known and not character.isspace()}
    )


def unlisted_fonts() -> list[str]:
    """Files of FONTS that were installed after Matplotlib built its font list."""
    from matplotlib.font_manager import findSystemFonts

    prefixes = tuple(name.replace(" JP", "").replace(" ", "").lower() for name in FONTS)
    known = set(installed_fonts().values())
    return [
        file
        for file in sorted(findSystemFonts())
        if file not in known and Path(file).stem.lower().replace(" ", "").startswith(prefixes)
    ]
