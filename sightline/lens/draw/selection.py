"""What of a trace is shown: which layer, which head, how many tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sightline.lens.draw.default_head import most_structured
from sightline.lens.trace.layer import Look, checked
from sightline.lens.trace.subject import Subject, Token
from sightline.lens.trace.trace import Trace

SHOWN = 1024  # the most rows and columns of a map


@dataclass(frozen=True, slots=True)
class Asked:
    """What of a trace is shown. `most` caps a map's rows and columns; None draws every token."""

    trace: Trace
    layer: int | None = None
    head: int | None = None
    stack: str | None = None
    subject: Subject | None = None
    most: int | None = SHOWN

    @property
    def look(self) -> Look:
        assert self.layer is not None
        return self.trace.look(self.layer, stack=self.stack)

    @property
    def rows(self) -> tuple[Token, ...]:
        """The tokens that asked."""
        tokens = self.trace.tokens_of(self.stack)
        return tokens[len(tokens) - self.look.queries :]

    def at_most(self, number: int) -> int | None:
        return None if self.most is None else min(self.most, number)

    def place(self, more: str = "") -> str:
        """`layer 5, head 1`, with the stack where there are two."""
        of = f"{self.trace.stack_named(self.stack)} " if len(self.trace.config.stacks) > 1 else ""
        which = "mean of all heads" if self.head is None else f"head {self.head}"
        return f"{of}layer {self.layer}, {more or which}"

    def about(self) -> Mapping[str, Any]:
        return {"layer": self.layer, "head": self.head, "stack": self.trace.stack_named(self.stack)}


def with_head(asked: Asked, *, mean: bool) -> Asked:
    """A layer and a head that there are; the most structured where none was named."""
    trace = asked.trace
    layer = asked.layer
    head = asked.head
    if layer is None or (head is None and not mean):
        layer, head = most_structured(trace, stack=asked.stack, layer=layer, head=head)
    look = trace.look(layer, stack=asked.stack)
    return replace(
        asked, layer=look.site[1], head=None if head is None else checked("head", head, look.heads)
    )
