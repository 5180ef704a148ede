"""Small GGUF files of a Llama, and the models that are written as GGUF."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from sightline.checkpoints.source import Entry

SHARED: dict[str, Any] = {
    "vocab_size": 40,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}

ROTARY: dict[str, Any] = SHARED | {
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", ROTARY),
    "llama tied": (
        "LlamaForCausalLM",
        ROTARY | {"tie_word_embeddings": True, "attention_bias": True},
    ),
    "qwen2": ("Qwen2ForCausalLM", ROTARY),
    "qwen3": ("Qwen3ForCausalLM", ROTARY | {"head_dim": 16}),
    "gpt2": (
        "GPT2LMHeadModel",
        {
            "vocab_size": 40,
            "n_embd": 32,
            "n_layer": 2,
            "n_head": 4,
            "n_positions": 64,
            "bos_token_id": 1,
            "eos_token_id": 2,
        },
    ),
    "bert": ("BertModel", SHARED | {"max_position_embeddings": 64}),
}


def model_of(name: str) -> tuple[Any, dict[str, Any], dict[str, Entry]]:
    """One of transformers' models with random weights, its keys and its tensors."""
    torch.manual_seed(0)
    class_name, options = MODELS[name]
    kind = getattr(transformers, class_name)
    model = kind(kind.config_class(**options)).eval()
    keys = model.config.to_dict()
    tensors = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    if keys.get("tie_word_embeddings") and class_name != "BertModel":
        tensors.pop("lm_head.weight")
    return (
        model,
        keys,
        {name: Entry(name, tuple(x.shape), x.dtype, lambda x=x: x) for name, x in tensors.items()},
    )


def llama_writer(path: Path, **changes: Any) -> gguf.GGUFWriter:
    """A writer with a small llama's metadata and embedding."""
    writer = gguf.GGUFWriter(path, "llama")
    sizes = {
        "block_count": 1,
        "context_length": 8,
        "embedding_length": 8,
        "feed_forward_length": 16,
        "attention.head_count": 2,
    } | changes
    for key, value in sizes.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_tensor("token_embd.weight", np.zeros((4, 8), dtype=np.float32))
    return writer


def finish(writer: gguf.GGUFWriter) -> None:
    """Write it all."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
