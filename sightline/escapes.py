"""Characters that steer a terminal, written out so that they only show: `\\x1b`, `\\u202e`.

They are the control characters (C0, DEL, C1), the marks that turn the direction of text around and
Unicode's own line ends. Halves of surrogate pairs, which no terminal can be sent, are written out
as well.
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
VISIBLE_LINES = {code: shown for code, shown in VISIBLE.items() if chr(code) not in "\n\t"}
IN_JSON = {
    code: f"\\u{code:04x}" for code in CODES if code >= 0x7F
}  # json escapes the others itself


def escape_controls(text: str) -> str:
    """Running text: line ends and tabs stay."""
    return text.translate(VISIBLE_LINES)


def escape_line(text: str) -> str:
    """A name or a note, which has one line."""
    return text.translate(VISIBLE)


def escape_json(text: str) -> str:
    """JSON that means the same."""
    return text.translate(IN_JSON)
