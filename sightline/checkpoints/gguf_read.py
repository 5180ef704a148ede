"""Reads a GGUF file: llama.cpp's checkpoints, plain or quantised, as Hugging Face's keys and tensors."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize
from torch import Tensor

from sightline.checkpoints.gguf_header import Header, Stored, read_header
from sightline.checkpoints.gguf_keys import Metadata, keys_of
from sightline.checkpoints.gguf_names import KEY, QUERY, TURNED, layer_of, to_hugging_face
from sightline.checkpoints.mapped import MappedFile
from sightline.checkpoints.rotary_order import pairs_to_halves
from sightline.checkpoints.source import Entry, Source
from sightline.errors import CheckpointError
from sightline.text.gguf_vocabulary import from_metadata

PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}


def read(path: Path) -> Source:
    """Open a GGUF file; tensors are decoded when they are asked for."""
    file = MappedFile(Path(path))
    header = read_header(file)
    if not header.tensors:
        raise CheckpointError(
            f"{file.where} is a GGUF file with a vocabulary only: it has no tensors",
            expected="a model's weights",
            fix="give the model's own GGUF, not the one that was made to test its tokenizer",
        )
    metadata = Metadata(file.where, header.metadata)
    stored, notes = _named(file, header, metadata)
    keys = _keys(file, header, metadata, stored)
    tensors = {name: _entry(file, name, tensor, keys) for name, tensor in stored.items()}
    return Source(file.where, "gguf", keys, tensors, from_metadata(file.where, header.metadata), notes)


def _named(file: MappedFile, header: Header, metadata: Metadata) -> tuple[dict[str, Stored], list[str]]:
    """The stored tensors under Hugging Face's names; one that no table knows is refused."""
    kind, layers = metadata.architecture, metadata.size("block_count")
    stored: dict[str, Stored] = {}
    notes: list[str] = []
    for tensor in header.tensors.values():
        if tensor.name == "rope_freqs.weight":
            continue
        if tensor.name.endswith(".attn_rot_embd.weight") or tensor.name.endswith(".attn_rot_embd"):
            notes.append(f"{tensor.name} is left out: rotary tables are computed")
            continue
        name = to_hugging_face(kind, tensor.name)
        if name is None or (layer_of(tensor.name) or 0) >= layers:
            expected = f"a tensor of a {kind} with {layers} layers"
            raise CheckpointError(f"{file.where}: tensor {tensor.name!r} is not known", expected=expected)
        stored[name] = tensor
    notes += _untie(file, stored) if kind == "gpt2" else []
    if kind == "bert":
        notes.append("GGUF keeps no pooler: the model ends with its last hidden states")
    return stored, notes


def _untie(file: MappedFile, stored: dict[str, Stored]) -> list[str]:
    """Drop GPT-2's copy of its token embedding, which older converters write as the output layer."""
    head, embedding = stored.get("lm_head.weight"), stored.get("transformer.wte.weight")
    if head is None or embedding is None or (head.kind, head.shape) != (embedding.kind, embedding.shape):
        return []
    if not np.array_equal(file.part(head.start, head.length), file.part(embedding.start, embedding.length)):
        return []
    del stored["lm_head.weight"]
    return ["output.weight is a copy of token_embd.weight: read as tied"]


def _keys(file: MappedFile, header: Header, metadata: Metadata, stored: dict[str, Stored]) -> dict[str, Any]:
    """config.json's keys, from the metadata and from what the tensors show."""
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise CheckpointError(f"{file.where}: tensor 'token_embd.weight' is missing or not a matrix", expected="an embedding")
    dtype = str(PLAIN.get(embedding.kind, torch.float32)).removeprefix("torch.")
    tied = "lm_head.weight" not in stored
    keys = keys_of(metadata, vocab_size=embedding.shape[0], tied=tied, dtype=dtype)
    if metadata.architecture == "llama":
        keys["attention_bias"] = "model.layers.0.self_attn.q_proj.bias" in stored
        keys["mlp_bias"] = "model.layers.0.mlp.gate_proj.bias" in stored
    if types := stored.get("embeddings.token_type_embeddings.weight"):
        keys["type_vocab_size"] = types.shape[0] if len(types.shape) == 2 else 1
    if "rope_freqs.weight" in header.tensors:
        keys["rope_scaling"] = _llama3(file, header.tensors["rope_freqs.weight"], keys)
    return keys


