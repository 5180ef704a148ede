"""Escapes characters that control a terminal: `\\x1b`, `\\u202e`.

These are control characters (C0, DEL, C1), bidirectional marks and Unicode's line separators.
Surrogates, which cannot be encoded, are escaped as well.
"""

from __future__ import annotations

CODES = (
    *range(0x20),
    *range(0x7F, 0xA0),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    *range(0xD800, 0xE000),
)
VISIBLE = {code: repr(chr(code))[1:-1] for code in CODES}
VISIBLE_LINES = {code: escape for code, escape in VISIBLE.items() if chr(code) not in "\n\t"}
IN_JSON = {
    code: f"\\u{code:04x}" for code in CODES if code >= 0x7F
}  # json escapes the others itself


def escape_controls(text: str) -> str:
    """Escape running text; newlines and tabs stay."""
    return text.translate(VISIBLE_LINES)


def escape_line(text: str) -> str:
    """Escape a name or a note, which is one line."""
    return text.translate(VISIBLE)


def escape_json(text: str) -> str:
    """Escape JSON without changing its value."""
    return text.translate(IN_JSON)
