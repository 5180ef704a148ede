"""Write Hugging Face's keys and tensors as a GGUF file in llama.cpp's layout, in float32, float16,
bfloat16 or Q8_0."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType, LlamaFileType
from torch import Tensor

from sightline.checkpoints.formats.gguf.keys import GGUFMetadata, config_keys
from sightline.checkpoints.formats.gguf.layout import Layout, layout_of, shape_after
from sightline.checkpoints.formats.gguf.metadata import check_round_trip, metadata_for
from sightline.checkpoints.formats.gguf.names import ARCHITECTURES, WRITTEN_AS, to_gguf
from sightline.checkpoints.formats.gguf.read import llama3_factors
from sightline.checkpoints.source import Entry
from sightline.config import LanguageHead, Learned, Llama3Scaling, ModelConfig, Rotary
from sightline.errors import CheckpointError, nearest
from sightline.families import FAMILIES
from sightline.families.schema.keys import Keys
from sightline.files.atomic import atomic_write
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.gguf import to_metadata
from sightline.text.vocabulary.vocabulary import Vocabulary

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
# Heads that GGUF cannot store, by their name prefix after the family's prefix.
OMITTED_HEADS = {
    "bert": ("pooler.", "cls.", "embeddings.position_ids"),
    "roberta": ("pooler.", "lm_head.", "embeddings.position_ids"),
    "distilbert": ("vocab_", "embeddings.position_ids"),
    "modernbert": ("head.", "decoder."),
}
BUFFERS = (
    ".attn.bias",
    ".attn.masked_bias",
    ".attention.bias",
    ".attention.masked_bias",
    "rotary_emb.inv_freq",
)
COPIES = ("encoder.embed_tokens.weight", "decoder.embed_tokens.weight")  # of T5's one embedding


@dataclass(frozen=True, slots=True)
class PlannedTensor:
    """One tensor to write: GGUF name, type, shape and the source tensor."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    entry: Entry


@dataclass(frozen=True, slots=True)
class Target:
    """The model to write: its family, configuration and GGUF architecture."""

    path: Path
    family: str
    config: ModelConfig
    architecture: str

    @property
    def tied(self) -> bool:
        return isinstance(self.config.head, LanguageHead) and self.config.head.tied

    @property
    def copies_embedding(self) -> bool:
        """Whether the output layer is written as a copy: where llama.cpp requires one, and for a T5
        with unscaled logits."""
        unscaled = (
            self.family == "t5"
            and isinstance(self.config.head, LanguageHead)
            and self.config.head.scale == 1.0
        )
        return self.tied and (ARCHITECTURES[self.architecture].needs_output or unscaled)

    def layout(self, name: str) -> Layout | None:
        """The layout of a GGUF tensor, if it differs from the family's."""
        stack = self.config.encoder or self.config.last
        attention = stack.blocks[0].attention
        positions = stack.embedding.positions
        reserved = positions.offset if isinstance(positions, Learned) else 0
        return layout_of(
            self.family, name, heads=attention.heads, kv_heads=attention.kv_heads, reserved=reserved
        )


def write_gguf(
    path: Path,
    keys: Mapping[str, Any],
    tensors: Mapping[str, Entry],
    tokenizer: Tokenizer | Vocabulary | None = None,
    dtype: str = "float16",
) -> list[str]:
    """Write one GGUF file atomically; tensors are read one at a time. Returns notes on what was
    left out."""
    dtype = SHORT.get(dtype, dtype)
    if dtype not in KINDS:
        raise CheckpointError(
            f"{path}: dtype {dtype!r}",
            expected=f"one of {', '.join(KINDS)}",
            fix=nearest(dtype, KINDS),
        )
    target = _find_target(path, keys, tensors)
    planned, notes = _plan(target, tensors, dtype)
    metadata = metadata_for(target.architecture, target.config)
    check_round_trip(
        target.path, _stored_config(target), _config_read_back(target, metadata, planned)
    )
    vocabulary = tokenizer.vocabulary() if isinstance(tokenizer, Tokenizer) else tokenizer
    metadata |= _token_id_metadata(keys, target) | _tokenizer_metadata(target, vocabulary)
    with atomic_write(path) as part:
        _write_file(Path(part.name), target, metadata, planned, dtype)
    return notes


def _find_target(path: Path, keys: Mapping[str, Any], tensors: Mapping[str, Entry]) -> Target:
    """The model that the keys describe. T5 without a decoder is another architecture."""
    kind = keys.get("model_type")
    if kind not in WRITTEN_AS:
        raise CheckpointError(
            f"{path}: model_type {kind!r} has no GGUF form here",
            expected=f"one of {', '.join(WRITTEN_AS)}",
        )
    family = FAMILIES[kind]
    names = keys.get("architectures") or [next(iter(family.heads))]
    head = family.heads.get(names[0], next(iter(family.heads.values())))
    if kind == "t5" and not any(name.startswith("decoder.") for name in tensors):
        head = "encoder"
    config = family.config(Keys(dict(keys), f"{path}: config.json"), head)
    return Target(path, kind, config, "t5encoder" if head == "encoder" else WRITTEN_AS[kind])


