"""An answer of a chat model on the screen: streamed, and what it cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from sightline.cli.ui.output import TextWriter

if TYPE_CHECKING:
    from sightline.conversation import Conversation, Figures
    from sightline.generation.text import Piece


def stream_answer(pieces: Iterator[Piece], *, silent: bool = False) -> Iterator[Piece]:
    """Write each piece to stdout as it comes, without blank lines at either end."""
    writer = TextWriter()
    pending = ""
    has_begun = False
    try:
        for piece in pieces:
            text = pending + piece.text
            text = text if has_begun else text.lstrip()
            ready = text.rstrip()
            pending = text[len(ready) :]
            has_begun = has_begun or bool(ready)
            if ready and not silent:
                writer.write(ready)
            yield piece
    finally:
        if has_begun and not silent:
            writer.end()


def settings_line(conversation: Conversation) -> str:
    """The model, its context length and its sampling options."""
    options = {"temperature": 0.0, **conversation.options}
    parts = [conversation.reference, f"context {conversation.context:,}"]
    return ", ".join([*parts, *(f"{name} {value}" for name, value in options.items())])


def answer_cost(figures: Figures) -> str:
    """Tokens, speed and memory of an answer, in one line."""
    parts = (
        f"{figures.prompt_tokens} prompt tokens ({figures.reused_tokens} reused)",
        f"{figures.new_tokens} new",
        f"{figures.tokens_per_second:.1f} tokens/s",
        f"KV cache {figures.cache_bytes / 1e6:.1f} MB",
        f"context {figures.fullness:.0%} full",
    )
    return ", ".join(parts)
