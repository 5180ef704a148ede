"""GGUF's metadata as the keys of a config.json, and back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from sightline.errors import CheckpointError

CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertModel",
}
SIZES = {  # metadata after the architecture's name: the name in config.json (llama's, GPT-2's)
    "embedding_length": ("hidden_size", "n_embd"),
    "block_count": ("num_hidden_layers", "n_layer"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
}
SPECIAL_IDS = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}


class Metadata:
    """The metadata of one file, asked for by name and type."""

    def __init__(self, where: Path, values: Mapping[str, Any]) -> None:
        self.where, self.values = where, values
        self.architecture = self.text("general.architecture")
        if self.architecture not in CLASSES:
            raise CheckpointError(
                f"{where}: general.architecture is {self.architecture!r}",
                expected=f"one of {', '.join(CLASSES)}",
                fix="load the model's Hugging Face folder instead",
            )

    def text(self, key: str) -> str:
        """A string that must be there."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise CheckpointError(f"{self.where}: {key} is {'missing' if value is None else repr(value)[:60]}", expected="a string")
        return value

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer of this architecture; one number per layer is accepted when all are equal."""
        value = self.values.get(f"{self.architecture}.{key}", default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            seen = "missing" if value is None else repr(value)[:60]
            raise CheckpointError(f"{self.where}: {self.architecture}.{key} is {seen}", expected="one positive integer")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number; float32's 9.9999997e-06 is read as the 1e-05 that was meant."""
        value = self.values.get(f"{self.architecture}.{key}", default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            seen = "missing" if value is None else repr(value)[:60]
            raise CheckpointError(f"{self.where}: {self.architecture}.{key} is {seen}", expected="a finite number")
        return float(str(np.float32(value)))


def keys_of(metadata: Metadata, *, vocab_size: int, tied: bool, dtype: str) -> dict[str, Any]:
    """The keys that a config.json of this model would have."""
    kind = metadata.architecture
    keys: dict[str, Any] = {"model_type": kind, "architectures": [CLASSES[kind]]}
    for key, names in SIZES.items():
        keys[names[kind == "gpt2"]] = metadata.size(key)
    keys |= {"vocab_size": vocab_size, "tie_word_embeddings": tied, "torch_dtype": dtype}
    keys |= {"gpt2": _gpt2, "bert": _bert}.get(kind, _llama)(metadata)
    for name, key in SPECIAL_IDS.items():
        value = metadata.values.get(f"tokenizer.ggml.{key}")
        if isinstance(value, int) and 0 <= value < vocab_size:
            keys[name] = value
    return keys


def _gpt2(metadata: Metadata) -> dict[str, Any]:
    """What GPT-2 adds."""
    return {
        "layer_norm_epsilon": metadata.real("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }


def _bert(metadata: Metadata) -> dict[str, Any]:
    """What BERT adds; llama.cpp runs it bidirectionally with the exact GELU."""
    if metadata.values.get("bert.attention.causal", False) is not False:
        raise CheckpointError(f"{metadata.where}: bert.attention.causal is true", expected="false")
    return {"layer_norm_eps": metadata.real("attention.layer_norm_epsilon"), "hidden_act": "gelu", "position_embedding_type": "absolute"}


def _llama(metadata: Metadata) -> dict[str, Any]:
    """What Llama, Qwen2 and Qwen3 add."""
    heads, width = metadata.size("attention.head_count"), metadata.size("embedding_length")
    head_dim = metadata.size("attention.key_length", default=width // heads or None)
    for key in ("attention.value_length", "rope.dimension_count"):
        if (other := metadata.size(key, default=head_dim)) != head_dim:
            raise CheckpointError(f"{metadata.where}: {metadata.architecture}.{key} is {other}", expected=f"the head's {head_dim}")
    if repr(metadata.values.get(f"{metadata.architecture}.expert_count", 0)) != "0":
        raise CheckpointError(f"{metadata.where}: {metadata.architecture}.expert_count is set", expected="a model without experts")
    return {
        "num_key_value_heads": metadata.size("attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": metadata.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.real("rope.freq_base", default=10000.0),
        "rope_scaling": _scaling(metadata),
    }


def _scaling(metadata: Metadata) -> dict[str, Any] | None:
    """Linear or YaRN scaling of the rotary positions; Llama 3's is in a tensor, see `gguf_read`."""
    kind = metadata.values.get(f"{metadata.architecture}.rope.scaling.type", "none")
    if isinstance(kind, str) and kind == "none":
        return None
    if not isinstance(kind, str) or kind not in ("linear", "yarn"):
        key = f"{metadata.architecture}.rope.scaling.type"
        raise CheckpointError(f"{metadata.where}: {key} is {str(kind)[:60]!r}", expected="none, linear or yarn")
    scaling: dict[str, Any] = {"rope_type": kind, "factor": metadata.real("rope.scaling.factor", default=1.0)}
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = metadata.size("rope.scaling.original_context_length")
        for name in ("beta_fast", "beta_slow"):
            if f"{metadata.architecture}.rope.scaling.yarn_{name}" in metadata.values:
                scaling[name] = metadata.real(f"rope.scaling.yarn_{name}")
    return scaling


def metadata_of(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata that llama.cpp needs for a model with these config keys: integers, floats and booleans by full name."""
    kind = keys["model_type"]
    found: dict[str, Any] = {}
    for key, names in SIZES.items():
        if (value := keys.get(names[kind == "gpt2"])) is not None:
            found[key] = int(value)
    if kind == "gpt2":
        found.setdefault("feed_forward_length", 4 * found["embedding_length"])
        found["attention.layer_norm_epsilon"] = float(keys.get("layer_norm_epsilon", 1e-5))
    elif kind == "bert":
        found["attention.layer_norm_epsilon"] = float(keys.get("layer_norm_eps", 1e-12))
        found["attention.causal"] = False
        found["pooling_type"] = 1  # mean, as sentence embeddings use it
    else:
        found |= _llama_metadata(keys)
    return {f"{kind}.{key}": value for key, value in found.items()}


def rope_of(keys: Mapping[str, Any]) -> tuple[float, dict[str, Any] | None]:
    """The base and the scaling, from the old spelling (rope_theta, rope_scaling) or the new one (rope_parameters)."""
    parameters = dict(keys.get("rope_parameters") or {})
    theta = float(parameters.pop("rope_theta", None) or keys.get("rope_theta") or 10000.0)
    scaling = dict(keys.get("rope_scaling") or parameters)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    return theta, ({**scaling, "rope_type": kind} if kind != "default" else None)


def _llama_metadata(keys: Mapping[str, Any]) -> dict[str, Any]:
    """Heads, epsilon and rotary positions."""
    heads = int(keys["num_attention_heads"])
    head_dim = int(keys.get("head_dim") or keys["hidden_size"] // heads)
    theta, scaling = rope_of(keys)
    found: dict[str, Any] = {
        "attention.head_count_kv": int(keys.get("num_key_value_heads") or heads),
        "attention.key_length": head_dim,
        "attention.value_length": head_dim,
        "attention.layer_norm_rms_epsilon": float(keys.get("rms_norm_eps", 1e-6)),
        "rope.dimension_count": head_dim,
        "rope.freq_base": theta,
    }
    kind = scaling["rope_type"] if scaling else "none"
    if scaling and kind in ("linear", "yarn"):
        found |= {"rope.scaling.type": kind, "rope.scaling.factor": float(scaling["factor"])}
        if kind == "yarn":
            length = scaling.get("original_max_position_embeddings") or keys["max_position_embeddings"]
            found["rope.scaling.original_context_length"] = int(length)
            found |= {f"rope.scaling.yarn_{name}": float(scaling[name]) for name in ("beta_fast", "beta_slow") if name in scaling}
    elif kind not in ("none", "llama3"):
        raise CheckpointError(f"rope_scaling has the type {kind!r}", expected="linear, yarn or llama3 for GGUF")
    return found