def _stored_config(target: Target) -> ModelConfig:
    """The configuration as it will be read: T5's copied output layer counts as untied."""
    head = target.config.head
    if target.family == "t5" and target.copies_embedding and isinstance(head, LanguageHead):
        return replace(target.config, head=replace(head, tied=False))
    return target.config


def _config_read_back(
    target: Target, metadata: Mapping[str, Any], planned: list[PlannedTensor]
) -> ModelConfig:
    """The configuration that reading the file will give."""
    shapes = {tensor.name: tensor.shape for tensor in planned}
    values = {"general.architecture": target.architecture, **metadata}
    vocab_size = (target.config.encoder or target.config.last).embedding.vocab_size
    copied = ARCHITECTURES[target.architecture].needs_output and target.copies_embedding
    names = set(shapes) - {"output.weight"} if copied else set(shapes)
    keys = config_keys(
        GGUFMetadata(target.path, values), vocab_size=vocab_size, dtype="float32", tensors=names
    )
    if target.architecture == "bert":
        keys["type_vocab_size"] = shapes.get("token_types.weight", (1,))[0]
    family = FAMILIES[keys["model_type"]]
    return family.config(Keys(keys), family.heads[keys["architectures"][0]])


def _plan(
    target: Target, tensors: Mapping[str, Entry], dtype: str
) -> tuple[list[PlannedTensor], list[str]]:
    """The tensors to write under GGUF names, and notes on those left out. Tensors without a GGUF
    name are refused unless they are known to be unneeded."""
    prefix = FAMILIES[target.family].prefix
    planned: list[PlannedTensor] = []
    notes: list[str] = []
    for name, entry in tensors.items():
        gguf_name = to_gguf(target.family, name)
        skipped = gguf_name is None and (
            name.endswith(BUFFERS) or (target.family == "t5" and name in COPIES)
        )
        if skipped or (gguf_name == "output.weight" and target.tied):
            continue
        if gguf_name is None and name.removeprefix(prefix).startswith(
            OMITTED_HEADS.get(target.family, ("\0",))
        ):
            notes.append(f"{name} is left out: GGUF cannot store it")
        elif gguf_name is None:
            raise CheckpointError(
                f"{target.path}: tensor {name!r} has no name in GGUF's {target.architecture}",
                expected="the tensors of that family",
            )
        else:
            planned.append(_plan_tensor(target, gguf_name, entry, dtype))
    if target.copies_embedding:
        planned += [
            replace(tensor, name="output.weight")
            for tensor in planned
            if tensor.name == "token_embd.weight"
        ]
    if (factors := _rope_factors(target.config)) is not None:
        entry = Entry("rope_freqs.weight", tuple(factors.shape), factors.dtype, lambda: factors)
        planned.append(
            PlannedTensor("rope_freqs.weight", GGMLQuantizationType.F32, entry.shape, entry)
        )
    return planned, notes


def _plan_tensor(target: Target, name: str, entry: Entry, dtype: str) -> PlannedTensor:
    """One tensor in GGUF's layout and type."""
    layout = target.layout(name)
    shape = entry.shape
    if layout is not None:
        try:
            shape = shape_after(layout.to_gguf, shape)
        except RuntimeError:
            raise CheckpointError(
                f"{target.path}: tensor {entry.name!r} has shape {list(shape)}",
                expected="the model's heads",
            ) from None
    return PlannedTensor(name, _storage_type(name, shape, dtype), shape, entry)


def _storage_type(name: str, shape: tuple[int, ...], dtype: str) -> GGMLQuantizationType:
    """Vectors and position tables stay float32, as llama.cpp requires; rows that are no multiple of
    the block size become float16."""
    if len(shape) < 2 or name in ALWAYS_FLOAT or name.endswith("_norm.weight"):
        return GGMLQuantizationType.F32
    return GGMLQuantizationType.F16 if dtype == "q8_0" and shape[-1] % 32 else KINDS[dtype]


def _rope_factors(config: ModelConfig) -> Tensor | None:
    """Llama 3's RoPE scaling, which GGUF stores as a tensor of divisors."""
    attention = config.last.blocks[0].attention
    positions = attention.positions
    scaling = positions.scaling if isinstance(positions, Rotary) else None
    if not isinstance(positions, Rotary) or not isinstance(scaling, Llama3Scaling):
        return None
    scaling_keys = {
        "factor": scaling.factor,
        "low_freq_factor": scaling.low_frequency_factor,
        "high_freq_factor": scaling.high_frequency_factor,
        "original_max_position_embeddings": scaling.original_positions,
    }
    return llama3_factors(
        {"head_dim": attention.head_dim, "rope_theta": positions.base}, scaling_keys
    )


