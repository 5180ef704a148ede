"""Writes a GGUF file in llama.cpp's layout: Hugging Face's keys and tensors, plain or in blocks of eight bits."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, LlamaFileType
from torch import Tensor

from sightline.checkpoints.gguf_keys import CLASSES, metadata_of, rope_of
from sightline.checkpoints.gguf_names import KEY, QUERY, TURNED, to_gguf
from sightline.checkpoints.gguf_read import llama3_factors
from sightline.checkpoints.rotary_order import halves_to_pairs
from sightline.checkpoints.source import Entry
from sightline.errors import CheckpointError, nearest
from sightline.text.gguf_vocabulary import to_metadata
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary import Vocabulary

KINDS = {
    "float32": GGMLQuantizationType.F32,
    "float16": GGMLQuantizationType.F16,
    "bfloat16": GGMLQuantizationType.BF16,
    "q8_0": GGMLQuantizationType.Q8_0,
}
FILE_TYPES = {
    "float32": LlamaFileType.ALL_F32,
    "float16": LlamaFileType.MOSTLY_F16,
    "bfloat16": LlamaFileType.MOSTLY_BF16,
    "q8_0": LlamaFileType.MOSTLY_Q8_0,
}
SHORT = {"f32": "float32", "f16": "float16", "bf16": "bfloat16"}
ALWAYS_FLOAT = ("position_embd.weight", "token_types.weight", "rope_freqs.weight")
LEFT_OUT = ("pooler.", "cls.", "bert.pooler.", "embeddings.position_ids", "bert.embeddings.position_ids")


@dataclass(frozen=True, slots=True)
class Planned:
    """One tensor to write: GGUF's name and type, and where its numbers come from."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    entry: Entry


def write(
    path: Path,
    keys: Mapping[str, Any],
    tensors: Mapping[str, Entry],
    tokenizer: Tokenizer | Vocabulary | None = None,
    dtype: str = "float16",
) -> list[str]:
    """Write one GGUF file and say what was left out. The file appears whole or not at all; tensors are read one at a time."""
    kind = keys.get("model_type")
    if kind not in CLASSES:
        raise CheckpointError(f"{path}: model_type {kind!r} has no GGUF form here", expected=f"one of {', '.join(CLASSES)}")
    dtype = SHORT.get(dtype, dtype)
    if dtype not in KINDS:
        raise CheckpointError(f"{path}: dtype {dtype!r}", expected=f"one of {', '.join(KINDS)}", fix=nearest(dtype, KINDS))
    vocabulary = tokenizer.vocabulary() if isinstance(tokenizer, Tokenizer) else tokenizer
    planned, notes = _plan(path, keys, tensors, dtype)
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        _write(part, keys, planned, vocabulary, dtype)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
    return notes


def _plan(path: Path, keys: Mapping[str, Any], tensors: Mapping[str, Entry], dtype: str) -> tuple[list[Planned], list[str]]:
    """Which tensors go under which names; one without a place is refused, or left out for a reason."""
    kind, tied = str(keys["model_type"]), bool(keys.get("tie_word_embeddings", False))
    planned: list[Planned] = []
    notes: list[str] = []
    for name, entry in tensors.items():
        found = to_gguf(kind, name)
        if (found == "output.weight" and tied) or (
            found is None and name.endswith((".attn.bias", ".attn.masked_bias", "rotary_emb.inv_freq"))
        ):
            continue
        if found is None and kind == "bert" and name.startswith(LEFT_OUT):
            notes.append(f"{name} is left out: GGUF has no place for it")
        elif found is None:
            raise CheckpointError(f"{path}: tensor {name!r} has no name in GGUF's {kind}", expected="the tensors of that family")
        else:
            shape = (entry.shape[1], entry.shape[0]) if TURNED.fullmatch(_full(kind, name)) else entry.shape
            planned.append(Planned(found, _kind(found, shape, dtype), shape, entry))
    if kind not in ("gpt2", "bert") and (factors := _rope_factors(keys)) is not None:
        entry = Entry("rope_freqs.weight", tuple(factors.shape), factors.dtype, lambda: factors)
        planned.append(Planned("rope_freqs.weight", GGMLQuantizationType.F32, entry.shape, entry))
    return planned, notes


def _full(kind: str, name: str) -> str:
    """GPT-2's bare names (h.0.…) as GPT2LMHeadModel spells them."""
    return f"transformer.{name}" if kind == "gpt2" and name.startswith("h.") else name


def _kind(name: str, shape: tuple[int, ...], dtype: str) -> GGMLQuantizationType:
    """Vectors and position tables stay float32, as llama.cpp wants them; rows that make no whole blocks become float16."""
    if len(shape) < 2 or name in ALWAYS_FLOAT or name.endswith("_norm.weight"):
        return GGMLQuantizationType.F32
    return GGMLQuantizationType.F16 if dtype == "q8_0" and shape[-1] % 32 else KINDS[dtype]


