"""The residual step, with the norm before, inside or after it.

x ← after(x + inside(f(before(x))))

pre       before      x + f(norm(x))              GPT-2, Llama
post      after       norm(x + f(x))              the 2017 model, BERT
sandwich  both sides  x + norm'(f(norm(x)))       Gemma 2
output    inside      x + norm(f(x))              OLMo 2
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from sightline.config import NoNorm, Norm, Placement
from sightline.core.norms import make_norm
from sightline.record import Record

Stream = Float[Tensor, "batch time width"]


class Residual(nn.Module):
    """x ← after(x + inside(f(before(x)))); the norms that a placement does not use are the
    identity."""

    def __init__(self, width: int, norm: Norm, placement: Placement, dropout: float) -> None:
        super().__init__()
        none = NoNorm()
        self.before = make_norm(norm if placement in ("pre", "sandwich") else none, width)
        self.inside = make_norm(norm if placement in ("sandwich", "output") else none, width)
        self.after = make_norm(norm if placement == "post" else none, width)
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(
        self, x: Stream, f: Callable[[Stream], Stream], name: str, record: Record
    ) -> Stream:
        return self.after(x + self.step(x, f, name, record))

    def step(self, x: Stream, f: Callable[[Stream], Stream], name: str, record: Record) -> Stream:
        """What is added to the stream."""
        return self.dropout(record(name, self.inside(f(self.before(x)))))
