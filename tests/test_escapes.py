"""Characters that steer a terminal are written out, in errors too."""

from __future__ import annotations

import json
import unicodedata

from sightline.errors import CheckpointError, InputError, RecordError
from sightline.escapes import escape_controls, escape_json, escape_line

EVERYTHING = "".join(map(chr, (*range(0x3000), *range(0xD7F0, 0xE010))))
REVERSING = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}


def steers(sign: str) -> bool:
    """By Unicode's own tables."""
    return (
        unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp")
        or unicodedata.bidirectional(sign) in REVERSING
    )


def test_all_controls_are_written_out_and_nothing_else() -> None:
    for sign in EVERYTHING:
        assert (escape_line(sign) != sign) == steers(sign)
        assert (escape_controls(sign) != sign) == (steers(sign) and sign not in "\n\t")
    assert not any(steers(sign) for sign in escape_line(EVERYTHING))
    assert escape_line("\x1b[31m\n\x9b\u202e") == "\\x1b[31m\\n\\x9b\\u202e"


def test_json_means_the_same() -> None:
    for sign in EVERYTHING:  # one by one: two halves of a surrogate pair would be joined
        text = escape_json(json.dumps(sign, ensure_ascii=False))
        assert json.loads(text) == sign
        assert not any(map(steers, text))


def test_errors_steer_nothing() -> None:
    for kind in (CheckpointError, InputError, RecordError):
        error = kind("tensor \x1b]0;owned\x07", expected="\x9b2J", fix="\u202eevil")
        assert str(error) == "tensor \\x1b]0;owned\\x07; expected \\x9b2J. Fix: \\u202eevil"
