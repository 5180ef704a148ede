"""The floating-point operations of a step: the numerator of `mfu`.

    6 for each number of a matrix and each token that meets it: 2 forward, 2 for the gradient of its
    input, 2 for its own 12 · heads · head_dim · context for each layer and token: attention's two
    products

An embedding lookup costs nothing; the product with it in a tied head counts at the positions that
have targets. A frozen matrix has no gradient: 4. Masked pairs count (as in Chowdhery et al. 2022),
recomputed activations do not.
"""

from __future__ import annotations

from torch import nn

from sightline.config import AttentionConfig, LanguageHead, MaskedHead
from sightline.core.model import Transformer
from sightline.core.multi_head import Attention
from sightline.core.output import Unembedding
from sightline.core.stack import Stack
from sightline.training.data.batch import IGNORED, Batch


def step_flops(transformer: Transformer, batch: Batch) -> float:
    """Forward and backward over a batch; padding counts like real tokens."""
    rows, time = batch.tokens.shape
    if transformer.encoder is None or transformer.decoder is None:
        return stack_flops(transformer.last_stack, rows, time) + head_flops(transformer, batch)
    assert batch.source is not None
    source = batch.source.shape[1]
    both = stack_flops(transformer.encoder, rows, source) + stack_flops(
        transformer.decoder, rows, time, source
    )
    return both + head_flops(transformer, batch)


def stack_flops(stack: Stack, rows: int, time: int, source: int = 0) -> float:
    """All blocks. Cross-attention's keys and values are computed from the source."""
    total = 0.0
    for n in range(stack.config.layers):
        block = stack[n]
        config = stack.config.block(n)
        cross = getattr(block, "cross_attention", None)
        read = products(cross.key, cross.value) if isinstance(cross, Attention) else 0.0
        total += rows * (time * (products(block) - read) + source * read)
        total += (
            rows * time * looked_at(config.attention, min(time, config.attention.window or time))
        )
        if config.cross_attention is not None:
            total += rows * time * looked_at(config.cross_attention, source)
    return total


def looked_at(attention: AttentionConfig, context: int) -> float:
    """Scores and weighted sums of values, per token with `context` keys."""
    return 6 * attention.heads * (attention.head_dim + attention.value_width) * context


def head_flops(transformer: Transformer, batch: Batch) -> float:
    """The head's matrices, or the tied embedding, at the positions with targets."""
    output = transformer.output
    if output is None:
        return 0.0
    targets = int((batch.targets != IGNORED).sum())
    weights = products(output)
    for part in output.modules():
        if isinstance(part, Unembedding):
            table = (
                transformer.last_stack.embedding.tokens.weight
                if part.weight is None
                else part.weight
            )
            weights += table.numel() * (6 if table.requires_grad else 4)
    language = isinstance(transformer.config.head, (LanguageHead, MaskedHead))
    return (targets if language else batch.targets.numel()) * weights


def products(*modules: nn.Module) -> float:
    """FLOPs per token that passes these matrices."""
    matrices = [
        part.weight
        for module in modules
        for part in module.modules()
        if isinstance(part, nn.Linear)
    ]
    return float(sum(weight.numel() * (6 if weight.requires_grad else 4) for weight in matrices))
