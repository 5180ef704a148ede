"""Gemma 1 and 2: Llama with gains stored as γ − 1, embeddings times √width, heads of any size, a
tanh-gelu gate.

Gemma 2 adds norms on both sides of each step, soft-caps on scores and logits, a scale of its own,
and a window in every other layer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from sightline.config import (
    Activation,
    AttentionConfig,
    Dot,
    LanguageHead,
    ModelConfig,
    Placement,
    RMSNorm,
)
from sightline.errors import CheckpointError
from sightline.families.llama import attention, model
from sightline.families.llama import weights as llama_weights
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, rename
from sightline.families.schema.shared import ACTIVATIONS, causal_head_rules, layer_windows

# What a key that is not there means. One that is null stays null: no soft-cap.
USUAL: dict[str, Any] = {
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 16,
    "tie_word_embeddings": True,
}
USUAL_2: dict[str, Any] = USUAL | {
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def gemma_config(keys: Keys, head: str) -> ModelConfig:
    """GemmaConfig. The first files said `gelu` and meant its tanh form."""
    keys.raw = {**USUAL, **keys.raw}
    return _model(
        keys,
        head,
        _attention(keys),
        activation=_activation(keys, {**ACTIVATIONS, "gelu": "gelu_tanh"}),
    )


def gemma2_config(keys: Keys, head: str) -> ModelConfig:
    """Gemma2Config."""
    keys.raw = {**USUAL_2, **keys.raw}
    keys.ignore("cache_implementation", "sliding_window_size")
    if not keys.has("layer_types"):
        kinds = [
            ("sliding_attention", "full_attention")[n % 2]
            for n in range(keys.number("num_hidden_layers"))
        ]
        keys.raw = {**keys.raw, "layer_types": kinds}
    keys.number("sliding_window")  # transformers refuses null as well
    form = _attention(keys)
    scalar = keys.real("query_pre_attn_scalar")
    if scalar <= 0:
        seen = f"{keys.where}: query_pre_attn_scalar is {scalar:g}"
        raise CheckpointError(
            seen,
            expected="a number above 0: scores are divided by its root",
            fix="correct config.json",
        )
    form = replace(
        form,
        kind=Dot(scale=None if scalar == form.head_dim else scalar**-0.5),
        softcap=keys.real("attn_logit_softcapping", default=None),
    )
    activation = _activation(keys, ACTIVATIONS)
    config = _model(
        keys, head, form, activation=activation, placement="sandwich", windows=layer_windows(keys)
    )
    softcap = keys.real("final_logit_softcapping", default=None)
    return (
        replace(config, head=replace(config.head, softcap=softcap))
        if isinstance(config.head, LanguageHead)
        else config
    )


def _attention(keys: Keys) -> AttentionConfig:
    keys.only("use_bidirectional_attention", False)
    bias = keys.flag("attention_bias", default=False)
    return attention(keys, bias=bias, output_bias=bias)


def _activation(keys: Keys, of_hidden_act: dict[str, Activation]) -> Activation:
    """`hidden_activation`, `hidden_act`, or both, if they agree."""
    tables: dict[str, dict[str, Activation]] = {
        "hidden_activation": ACTIVATIONS,
        "hidden_act": of_hidden_act,
    }
    said: dict[str, Activation] = {
        name: keys.choice(name, of=table) for name, table in tables.items() if keys.has(name)
    }
    keys.ignore(*tables)
    if len(set(said.values())) > 1:
        raise CheckpointError(
            f"{keys.where}: hidden_activation is {keys.raw['hidden_activation']!r}, hidden_act is"
            f" {keys.raw['hidden_act']!r}",
            expected="the same activation, or one of the two keys",
            fix="remove the one that is not meant",
        )
    return next(iter(said.values())) if said else "gelu_tanh"


def _model(
    keys: Keys,
    head: str,
    form: AttentionConfig,
    *,
    activation: Activation,
    placement: Placement = "pre",
    windows: list[int | None] | None = None,
) -> ModelConfig:
    """Llama's stack with Gemma's gains and embeddings."""
    config = model(keys, head, form, windows=windows)
    stack = config.decoder
    norm = RMSNorm(eps=keys.real("rms_norm_eps", default=1e-6), plus_one=True)
    assert stack is not None
    feed_forward = replace(stack.blocks[0].feed_forward, activation=activation)
    blocks = tuple(
        replace(block, feed_forward=feed_forward, norm=norm, placement=placement)
        for block in stack.blocks
    )
    embedding = replace(stack.embedding, scale=math.sqrt(stack.width))
    return replace(
        config, decoder=replace(stack, embedding=embedding, blocks=blocks, final_norm=norm)
    )


def gemma2_weights(config: ModelConfig, head: str) -> list[Rule]:
    """Llama's names, with two norms around each step."""
    return [
        rename("embed_tokens.weight", "decoder.embedding.tokens.weight"),
        rename("layers.{n}.input_layernorm.{p}", "decoder.{n}.attention_residual.before.{p}"),
        rename("layers.{n}.self_attn.q_proj.{p}", "decoder.{n}.attention.query.{p}"),
        rename("layers.{n}.self_attn.k_proj.{p}", "decoder.{n}.attention.key.{p}"),
        rename("layers.{n}.self_attn.v_proj.{p}", "decoder.{n}.attention.value.{p}"),
        rename("layers.{n}.self_attn.o_proj.{p}", "decoder.{n}.attention.output.{p}"),
        rename(
            "layers.{n}.post_attention_layernorm.{p}", "decoder.{n}.attention_residual.inside.{p}"
        ),
        rename(
            "layers.{n}.pre_feedforward_layernorm.{p}",
            "decoder.{n}.feed_forward_residual.before.{p}",
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
    ]


def _classes(name: str) -> dict[str, str]:
    return {
        f"{name}ForCausalLM": "language",
        f"{name}Model": "none",
        f"{name}ForSequenceClassification": "sequence",
        f"{name}ForTokenClassification": "tokens",
    }


GEMMA = Family(
    name="gemma",
    config=gemma_config,
    weights=llama_weights,
    prefix="model.",
    heads=_classes("Gemma"),
)
GEMMA2 = Family(
    name="gemma2",
    config=gemma2_config,
    weights=gemma2_weights,
    prefix="model.",
    heads=_classes("Gemma2"),
)
