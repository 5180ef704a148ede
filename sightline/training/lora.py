"""LoRA (Hu et al. 2021): a frozen matrix plus a learned low-rank product.

y = W x + (α/r) B A x        A [r, in] random, B [out, r] zero: at first nothing changes

add_adapters(transformer, rank=8)      query and value of every attention; all else is frozen
with merged(transformer): …            W + (α/r) B A in W's place, restored bit for bit afterwards
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from sightline.core.linear import Linear
from sightline.core.model import Transformer
from sightline.errors import ConfigError
from sightline.kernels import library as kernels

Matrices = Literal["query_value", "attention", "all"]
ATTENTION = ("attention.query", "attention.key", "attention.value", "attention.output")
ENDINGS: dict[Matrices, tuple[str, ...]] = {
    "query_value": ("attention.query", "attention.value"),
    "attention": ATTENTION,
    "all": (*ATTENTION, "feed_forward.up", "feed_forward.gate", "feed_forward.down"),
}


class LowRank(nn.Linear):
    """W x + b + (α/r) B A x, with the weight and the bias of the layer that this replaces."""

    def __init__(self, layer: nn.Linear, *, rank: int, alpha: float) -> None:
        super().__init__(
            layer.in_features, layer.out_features, bias=layer.bias is not None, device="meta"
        )
        self.weight = layer.weight
        self.bias = layer.bias
        self.rank = rank
        self.alpha = alpha
        self.lora_a = nn.Parameter(
            torch.empty(
                rank, layer.in_features, dtype=layer.weight.dtype, device=layer.weight.device
            )
        )
        self.lora_b = nn.Parameter(
            torch.zeros(
                layer.out_features, rank, dtype=layer.weight.dtype, device=layer.weight.device
            )
        )
        nn.init.kaiming_uniform_(self.lora_a, a=math.sqrt(5))
        self._base: Tensor | None = None

    @property
    def scale(self) -> float:
        return self.alpha / self.rank

    def forward(self, x: Float[Tensor, "*batch in"]) -> Float[Tensor, "*batch out"]:  # pyright: ignore[reportIncompatibleMethodOverride]
        plain = kernels.linear(x, self.weight, self.bias)
        if self._base is not None:
            return plain
        return (
            plain
            + nn.functional.linear(nn.functional.linear(x, self.lora_a), self.lora_b) * self.scale
        )

    def merge(self) -> None:
        """W becomes W + (α/r) B A; the old W is saved."""
        assert self._base is None
        self._base = self.weight.data
        self.weight.data = merged_weight(
            self._base, self.lora_a.detach(), self.lora_b.detach(), scale=self.scale
        )

    def unmerge(self) -> None:
        """Restore the old W, bit for bit."""
        assert self._base is not None
        self.weight.data, self._base = self._base, None


def add_adapters(
    transformer: Transformer,
    *,
    rank: int,
    alpha: float | None = None,
    matrices: Matrices = "query_value",
) -> Transformer:
    """Freeze everything, and add adapters to the named matrices. α defaults to 2r. Changes the
    model in place and returns it."""
    if rank < 1:
        raise ConfigError(f"LoRA of rank {rank}", expected="1 or more", fix="rank=8")
    paths = [
        path
        for path, part in transformer.named_modules()
        if type(part) is Linear and path.endswith(ENDINGS[matrices])
    ]
    if transformer.last_stack.config.on_sphere:
        raise ConfigError(
            "LoRA on an nGPT, whose matrices are projected back onto the sphere",
            expected="another model",
            fix="lora=0",
        )
    transformer.requires_grad_(False)
    for path in paths:
        replace_layer(transformer, path, rank=rank, alpha=2.0 * rank if alpha is None else alpha)
    return transformer


def replace_layer(transformer: Transformer, path: str, *, rank: int, alpha: float) -> LowRank:
    """The layer at this path with an adapter."""
    above, _, name = path.rpartition(".")
    layer = transformer.get_submodule(path)
    assert isinstance(layer, nn.Linear)
    adapter = LowRank(layer, rank=rank, alpha=alpha)
    setattr(transformer.get_submodule(above), name, adapter)
    return adapter


def adapters(transformer: nn.Module) -> dict[str, LowRank]:
    """Every adapter by its layer's path."""
    return {path: part for path, part in transformer.named_modules() if isinstance(part, LowRank)}


def is_adapter(name: str) -> bool:
    """Whether a parameter's name is one of A or B."""
    return name.endswith((".lora_a", ".lora_b"))


def merged_tensors(transformer: nn.Module, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parameters by name with W + (α/r) B A in place of W, without A and B; the model is
    unchanged."""
    tensors = {name: tensor for name, tensor in parameters.items() if not is_adapter(name)}
    for path, part in adapters(transformer).items():
        tensors[f"{path}.weight"] = merged_weight(
            *(parameters[f"{path}.{name}"] for name in ("weight", "lora_a", "lora_b")),
            scale=part.scale,
        )
    return tensors


def merged_weight(weight: Tensor, a: Tensor, b: Tensor, *, scale: float) -> Tensor:
    """W + (α/r) B A, in float32."""
    return (weight.float() + scale * (b.float() @ a.float())).to(weight.dtype)


@contextmanager
def merged(transformer: nn.Module) -> Generator[None]:
    """Every adapter merged into its matrix within the block."""
    parts = list(adapters(transformer).values())
    for part in parts:
        part.merge()
    try:
        yield
    finally:
        for part in parts:
            part.unmerge()
