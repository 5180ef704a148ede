"""A model as a GGUF file."""

from __future__ import annotations

from pathlib import Path

from sightline.checkpoints.formats.gguf import write as gguf_write
from sightline.checkpoints.save import tensors_of
from sightline.checkpoints.source import Entry
from sightline.errors import InputError
from sightline.families import FAMILIES
from sightline.model import Model


def save_gguf(
    model: Model, path: str | Path, *, dtype: str = "float16", overwrite: bool = False
) -> Path:
    """Write a GGUF file in llama.cpp's layout, with its tokenizer and chat template. What had no
    place in it is added to `model.notes`."""
    path = Path(path)
    if path.exists() and not overwrite:
        raise InputError(
            f"{path} exists", expected="a new file", fix="choose another name, or --overwrite"
        )
    tensors = {
        name: Entry(name, tuple(x.shape), x.dtype, lambda x=x: x)
        for name, x in tensors_of(model.transformer, FAMILIES[model.family], model.head)
    }
    model.notes.extend(gguf_write.write(path, model.keys, tensors, model.tokenizer, dtype))
    return path
