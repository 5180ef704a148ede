"""Weights laid out for running: the same numbers, in the blocks in which the processor wants to
read them.

    fast = packed(transformer)    # shares everything with it, and has a second, packed copy of the
                                  # large matrices

q, k and v are joined into one product. Results differ by rounding only. The twin is for running:
train, record and save the original.
"""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.core.few_vectors import FewVectors
from sightline.core.linear import Linear
from sightline.core.model import Transformer
from sightline.core.multi_head import Attention
from sightline.core.output import LanguageOutput, MaskedOutput

JOINED = ("query", "key", "value")
SMALLEST = 1 << 18  # numbers; a smaller matrix gains nothing


class Packed(nn.Module):
    """W x + b; a few vectors are multiplied by the packed matrix, many by the plain one."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.few = FewVectors(weight, bias)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return self.few(x) if self.few.suits(x) else F.linear(x, self.weight, self.bias)


class PackedVocabulary(Packed):
    """A head's matrix, packed; when tied, a copy of the embedding's."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Float[Tensor, "batch time in"], embedding: Tensor
    ) -> Float[Tensor, "batch time out"]:
        return super().forward(x)


def can_pack(transformer: Transformer) -> bool:
    """Whether this machine and these weights gain from it."""
    weight = transformer.last_stack.embedding.tokens.weight
    fits = (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
    )
    return fits and any(parameter.numel() >= SMALLEST for parameter in transformer.parameters())


def evaluated(transformer: Transformer) -> Transformer:
    """A twin that shares every parameter and is not in training: without dropout."""
    shared = {id(x): x for x in (*transformer.parameters(), *transformer.buffers())}
    return copy.deepcopy(transformer, shared).eval()


@torch.no_grad()
def packed(transformer: Transformer) -> Transformer:
    """A twin for running, with its matrices packed."""
    twin = evaluated(transformer)
    for part in list(twin.modules()):
        joined = join(part) if isinstance(part, Attention) and not part.names else None
        if joined is not None:
            part.joined = joined
        for name, child in list(part.named_children()):
            if isinstance(
                child, (nn.Identity, nn.Dropout)
            ):  # a module that does nothing costs a call all the same
                delattr(part, name)
                setattr(part, name, unchanged)
            if (
                type(child) is Linear
                and child.weight.numel() >= SMALLEST
                and not (name in JOINED and joined)
            ):
                setattr(part, name, Packed(child.weight, child.bias))
    if isinstance(twin.output, (LanguageOutput, MaskedOutput)):
        pack_head(twin.output, twin.last_stack.embedding.tokens.weight)
    return twin


def unchanged(x: Tensor) -> Tensor:
    return x


def join(attention: Attention) -> FewVectors | None:
    """Self-attention's W_Q, W_K and W_V as one matrix, if that is large enough."""
    parts = (attention.query, attention.key, attention.value)
    if any(type(part) is not Linear for part in parts):  # adapters
        return None
    weights = [part.weight.detach() for part in parts]
    biases = [part.bias.detach() for part in parts if attention.config.bias]
    if sum(weight.numel() for weight in weights) < SMALLEST:
        return None
    return FewVectors(torch.cat(weights), torch.cat(biases) if biases else None)


def pack_head(
    head: LanguageOutput | MaskedOutput, embedding: Float[Tensor, "vocab_size width"]
) -> None:
    """Logits by a packed matrix."""
    weight = embedding if head.vocabulary.weight is None else head.vocabulary.weight
    if weight.numel() >= SMALLEST:
        head.vocabulary = PackedVocabulary(weight, head.vocabulary.bias)  # pyright: ignore[reportAttributeAccessIssue]
