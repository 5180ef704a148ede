"""A copy of a model for inference, with its large matrices packed in oneDNN's blocked layout.

    fast = pack(transformer)      # shares everything with it, and has a second, packed copy of the
                                  # large matrices

q, k and v are fused into one product. Results differ by rounding only. The copy is for inference:
train, record and save the original.
"""

from __future__ import annotations

import copy

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from sightline.core.linear import BlockedLinear, Linear
from sightline.core.model import Transformer
from sightline.core.multi_head import Attention
from sightline.core.output import LanguageOutput, MaskedOutput

QKV = ("query", "key", "value")
SMALLEST = 1 << 18  # elements; a smaller matrix gains nothing


class PackedLinear(nn.Module):
    """W x + b; by the packed matrix for a few vectors, by the original one for many."""

    def __init__(self, weight: Float[Tensor, "out in"], bias: Float[Tensor, " out"] | None) -> None:
        super().__init__()
        self.weight = weight
        self.bias = bias
        self.blocked = BlockedLinear(weight, bias)

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:
        return self.blocked(x) if self.blocked.suits(x) else F.linear(x, self.weight, self.bias)


class PackedUnembedding(PackedLinear):
    """A head's matrix, packed; when tied, a copy of the embedding's."""

    def forward(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Float[Tensor, "batch time in"], embedding: Tensor
    ) -> Float[Tensor, "batch time out"]:
        return super().forward(x)


def can_pack(transformer: Transformer) -> bool:
    """Whether packing helps on this machine and with these weights."""
    weight = transformer.last_stack.embedding.tokens.weight
    fits = (
        weight.device.type == "cpu"
        and weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
    )
    return fits and any(parameter.numel() >= SMALLEST for parameter in transformer.parameters())


def eval_copy(transformer: Transformer) -> Transformer:
    """A copy that shares every parameter and is in eval mode: without dropout."""
    shared = {id(x): x for x in (*transformer.parameters(), *transformer.buffers())}
    return copy.deepcopy(transformer, shared).eval()


@torch.no_grad()
def pack(transformer: Transformer) -> Transformer:
    """A copy for inference, with its matrices packed."""
    copied = eval_copy(transformer)
    for part in list(copied.modules()):
        fused_qkv = fuse_qkv(part) if isinstance(part, Attention) and not part.names else None
        if fused_qkv is not None:
            part.fused_qkv = fused_qkv
        for name, child in list(part.named_children()):
            if isinstance(child, (nn.Identity, nn.Dropout)):  # even an identity module costs a call
                delattr(part, name)
                setattr(part, name, identity)
            if (
                type(child) is Linear
                and child.weight.numel() >= SMALLEST
                and not (name in QKV and fused_qkv)
            ):
                setattr(part, name, PackedLinear(child.weight, child.bias))
    if isinstance(copied.output, (LanguageOutput, MaskedOutput)):
        pack_head(copied.output, copied.last_stack.embedding.tokens.weight)
    return copied


def identity(x: Tensor) -> Tensor:
    return x


def fuse_qkv(attention: Attention) -> BlockedLinear | None:
    """Self-attention's W_Q, W_K and W_V as one matrix, if that is large enough."""
    parts = (attention.query, attention.key, attention.value)
    if any(type(part) is not Linear for part in parts):  # adapters
        return None
    weights = [part.weight.detach() for part in parts]
    biases = [part.bias.detach() for part in parts if attention.config.bias]
    if sum(weight.numel() for weight in weights) < SMALLEST:
        return None
    return BlockedLinear(torch.cat(weights), torch.cat(biases) if biases else None)


def pack_head(
    head: LanguageOutput | MaskedOutput, embedding: Float[Tensor, "vocab_size width"]
) -> None:
    """Logits by a packed matrix."""
    weight = embedding if head.vocabulary.weight is None else head.vocabulary.weight
    if weight.numel() >= SMALLEST:
        head.vocabulary = PackedUnembedding(weight, head.vocabulary.bias)  # pyright: ignore[reportAttributeAccessIssue]
