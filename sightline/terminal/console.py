"""A console that prints text literally: styles come from our code, never from the printed text.

Markup such as `[bold]` in a string is printed unchanged, and escape sequences are escaped.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console as RichConsole  # noqa: TID251
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from sightline.escapes import escape_controls


class Console(RichConsole):
    """Stdout or stderr. It writes no escape sequences unless it is a terminal, or with NO_COLOR."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        colours = None if os.environ.get("NO_COLOR") else "auto"
        super().__init__(
            stderr=stderr,
            width=width,
            color_system=colours,
            markup=False,
            emoji=False,
            highlight=False,
        )

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield (
                segment if segment.control else segment._replace(text=escape_controls(segment.text))
            )

    def on_broken_pipe(self) -> None:
        """Leave a broken pipe to the command; rich would exit."""
        raise
