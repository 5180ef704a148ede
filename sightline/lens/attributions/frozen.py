"""A model seen as linear, by holding still what scales: then a logit is a sum, and a direction can
be carried back through it.

    LayerNorm     γ (x − mean) / s + β      s as it was: linear in x, and a bias
    RMSNorm       γ x / s
    unit          x / |x|                   |x| as it was
    act(z)        z · (act(z) / z)          the masked head's activation, as the gate that it was
                                            (GELU: Φ(z))
    cap tanh(z/cap)                         likewise

`g` is what a unit of each coordinate counts for, one row per position. Going back through y = A x +
b, with A and b so held, g becomes Aᵀ g, and g · b is the bias's part. Nothing is approximated: at
this input the held map gives the very output of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from sightline.core.block import Block, ParallelBlock
from sightline.core.hypersphere import SphereBlock
from sightline.core.linear import Linear
from sightline.core.model import Transformer
from sightline.core.norms import LayerNormLayer, RMSNormLayer, unit
from sightline.core.output import LanguageOutput, MaskedOutput
from sightline.core.residual import Residual

Vectors = Float[Tensor, "position width"]
Numbers = Float[Tensor, " position"]


@dataclass(frozen=True, slots=True)
class Pulled:
    """A direction one step further back, and what that step's bias contributed."""

    g: Vectors
    bias: Numbers


def through_norm(norm: object, x: Vectors, g: Vectors) -> Pulled:
    """Back through norm(x), its scale held. A norm that is not there changes nothing."""
    x = x.double()
    none = torch.zeros(len(g), dtype=torch.float64, device=g.device)
    if isinstance(norm, LayerNormLayer):
        scaled = (
            g * norm.weight.double() / (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
        )
        bias = none if norm.bias is None else g @ norm.bias.double()
        return Pulled(scaled - scaled.mean(-1, keepdim=True), bias)
    if isinstance(norm, RMSNormLayer):
        gain = norm.weight.double() + (1.0 if norm.plus_one else 0.0)
        return Pulled(g * gain / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt(), none)
    return Pulled(g, none)


def through_linear(layer: nn.Module, inputs: int, g: Vectors) -> Pulled:
    """Back through W x + b."""
    weight, bias = affine(layer, inputs)
    return Pulled(
        g @ weight.double(), torch.zeros_like(g[:, 0]) if bias is None else g @ bias.double()
    )


def affine(
    layer: nn.Module, inputs: int
) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"] | None]:
    """W and b of a linear layer. What is not a plain one (an adapter) is asked what it does to the
    basis."""
    if type(layer) is Linear:
        return layer.weight, layer.bias
    some = next(layer.parameters())
    basis = torch.eye(inputs, device=some.device, dtype=some.dtype)
    bias = layer(torch.zeros_like(basis[0]))
    return (layer(basis) - bias).T, bias


def through_head(
    transformer: Transformer, hidden: Vectors, tokens: Int[Tensor, " position"]
) -> Pulled:
    """Back from the logit of one token at each position to the hidden state that the head reads."""
    head = transformer.output
    embedding = transformer.last_stack.embedding.tokens.weight
    assert isinstance(head, (LanguageOutput, MaskedOutput))
    weight = embedding if head.vocabulary.weight is None else head.vocabulary.weight
    g = weight[tokens].double()
    bias = (
        torch.zeros_like(g[:, 0])
        if head.vocabulary.bias is None
        else head.vocabulary.bias[tokens].double()
    )
    if isinstance(head, MaskedOutput):
        inner = _through_transform(head, hidden, g)
        return Pulled(inner.g, inner.bias + bias)
    scale = g.new_ones(len(g)) if head.logit_scale is None else head.logit_scale()[tokens].double()
    pulled = Pulled(g * (scale * head.config.scale)[:, None], bias * scale)
    return (
        pulled if head.config.softcap is None else _under_cap(pulled, hidden, head.config.softcap)
    )


def _through_transform(head: MaskedOutput, hidden: Vectors, g: Vectors) -> Pulled:
    """Back through norm(act(W' x)), the activation held as a gate."""
    inner = head.transform(hidden)
    active = head.activation(inner)
    normed = through_norm(head.norm, active, g)
    first = through_linear(
        head.transform, hidden.shape[-1], normed.g * ratio(active.double(), inner.double())
    )
    return Pulled(first.g, normed.bias + first.bias)


def _under_cap(pulled: Pulled, hidden: Vectors, cap: float) -> Pulled:
    """A capped logit as a share of the uncapped one."""
    plain = (hidden.double() * pulled.g).sum(-1) + pulled.bias
    held = ratio(cap * torch.tanh(plain / cap), plain)
    return Pulled(pulled.g * held[:, None], pulled.bias * held)


def ratio(after: Tensor, before: Tensor) -> Tensor:
    """after / before, for functions that keep 0."""
    return torch.where(
        before == 0,
        torch.zeros_like(before),
        after / torch.where(before == 0, torch.ones_like(before), before),
    )


def steps_of(block: Block) -> list[tuple[str, Residual]]:
    """A block's residual steps in their order, by the names under which they are recorded."""
    cross = [] if block.cross_residual is None else [("cross_attention", block.cross_residual)]
    return [
        ("attention", block.attention_residual),
        *cross,
        ("feed_forward", block.feed_forward_residual),
    ]


def streams_of(block: Block | SphereBlock, recorded: Callable[[str], Vectors]) -> list[Vectors]:
    """The residual stream before each step of a block, and after the last, from what was recorded
    of it."""
    streams = [recorded("residual")]
    if isinstance(block, SphereBlock):
        for name in ("attention", "feed_forward"):
            streams.append(unit(streams[-1] + recorded(name)))
        return streams
    for name, residual in steps_of(block):
        summed = streams[-1] + recorded(name)
        streams.append(summed if isinstance(block, ParallelBlock) else residual.after(summed))
    return streams
