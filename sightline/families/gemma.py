"""Gemma 1 and 2: Llama with gains stored as γ − 1, embeddings times √width, head_dim
independent of the width, a tanh-GELU gate.

Gemma 2 adds sandwich norms, soft-caps on scores and logits, another scale of the scores, and a
sliding window in every other layer.
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
from sightline.families.llama import llama_attention, llama_model, llama_weights, projection_rules
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, rename
from sightline.families.schema.shared import (
    ACTIVATIONS,
    causal_head_rules,
    decoder_classes,
    layer_windows,
)

# Defaults of missing keys. A key that is null stays null: no soft-cap.
GEMMA_DEFAULTS: dict[str, Any] = {
    "head_dim": 256,
    "max_position_embeddings": 8192,
    "num_key_value_heads": 16,
    "tie_word_embeddings": True,
}
GEMMA2_DEFAULTS: dict[str, Any] = GEMMA_DEFAULTS | {
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "query_pre_attn_scalar": 256,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
}


def gemma_config(keys: Keys, head: str) -> ModelConfig:
    """GemmaConfig. The first files have `gelu` for its tanh approximation."""
    keys.raw = {**GEMMA_DEFAULTS, **keys.raw}
    return _gemma_model(
        keys,
        head,
        _gemma_attention(keys),
        activation=_activation(keys, {**ACTIVATIONS, "gelu": "gelu_tanh"}),
    )


def gemma2_config(keys: Keys, head: str) -> ModelConfig:
    """Gemma2Config."""
    keys.raw = {**GEMMA2_DEFAULTS, **keys.raw}
    keys.ignore("cache_implementation", "sliding_window_size")
    if not keys.has("layer_types"):
        kinds = [
            ("sliding_attention", "full_attention")[n % 2]
            for n in range(keys.number("num_hidden_layers"))
        ]
        keys.raw = {**keys.raw, "layer_types": kinds}
    keys.number("sliding_window")  # transformers refuses null as well
    form = _gemma_attention(keys)
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
    config = _gemma_model(
        keys, head, form, activation=activation, placement="sandwich", windows=layer_windows(keys)
    )
    softcap = keys.real("final_logit_softcapping", default=None)
    return (
        replace(config, head=replace(config.head, softcap=softcap))
        if isinstance(config.head, LanguageHead)
        else config
    )


def _gemma_attention(keys: Keys) -> AttentionConfig:
    keys.only("use_bidirectional_attention", False)
    bias = keys.flag("attention_bias", default=False)
    return llama_attention(keys, bias=bias, output_bias=bias)


def _activation(keys: Keys, of_hidden_act: dict[str, Activation]) -> Activation:
    """`hidden_activation`, `hidden_act`, or both, if they agree."""
    tables: dict[str, dict[str, Activation]] = {
        "hidden_activation": ACTIVATIONS,
        "hidden_act": of_hidden_act,
    }
    activations: dict[str, Activation] = {
        name: keys.choice(name, of=table) for name, table in tables.items() if keys.has(name)
    }
    keys.ignore(*tables)
    if len(set(activations.values())) > 1:
        raise CheckpointError(
            f"{keys.where}: hidden_activation is {keys.raw['hidden_activation']!r}, hidden_act is"
            f" {keys.raw['hidden_act']!r}",
            expected="the same activation, or one of the two keys",
            fix="remove the wrong one",
        )
    return next(iter(activations.values())) if activations else "gelu_tanh"


def _gemma_model(
    keys: Keys,
    head: str,
    form: AttentionConfig,
    *,
    activation: Activation,
    placement: Placement = "pre",
    windows: list[int | None] | None = None,
) -> ModelConfig:
    """Llama's stack with Gemma's gains and embeddings."""
    config = llama_model(keys, head, form, windows=windows)
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
        *projection_rules(),
        rename(
            "layers.{n}.post_attention_layernorm.{p}", "decoder.{n}.attention_residual.inside.{p}"
        ),
        rename(
            "layers.{n}.pre_feedforward_layernorm.{p}",
            "decoder.{n}.feed_forward_residual.before.{p}",
        ),
        rename(
            "layers.{n}.post_feedforward_layernorm.{p}",
            "decoder.{n}.feed_forward_residual.inside.{p}",
        ),
        rename("norm.{p}", "decoder.norm.{p}"),
        *causal_head_rules(config, head),
    ]


GEMMA = Family(
    name="gemma",
    config=gemma_config,
    weights=llama_weights,
    prefix="model.",
    heads=decoder_classes("Gemma", without=("answers",)),
)
GEMMA2 = Family(
    name="gemma2",
    config=gemma2_config,
    weights=gemma2_weights,
    prefix="model.",
    heads=decoder_classes("Gemma2", without=("answers",)),
)
