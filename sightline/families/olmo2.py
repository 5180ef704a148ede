"""OLMo 2: Llama with the norms on what each step adds (`x + norm(f(x))`) and QK-norm over all heads
together."""

from __future__ import annotations

from dataclasses import replace

from sightline.config import HeadNorm, ModelConfig, RMSNorm
from sightline.families.llama import attention, model
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, rename
from sightline.families.schema.shared import causal_head_rules


def config(keys: Keys, head: str) -> ModelConfig:
    """Olmo2Config."""
    keys.raw = {"rms_norm_eps": 1e-5, **keys.raw}
    bias = keys.flag("attention_bias", default=False)
    norm = RMSNorm(eps=keys.real("rms_norm_eps"))
    form = attention(
        keys, bias=bias, output_bias=bias, query_key_norm=HeadNorm(norm=norm, per_head=False)
    )
    config = model(keys, head, form)
    stack = config.decoder
    assert stack is not None
    return replace(
        config, decoder=replace(stack, blocks=(replace(stack.blocks[0], placement="output"),))
    )


def weights(config: ModelConfig, head: str) -> list[Rule]:
    """Llama's names; `post_attention_layernorm` stands where it says."""
    return [
        rename("embed_tokens.weight", "decoder.embedding.tokens.weight"),
        rename("layers.{n}.self_attn.q_proj.{p}", "decoder.{n}.attention.query.{p}"),
        rename("layers.{n}.self_attn.k_proj.{p}", "decoder.{n}.attention.key.{p}"),
        rename("layers.{n}.self_attn.v_proj.{p}", "decoder.{n}.attention.value.{p}"),
        rename("layers.{n}.self_attn.o_proj.{p}", "decoder.{n}.attention.output.{p}"),
        rename("layers.{n}.self_attn.q_norm.{p}", "decoder.{n}.attention.query_norm.{p}"),
        rename("layers.{n}.self_attn.k_norm.{p}", "decoder.{n}.attention.key_norm.{p}"),
        rename(
            "layers.{n}.post_attention_layernorm.{p}", "decoder.{n}.attention_residual.inside.{p}"
        ),
        rename("layers.{n}.mlp.gate_proj.{p}", "decoder.{n}.feed_forward.gate.{p}"),
        rename("layers.{n}.mlp.up_proj.{p}", "decoder.{n}.feed_forward.up.{p}"),
        rename("layers.{n}.mlp.down_proj.{p}", "decoder.{n}.feed_forward.down.{p}"),
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
    config=config,
    weights=weights,
    prefix="model.",
    heads={
        "Olmo2ForCausalLM": "language",
        "Olmo2Model": "none",
        "Olmo2ForSequenceClassification": "sequence",
    },
)
