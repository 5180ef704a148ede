"""GGUF's metadata as the keys of a config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import numpy as np

from sightline.checkpoints.formats.gguf.names import ARCHITECTURES
from sightline.errors import CheckpointError, short_repr

# Metadata after the architecture's name, and its name in config.json.
SIZES = {
    "embedding_length": "hidden_size",
    "block_count": "num_hidden_layers",
    "attention.head_count": "num_attention_heads",
    "context_length": "max_position_embeddings",
    "feed_forward_length": "intermediate_size",
}
GPT2_SIZES = dict(
    zip(SIZES, ("n_embd", "n_layer", "n_head", "n_positions", "n_inner"), strict=True)
)
T5_SIZES = dict(
    zip(SIZES, ("d_model", "num_layers", "num_heads", "n_positions", "d_ff"), strict=True)
)
BLOOM_SIZES = dict(
    zip(SIZES, ("hidden_size", "n_layer", "n_head", "seq_length", "n_inner"), strict=True)
)
OTHER_SIZES = {"gpt2": GPT2_SIZES, "bloom": BLOOM_SIZES, "t5": T5_SIZES, "t5encoder": T5_SIZES}
SPECIAL_IDS = {
    "bos_token_id": "bos_token_id",
    "eos_token_id": "eos_token_id",
    "pad_token_id": "padding_token_id",
}
ENCODERS = ("bert", "modern-bert", "t5", "t5encoder")
# Keys that are not supported, with the values that have no effect.
UNSUPPORTED = {
    "expert_count": (0,),
    "logit_scale": (0, 1),
    "attention.scale": (0,),
    "attention.clamp_kqv": (0,),
    "rope.scaling.attn_factor": (1,),
}
GEMMA2_27B_LAYERS = (
    46  # by this number llama.cpp recognises the model whose scale is not 1/√head_dim
)


class GGUFMetadata:
    """The metadata of one file, with typed access by key."""

    def __init__(self, where: Path, values: Mapping[str, Any]) -> None:
        self.where = where
        self.values = values
        self.architecture = self.text("general.architecture")
        if self.architecture not in ARCHITECTURES:
            raise CheckpointError(
                f"{where}: general.architecture is {short_repr(self.architecture)}",
                expected=f"one of {', '.join(ARCHITECTURES)}",
                fix="load the model's Hugging Face folder instead",
            )

    def text(self, key: str) -> str:
        """A string that must be there."""
        value = self.values.get(key)
        if not isinstance(value, str):
            raise CheckpointError(
                f"{self.where}: {key} is {'missing' if value is None else short_repr(value)}",
                expected="a string",
            )
        return value

    def get(self, key: str, default: Any = None) -> Any:
        """The raw value of this architecture's key, or the default."""
        return self.values.get(f"{self.architecture}.{key}", default)

    def refuse(self, key: str, expected: str) -> CheckpointError:
        """The error about a value of this architecture."""
        value = self.get(key)
        seen = "missing" if value is None else short_repr(value)
        return CheckpointError(
            f"{self.where}: {self.architecture}.{key} is {seen}", expected=expected
        )

    def size(self, key: str, default: int | None = None) -> int:
        """A positive integer of this architecture; an array with one equal value per layer is
        accepted."""
        value = self.get(key, default)
        if isinstance(value, np.ndarray) and value.size and (value == value[0]).all():
            value = value[0].item()
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
            raise self.refuse(key, "one positive integer")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        """A finite number; float32's 9.9999997e-06 is read as the 1e-05 that was meant."""
        value = self.get(key, default)
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise self.refuse(key, "a finite number")
        return float(str(np.float32(value)))

    def flag(self, key: str, *, default: bool) -> bool:
        """True or false."""
        value = self.get(key, default)
        if not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return value

    def window(self) -> int | None:
        """The sliding window; 0 means that there is none."""
        value = self.get("attention.sliding_window", 0)
        unset = isinstance(value, int) and not isinstance(value, bool) and value == 0
        return None if unset else self.size("attention.sliding_window")


def config_keys(
    metadata: GGUFMetadata, *, vocab_size: int, dtype: str, tensors: Set[str]
) -> dict[str, Any]:
    """The keys that a config.json of this model would have; `tensors` are GGUF's names of what the
    file holds."""
    kind = metadata.architecture
    _check_supported(metadata)
    keys: dict[str, Any] = {
        "model_type": ARCHITECTURES[kind].family,
        "architectures": [ARCHITECTURES[kind].model_class],
    }
    for key, name in OTHER_SIZES.get(kind, SIZES).items():
        keys[name] = metadata.size(key)
    keys |= {
        "vocab_size": vocab_size,
        "tie_word_embeddings": "output.weight" not in tensors,
        "torch_dtype": dtype,
    }
    keys |= READERS[kind](metadata, tensors)
    for name, key in SPECIAL_IDS.items():
        value = metadata.values.get(f"tokenizer.ggml.{key}")
        if isinstance(value, int) and 0 <= value < vocab_size:
            keys[name] = value
    return keys


