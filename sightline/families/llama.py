"""Llama 1, 2, 3.x, and the families that differ from it by a key or two: Mistral, Qwen 2 and 3.

RoPE, RMSNorm, SwiGLU, grouped-query attention, no biases.
"""

from __future__ import annotations

from dataclasses import replace

from sightline.config import (
    AttentionConfig,
    BlockConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadNorm,
    ModelConfig,
    RMSNorm,
    StackConfig,
)
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, rename
from sightline.families.schema.shared import (
    ACTIVATIONS,
    causal_head_rules,
    causal_model,
    decoder_classes,
    layer_windows,
    rotary,
)


def llama_attention(
    keys: Keys,
    *,
    bias: bool,
    output_bias: bool,
    query_key_norm: HeadNorm | None = None,
    fraction: float | None = None,
) -> AttentionConfig:
    """Grouped-query attention with RoPE."""
    width = keys.number("hidden_size")
    count = keys.number("num_attention_heads")
    head_dim = keys.number("head_dim", default=width // count)
    positions = rotary(
        keys,
        head_dim=head_dim,
        max_positions=keys.number("max_position_embeddings", default=2048),
        fraction=fraction,
    )
    return AttentionConfig(
        heads=count,
        kv_heads=keys.number("num_key_value_heads", default=count),
        head_dim=head_dim,
        positions=positions,
        query_key_norm=query_key_norm,
        bias=bias,
        output_bias=output_bias,
        dropout=keys.real("attention_dropout", default=0.0),
    )


def llama_model(
    keys: Keys,
    head: str,
    form: AttentionConfig,
    *,
    feed_forward_bias: bool = False,
    windows: list[int | None] | None = None,
) -> ModelConfig:
    """The model around this attention."""
    norm = RMSNorm(eps=keys.real("rms_norm_eps", default=1e-6))
    feed_forward = FeedForwardConfig(
        hidden=keys.number("intermediate_size"),
        activation=keys.choice("hidden_act", of=ACTIVATIONS, default="silu"),
        gated=True,
        bias=feed_forward_bias,
    )
    block = BlockConfig(attention=form, feed_forward=feed_forward, norm=norm)
    blocks = [
        replace(block, attention=replace(form, window=window)) for window in windows or [None]
    ]
    stack = StackConfig(
        width=keys.number("hidden_size"),
        layers=keys.number("num_hidden_layers"),
        causal=True,
        max_positions=keys.number("max_position_embeddings", default=2048),
        embedding=EmbeddingConfig(vocab_size=keys.number("vocab_size")),
        blocks=tuple(blocks),
        final_norm=norm,
    )
    return causal_model(keys, head, stack, tied=False)


def llama_config(keys: Keys, head: str) -> ModelConfig:
    """LlamaConfig."""
    keys.only("pretraining_tp", 1)
    keys.ignore("hidden_dropout")  # some files have it; the reference does not read it either
    bias = keys.flag("attention_bias", default=False)
    return llama_model(
        keys,
        head,
        llama_attention(keys, bias=bias, output_bias=bias),
        feed_forward_bias=keys.flag("mlp_bias", default=False),
    )


def mistral_config(keys: Keys, head: str) -> ModelConfig:
    """MistralConfig: Llama with a sliding window."""
    window = keys.number("sliding_window", default=None)
    return llama_model(
        keys, head, llama_attention(keys, bias=False, output_bias=False), windows=[window]
    )


def qwen2_config(keys: Keys, head: str) -> ModelConfig:
    """Qwen2Config: biases on q, k and v; a sliding window in the later layers if enabled."""
    keys.ignore("attention_bias")  # left over from Llama in some files; the biases always exist
    return llama_model(
        keys, head, llama_attention(keys, bias=True, output_bias=False), windows=layer_windows(keys)
    )


def qwen3_config(keys: Keys, head: str) -> ModelConfig:
    """Qwen3Config: QK-norm per head."""
    bias = keys.flag("attention_bias", default=False)
    norm = HeadNorm(norm=RMSNorm(eps=keys.real("rms_norm_eps", default=1e-6)))
    if not keys.has("head_dim"):
        keys.raw = {**keys.raw, "head_dim": 128}
    return llama_model(
        keys,
        head,
        llama_attention(keys, bias=bias, output_bias=bias, query_key_norm=norm),
        windows=layer_windows(keys),
    )


def projection_rules() -> list[Rule]:
    """The projections of attention and feed-forward, under Llama's names."""
    return [
        rename("layers.{n}.self_attn.q_proj.{p}", "decoder.{n}.attention.query.{p}"),
        rename("layers.{n}.self_attn.k_proj.{p}", "decoder.{n}.attention.key.{p}"),
        rename("layers.{n}.self_attn.v_proj.{p}", "decoder.{n}.attention.value.{p}"),
        rename("layers.{n}.self_attn.o_proj.{p}", "decoder.{n}.attention.output.{p}"),
        rename("layers.{n}.mlp.gate_proj.{p}", "decoder.{n}.feed_forward.gate.{p}"),
        rename("layers.{n}.mlp.up_proj.{p}", "decoder.{n}.feed_forward.up.{p}"),
        rename("layers.{n}.mlp.down_proj.{p}", "decoder.{n}.feed_forward.down.{p}"),
    ]


def llama_weights(config: ModelConfig, head: str) -> list[Rule]:
    """`layers.3.self_attn.q_proj.weight` → `decoder.3.attention.query.weight`, …"""
    return [
        rename("embed_tokens.weight", "decoder.embedding.tokens.weight"),
        rename("layers.{n}.input_layernorm.{p}", "decoder.{n}.attention_residual.before.{p}"),
        *projection_rules(),
        rename("layers.{n}.self_attn.q_norm.{p}", "decoder.{n}.attention.query_norm.norm.{p}"),
        rename("layers.{n}.self_attn.k_norm.{p}", "decoder.{n}.attention.key_norm.norm.{p}"),
        rename(
            "layers.{n}.post_attention_layernorm.{p}",
            "decoder.{n}.feed_forward_residual.before.{p}",
        ),
        rename("norm.{p}", "decoder.norm.{p}"),
        *causal_head_rules(config, head),
        ignore(
            "layers.{n}.self_attn.rotary_emb.inv_freq",
            because="RoPE's frequencies, which follow from the configuration",
        ),
    ]


ANSWERS = {
    "answers": "transformer."
}  # Hugging Face's prefix of the body for this head of these families
LLAMA = Family(
    name="llama",
    config=llama_config,
    weights=llama_weights,
    prefix="model.",
    prefixes=ANSWERS,
    heads=decoder_classes("Llama"),
)
MISTRAL = Family(
    name="mistral",
    config=mistral_config,
    weights=llama_weights,
    prefix="model.",
    heads=decoder_classes("Mistral"),
)
QWEN2 = Family(
    name="qwen2",
    config=qwen2_config,
    weights=llama_weights,
    prefix="model.",
    prefixes=ANSWERS,
    heads=decoder_classes("Qwen2"),
)
QWEN3 = Family(
    name="qwen3",
    config=qwen3_config,
    weights=llama_weights,
    prefix="model.",
    prefixes=ANSWERS,
    heads=decoder_classes("Qwen3"),
)
