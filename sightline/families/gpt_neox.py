"""GPT-NeoX and Pythia: RoPE on a part of each head, parallel attention and feed-forward, q, k and
v interleaved per head."""

from __future__ import annotations

from sightline.config import (
    AttentionConfig,
    BlockConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerNorm,
    ModelConfig,
    StackConfig,
)
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, interleave, qkv_names, rename
from sightline.families.schema.shared import (
    ACTIVATIONS,
    causal_head_rules,
    causal_model,
    decoder_classes,
    rotary,
)


def gpt_neox_attention(keys: Keys, *, width: int, max_positions: int) -> AttentionConfig:
    """RoPE rotates the first `rotary_pct` of each head, a quarter by default."""
    count = keys.number("num_attention_heads")
    bias = keys.flag("attention_bias", default=True)
    positions = rotary(
        keys,
        head_dim=width // count,
        max_positions=max_positions,
        base=keys.real("rotary_emb_base", default=10000.0),
        fraction=keys.real("rotary_pct", default=0.25),
    )
    return AttentionConfig(
        heads=count,
        kv_heads=count,
        head_dim=width // count,
        positions=positions,
        bias=bias,
        output_bias=bias,
        dropout=keys.real("attention_dropout", default=0.0),
    )


def gpt_neox_config(keys: Keys, head: str) -> ModelConfig:
    """GPTNeoXConfig."""
    width = keys.number("hidden_size")
    max_positions = keys.number("max_position_embeddings", default=2048)
    norm = LayerNorm(eps=keys.real("layer_norm_eps", default=1e-5))
    dropout = keys.real("hidden_dropout", default=0.0)
    keys.ignore("is_decoder", "attention_probs_dropout_prob", "hidden_dropout_prob")
    block = BlockConfig(
        attention=gpt_neox_attention(keys, width=width, max_positions=max_positions),
        feed_forward=FeedForwardConfig(
            hidden=keys.number("intermediate_size"),
            activation=keys.choice("hidden_act", of=ACTIVATIONS, default="gelu"),
        ),
        norm=norm,
        parallel=keys.flag("use_parallel_residual", default=True),
        dropout=dropout,
    )
    stack = StackConfig(
        width=width,
        layers=keys.number("num_hidden_layers"),
        causal=True,
        max_positions=max_positions,
        embedding=EmbeddingConfig(vocab_size=keys.number("vocab_size"), dropout=dropout),
        blocks=(block,),
        final_norm=norm,
    )
    return causal_model(keys, head, stack, tied=False)


def gpt_neox_weights(config: ModelConfig, head: str) -> list[Rule]:
    """`layers.3.attention.query_key_value.weight` → `decoder.3.attention.query.weight`, …"""
    assert config.decoder is not None
    count = config.decoder.blocks[0].attention.heads
    return [
        rename("embed_in.weight", "decoder.embedding.tokens.weight"),
        rename("layers.{n}.input_layernorm.{p}", "decoder.{n}.attention_residual.before.{p}"),
        interleave(
            "layers.{n}.attention.query_key_value.{p}",
            *qkv_names("decoder.{n}.attention"),
            heads=count,
        ),
        rename("layers.{n}.attention.dense.{p}", "decoder.{n}.attention.output.{p}"),
        rename(
            "layers.{n}.post_attention_layernorm.{p}",
            "decoder.{n}.feed_forward_residual.before.{p}",
        ),
        rename("layers.{n}.mlp.dense_h_to_4h.{p}", "decoder.{n}.feed_forward.up.{p}"),
        rename("layers.{n}.mlp.dense_4h_to_h.{p}", "decoder.{n}.feed_forward.down.{p}"),
        rename("final_layer_norm.{p}", "decoder.norm.{p}"),
        *causal_head_rules(config, head, language="embed_out", tokens="classifier"),
        ignore("layers.{n}.attention.bias", because="the causal mask, which is a predicate here"),
        ignore(
            "layers.{n}.attention.masked_bias", because="the number that masked scores were set to"
        ),
        ignore(
            "layers.{n}.attention.rotary_emb.inv_freq",
            because="RoPE's frequencies, which follow from the configuration",
        ),
    ]


# Files have `embed_out`; transformers 5 calls it `lm_head` in memory and writes `embed_out` again.
GPT_NEOX = Family(
    name="gpt_neox",
    config=gpt_neox_config,
    weights=gpt_neox_weights,
    prefix="gpt_neox.",
    aliases={"lm_head.": "embed_out."},
    heads=decoder_classes("GPTNeoX"),
)