def _check_supported(metadata: GGUFMetadata) -> None:
    """Refuse keys that would change the result and are not supported."""
    for key, harmless in UNSUPPORTED.items():
        value = metadata.get(key)
        if value is not None and not any(
            repr(value) in (repr(number), repr(float(number))) for number in harmless
        ):
            raise CheckpointError(
                f"{metadata.where}: {metadata.architecture}.{key} is set",
                expected="a model without it",
            )
    causal = metadata.architecture not in ENCODERS
    if metadata.flag(
        "attention.causal", default=causal
    ) is not causal and metadata.architecture not in ("t5", "t5encoder"):
        raise metadata.refuse("attention.causal", str(causal).lower())


def _gpt2_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    return {
        "layer_norm_epsilon": metadata.real("attention.layer_norm_epsilon"),
        "activation_function": "gelu_new",
    }


def _bert_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    """BERT and similar encoders. GGUF does not store the activation; all published ones use exact
    GELU."""
    return {
        "layer_norm_eps": metadata.real("attention.layer_norm_epsilon"),
        "hidden_act": "gelu",
        "position_embedding_type": "absolute",
    }


def _modernbert_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    """ModernBERT. Without a window, all layers use full attention."""
    window = metadata.window()
    layers = metadata.size("block_count")
    base = metadata.real("rope.freq_base", default=10000.0)
    activation = metadata.get("hidden_activation", "gelu")
    if not isinstance(activation, str):
        raise metadata.refuse("hidden_activation", "a string")
    return {
        "norm_eps": metadata.real("attention.layer_norm_epsilon"),
        "hidden_activation": activation,
        "local_attention": window or 128,
        "layer_types": _layer_types(
            metadata, layers, [window is not None and n % 3 != 0 for n in range(layers)]
        ),
        "global_rope_theta": base,
        "local_rope_theta": metadata.real("rope.freq_base_swa", default=base),
    }


def _layer_types(metadata: GGUFMetadata, layers: int, usual: list[bool]) -> list[str]:
    """Which layers have a sliding window: one value per layer, every n-th, or the usual pattern."""
    key = "attention.sliding_window_pattern"
    value = metadata.get(key)
    if value is None or not any(usual):
        sliding = usual
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biu" and value.size == layers:
        sliding = [bool(flag) for flag in value]
    elif metadata.architecture == "modern-bert":
        every = metadata.size(key)
        sliding = [n % every != 0 for n in range(layers)]
    else:
        every = metadata.size(key)
        sliding = [n % every < every - 1 for n in range(layers)]
    return ["sliding_attention" if slides else "full_attention" for slides in sliding]


def _bloom_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    return {"layer_norm_epsilon": metadata.real("attention.layer_norm_epsilon")}


def _gpt_neox_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    head_dim = metadata.size("embedding_length") // metadata.size("attention.head_count") or None
    return {
        "hidden_act": "gelu",
        "layer_norm_eps": metadata.real("attention.layer_norm_epsilon"),
        "use_parallel_residual": metadata.flag("use_parallel_residual", default=True),
        "attention_bias": "blk.0.attn_qkv.bias" in tensors,
        "rotary_pct": _rotary_fraction(metadata, head_dim),
        "rotary_emb_base": metadata.real("rope.freq_base", default=10000.0),
        "rope_scaling": _rope_scaling(metadata),
    }


def _rotary_fraction(metadata: GGUFMetadata, head_dim: int | None) -> float:
    """The fraction of each head that RoPE rotates."""
    dim = metadata.size("rope.dimension_count", default=head_dim)
    if head_dim is None or dim > head_dim:
        raise metadata.refuse("rope.dimension_count", f"at most the head's {head_dim}")
    return dim / head_dim


