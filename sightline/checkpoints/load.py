"""Build a Transformer from a source: the family's table maps tensors to parameters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sightline.checkpoints.identity import (
    check_budget,
    identify,
    new_spelling,
    pairing_table,
    with_new_spellings,
)
from sightline.checkpoints.source import Source
from sightline.checkpoints.tables import Pairing, check_claims, ignored_names
from sightline.config import LanguageHead, ModelConfig
from sightline.core.model import Transformer, without_weights
from sightline.errors import CheckpointError
from sightline.families import Family

Progress = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class LoadedWeights:
    """A Transformer with its family, its head and its source."""

    transformer: Transformer
    family: Family
    head: str
    source: Source


def load_weights(
    source: Source,
    *,
    dtype: torch.dtype = torch.float32,
    strict: bool = False,
    progress: Progress | None = None,
) -> LoadedWeights:
    """Build the model that the source describes and fill every parameter from it. `strict` refuses
    unknown keys and NaN weights."""
    identity = identify(source, strict=strict)
    family = identity.family
    head = identity.head
    config = identity.config
    check_budget(source, config)
    transformer = without_weights(config)
    tensors = with_new_spellings(source, family)
    shapes = {name: tuple(parameter.shape) for name, parameter in transformer.named_parameters()}
    table = pairing_table(family, head, config, shapes, tensors)
    _check_ignored(source, family, table)
    check_claims(
        str(source.where), table, set(tensors), shapes, ignored_names(family, config, head, tensors)
    )
    for pair in table:
        if pair.theirs not in tensors:
            if pair.rule.zero_if_absent:
                assign_parameter(
                    transformer, pair.ours[0], torch.zeros(shapes[pair.ours[0]], dtype=dtype)
                )
            continue
        entry = tensors[pair.theirs]
        parts = _split_tensor(source, pair, entry.read(), shapes)
        if pair.rule.optional:
            _check_tied(source, pair, parts[0], transformer)
            continue
        _check_finite(source, pair.theirs, parts, strict=strict)
        for name, tensor in zip(pair.ours, parts, strict=True):
            assign_parameter(transformer, name, tensor.to(dtype))
        if progress is not None:
            progress(pair.theirs, entry.numbers)
    _note_choices(
        source,
        config,
        stored={tensors[pair.theirs].dtype for pair in table if pair.theirs in tensors},
        held=dtype,
    )
    return LoadedWeights(transformer.eval(), family, head, source)


def _note_choices(
    source: Source, config: ModelConfig, *, stored: set[torch.dtype], held: torch.dtype
) -> None:
    """Note what a user may not expect: weights that were cast, or tied in spite of config.json."""
    cast = sorted(str(kind).removeprefix("torch.") for kind in stored - {held})
    if cast:
        source.notes.append(
            f"stored as {', '.join(cast)}, held as {str(held).removeprefix('torch.')}"
        )
    if (
        isinstance(config.head, LanguageHead)
        and config.head.tied
        and source.keys.get("tie_word_embeddings") is False
    ):
        source.notes.append(
            "the file has no output layer: the embedding is used for the logits, despite"
            " tie_word_embeddings: false"
        )


def _check_ignored(source: Source, family: Family, table: list[Pairing]) -> None:
    """Refuse to ignore a tensor that the model needs: its parameter would be missing or zero."""
    left_out = {new_spelling(name, family) for name in source.left_out}
    needed = next(
        (pair.theirs for pair in table if pair.theirs in left_out and not pair.rule.optional), None
    )
    if needed is not None:
        seen = f"{source.where}: ignore_tensors matches {needed}, which the model needs"
        raise CheckpointError(seen, fix="give a narrower glob to --ignore-tensors")


def _split_tensor(
    source: Source, pair: Pairing, tensor: Tensor, shapes: dict[str, tuple[int, ...]]
) -> list[Tensor]:
    """The tensor split into its parameters, each checked against its shape."""
    try:
        parts = pair.split(tensor)
    except RuntimeError:
        parts = []
    expected_shapes = [shapes[name] for name in pair.ours]
    if [tuple(part.shape) for part in parts] != expected_shapes:
        expected = ", ".join(
            f"{name} {list(shape)}" for name, shape in zip(pair.ours, expected_shapes, strict=True)
        )
        raise CheckpointError(
            f"{source.where}: {pair.theirs} has shape {list(tensor.shape)}",
            expected=f"what fills {expected}",
            fix="use weights and a config.json that belong together",
        )
    if not tensor.is_floating_point():
        raise CheckpointError(
            f"{source.where}: {pair.theirs} is {tensor.dtype}",
            expected="floating-point weights",
            fix="use a checkpoint that is not quantized",
        )
    return parts


def _check_tied(source: Source, pair: Pairing, copy: Tensor, transformer: Transformer) -> None:
    embedding = transformer.get_parameter(pair.ours[0])
    if not torch.equal(embedding, copy.to(embedding.dtype)):
        raise CheckpointError(
            f"{source.where}: {pair.theirs} differs from the embedding that config.json ties it to",
            fix='set "tie_word_embeddings": false in config.json',
        )


def _check_finite(source: Source, name: str, parts: list[Tensor], *, strict: bool) -> None:
    if all(bool(torch.isfinite(part.sum(dtype=torch.float32))) for part in parts):
        return
    problem = f"{name} holds NaN or infinity"
    if strict:
        raise CheckpointError(
            f"{source.where}: {problem}",
            fix="load without strict to look at it, or fetch the file again",
        )
    source.notes.append(f"warning: {problem}")


def assign_parameter(module: nn.Module, path: str, tensor: Tensor) -> None:
    """Replace the parameter at `path` by a tensor."""
    *folders, leaf = path.split(".")
    for folder in folders:
        module = module.get_submodule(folder)
    setattr(
        module, leaf, nn.Parameter(tensor, requires_grad=module.get_parameter(leaf).requires_grad)
    )
