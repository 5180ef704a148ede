"""Sightline: build, train, run and see Transformers, one line of code per line of mathematics.

    import sightline as sl
    y, weights = sl.MultiHeadAttention(64, heads=8)(x, return_weights=True)
    model = sl.build(sl.gpt(width=384, layers=6, heads=6, positions=sl.Rotary()))

Importing this does not import torch; using it does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sightline.amx_workaround import beware
from sightline.architectures import PUBLISHED, bert, encoder_decoder, gpt, llama, ngpt, t5
from sightline.config import (
    ALiBi,
    AttentionConfig,
    BlockConfig,
    Classifier,
    Cosine,
    Dot,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadNorm,
    LanguageHead,
    LayerNorm,
    Learned,
    LinearScaling,
    Llama3Scaling,
    MaskedHead,
    ModelConfig,
    NoHead,
    NoNorm,
    NoPosition,
    NTKScaling,
    Pooler,
    RelativeBias,
    RMSNorm,
    Rotary,
    Sinusoidal,
    StackConfig,
    YaRNScaling,
)
from sightline.errors import CheckpointError, ConfigError, InputError, RecordError, SightlineError
from sightline.record import NOTHING, QUANTITIES, Recorder

if TYPE_CHECKING:
    from sightline import lab, lens
    from sightline.core.cache.kv_cache import Cache
    from sightline.core.model import Transformer, build
    from sightline.core.multi_head import MultiHeadAttention, attention
    from sightline.lens.trace.trace import Trace
    from sightline.model import Model, load

__version__ = "0.1.0"

beware()

_PARTS = ("lab", "lens")
_WITH_TORCH = {
    "load": "sightline.model",
    "Model": "sightline.model",
    "build": "sightline.core.model",
    "Transformer": "sightline.core.model",
    "Cache": "sightline.core.cache.kv_cache",
    "MultiHeadAttention": "sightline.core.multi_head",
    "attention": "sightline.core.multi_head",
    "Trace": "sightline.lens.trace.trace",
}


def __getattr__(name: str) -> Any:
    if name in _PARTS:
        return importlib.import_module(f"sightline.{name}")
    if name not in _WITH_TORCH:
        raise AttributeError(f"module 'sightline' has no attribute {name!r}")
    return getattr(importlib.import_module(_WITH_TORCH[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_WITH_TORCH, *_PARTS])


__all__ = [
    "NOTHING",
    "PUBLISHED",
    "QUANTITIES",
    "ALiBi",
    "AttentionConfig",
    "BlockConfig",
    "Cache",
    "CheckpointError",
    "Classifier",
    "ConfigError",
    "Cosine",
    "Dot",
    "EmbeddingConfig",
    "FeedForwardConfig",
    "HeadNorm",
    "InputError",
    "LanguageHead",
    "LayerNorm",
    "Learned",
    "LinearScaling",
    "Llama3Scaling",
    "MaskedHead",
    "Model",
    "ModelConfig",
    "MultiHeadAttention",
    "NTKScaling",
    "NoHead",
    "NoNorm",
    "NoPosition",
    "Pooler",
    "RMSNorm",
    "RecordError",
    "Recorder",
    "RelativeBias",
    "Rotary",
    "SightlineError",
    "Sinusoidal",
    "StackConfig",
    "Trace",
    "Transformer",
    "YaRNScaling",
    "attention",
    "bert",
    "build",
    "encoder_decoder",
    "gpt",
    "lab",
    "lens",
    "llama",
    "load",
    "ngpt",
    "t5",
]
