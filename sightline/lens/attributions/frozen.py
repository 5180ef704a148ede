"""The model with its normalization scales frozen: it is then linear, a logit is a sum of parts, and
a direction can be pulled back through it.

    LayerNorm     γ (x − mean) / s + β      s frozen: linear in x, plus a bias
    RMSNorm       γ x / s
    unit          x / |x|                   |x| frozen
    act(z)        z · (act(z) / z)          the masked head's activation as a frozen gate
                                            (GELU: Φ(z))
    cap tanh(z/cap)                         likewise

`g` is the gradient of the logit with respect to each coordinate, one row per position. Going back
through y = A x + b, with A and b frozen, g becomes Aᵀ g, and g · b is the contribution of the bias.
Nothing is approximated: at this input the frozen map gives exactly the model's output.
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
class PulledBack:
    """A direction pulled back through one step, and the contribution of that step's bias."""

    g: Vectors
    bias: Numbers


def through_norm(norm: object, x: Vectors, g: Vectors) -> PulledBack:
    """Back through norm(x) with its scale frozen. Identity for a missing norm."""
    x = x.double()
    none = torch.zeros(len(g), dtype=torch.float64, device=g.device)
    if isinstance(norm, LayerNormLayer):
        scaled = (
            g * norm.weight.double() / (x.var(-1, correction=0, keepdim=True) + norm.eps).sqrt()
        )
        bias = none if norm.bias is None else g @ norm.bias.double()
        return PulledBack(scaled - scaled.mean(-1, keepdim=True), bias)
    if isinstance(norm, RMSNormLayer):
        gain = norm.weight.double() + (1.0 if norm.plus_one else 0.0)
        return PulledBack(g * gain / (x.square().mean(-1, keepdim=True) + norm.eps).sqrt(), none)
    return PulledBack(g, none)


def through_linear(layer: nn.Module, inputs: int, g: Vectors) -> PulledBack:
    """Back through W x + b."""
    weight, bias = affine(layer, inputs)
    return PulledBack(
        g @ weight.double(), torch.zeros_like(g[:, 0]) if bias is None else g @ bias.double()
    )


def affine(
    layer: nn.Module, inputs: int
) -> tuple[Float[Tensor, "out in"], Float[Tensor, " out"] | None]:
    """W and b of a linear layer. For other modules (adapters) they are read off the images of the
    basis."""
    if type(layer) is Linear:
        return layer.weight, layer.bias
    parameter = next(layer.parameters())
    basis = torch.eye(inputs, device=parameter.device, dtype=parameter.dtype)
    bias = layer(torch.zeros_like(basis[0]))
    return (layer(basis) - bias).T, bias


def through_head(
    transformer: Transformer, hidden: Vectors, tokens: Int[Tensor, " position"]
) -> PulledBack:
    """Back from the logit of one token at each position to the hidden state that enters the
    head."""
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
        return PulledBack(inner.g, inner.bias + bias)
    scale = g.new_ones(len(g)) if head.logit_scale is None else head.logit_scale()[tokens].double()
    pulled = PulledBack(g * (scale * head.config.scale)[:, None], bias * scale)
    return (
        pulled if head.config.softcap is None else _under_cap(pulled, hidden, head.config.softcap)
    )


def _through_transform(head: MaskedOutput, hidden: Vectors, g: Vectors) -> PulledBack:
    """Back through norm(act(W' x)), with the activation frozen as a gate."""
    inner = head.transform(hidden)
    active = head.activation(inner)
    normed = through_norm(head.norm, active, g)
    first = through_linear(
        head.transform, hidden.shape[-1], normed.g * fixed_gain(active.double(), inner.double())
    )
    return PulledBack(first.g, normed.bias + first.bias)


def _under_cap(pulled: PulledBack, hidden: Vectors, cap: float) -> PulledBack:
    """A soft-capped logit as a frozen multiple of the uncapped one."""
    uncapped = (hidden.double() * pulled.g).sum(-1) + pulled.bias
    gain = fixed_gain(cap * torch.tanh(uncapped / cap), uncapped)
    return PulledBack(pulled.g * gain[:, None], pulled.bias * gain)


def fixed_gain(output: Tensor, input: Tensor) -> Tensor:
    """output / input of a function with f(0) = 0."""
    return torch.where(
        input == 0,
        torch.zeros_like(input),
        output / torch.where(input == 0, torch.ones_like(input), input),
    )


def steps_of(block: Block) -> list[tuple[str, Residual]]:
    """A block's residual steps in order, by the names under which they are recorded."""
    cross = [] if block.cross_residual is None else [("cross_attention", block.cross_residual)]
    return [
        ("attention", block.attention_residual),
        *cross,
        ("feed_forward", block.feed_forward_residual),
    ]


def streams_of(block: Block | SphereBlock, recorded: Callable[[str], Vectors]) -> list[Vectors]:
    """The residual stream before each step of a block, and after the last, from recorded
    quantities."""
    streams = [recorded("residual")]
    if isinstance(block, SphereBlock):
        for name in ("attention", "feed_forward"):
            streams.append(unit(streams[-1] + recorded(name)))
        return streams
    for name, residual in steps_of(block):
        summed = streams[-1] + recorded(name)
        streams.append(summed if isinstance(block, ParallelBlock) else residual.after(summed))
    return streams
