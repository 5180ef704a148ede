"""The part of a trace that a view shows: layer, head, number of tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sightline.lens.draw.default_head import most_structured
from sightline.lens.geometry.shares import Origin
from sightline.lens.trace.layer import Look, checked_index
from sightline.lens.trace.subject import Subject, Token
from sightline.lens.trace.trace import Trace

MAX_SIZE = 1024  # rows and columns of a map


@dataclass(frozen=True, slots=True)
class Selection:
    """The part of a trace that a view shows. `max_size` caps a map's rows and columns; None draws
    every token."""

    trace: Trace
    layer: int | None = None
    head: int | None = None
    stack: str | None = None
    subject: Subject | None = None
    max_size: int | None = MAX_SIZE
    origin: Origin | None = None  # of the lengths in `geometry`
    sink: bool = True  # whether the first token takes part there

    @property
    def look(self) -> Look:
        assert self.layer is not None
        return self.trace.look(self.layer, stack=self.stack)

    @property
    def rows(self) -> tuple[Token, ...]:
        """The query tokens."""
        tokens = self.trace.tokens_of(self.stack)
        return tokens[len(tokens) - self.look.queries :]

    def at_most(self, number: int) -> int | None:
        return None if self.max_size is None else min(self.max_size, number)

    def place(self) -> str:
        """`layer 5, head 1`, with the stack where there are two."""
        of = f"{self.trace.stack_named(self.stack)} " if len(self.trace.config.stacks) > 1 else ""
        which = "mean of all heads" if self.head is None else f"head {self.head}"
        return f"{of}layer {self.layer}, {which}"

    def about(self) -> Mapping[str, Any]:
        return {"layer": self.layer, "head": self.head, "stack": self.trace.stack_named(self.stack)}


def select_head(selection: Selection, *, mean: bool) -> Selection:
    """The selection with a valid layer and head; the most structured head where none is given."""
    trace = selection.trace
    layer = selection.layer
    head = selection.head
    if layer is None or (head is None and not mean):
        layer, head = most_structured(trace, stack=selection.stack, layer=layer, head=head)
    look = trace.look(layer, stack=selection.stack)
    return replace(
        selection,
        layer=look.site[1],
        head=None if head is None else checked_index("head", head, look.heads),
    )
