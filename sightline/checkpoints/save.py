"""Saving a Transformer: its tensors under Hugging Face's names (the family's table, run backwards),
and a GGUF file of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.checkpoints.formats.writing import save_folder
from sightline.checkpoints.source import Entry
from sightline.checkpoints.tables import pairings
from sightline.core.model import Transformer
from sightline.errors import InputError
from sightline.families import Family
from sightline.text.tokenizer import Tokenizer

REMOVED_CLASSES = ("T5WithLMHeadModel",)  # newer versions of transformers do not have them


def tensors_of(
    transformer: Transformer,
    family: Family,
    head: str,
    *,
    dtype: torch.dtype | None = None,
    parameters: Mapping[str, Tensor] | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Every tensor that the family's files have, one at a time. A bare body is written without the
    prefix, as Hugging Face does. `parameters` are written in place of the model's own."""
    parameters = dict(transformer.named_parameters()) if parameters is None else parameters
    shapes = {name: tuple(parameter.shape) for name, parameter in parameters.items()}
    for pair in pairings(family, transformer.config, head, shapes, prefixed=head != "none"):
        if not pair.rule.optional:
            tensor = pair.join([parameters[name].detach() for name in pair.ours])
            yield pair.theirs, tensor.to(dtype or tensor.dtype).contiguous()


def save_gguf(
    path: Path,
    tensors: Iterable[tuple[str, Tensor]],
    *,
    keys: Mapping[str, Any],
    tokenizer: Tokenizer | None,
    dtype: str,
    overwrite: bool = False,
) -> list[str]:
    """Write a GGUF file in llama.cpp's layout, with its tokenizer and chat template. Returns notes
    on what GGUF has no place for."""
    from sightline.checkpoints.formats.gguf.write import write_gguf

    if path.exists() and not overwrite:
        raise InputError(
            f"{path} exists", expected="a new file", fix="choose another name, or --overwrite"
        )
    entries = {
        name: Entry(name, tuple(tensor.shape), tensor.dtype, lambda tensor=tensor: tensor)
        for name, tensor in tensors
    }
    return write_gguf(path, keys, entries, tokenizer, dtype)


def save_model_folder(
    path: Path,
    transformer: Transformer,
    *,
    family: Family,
    head: str,
    keys: dict[str, Any],
    files: Mapping[str, bytes],
    dtype: torch.dtype | None = None,
    overwrite: bool = False,
) -> None:
    """Write a folder that Hugging Face loads, by default in the weights' dtype."""
    kind = dtype or next(transformer.parameters()).dtype
    save_folder(
        path,
        dict(tensors_of(transformer, family, head, dtype=kind)),
        keys=keys_for(keys, kind, family=family, head=head),
        files=files,
        overwrite=overwrite,
    )


def keys_for(
    keys: dict[str, Any], dtype: torch.dtype, *, family: Family, head: str
) -> dict[str, Any]:
    """config.json as it was read, with the dtype that is written now and the class that
    transformers builds."""
    dtype_key = "torch_dtype" if "torch_dtype" in keys else "dtype"
    return {
        **keys,
        "architectures": [class_name_for(keys, family, head)],
        dtype_key: str(dtype).removeprefix("torch."),
    }


def class_name_for(keys: Mapping[str, Any], family: Family, head: str) -> str:
    """The class that config.json names; without a name, or with one that transformers removed, the
    family's class with that head."""
    names = keys.get("architectures")
    name = names[0] if isinstance(names, list) and names else names
    if isinstance(name, str) and name not in REMOVED_CLASSES:
        return name
    return next(name for name, kind in family.heads.items() if kind == head)
