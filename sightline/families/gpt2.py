"""GPT-2: learned positions, Pre-LN, GELU, one matrix for q, k and v, all matrices stored [in,
out]."""

from __future__ import annotations

from sightline.config import (
    AttentionConfig,
    BlockConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerNorm,
    Learned,
    ModelConfig,
    StackConfig,
)
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, qkv_names, rename, split
from sightline.families.schema.shared import ACTIVATIONS, causal_head_rules, causal_model


def gpt2_config(keys: Keys, head: str) -> ModelConfig:
    """GPT2Config."""
    width = keys.number("n_embd", "hidden_size")
    layers = keys.number("n_layer", "num_hidden_layers")
    count = keys.number("n_head", "num_attention_heads")
    norm = LayerNorm(eps=keys.real("layer_norm_epsilon", default=1e-5))
    keys.only("scale_attn_weights", True)
    keys.only("scale_attn_by_inverse_layer_idx", False)
    keys.ignore("reorder_and_upcast_attn", "n_ctx")
    hidden = keys.number("n_inner", default=4 * width)
    residual = keys.real("resid_pdrop", default=0.1)
    embedding = keys.real("embd_pdrop", default=0.1)
    block = BlockConfig(
        attention=AttentionConfig(
            heads=count,
            kv_heads=count,
            head_dim=width // count,
            dropout=keys.real("attn_pdrop", default=0.1),
        ),
        feed_forward=FeedForwardConfig(
            hidden=hidden,
            activation=keys.choice("activation_function", of=ACTIVATIONS, default="gelu_new"),
        ),
        norm=norm,
        dropout=residual,
    )
    stack = StackConfig(
        width=width,
        layers=layers,
        causal=True,
        max_positions=keys.number("n_positions", "max_position_embeddings", default=1024),
        embedding=EmbeddingConfig(
            vocab_size=keys.number("vocab_size"), positions=Learned(), dropout=embedding
        ),
        blocks=(block,),
        final_norm=norm,
    )
    return causal_model(keys, head, stack, tied=True)


def gpt2_weights(config: ModelConfig, head: str) -> list[Rule]:
    """`h.3.attn.c_attn.weight` → `decoder.3.attention.query.weight`, …"""
    assert config.decoder is not None
    width = config.decoder.width
    return [
        rename("wte.weight", "decoder.embedding.tokens.weight"),
        rename("wpe.weight", "decoder.embedding.positions.weight"),
        rename("h.{n}.ln_1.{p}", "decoder.{n}.attention_residual.before.{p}"),
        split(
            "h.{n}.attn.c_attn.{p}",
            *qkv_names("decoder.{n}.attention"),
            sizes=(width, width, width),
            transpose=True,
        ),
        rename("h.{n}.attn.c_proj.{p}", "decoder.{n}.attention.output.{p}", transpose=True),
        rename("h.{n}.ln_2.{p}", "decoder.{n}.feed_forward_residual.before.{p}"),
        rename("h.{n}.mlp.c_fc.{p}", "decoder.{n}.feed_forward.up.{p}", transpose=True),
        rename("h.{n}.mlp.c_proj.{p}", "decoder.{n}.feed_forward.down.{p}", transpose=True),
        rename("ln_f.{p}", "decoder.norm.{p}"),
        *causal_head_rules(config, head, tokens="classifier"),
        ignore("h.{n}.attn.bias", because="the causal mask, which is a predicate here"),
        ignore("h.{n}.attn.masked_bias", because="the number that masked scores were set to"),
    ]


GPT2 = Family(
    name="gpt2",
    config=gpt2_config,
    weights=gpt2_weights,
    prefix="transformer.",
    heads={
        "GPT2LMHeadModel": "language",
        "GPT2Model": "none",
        "GPT2ForSequenceClassification": "sequence",
        "GPT2ForTokenClassification": "tokens",
        "GPT2ForQuestionAnswering": "answers",
    },
)
