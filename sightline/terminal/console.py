"""A console on which text is only text: styles come from our code, never from what is printed.

Markup such as `[bold]` in a string is printed as it is, and escape sequences are written out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable

from rich.console import Console as RichConsole  # noqa: TID251
from rich.console import ConsoleOptions, RenderableType
from rich.segment import Segment

from sightline.escapes import escape_controls


class Console(RichConsole):
    """Stdout or stderr. Not a single escape where it is no terminal, or where NO_COLOR is set."""

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
        """The command decides what to do, rich would leave."""
        raise
