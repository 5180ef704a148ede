"""OLMo 2: Llama with norms on the outputs (`x + norm(f(x))`) and QK-norm over all heads
together."""

from __future__ import annotations

from dataclasses import replace

from sightline.config import HeadNorm, ModelConfig, RMSNorm
from sightline.families.llama import llama_attention, llama_model, projection_rules
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, rename
from sightline.families.schema.shared import causal_head_rules, decoder_classes


def olmo2_config(keys: Keys, head: str) -> ModelConfig:
    """Olmo2Config."""
    keys.raw = {"rms_norm_eps": 1e-5, **keys.raw}
    bias = keys.flag("attention_bias", default=False)
    norm = RMSNorm(eps=keys.real("rms_norm_eps"))
    form = llama_attention(
        keys, bias=bias, output_bias=bias, query_key_norm=HeadNorm(norm=norm, per_head=False)
    )
    config = llama_model(keys, head, form)
    stack = config.decoder
    assert stack is not None
    return replace(
        config, decoder=replace(stack, blocks=(replace(stack.blocks[0], placement="output"),))
    )


def olmo2_weights(config: ModelConfig, head: str) -> list[Rule]:
    """Llama's names; `post_attention_layernorm` is applied to attention's output."""
    return [
        rename("embed_tokens.weight", "decoder.embedding.tokens.weight"),
        *projection_rules(),
        rename("layers.{n}.self_attn.q_norm.{p}", "decoder.{n}.attention.query_norm.{p}"),
        rename("layers.{n}.self_attn.k_norm.{p}", "decoder.{n}.attention.key_norm.{p}"),
        rename(
            "layers.{n}.post_attention_layernorm.{p}", "decoder.{n}.attention_residual.inside.{p}"
        ),
        rename(
            "layers.{n}.post_feedforward_layernorm.{p}",
            "decoder.{n}.feed_forward_residual.inside.{p}",
        ),
        rename("norm.{p}", "decoder.norm.{p}"),
        *causal_head_rules(config, head),
        ignore(
            "layers.{n}.self_attn.rotary_emb.inv_freq",
            because="RoPE's frequencies, which follow from the configuration",
        ),
    ]


OLMO2 = Family(
    name="olmo2",
    config=olmo2_config,
    weights=olmo2_weights,
    prefix="model.",
    heads=decoder_classes("Olmo2", without=("tokens", "answers")),
)
