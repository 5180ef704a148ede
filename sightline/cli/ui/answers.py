"""An answer on the screen: as it comes, how it was made, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sightline.cli.ui.output import TextWriter

if TYPE_CHECKING:
    from sightline.conversation import Conversation, Figures
    from sightline.generation.text import Piece


def shown(pieces: Iterator[Piece], *, silent: bool = False) -> Iterator[Piece]:
    """Each piece on stdout as it comes, without empty lines at either end."""
    writer = TextWriter()
    held = ""
    begun = False
    try:
        for piece in pieces:
            text = held + piece.text if begun else (held + piece.text).lstrip()
            held = text[len(text.rstrip()) :]
            ready = text[: len(text) - len(held)]
            begun = begun or bool(ready)
            if ready and not silent:
                writer.write(ready)
            yield piece
    finally:
        if begun and not silent:
            writer.end()


def settings(conversation: Conversation) -> str:
    """The model, its context, and how its answers are made."""
    chosen = {"temperature": 0.0, **conversation.options}
    return ", ".join(
        [
            conversation.reference,
            f"context {conversation.context:,}",
            *(f"{name} {value}" for name, value in chosen.items()),
        ]
    )


def costs(figures: Figures) -> str:
    """What an answer cost, in one line."""
    prompt = f"{figures.prompt_tokens} prompt tokens ({figures.reused_tokens} reused)"
    answer = f"{figures.new_tokens} new, {figures.tokens_per_second:.1f} a second"
    return (
        f"{prompt}, {answer}, cache {figures.cache_bytes / 1e6:.1f} MB, context"
        f" {figures.fullness:.0%} full"
    )
