"""The numbers of a small block, computed by `sightline.core` in float64. Imports torch.

Parameters and X are drawn with Python's own generator and rounded to two decimals, so that a page
is the same everywhere and can be checked by hand.
"""

from __future__ import annotations

import math
import random

import torch
from torch import Tensor

from sightline.config import ModelConfig, Rotary
from sightline.core.attention import attention_scores
from sightline.core.block import Block
from sightline.core.context import BlockContext, Place, place_for
from sightline.core.masks import Mask
from sightline.core.model import build
from sightline.core.multi_head import merge_heads
from sightline.core.norms import RMSNormLayer
from sightline.explain.block.small import TOKENS, small_config
from sightline.explain.block.steps import Values
from sightline.record import Recorder

RECORDED = (
    "residual",
    "input",
    "query",
    "key",
    "value",
    "mask",
    "weights",
    "heads",
    "attention",
    "hidden",
    "feed_forward",
)


def block_values(config: ModelConfig, *, seed: int) -> dict[str, Values]:
    """Every step's name and its numbers, for the block of `config` at its small size."""
    small = small_config(config)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        block = build(small).double().last_stack[0]
        assert isinstance(block, Block)
        source = random.Random(seed)
        x = normal(source, (TOKENS, block.attention.width), 1.0, 0.0)
        set_parameters(block, source)
        values = computed(block, small, x[None])
    return {name: value.tolist() for name, value in values.items()}


def normal(source: random.Random, shape: tuple[int, ...], scale: float, mean: float) -> Tensor:
    """Independent normal numbers with two decimals."""
    numbers = [round(source.gauss(mean, scale), 2) + 0.0 for _ in range(math.prod(shape))]
    return torch.tensor(numbers, dtype=torch.float64).reshape(shape)


def set_parameters(block: Block, source: random.Random) -> None:
    """Matrices of scale 1/√inputs, gains near 1, biases near 0."""
    for name, parameter in block.named_parameters():
        shape = tuple(parameter.shape)
        is_gain = "residual" in name and name.endswith("weight")
        scale = 1 / math.sqrt(shape[1]) if len(shape) == 2 else 0.2
        parameter.copy_(normal(source, shape, scale, 1.0 if is_gain else 0.0))


def computed(block: Block, config: ModelConfig, x: Tensor) -> dict[str, Tensor]:
    """Parameters, what the block records, and what lies between."""
    form = config.last.block(0).attention
    at = torch.arange(x.shape[1])[None]
    place = place_for(form.positions, form.head_dim, form.heads, at, 0, causal=True)
    recorder = Recorder(RECORDED)
    output = block(x, BlockContext(place, record=recorder.at("decoder", 0)))
    kept = {name: recorder["decoder", 0, name] for name in RECORDED}
    mask = kept.pop("mask")
    between = (
        norm_values(block, kept),
        attention_values(block, kept, mask),
        feed_forward_values(block, kept),
        rotation_values(place) if isinstance(form.positions, Rotary) else {},
    )
    batched = {**kept, **{name: each for group in between for name, each in group.items()}}
    return {
        **parameters(block),
        **{name: value[0] for name, value in batched.items()},
        "block_output": output[0],
    }


def parameters(block: Block) -> dict[str, Tensor]:
    """Matrices as in the papers, x W: torch stores Wᵀ."""
    return {
        name: value.T if value.dim() == 2 else value for name, value in block.named_parameters()
    }


def norm_values(block: Block, kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """Z₁, the statistics of X and of Z₁, and what the feed-forward reads."""
    attended = kept["residual"] + kept["attention"]
    return {
        "attended": attended,
        **statistics("attention", kept["residual"], block),
        **statistics("feed_forward", attended, block),
        "feed_forward_input": block.feed_forward_residual.before(attended),
    }


def statistics(name: str, x: Tensor, block: Block) -> dict[str, Tensor]:
    """Mean and biased variance of each row, or its mean square."""
    if isinstance(block.attention_residual.before, RMSNormLayer):
        return {f"{name}_mean_square": x.square().mean(-1)}
    return {f"{name}_mean": x.mean(-1), f"{name}_variance": x.var(-1, unbiased=False)}


def attention_values(block: Block, kept: dict[str, Tensor], mask: Mask) -> dict[str, Tensor]:
    """Q, K and V before the split, scores before and after the mask, and the heads joined."""
    layer = block.attention
    query, key, value = layer.project(kept["input"], None)
    scores = attention_scores(kept["query"], kept["key"], layer.scoring(mask, None))
    allowed = mask.allowed()
    hidden = torch.zeros_like(scores[:, 0]).masked_fill(~allowed[:, 0], -math.inf)
    return {
        "query_joined": query,
        "key_joined": key,
        "value_joined": value,
        "scores": scores,
        "mask": hidden,
        "masked_scores": scores + hidden[:, None],
        "row_sums": kept["weights"].sum(-1),
        "concat": merge_heads(kept["heads"]),
    }


def feed_forward_values(block: Block, kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """The inner activations before the non-linearity."""
    layer = block.feed_forward
    x = block.feed_forward_residual.before(kept["residual"] + kept["attention"])
    gate = {} if layer.gate is None else {"gate": layer.gate(x)}
    return {**gate, "up": layer.up(x)}


def rotation_values(place: Place) -> dict[str, Tensor]:
    assert place.rotation is not None
    return {"rotation_cos": place.rotation.cos[:, 0], "rotation_sin": place.rotation.sin[:, 0]}