def _rotary_keys(metadata: GGUFMetadata) -> dict[str, Any]:
    """Grouped-query attention with RoPE and RMSNorm: Llama and similar models."""
    heads = metadata.size("attention.head_count")
    width = metadata.size("embedding_length")
    head_dim = metadata.size("attention.key_length", default=width // heads or None)
    full_size_keys = (
        ("attention.value_length",)
        if metadata.architecture == "phi3"
        else ("attention.value_length", "rope.dimension_count")
    )
    for key in full_size_keys:
        if metadata.size(key, default=head_dim) != head_dim:
            raise metadata.refuse(key, f"the head's {head_dim}")
    return {
        "num_key_value_heads": metadata.size("attention.head_count_kv", default=heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": metadata.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": metadata.real("rope.freq_base", default=10000.0),
        "rope_scaling": _rope_scaling(metadata),
    }


def _llama_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    biases = {
        "attention_bias": "blk.0.attn_q.bias" in tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in tensors,
    }
    return _rotary_keys(metadata) | biases


def _qwen2_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    return _rotary_keys(metadata)


def _qwen3_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    return _rotary_keys(metadata) | {"attention_bias": "blk.0.attn_q.bias" in tensors}


def _olmo2_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    """OLMo 2. OLMo 3 has the same name in GGUF, and a window."""
    if metadata.window() is not None:
        raise metadata.refuse("attention.sliding_window", "none: OLMo 3 is not supported")
    return _rotary_keys(metadata)


def _phi3_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    keys = _rotary_keys(metadata)
    return keys | {
        "sliding_window": metadata.window(),
        "partial_rotary_factor": _rotary_fraction(metadata, keys["head_dim"]),
    }


def _gemma_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    keys = _rotary_keys(metadata) | {"hidden_activation": "gelu_pytorch_tanh"}
    del keys["hidden_act"]
    return keys


def _gemma2_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    """Gemma 2. GGUF does not hold the scores' scale: it is 1/√head_dim, except in the 27B model."""
    keys = _gemma_keys(metadata, tensors)
    layers = metadata.size("block_count")
    shared = metadata.size("embedding_length") // metadata.size("attention.head_count")
    return keys | {
        "query_pre_attn_scalar": shared if layers == GEMMA2_27B_LAYERS else keys["head_dim"],
        "attn_logit_softcapping": metadata.real("attn_logit_softcapping", default=50.0),
        "final_logit_softcapping": metadata.real("final_logit_softcapping", default=30.0),
        "sliding_window": metadata.size("attention.sliding_window", default=4096),
        "layer_types": _layer_types(metadata, layers, [n % 2 == 0 for n in range(layers)]),
    }


def _t5_keys(metadata: GGUFMetadata, tensors: Set[str]) -> dict[str, Any]:
    """T5. A gate means v1.1; a separate output layer means unscaled logits."""
    layers = metadata.size("block_count")
    start = metadata.get("decoder_start_token_id")
    return {
        "num_decoder_layers": metadata.size("decoder_block_count", default=layers),
        "d_kv": metadata.size("attention.key_length", default=64),
        "layer_norm_epsilon": metadata.real("attention.layer_norm_rms_epsilon"),
        "relative_attention_num_buckets": metadata.size("attention.relative_buckets_count"),
        "relative_attention_max_distance": 128,
        "feed_forward_proj": "gated-gelu" if "enc.blk.0.ffn_gate.weight" in tensors else "relu",
        "is_encoder_decoder": metadata.architecture == "t5",
        "decoder_start_token_id": start if isinstance(start, int) else 0,
    }


READERS = {
    "llama": _llama_keys,
    "qwen2": _qwen2_keys,
    "qwen3": _qwen3_keys,
    "gemma": _gemma_keys,
    "gemma2": _gemma2_keys,
    "olmo2": _olmo2_keys,
    "phi3": _phi3_keys,
    "gptneox": _gpt_neox_keys,
    "bloom": _bloom_keys,
    "gpt2": _gpt2_keys,
    "t5": _t5_keys,
    "t5encoder": _t5_keys,
    "bert": _bert_keys,
    "modern-bert": _modernbert_keys,
}


def _rope_scaling(metadata: GGUFMetadata) -> dict[str, Any] | None:
    """Linear or YaRN scaling of the rotary positions; Llama 3's is in a tensor, see `read.py`."""
    kind = metadata.get("rope.scaling.type", "none")
    if isinstance(kind, str) and kind == "none":
        return None
    if not isinstance(kind, str) or kind not in ("linear", "yarn"):
        raise metadata.refuse("rope.scaling.type", "none, linear or yarn")
    scaling: dict[str, Any] = {
        "rope_type": kind,
        "factor": metadata.real("rope.scaling.factor", default=1.0),
    }
    if kind == "yarn":
        scaling["original_max_position_embeddings"] = metadata.size(
            "rope.scaling.original_context_length"
        )
        for name in ("beta_fast", "beta_slow"):
            if metadata.get(f"rope.scaling.yarn_{name}") is not None:
                scaling[name] = metadata.real(f"rope.scaling.yarn_{name}")
    return scaling
