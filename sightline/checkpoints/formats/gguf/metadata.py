"""A model's configuration as the metadata that llama.cpp needs."""

from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from sightline.config import (
    AttentionConfig,
    BlockConfig,
    LanguageHead,
    LayerNorm,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RelativeBias,
    RMSNorm,
    Rotary,
    StackConfig,
    YaRNScaling,
)
from sightline.errors import CheckpointError

LAYER_NORM = "attention.layer_norm_epsilon"
RMS_NORM = "attention.layer_norm_rms_epsilon"
MEAN_POOLING = 1  # as sentence embeddings use it


def metadata_for(architecture: str, config: ModelConfig) -> dict[str, Any]:
    """Integers, floats and booleans (or lists of them) by full name."""
    stack = config.encoder or config.last
    block = stack.block(stack.layers - 1)
    metadata = (
        _size_metadata(stack)
        | _norm_metadata(block)
        | _head_metadata(architecture, block.attention)
        | _rope_metadata(block.attention)
    )
    if architecture in ("bert", "modern-bert"):
        metadata |= {"attention.causal": False, "pooling_type": MEAN_POOLING}
    if architecture == "modern-bert":
        metadata |= _modernbert_metadata(stack)
    elif architecture == "gptneox":
        metadata["use_parallel_residual"] = block.parallel
    elif architecture == "phi3":
        metadata["attention.sliding_window"] = block.attention.window or 0
    elif architecture == "gemma2":
        metadata |= _gemma2_metadata(config, stack)
    elif architecture in ("t5", "t5encoder"):
        metadata |= _t5_metadata(config, block)
    return {f"{architecture}.{key}": value for key, value in metadata.items()}


def _size_metadata(stack: StackConfig) -> dict[str, Any]:
    block = stack.blocks[0]
    return {
        "block_count": stack.layers,
        "context_length": stack.max_positions,
        "embedding_length": stack.width,
        "feed_forward_length": block.feed_forward.hidden,
        "attention.head_count": block.attention.heads,
    }


def _norm_metadata(block: BlockConfig) -> dict[str, Any]:
    if isinstance(block.norm, LayerNorm):
        return {LAYER_NORM: block.norm.eps}
    return {RMS_NORM: block.norm.eps} if isinstance(block.norm, RMSNorm) else {}


def _head_metadata(architecture: str, attention: AttentionConfig) -> dict[str, Any]:
    """Head counts and sizes; the oldest architectures derive them from the width."""
    if architecture in ("gpt2", "bert", "gptneox", "modern-bert"):
        return {}
    metadata = {"attention.head_count_kv": attention.kv_heads}
    if architecture == "bloom":
        return metadata
    return metadata | {
        "attention.key_length": attention.head_dim,
        "attention.value_length": attention.head_dim,
    }


def _rope_metadata(attention: AttentionConfig) -> dict[str, Any]:
    """RoPE's base, its dimensions and its scaling; Llama 3's scaling is a tensor."""
    rotary = attention.positions
    if not isinstance(rotary, Rotary):
        return {}
    metadata: dict[str, Any] = {
        "rope.dimension_count": rotary.dim or attention.head_dim,
        "rope.freq_base": rotary.base,
    }
    scaling = rotary.scaling
    if isinstance(scaling, LinearScaling):
        metadata |= {"rope.scaling.type": "linear", "rope.scaling.factor": scaling.factor}
    elif isinstance(scaling, YaRNScaling):
        metadata |= {
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": scaling.factor,
            "rope.scaling.original_context_length": scaling.original_positions,
            "rope.scaling.yarn_beta_fast": scaling.beta_fast,
            "rope.scaling.yarn_beta_slow": scaling.beta_slow,
        }
    elif scaling is not None and not isinstance(scaling, Llama3Scaling):
        raise CheckpointError(
            f"rope scaling {type(scaling).__name__}", expected="linear, yarn or llama3 for GGUF"
        )
    return metadata


def _has_window(stack: StackConfig) -> list[bool]:
    """Which layers have a window."""
    return [stack.block(n).attention.window is not None for n in range(stack.layers)]


def _window_sizes(stack: StackConfig) -> list[int]:
    """The distinct window sizes."""
    return sorted(
        {block.attention.window for block in stack.blocks if block.attention.window is not None}
    )


