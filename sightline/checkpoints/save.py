"""A Transformer becomes tensors under Hugging Face's names: the family's table, run backwards."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from sightline.checkpoints.tables import pairings
from sightline.core.model import Transformer
from sightline.families import Family

GIVEN_UP = (
    "T5WithLMHeadModel",
)  # names of classes that newer versions of transformers do not have


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
            tensor = pair.put_together([parameters[name].detach() for name in pair.ours])
            yield pair.theirs, tensor.to(dtype or tensor.dtype).contiguous()


def keys_for(
    keys: dict[str, Any], dtype: torch.dtype, *, family: Family, head: str
) -> dict[str, Any]:
    """config.json as it was read, with the dtype that is written now and the class that
    transformers builds."""
    said = str(dtype).removeprefix("torch.")
    name = "torch_dtype" if "torch_dtype" in keys else "dtype"
    return {**keys, "architectures": [architecture(keys, family, head)], name: said}


def architecture(keys: Mapping[str, Any], family: Family, head: str) -> str:
    """The class that config.json names; without a name, or with one that transformers gave up, the
    family's class with that head."""
    named = keys.get("architectures")
    given = named[0] if isinstance(named, list) and named else named
    if isinstance(given, str) and given not in GIVEN_UP:
        return given
    return next(name for name, kind in family.heads.items() if kind == head)
