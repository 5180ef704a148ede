"""A reader's tensors against those of the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from sightline.checkpoints.source import Entry
from tools.fuzz.outcome import DifferenceError, require


def read_all(entries: Mapping[str, Entry]) -> dict[str, Tensor]:
    tensors = {name: entry.read() for name, entry in entries.items()}
    for name, entry in entries.items():
        require(
            tuple(tensors[name].shape) == entry.shape and tensors[name].dtype == entry.dtype,
            f"{name}: its shape is not the declared one",
        )
    return tensors


def reference_of(read: Callable[[], Any]) -> Any:
    """The reference library's tensors, from bytes that we accepted."""
    try:
        return read()
    except Exception as error:
        raise DifferenceError(
            f"accepted, but the reference refuses: {type(error).__name__}: {str(error)[:150]}"
        ) from None


def require_same(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> None:
    require(ours.keys() == theirs.keys(), f"tensors {sorted(ours.keys() ^ theirs.keys())[:3]}")
    for name, tensor in ours.items():
        other = theirs[name]
        require(
            tensor.dtype == other.dtype and tensor.shape == other.shape,
            f"{name} is {tensor.dtype} {list(tensor.shape)}",
        )
        same = (
            torch.equal(tensor.contiguous().view(torch.uint8), other.contiguous().view(torch.uint8))
            if tensor.numel()
            else True
        )
        require(same, f"{name} has other values")
