"""The loss, without all logits in memory at once.

    nll       log Σ exp z − z_target
    smoothed  (1 − ε) nll + ε (log Σ exp z − mean z)
    z-loss    + ζ (log Σ exp z)²

Only positions with a target reach the head. Large logits are computed, differentiated and freed a
chunk at a time: the gradient is computed during the forward pass, so nothing is computed twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.config import Classifier, LanguageHead, MaskedHead
from sightline.core.model import Transformer
from sightline.errors import ConfigError
from sightline.training.data.batch import IGNORED, Batch

CHUNK = 1 << 22  # logits that are in memory at once


def check_head(transformer: Transformer) -> None:
    """Refuse a head that returns vectors: it has no targets."""
    head = transformer.config.head
    if not isinstance(head, (LanguageHead, MaskedHead, Classifier)):
        raise ConfigError(
            f"{type(head).__name__}, which returns vectors",
            expected="a head for tokens or labels",
            fix="head=LanguageHead()",
        )


class Objective(nn.Module):
    """A model and its loss as one module, so that wrappers such as DDP see a single forward."""

    def __init__(
        self, transformer: Transformer, *, label_smoothing: float = 0.0, z_loss: float = 0.0
    ) -> None:
        super().__init__()
        check_head(transformer)
        self.transformer = transformer
        self.label_smoothing = label_smoothing
        self.z_loss = z_loss

    def forward(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        """Two sums: the loss that is minimised, and the nll."""
        hidden = self.transformer.hidden(
            batch.tokens,
            padding=batch.padding,
            source=batch.source,
            source_padding=batch.source_padding,
            documents=batch.documents,
        )
        if not isinstance(self.transformer.config.head, (LanguageHead, MaskedHead)):
            return self.of_logits(
                self.transformer.head(hidden, padding=batch.padding).flatten(0, -2),
                batch.targets.flatten(),
            )
        has_target = batch.targets != IGNORED
        if bool(has_target.all()):
            return self.of_hidden(hidden.flatten(0, -2), batch.targets.flatten())
        return self.of_hidden(hidden[has_target], batch.targets[has_target])

    def of_hidden(
        self, hidden: Float[Tensor, "targets width"], targets: Int[Tensor, " targets"]
    ) -> tuple[Tensor, Tensor]:
        """The head and the loss, in chunks if the logits are large."""
        vocab_size = self.transformer.config.last.embedding.vocab_size
        rows = max(1, CHUNK // vocab_size)
        if len(targets) <= rows or not torch.is_grad_enabled():
            parts = [
                self.of_logits(self.logits(h), t)
                for h, t in zip(hidden.split(rows), targets.split(rows), strict=True)
            ]
            return sum_or_zero([a for a, _ in parts], hidden), sum_or_zero(
                [b for _, b in parts], hidden
            )
        parameters = [p for p in self.head_parameters() if p.requires_grad]
        return Chunked.apply(self, rows, hidden, targets, *parameters)  # pyright: ignore[reportReturnType]

    def logits(self, hidden: Float[Tensor, "targets width"]) -> Float[Tensor, "targets vocab"]:
        return self.transformer.head(hidden[None])[0]

    def head_parameters(self) -> list[Tensor]:
        """The parameters that the logits depend on."""
        output = self.transformer.output
        embedding = self.transformer.last_stack.embedding.tokens.weight
        own: list[Tensor] = [] if output is None else list(output.parameters())
        return own if any(p is embedding for p in own) else [*own, embedding]

    def of_logits(
        self, logits: Float[Tensor, "targets classes"], targets: Int[Tensor, " targets"]
    ) -> tuple[Tensor, Tensor]:
        """Sums over the targets."""
        logits = logits.float()
        has_target = targets != IGNORED
        nll = nn.functional.cross_entropy(logits, targets, reduction="sum", ignore_index=IGNORED)
        if not self.label_smoothing and not self.z_loss:
            return nll, nll.detach()
        total = logits.logsumexp(-1)
        spread = ((total - logits.mean(-1)) * has_target).sum()
        loss = (
            (1 - self.label_smoothing) * nll
            + self.label_smoothing * spread
            + self.z_loss * (total.square() * has_target).sum()
        )
        return loss, nll.detach()


class Chunked(torch.autograd.Function):
    """The sum of the chunks' losses; their gradients are computed in the same pass."""

    @staticmethod
    def forward(
        ctx: Any,
        objective: Objective,
        rows: int,
        hidden: Tensor,
        targets: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        loss = hidden.new_zeros((), dtype=torch.float32)
        nll = hidden.new_zeros((), dtype=torch.float32)
        slopes: list[Tensor | None] = [None] * len(parameters)
        downward: list[Tensor] = []
        for h, t in zip(hidden.split(rows), targets.split(rows), strict=True):
            with torch.enable_grad():
                h = h.detach().requires_grad_()
                part, plain = objective.of_logits(objective.logits(h), t)
                below, *own = torch.autograd.grad(part, [h, *parameters], allow_unused=True)
            loss = loss + part.detach()
            nll = nll + plain
            downward.append(below)
            slopes = [
                a if b is None else b.clone() if a is None else a.add_(b)
                for a, b in zip(slopes, own, strict=True)
            ]
        ctx.downward = torch.cat(downward)
        ctx.slopes = slopes
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, slope: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        return (
            None,
            None,
            ctx.downward * slope,
            None,
            *(None if s is None else s * slope for s in ctx.slopes),
        )


def sum_or_zero(parts: Sequence[Tensor], like: Tensor) -> Tensor:
    """A sum of 0 with a gradient of 0, for a batch without targets."""
    return torch.stack(list(parts)).sum() if parts else like.sum() * 0.0