def _write_file(
    part: Path,
    target: Target,
    metadata: Mapping[str, Any],
    planned: list[PlannedTensor],
    dtype: str,
) -> None:
    """Write metadata, tensor infos and tensor data."""
    writer = gguf.GGUFWriter(part, target.architecture)
    try:
        writer.add_type("model")
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
        writer.add_file_type(FILE_TYPES[dtype])
        for key, value in metadata.items():
            _add_metadata(writer, key, value)
        for tensor in planned:
            shape = (
                gguf.quant_shape_to_byte_shape(tensor.shape, tensor.kind)
                if _is_quantized(tensor.kind)
                else tensor.shape
            )
            length = int(np.prod(shape)) * {
                GGMLQuantizationType.F32: 4,
                GGMLQuantizationType.F16: 2,
            }.get(tensor.kind, 1)
            stored = np.dtype(
                {GGMLQuantizationType.F32: "f4", GGMLQuantizationType.F16: "f2"}.get(
                    tensor.kind, "u1"
                )
            )
            writer.add_tensor_info(tensor.name, shape, stored, length, raw_dtype=tensor.kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for tensor in planned:
            writer.write_tensor_data(_stored_array(tensor, target))
        writer.flush()
    finally:
        writer.close()
    _sync(part)


def _is_quantized(kind: GGMLQuantizationType) -> bool:
    """Whether the writer takes raw bytes for this type (everything but float32 and float16)."""
    return kind not in (GGMLQuantizationType.F32, GGMLQuantizationType.F16)


def _sync(part: Path) -> None:
    """Flush the file to disk before it is renamed."""
    with part.open("rb") as file:
        os.fsync(file.fileno())


def _token_id_metadata(keys: Mapping[str, Any], target: Target) -> dict[str, Any]:
    """The vocabulary size and config.json's special ids; those of the tokenizer override them."""
    stack = target.config.encoder or target.config.last
    names = {
        "bos_token_id": "bos_token_id",
        "eos_token_id": "eos_token_id",
        "pad_token_id": "padding_token_id",
    }
    metadata = {
        f"tokenizer.ggml.{key}": int(keys[name])
        for name, key in names.items()
        if isinstance(keys.get(name), int)
    }
    if target.family == "t5":
        metadata[f"{target.architecture}.decoder_start_token_id"] = int(
            keys.get("decoder_start_token_id") or 0
        )
    if target.architecture == "bert":
        metadata["tokenizer.ggml.token_type_count"] = max(1, stack.embedding.types)
    return {f"{target.architecture}.vocab_size": stack.embedding.vocab_size, **metadata}


def _tokenizer_metadata(target: Target, vocabulary: Vocabulary | None) -> dict[str, Any]:
    """The tokenizer's metadata, padded to the model's vocabulary size."""
    if vocabulary is None:
        return {"tokenizer.ggml.model": "none"}
    metadata = to_metadata(vocabulary)
    missing = (target.config.encoder or target.config.last).embedding.vocab_size - len(
        vocabulary.pieces
    )
    if missing > 0:
        pads = [f"[PAD{len(vocabulary.pieces) + place}]" for place in range(missing)]
        metadata["tokenizer.ggml.tokens"] = [*metadata["tokenizer.ggml.tokens"], *pads]
        metadata["tokenizer.ggml.token_type"] = [
            *metadata["tokenizer.ggml.token_type"],
            *[5] * missing,
        ]
        if "tokenizer.ggml.scores" in metadata:
            metadata["tokenizer.ggml.scores"] = [
                *metadata["tokenizer.ggml.scores"],
                *[-1000.0] * missing,
            ]
    return metadata


def _add_metadata(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add one key with the type that llama.cpp expects."""
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


def _stored_array(tensor: PlannedTensor, target: Target) -> np.ndarray[Any, Any]:
    """The tensor in GGUF's layout and type."""
    layout = target.layout(tensor.name)
    tensor_data = tensor.entry.read()
    tensor_data = tensor_data if layout is None else layout.to_gguf(tensor_data)
    if tuple(tensor_data.shape) != tensor.shape:
        raise CheckpointError(
            f"tensor {tensor.entry.name!r} has shape {list(tensor_data.shape)}",
            expected=str(list(tensor.shape)),
        )
    if tensor.kind == GGMLQuantizationType.F16:
        return tensor_data.to(torch.float16).contiguous().numpy()
    array = tensor_data.to(torch.float32).contiguous().numpy()
    return gguf.quantize(array, tensor.kind) if _is_quantized(tensor.kind) else array
