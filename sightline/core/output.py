"""Output heads: logits over the vocabulary, logits of masked tokens, one vector per sequence.

A tied head has no matrix: it gets the embedding matrix at each call.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from sightline.config import Classifier, LanguageHead, MaskedHead, ModelConfig, Pooler
from sightline.core.feed_forward import ACTIVATIONS
from sightline.core.hypersphere import Scale
from sightline.core.linear import Linear
from sightline.core.norms import make_norm
from sightline.kernels import library as kernels

Stream = Float[Tensor, "batch time width"]
Logits = Float[Tensor, "batch time vocab_size"]


class Unembedding(nn.Module):
    """W x + b, with W the embedding matrix when tied."""

    def __init__(self, width: int, vocab_size: int, *, tied: bool, bias: bool) -> None:
        super().__init__()
        self.weight = None if tied else nn.Parameter(torch.empty(vocab_size, width))
        self.bias = nn.Parameter(torch.zeros(vocab_size)) if bias else None

    def forward(self, x: Stream, embedding: Float[Tensor, "vocab_size width"]) -> Logits:
        return kernels.linear(x, embedding if self.weight is None else self.weight, self.bias)


class LanguageOutput(nn.Module):
    """cap · tanh(scale · W x / cap); on the sphere, times the learned s_z."""

    def __init__(
        self, width: int, vocab_size: int, config: LanguageHead, *, on_sphere: bool
    ) -> None:
        super().__init__()
        self.config = config
        self.vocabulary = Unembedding(width, vocab_size, tied=config.tied, bias=config.bias)
        self.logit_scale = (
            Scale((vocab_size,), start=1.0, stored=width**-0.5) if on_sphere else None
        )

    def forward(self, x: Stream, embedding: Float[Tensor, "vocab_size width"]) -> Logits:
        if self.config.scale != 1.0:
            x = x * self.config.scale
        logits = self.vocabulary(x, embedding)
        if self.logit_scale is not None:
            logits = logits * self.logit_scale()
        if self.config.softcap is not None:
            logits = self.config.softcap * torch.tanh(logits / self.config.softcap)
        return logits


class MaskedOutput(nn.Module):
    """W norm(act(W' x)) + b"""

    def __init__(self, width: int, vocab_size: int, config: MaskedHead) -> None:
        super().__init__()
        self.transform = Linear(width, width, bias=config.transform_bias)
        self.activation = ACTIVATIONS[config.activation]
        self.norm = make_norm(config.norm, width)
        self.vocabulary = Unembedding(width, vocab_size, tied=config.tied, bias=config.bias)

    def forward(self, x: Stream, embedding: Float[Tensor, "vocab_size width"]) -> Logits:
        return self.vocabulary(self.norm(self.activation(self.transform(x))), embedding)


def pool(
    x: Stream, how: str, padding: Bool[Tensor, "batch time"] | None
) -> Float[Tensor, "batch width"]:
    """One vector per sequence: its first or last real token, or the mean of the real ones."""
    real = (
        torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if padding is None else ~padding
    )
    if how == "mean":
        return (x * real[..., None]).sum(1) / real.sum(1, keepdim=True).clamp(min=1)
    if how == "first":
        at = real.int().argmax(-1)  # 0 unless the row is padded on the left
    else:
        at = x.shape[1] - 1 - real.int().flip(-1).argmax(-1)
    return x[torch.arange(x.shape[0], device=x.device), at]


class PooledOutput(nn.Module):
    """The first token, tanh(W · first token), or the mean over the real tokens."""

    def __init__(self, width: int, config: Pooler) -> None:
        super().__init__()
        self.how = config.how
        self.transform = Linear(width, width) if config.how == "tanh" else nn.Identity()

    def forward(
        self, x: Stream, padding: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "batch width"]:
        if self.how == "tanh":
            return torch.tanh(self.transform(pool(x, "first", padding)))
        return pool(x, self.how, padding)


class ClassOutput(nn.Module):
    """W norm(act(W' x)) + b, for each token or for one vector per sequence"""

    def __init__(self, width: int, config: Classifier) -> None:
        super().__init__()
        self.pool = config.pool
        hidden = config.activation is not None
        self.transform = (
            Linear(width, width, bias=config.transform_bias) if hidden else nn.Identity()
        )
        self.activation = ACTIVATIONS[config.activation] if config.activation else nn.Identity()
        self.norm = make_norm(config.norm, width)
        self.labels = Linear(width, config.labels, bias=config.bias)

    def forward(
        self, x: Stream, padding: Bool[Tensor, "batch time"] | None = None
    ) -> Float[Tensor, "*shape labels"]:
        if self.pool != "tokens":
            x = pool(x, self.pool, padding)
        return self.labels(self.norm(self.activation(self.transform(x))))


def make_output(
    config: ModelConfig,
) -> LanguageOutput | MaskedOutput | PooledOutput | ClassOutput | None:
    """The head of a configuration."""
    stack = config.last
    head = config.head
    vocab_size = stack.embedding.vocab_size
    if isinstance(head, LanguageHead):
        return LanguageOutput(stack.width, vocab_size, head, on_sphere=stack.on_sphere)
    if isinstance(head, MaskedHead):
        return MaskedOutput(stack.width, vocab_size, head)
    if isinstance(head, Classifier):
        return ClassOutput(stack.width, head)
    return PooledOutput(stack.width, head) if isinstance(head, Pooler) else None
