"""Sightline: build, train, run and see Transformers, one line of code per line of mathematics.

    import sightline as sl

    model = sl.load("smollm2-135m-instruct")          # a folder, a .gguf file, a hub id, or one of
    sl.models()                                       # the models that can be had by name
    model.generate("The capital of France is").text
    model.chat("What is attention?").text
    trace = model.trace("The animal didn't cross the street because it was too tired")
    trace.weights(layer=5, head=1)                    # [query, key], exact, from the fused kernel
    trace.show()

    y, weights = sl.MultiHeadAttention(64, heads=8)(x, return_weights=True)
    transformer = sl.build(sl.gpt(width=384, layers=6, heads=6, positions=sl.Rotary()))

Importing sightline does not import torch; using it does.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sightline.amx_workaround import disable_broken_amx

if TYPE_CHECKING:
    from sightline import lab, lens
    from sightline.architectures import PUBLISHED, bert, encoder_decoder, gpt, llama, ngpt, t5
    from sightline.checkpoints.sources.catalogue import models
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
    from sightline.core.cache.kv_cache import Cache
    from sightline.core.model import Transformer, build
    from sightline.core.multi_head import MultiHeadAttention, attention
    from sightline.errors import (
        CheckpointError,
        ConfigError,
        InputError,
        RecordError,
        SightlineError,
    )
    from sightline.lens.trace.trace import Trace
    from sightline.loading import load
    from sightline.model import Model
    from sightline.record import NOTHING, QUANTITIES, Recorder

__version__ = "0.1.0"

disable_broken_amx()

_PARTS = ("lab", "lens")
_NAMES_BY_MODULE = {
    "sightline.architectures": (
        "PUBLISHED",
        "bert",
        "encoder_decoder",
        "gpt",
        "llama",
        "ngpt",
        "t5",
    ),
    "sightline.checkpoints.sources.catalogue": ("models",),
    "sightline.config": (
        "ALiBi",
        "AttentionConfig",
        "BlockConfig",
        "Classifier",
        "Cosine",
        "Dot",
        "EmbeddingConfig",
        "FeedForwardConfig",
        "HeadNorm",
        "LanguageHead",
        "LayerNorm",
        "Learned",
        "LinearScaling",
        "Llama3Scaling",
        "MaskedHead",
        "ModelConfig",
        "NoHead",
        "NoNorm",
        "NoPosition",
        "NTKScaling",
        "Pooler",
        "RelativeBias",
        "RMSNorm",
        "Rotary",
        "Sinusoidal",
        "StackConfig",
        "YaRNScaling",
    ),
    "sightline.core.cache.kv_cache": ("Cache",),
    "sightline.core.model": ("Transformer", "build"),
    "sightline.core.multi_head": ("MultiHeadAttention", "attention"),
    "sightline.errors": (
        "CheckpointError",
        "ConfigError",
        "InputError",
        "RecordError",
        "SightlineError",
    ),
    "sightline.lens.trace.trace": ("Trace",),
    "sightline.loading": ("load",),
    "sightline.model": ("Model",),
    "sightline.record": (
        "NOTHING",
        "QUANTITIES",
        "Recorder",
    ),
}
_MODULE_OF = {name: module for module, names in _NAMES_BY_MODULE.items() for name in names}


def __getattr__(name: str) -> Any:
    """Every public name is imported when it is first used, so that `import sightline` is quick."""
    if name in _PARTS:
        return importlib.import_module(f"sightline.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'sightline' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]


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
    "models",
    "ngpt",
    "t5",
]
