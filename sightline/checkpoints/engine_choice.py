"""Which engine runs a checkpoint, and in which precision.

torch     the core as it is written, in float32, float16 or bfloat16
native    Sightline's own engine, in float32, float16, int8, int8_groups, int4 or int4_min
auto      native for models that generate text in float32 (logits match torch's to 1e-4), and for
          the precisions that only the engine has; otherwise torch. The dtype never changes.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from sightline.checkpoints.identity import identify
from sightline.checkpoints.source import Source
from sightline.config import LanguageHead, ModelConfig
from sightline.engine.gguf import four_bits
from sightline.engine.lowering import check_forms
from sightline.engine.matrices import PRECISIONS, Precision, check_precision
from sightline.errors import InputError, nearest
from sightline.kernels import library as kernels

Engine = Literal["auto", "native", "torch"]
ENGINES: tuple[Engine, ...] = get_args(Engine)
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def dtype_named(name: str) -> torch.dtype:
    """A dtype by its name."""
    if name not in DTYPES:
        raise InputError(f"dtype {name!r}", fix=nearest(name, {*DTYPES, *PRECISIONS}))
    return DTYPES[name]


def precision_for(source: Source, engine: str, dtype: str) -> Precision | None:
    """The native engine's precision, or None if torch runs the model."""
    if engine not in ENGINES:
        raise InputError(
            f"engine {engine!r}", expected=" or ".join(ENGINES), fix=nearest(engine, ENGINES)
        )
    if engine == "auto":
        return automatic_precision(source, dtype)
    if engine == "native":
        return native_precision(source, dtype)
    if dtype in PRECISIONS and dtype not in DTYPES:
        raise InputError(
            f"{dtype} with the torch engine", expected=", ".join(DTYPES), fix="engine='native'"
        )
    return None


def native_precision(source: Source, dtype: str) -> Precision:
    """The precision by its name; for `int4`, the variant that a file with quantized weights
    uses."""
    if not kernels.available():
        raise InputError(f"the native engine: {kernels.missing}", fix="engine='torch'")
    if dtype == "int4":
        return four_bits({entry.name: entry.kind for entry in source.tensors.values()})
    return check_precision(dtype)


def automatic_precision(source: Source, dtype: str) -> Precision | None:
    """Native for models that generate text in float32, and for the precisions that only the engine
    has; else torch. If the kernels are missing, a note says so."""
    if dtype in PRECISIONS and dtype not in DTYPES:
        return native_precision(source, dtype)
    dtype_named(dtype)
    config = identify(source).config
    if dtype != "float32" or not runs_natively(config):
        return None
    if not kernels.available():
        source.notes.append(f"generating with torch, which is slower: {kernels.missing}")
        return None
    return "float32"


def runs_natively(config: ModelConfig) -> bool:
    """Whether the engine can run this model, and is the faster choice: a model that generates text.
    (For a few texts, packing an encoder takes longer than running it on torch.)"""
    if config.decoder is None or not isinstance(config.head, LanguageHead):
        return False
    try:
        for stack in config.stacks.values():
            check_forms([block.attention for block in stack.blocks])
    except InputError:
        return False
    return True
