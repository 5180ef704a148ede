"""Processes that train one model together: who they are, and how they agree. One process alone is a
crew of one.

Every process builds the same global batch and takes its rows; losses are sums divided by the
batch's count, so that the sum over processes is the loss of the whole batch, whatever their number.
`distributed.py` has the crews of many.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from sightline.errors import SightlineError


class CrewError(SightlineError, RuntimeError):
    """A process that is gone, does not answer, or has come to other weights than the rest."""


@dataclass(frozen=True, slots=True)
class Crew:
    """This process, how many there are, and where this one computes."""

    rank: int = 0
    world: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The module, on this process's device, whose backward pass adds up everyone's
        gradients."""
        return objective.to(self.device)

    def syncing(self, objective: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Gradients are added up in the last part of a batch only."""
        return nullcontext()

    def agree(self, flag: bool) -> bool:
        """True for all if it is for one."""
        return flag

    def total(self, value: float) -> float:
        """The sum over everyone."""
        return value

    def first(self, value: float) -> float:
        """What the first process has."""
        return value

    def meet(self) -> None:
        """Wait until everyone is here."""

    def same(self, number: int) -> bool:
        """Whether everyone has this number."""
        return True

    def full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """All of each tensor, for the first process to write; the others help, and get nothing."""
        return dict(tensors)

    @property
    def leads(self) -> bool:
        return self.rank == 0


ALONE = Crew()


# ------------------------------------------------------------------------------- tensors in parts


def in_parts(tensor: Tensor) -> bool:
    """Whether each process holds a part of it. Without that import, which takes a second, no tensor
    can be."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def whole(tensor: Tensor) -> Tensor:
    """All of a tensor, wherever its parts are. Everyone must ask together."""
    if not in_parts(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    return cast(DTensor, tensor).full_tensor()


def held_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A whole tensor as a parameter is held: on its device and, where it is in parts, this
    process's part of it."""
    tensor = tensor.to(parameter.device)
    if in_parts(tensor) or not in_parts(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    parameter = cast(DTensor, parameter)
    return distribute_tensor(
        tensor, parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def checksum(tensors: Iterable[Tensor]) -> int:
    """The sum of all bits, read as whole numbers: equal for equal tensors. Those in parts differ
    between processes, and count nothing."""
    total = 0
    for tensor in tensors:
        if not in_parts(tensor):
            kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
                tensor.dtype.itemsize
            ]
            total += int(tensor.detach().contiguous().view(kind).sum(dtype=torch.int64))
    return total % 2**62
