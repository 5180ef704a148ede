"""Phi-3 and Phi-4: Llama with one matrix for q, k and v, one for gate and up, and a sliding
window in all layers or none."""

from __future__ import annotations

from dataclasses import replace

from sightline.config import ModelConfig
from sightline.errors import CheckpointError
from sightline.families.llama import llama_attention, llama_model
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, qkv_names, rename, split
from sightline.families.schema.shared import causal_head_rules, decoder_classes


def phi3_config(keys: Keys, head: str) -> ModelConfig:
    """Phi3Config."""
    keys.raw = {"rms_norm_eps": 1e-5, "max_position_embeddings": 4096, **keys.raw}
    for name in ("attention_bias", "mlp_bias", "lm_head_bias"):
        keys.only(name, False)
    _refuse_scaling(keys)
    keys.ignore("embd_pdrop")  # read and never applied
    form = llama_attention(keys, bias=False, output_bias=False, fraction=1.0)
    config = llama_model(keys, head, form, windows=[keys.number("sliding_window", default=None)])
    stack = config.decoder
    assert stack is not None
    block = replace(stack.blocks[0], dropout=keys.real("resid_pdrop", default=0.0))
    return replace(config, decoder=replace(stack, blocks=(block,)))


def _refuse_scaling(keys: Keys) -> None:
    """The long checkpoints (128k) have LongRoPE, which older files also call `su` or `yarn`."""
    table = keys.table("rope_scaling") or keys.table("rope_parameters") or {}
    kind = table.get("rope_type") or table.get("type") or "default"
    if kind != "default":
        raise CheckpointError(
            f"{keys.where}: rope type {kind!r} is not supported: LongRoPE scales long texts"
            " differently from short ones",
            expected="'default', as in the 4k checkpoints",
            fix=(
                "use a checkpoint without rope scaling, such as microsoft/Phi-3-mini-4k-instruct or"
                " microsoft/phi-4"
            ),
        )


def phi3_weights(config: ModelConfig, head: str) -> list[Rule]:
    """`layers.3.self_attn.qkv_proj.weight` → `decoder.3.attention.query.weight`, …"""
    assert config.decoder is not None
    block = config.decoder.blocks[0]
    query_dim = block.attention.heads * block.attention.head_dim
    key_dim = block.attention.kv_heads * block.attention.head_dim
    hidden = block.feed_forward.hidden
    gate_and_up = ("decoder.{n}.feed_forward.gate.{p}", "decoder.{n}.feed_forward.up.{p}")
    return [
        rename("embed_tokens.weight", "decoder.embedding.tokens.weight"),
        rename("layers.{n}.input_layernorm.{p}", "decoder.{n}.attention_residual.before.{p}"),
        split(
            "layers.{n}.self_attn.qkv_proj.{p}",
            *qkv_names("decoder.{n}.attention"),
            sizes=(query_dim, key_dim, key_dim),
        ),
        rename("layers.{n}.self_attn.o_proj.{p}", "decoder.{n}.attention.output.{p}"),
        rename(
            "layers.{n}.post_attention_layernorm.{p}",
            "decoder.{n}.feed_forward_residual.before.{p}",
        ),
        split("layers.{n}.mlp.gate_up_proj.{p}", *gate_and_up, sizes=(hidden, hidden)),
        rename("layers.{n}.mlp.down_proj.{p}", "decoder.{n}.feed_forward.down.{p}"),
        rename("norm.{p}", "decoder.norm.{p}"),
        *causal_head_rules(config, head),
        ignore(
            "layers.{n}.self_attn.rotary_emb.inv_freq",
            because="RoPE's frequencies, which follow from the configuration",
        ),
    ]


PHI3 = Family(
    name="phi3",
    config=phi3_config,
    weights=phi3_weights,
    prefix="model.",
    heads=decoder_classes("Phi3", without=("answers",)),
)
