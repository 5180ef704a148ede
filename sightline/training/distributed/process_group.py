"""The process group: the processes that train one model, and their collectives. A single process
is a group of one.

Every process builds the same global batch and takes its rows; losses are sums divided by the
batch's count, so that the sum over processes is the loss of the global batch, for any number of
them. `strategies.py` has the groups of several processes.
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


class ProcessGroupError(SightlineError, RuntimeError):
    """A process that ended, does not answer, or has other weights than the rest."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The rank of this process, the number of processes, and the device of this one."""

    rank: int = 0
    world_size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def wrap(self, objective: nn.Module) -> nn.Module:
        """The module on this process's device; its backward pass reduces the gradients over all
        processes."""
        return objective.to(self.device)

    def gradient_sync(self, objective: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        """Synchronise gradients in the last micro-batch only."""
        return nullcontext()

    def any(self, flag: bool) -> bool:
        """Whether the flag is set on any process."""
        return flag

    def sum(self, value: float) -> float:
        """The sum over all processes."""
        return value

    def broadcast(self, value: float) -> float:
        """The value of the first process."""
        return value

    def barrier(self) -> None:
        """Wait for all processes."""

    def all_equal(self, number: int) -> bool:
        """Whether all processes have this number."""
        return True

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The full tensors on the first process; an empty dictionary on the others."""
        return dict(tensors)

    @property
    def is_main(self) -> bool:
        return self.rank == 0


SINGLE_PROCESS = ProcessGroup()


# ------------------------------------------------------------------------------- sharded tensors


def is_sharded(tensor: Tensor) -> bool:
    """Whether each process holds a shard of it. Checked without importing DTensor, which takes a
    second."""
    module = sys.modules.get("torch.distributed.tensor")
    return module is not None and isinstance(tensor, module.DTensor)


def full_tensor(tensor: Tensor) -> Tensor:
    """The full tensor of a shard. A collective: all processes must call it."""
    if not is_sharded(tensor):
        return tensor
    from torch.distributed.tensor import DTensor

    return cast(DTensor, tensor).full_tensor()


def shard_like(tensor: Tensor, parameter: Tensor) -> Tensor:
    """A full tensor placed as a parameter is: on its device and, if that is sharded, this process's
    shard."""
    tensor = tensor.to(parameter.device)
    if is_sharded(tensor) or not is_sharded(parameter) or tensor.shape != parameter.shape:
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    parameter = cast(DTensor, parameter)
    return distribute_tensor(
        tensor, parameter.device_mesh, parameter.placements, src_data_rank=None
    )


def checksum(tensors: Iterable[Tensor]) -> int:
    """The sum of all bits, read as integers: equal for equal tensors. Shards differ between
    processes and are left out."""
    total = 0
    for tensor in tensors:
        if not is_sharded(tensor):
            kind = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[
                tensor.dtype.itemsize
            ]
            total += int(tensor.detach().contiguous().view(kind).sum(dtype=torch.int64))
    return total % 2**62