def _rope_factors(keys: Mapping[str, Any]) -> Tensor | None:
    """Llama 3's scaling, which GGUF keeps as a tensor of divisors."""
    theta, scaling = rope_of(keys)
    if scaling is None or scaling["rope_type"] != "llama3":
        return None
    head_dim = keys.get("head_dim") or keys["hidden_size"] // keys["num_attention_heads"]
    return llama3_factors({"head_dim": head_dim, "rope_theta": theta}, scaling)


def _write(part: Path, keys: Mapping[str, Any], planned: list[Planned], vocabulary: Vocabulary | None, dtype: str) -> None:
    """The file from beginning to end."""
    writer = gguf.GGUFWriter(part, str(keys["model_type"]))
    try:
        writer.add_type("model")
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_file_type(FILE_TYPES[dtype])
        vocab_size = {f"{keys['model_type']}.vocab_size": int(keys["vocab_size"])} if "vocab_size" in keys else {}
        for key, value in (metadata_of(keys) | vocab_size | _token_ids(keys) | _tokenizer(keys, vocabulary)).items():
            _add(writer, key, value)
        for tensor in planned:
            shape = gguf.quant_shape_to_byte_shape(tensor.shape, tensor.kind) if _packed(tensor.kind) else tensor.shape
            length = int(np.prod(shape)) * {GGMLQuantizationType.F32: 4, GGMLQuantizationType.F16: 2}.get(tensor.kind, 1)
            stored = np.dtype({GGMLQuantizationType.F32: "f4", GGMLQuantizationType.F16: "f2"}.get(tensor.kind, "u1"))
            writer.add_tensor_info(tensor.name, shape, stored, length, raw_dtype=tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in planned:
            writer.write_tensor_data(_numbers(tensor, keys))
        writer.flush()
    finally:
        writer.close()
    _settle(part)


def _packed(kind: GGMLQuantizationType) -> bool:
    """Whether the writer takes raw bytes for this type."""
    return kind not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)


def _settle(part: Path) -> None:
    """On the disk before it gets its name."""
    with part.open("rb") as file:
        os.fsync(file.fileno())


def _token_ids(keys: Mapping[str, Any]) -> dict[str, Any]:
    """The special ids of config.json; the tokenizer's own come after and win."""
    names = {"bos_token_id": "bos_token_id", "eos_token_id": "eos_token_id", "pad_token_id": "padding_token_id"}
    return {f"tokenizer.ggml.{key}": int(keys[name]) for name, key in names.items() if isinstance(keys.get(name), int)}


def _tokenizer(keys: Mapping[str, Any], vocabulary: Vocabulary | None) -> dict[str, Any]:
    """The tokenizer's keys, with as many tokens as the model has rows."""
    if vocabulary is None:
        return {"tokenizer.ggml.model": "none"}
    found = to_metadata(vocabulary)
    missing = int(keys.get("vocab_size", 0)) - len(vocabulary.pieces)
    if missing > 0:
        pads = [f"[PAD{len(vocabulary.pieces) + place}]" for place in range(missing)]
        found["tokenizer.ggml.tokens"] = [*found["tokenizer.ggml.tokens"], *pads]
        found["tokenizer.ggml.token_type"] = [*found["tokenizer.ggml.token_type"], *[5] * missing]
        if "tokenizer.ggml.scores" in found:
            found["tokenizer.ggml.scores"] = [*found["tokenizer.ggml.scores"], *[-1000.0] * missing]
    return found


def _add(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """One key with the type that llama.cpp expects."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif value:
        writer.add_array(key, value)


def _numbers(tensor: Planned, keys: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    """The tensor in GGUF's layout and type."""
    numbers = _laid_out(tensor.entry.name, tensor.entry.read(), keys)
    if tuple(numbers.shape) != tensor.shape:
        raise CheckpointError(f"tensor {tensor.entry.name!r} has shape {list(numbers.shape)}", expected=str(list(tensor.shape)))
    if tensor.kind == GGMLQuantizationType.F16:
        return numbers.to(torch.float16).contiguous().numpy()
    plain = numbers.to(torch.float32).contiguous().numpy()
    return gguf.quantize(plain, tensor.kind) if _packed(tensor.kind) else plain


def _laid_out(name: str, numbers: Tensor, keys: Mapping[str, Any]) -> Tensor:
    """Rotary rows as pairs for llama, GPT-2's matrices turned."""
    kind = str(keys["model_type"])
    if TURNED.fullmatch(_full(kind, name)):
        return numbers.T
    if kind == "llama" and QUERY.fullmatch(name):
        return halves_to_pairs(numbers, keys["num_attention_heads"])
    if kind == "llama" and KEY.fullmatch(name):
        return halves_to_pairs(numbers, keys.get("num_key_value_heads") or keys["num_attention_heads"])
    return numbers
