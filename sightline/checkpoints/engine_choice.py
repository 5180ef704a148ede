"""Which engine runs a checkpoint, and in which precision.

torch     the core as it is written, in float32, float16 or bfloat16
native    Sightline's own engine, in float32, float16, int8, int8_groups, int4 or int4_min
auto      native for a decoder in float32, whose logits match torch's to 1e-4, and for the
          precisions that only the engine has; otherwise torch
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from sightline.checkpoints.identity import identify
from sightline.checkpoints.source import Source
from sightline.config import LanguageHead
from sightline.engine.gguf import four_bits
from sightline.engine.matrices import PRECISIONS, Precision, check_precision
from sightline.engine.program import check_forms
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
    """Native for a decoder in float32 and for precisions that only the engine has, else torch. The
    choice and its reason are noted."""
    if dtype in PRECISIONS and dtype not in DTYPES:
        return native_precision(source, dtype)
    dtype_named(dtype)
    reason = reason_for_torch(source, dtype)
    source.notes.append(
        f"engine: torch, because {reason}"
        if reason
        else "engine: native, in float32, whose logits are torch's to 1e-4"
    )
    return None if reason else "float32"


def reason_for_torch(source: Source, dtype: str) -> str:
    """Why the native engine cannot be used, or an empty string."""
    if not kernels.available():
        return f"the native kernels are {kernels.missing}"
    if dtype != "float32":
        return f"the dtype is {dtype}"
    config = identify(source).config
    if (
        config.decoder is None
        or config.encoder is not None
        or not isinstance(config.head, LanguageHead)
    ):
        return "the model is not a decoder-only language model"
    try:
        check_forms([block.attention for block in config.decoder.blocks])
    except InputError as error:
        return f"it has {error.seen}"
    return ""