def _modernbert_metadata(stack: StackConfig) -> dict[str, Any]:
    """A window spans half of `sliding_window` to each side. The pattern is every n-th layer with
    full attention, or one flag per layer."""
    sliding = _has_window(stack)
    windows = _window_sizes(stack)
    full = next((stack.block(n) for n, slides in enumerate(sliding) if not slides), stack.block(0))
    local = next((stack.block(n) for n, slides in enumerate(sliding) if slides), full)
    assert isinstance(full.attention.positions, Rotary)
    assert isinstance(local.attention.positions, Rotary)
    metadata: dict[str, Any] = {
        "rope.freq_base": full.attention.positions.base,
        "rope.freq_base_swa": local.attention.positions.base,
    }
    metadata["rope.scaling.type"] = "none"
    if not windows:
        return metadata
    every = next(
        (
            n
            for n in range(1, stack.layers + 1)
            if sliding == [layer % n != 0 for layer in range(stack.layers)]
        ),
        None,
    )
    return metadata | {
        "attention.sliding_window": 2 * (windows[0] - 1),
        "attention.sliding_window_pattern": every or sliding,
    }


def _gemma2_metadata(config: ModelConfig, stack: StackConfig) -> dict[str, Any]:
    """Where a key is absent, llama.cpp uses the soft-caps, window and pattern of the published
    models."""
    sliding = _has_window(stack)
    windows = _window_sizes(stack)
    metadata: dict[str, Any] = {}
    if windows:
        metadata["attention.sliding_window"] = windows[0]
    if sliding != [n % 2 == 0 for n in range(stack.layers)]:
        metadata["attention.sliding_window_pattern"] = sliding
    caps = {"attn_logit_softcapping": stack.blocks[0].attention.softcap}
    if isinstance(config.head, LanguageHead):
        caps["final_logit_softcapping"] = config.head.softcap
    return metadata | {name: cap for name, cap in caps.items() if cap is not None}


def _t5_metadata(config: ModelConfig, block: BlockConfig) -> dict[str, Any]:
    assert isinstance(block.attention.positions, RelativeBias)
    metadata = {
        LAYER_NORM: _norm_metadata(block)[RMS_NORM],
        "attention.relative_buckets_count": block.attention.positions.buckets,
    }
    return metadata | (
        {"decoder_block_count": config.decoder.layers} if config.decoder is not None else {}
    )


def check_round_trip(path: Path, written: ModelConfig, read: ModelConfig) -> None:
    """Refuse a model that would be read back differently because GGUF cannot express a part of
    it."""
    read_facts = _config_facts(read)
    for place, before in _config_facts(written).items():
        after = read_facts.get(place, "missing")
        if before != after:
            raise CheckpointError(
                f"{path}: GGUF cannot store that {place} is {before}: it would be read as {after}",
                expected="a model that llama.cpp knows",
                fix="write a Hugging Face folder instead",
            )


def _config_facts(config: ModelConfig) -> dict[str, Any]:
    """The settings that a forward pass depends on. Llama 3's scaling is left out: it is stored as a
    tensor."""
    facts: dict[str, Any] = {}
    for name, stack in config.stacks.items():
        norm = stack.final_norm
        embedding = stack.embedding
        facts |= {
            f"{name}'s final norm": norm,
            f"{name}'s embedding scale": embedding.scale,
            f"{name}'s embedding norm": embedding.norm,
        }
        facts |= {
            f"{name}'s {part}": getattr(stack, part)
            for part in ("width", "layers", "causal", "max_positions")
        }
        for n in range(stack.layers):
            facts |= {
                f"layer {n}'s {part} in the {name}": value
                for part, value in _block_facts(stack.block(n)).items()
            }
    if isinstance(config.head, LanguageHead):
        facts |= {
            f"the output's {part}": getattr(config.head, part)
            for part in ("tied", "bias", "scale", "softcap")
        }
    return facts


def _block_facts(block: BlockConfig) -> dict[str, Any]:
    facts: dict[str, Any] = {
        part: getattr(block, part) for part in ("norm", "placement", "parallel")
    }
    for name, layer in (
        ("attention", block.attention),
        ("cross-attention", block.cross_attention),
        ("feed-forward", block.feed_forward),
    ):
        if layer is not None:
            parts = [part.name for part in fields(layer) if part.name != "dropout"]
            facts |= {f"{name} {part.replace('_', ' ')}": getattr(layer, part) for part in parts}
    rotary = block.attention.positions
    if isinstance(rotary, Rotary) and isinstance(rotary.scaling, Llama3Scaling):
        facts["attention positions"] = replace(rotary, scaling=None)
    return facts
