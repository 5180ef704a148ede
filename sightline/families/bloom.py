"""BLOOM: ALiBi, a LayerNorm on the embeddings, q, k and v interleaved per head."""

from __future__ import annotations

from sightline.config import (
    ALiBi,
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
from sightline.families.schema.rules import Rule, interleave, qkv_names, rename
from sightline.families.schema.shared import causal_head_rules, causal_model, decoder_classes


def bloom_config(keys: Keys, head: str) -> ModelConfig:
    """BloomConfig. ALiBi has no maximum length; `seq_length` is the training length."""
    width = keys.number("n_embed", "hidden_size")
    count = keys.number("n_head", "num_attention_heads")
    keys.only("apply_residual_connection_post_layernorm", False)
    keys.only("n_inner", 4 * width)
    keys.ignore(
        "pretraining_tp", "slow_but_exact", "unk_token_id"
    )  # how Megatron's slices were summed
    keys.ignore(
        "attention_softmax_in_fp32",
        "bias_dropout_fusion",
        "masked_softmax_fusion",
        "offset_alibi",
        "skip_bias_add",
        "skip_bias_add_qkv",
    )
    norm = LayerNorm(eps=keys.real("layer_norm_epsilon", default=1e-5))
    attention = AttentionConfig(
        heads=count,
        kv_heads=count,
        head_dim=width // count,
        positions=ALiBi(),
        dropout=keys.real("attention_dropout", default=0.0),
    )
    block = BlockConfig(
        attention=attention,
        feed_forward=FeedForwardConfig(hidden=4 * width, activation="gelu_tanh"),
        norm=norm,
        dropout=keys.real("hidden_dropout", default=0.0),
    )
    stack = StackConfig(
        width=width,
        layers=keys.number("n_layer", "num_hidden_layers"),
        causal=True,
        max_positions=keys.number("seq_length", default=2048),
        embedding=EmbeddingConfig(vocab_size=keys.number("vocab_size"), norm=norm),
        blocks=(block,),
        final_norm=norm,
    )
    return causal_model(keys, head, stack, tied=True)


def bloom_weights(config: ModelConfig, head: str) -> list[Rule]:
    """`h.3.self_attention.query_key_value.weight` → `decoder.3.attention.query.weight`, …"""
    assert config.decoder is not None
    count = config.decoder.blocks[0].attention.heads
    return [
        rename("word_embeddings.weight", "decoder.embedding.tokens.weight"),
        rename("word_embeddings_layernorm.{p}", "decoder.embedding.norm.{p}"),
        rename("h.{n}.input_layernorm.{p}", "decoder.{n}.attention_residual.before.{p}"),
        interleave(
            "h.{n}.self_attention.query_key_value.{p}",
            *qkv_names("decoder.{n}.attention"),
            heads=count,
        ),
        rename("h.{n}.self_attention.dense.{p}", "decoder.{n}.attention.output.{p}"),
        rename(
            "h.{n}.post_attention_layernorm.{p}", "decoder.{n}.feed_forward_residual.before.{p}"
        ),
        rename("h.{n}.mlp.dense_h_to_4h.{p}", "decoder.{n}.feed_forward.up.{p}"),
        rename("h.{n}.mlp.dense_4h_to_h.{p}", "decoder.{n}.feed_forward.down.{p}"),
        rename("ln_f.{p}", "decoder.norm.{p}"),
        *causal_head_rules(config, head, tokens="classifier"),
    ]


BLOOM = Family(
    name="bloom",
    config=bloom_config,
    weights=bloom_weights,
    prefix="transformer.",
    heads=decoder_classes("Bloom"),
)
