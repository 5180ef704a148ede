"""Which blocks can be walked through, and the same block at a size that fits a page."""

from __future__ import annotations

from dataclasses import replace

from sightline.architectures import PUBLISHED, default_hidden
from sightline.config import BlockConfig, Dot, LayerNorm, ModelConfig, NoPosition, RMSNorm, Rotary
from sightline.errors import InputError

TOKENS = 4
WIDTH = 8
HEADS = 2
VOCABULARY = 8


def check_block(config: ModelConfig, name: str) -> None:
    """Refuse what is not a pre-norm decoder block with plain or rotary dot-product attention."""
    reason = difference(config)
    if reason:
        works = [each for each, make in PUBLISHED.items() if not difference(make())]
        raise InputError(
            f"--block does not show {name}, which has {reason}",
            expected=f"a pre-norm decoder: {', '.join(works)}",
            fix="sightline explain --block gpt2",
        )


def difference(config: ModelConfig) -> str:
    """What the walk does not show; nothing where it shows everything."""
    stack = config.decoder
    if stack is None or config.encoder is not None:
        return "an encoder"
    block = stack.block(0)
    form = block.attention
    rotates_all = not isinstance(form.positions, Rotary) or form.positions.dim in (
        None,
        form.head_dim,
    )
    checks = {
        f"the placement {block.placement!r}": block.placement == "pre",
        "parallel attention and feed-forward": not block.parallel,
        "layers of several kinds": len(stack.blocks) == 1,
        "a norm that is neither LayerNorm nor RMSNorm": has_norms(block),
        "attention other than q kᵀ / √d_k": form.kind == Dot(),
        "a bias on its scores": isinstance(form.positions, (NoPosition, Rotary)),
        "a rotation of a part of each head": rotates_all,
        "QK-norm": form.query_key_norm is None,
        "a sliding window": form.window is None,
        "a soft-cap": form.softcap is None,
        "attention sinks": not form.sinks,
    }
    return next((reason for reason, fits in checks.items() if not fits), "")


def has_norms(block: BlockConfig) -> bool:
    return isinstance(block.norm, (LayerNorm, RMSNorm)) and block.attention_norm is None


def small_config(config: ModelConfig) -> ModelConfig:
    """One layer of the same kind with d = 8, h = 2 and d_ff = 32 (24 with a gate)."""
    assert config.decoder is not None
    stack = config.decoder
    block = stack.block(0)
    form = block.attention
    size = WIDTH // HEADS
    kv_heads = HEADS if form.kv_heads == form.heads else 1
    attention = replace(
        form, heads=HEADS, kv_heads=kv_heads, head_dim=size, value_dim=None, dropout=0.0
    )
    if isinstance(form.positions, Rotary):
        attention = replace(attention, positions=replace(form.positions, dim=None))
    hidden = default_hidden(WIDTH, gated=block.feed_forward.gated)
    feed_forward = replace(block.feed_forward, hidden=hidden, dropout=0.0)
    small = replace(block, attention=attention, feed_forward=feed_forward, dropout=0.0)
    embedding = replace(stack.embedding, vocab_size=VOCABULARY, dropout=0.0)
    decoder = replace(
        stack, width=WIDTH, layers=1, max_positions=TOKENS, embedding=embedding, blocks=(small,)
    )
    return replace(config, decoder=decoder)