def llama3_factors(keys: dict[str, Any], scaling: dict[str, Any]) -> Tensor:
    """What Llama 3 divides each rotary frequency by: 1 for short waves, `factor` for long ones, a blend between."""
    half = torch.arange(0, keys["head_dim"], 2, dtype=torch.float64) / keys["head_dim"]
    waves = 2 * math.pi * keys["rope_theta"] ** half
    low, high, length = scaling["low_freq_factor"], scaling["high_freq_factor"], scaling["original_max_position_embeddings"]
    smooth = ((length / waves - low) / (high - low)).clamp(0, 1)
    return (1 / ((1 - smooth) / scaling["factor"] + smooth)).float()


def _llama3(file: MappedFile, tensor: Stored, keys: dict[str, Any]) -> dict[str, Any]:
    """The scaling whose factors the file stores as rope_freqs; other factors are refused."""
    factors = _decode(file, tensor)()
    for length in (8192, keys["max_position_embeddings"]):
        scaling = {
            "rope_type": "llama3",
            "factor": float(factors.max()),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": length,
        }
        expected = llama3_factors(keys, scaling)
        if factors.shape == expected.shape and torch.allclose(factors, expected, rtol=1e-4):
            return scaling
    raise CheckpointError(f"{file.where}: tensor 'rope_freqs.weight' holds other factors", expected="those of Llama 3's rope scaling")


def _entry(file: MappedFile, name: str, tensor: Stored, keys: dict[str, Any]) -> Entry:
    """One tensor in Hugging Face's layout."""
    read, shape = _decode(file, tensor), tensor.shape
    if keys["model_type"] == "llama" and (QUERY.fullmatch(name) or KEY.fullmatch(name)):
        heads = keys["num_attention_heads" if QUERY.fullmatch(name) else "num_key_value_heads"]
        if shape[0] != heads * keys["head_dim"]:
            expected = f"{heads} heads of {keys['head_dim']} rows"
            raise CheckpointError(f"{file.where}: tensor {tensor.name!r} has {shape[0]} rows", expected=expected)
        read = _then(read, lambda rows: pairs_to_halves(rows, heads))
    elif TURNED.fullmatch(name) and len(shape) == 2:
        read, shape = _then(read, lambda rows: rows.T.contiguous()), (shape[1], shape[0])
    elif name == "embeddings.token_type_embeddings.weight" and len(shape) == 1:
        read, shape = _then(read, lambda row: row[None]), (1, *shape)
    return Entry(name, shape, PLAIN.get(tensor.kind, torch.float32), read, tensor.kind.name)


def _then(read: Callable[[], Tensor], change: Callable[[Tensor], Tensor]) -> Callable[[], Tensor]:
    """Read, then change."""
    return lambda: change(read())


def _decode(file: MappedFile, tensor: Stored) -> Callable[[], Tensor]:
    """A function that reads one tensor: plain numbers as they are, blocks as float32."""

    def read() -> Tensor:
        if tensor.kind in PLAIN:
            return file.tensor(tensor.start, tensor.shape, PLAIN[tensor.kind])
        block, size = GGML_QUANT_SIZES[tensor.kind]
        rows = file.part(tensor.start, tensor.length).reshape(*tensor.shape[:-1], tensor.shape[-1] // block * size)
        return torch.from_numpy(np.ascontiguousarray(dequantize(rows, tensor.kind), dtype=np.float32))

    return read
