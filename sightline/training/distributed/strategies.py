"""Many processes, one model: the crew that torchrun started.

    torchrun --nproc-per-node 2 -m sightline train shakespeare --out runs/a

    ddp     every process holds the whole model; gradients are averaged while the backward pass is
            still running
    fsdp    every process holds a part of each weight, gradient and moment; a block is put together
            when its turn comes

The loss is multiplied by world / count: the average over processes is then the gradient of the mean
over the whole batch. A process that is gone or hangs ends the others with a message, within
`timeout` seconds.
"""

from __future__ import annotations

import ctypes
import os
import sys
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.parallel import DistributedDataParallel

from sightline.core.block import Block
from sightline.core.hypersphere import SphereBlock
from sightline.errors import ConfigError, InputError, SightlineError, nearest
from sightline.training.distributed.process_group import Crew, CrewError, whole

Strategy = Literal["ddp", "fsdp"]
STRATEGIES = ("ddp", "fsdp")
TIMEOUT = (
    600.0  # seconds: longer than a large checkpoint takes to write, for that long the others wait
)
BROKEN = (
    "gloo",
    "nccl",
    "connection",
    "socket",
    "timed out",
    "timeout",
    "store",
)  # words of torch's errors when a process is gone


@dataclass(frozen=True, slots=True)
class Processes(Crew):
    """One of several processes; each answers when all have asked."""

    def wrap(self, objective: nn.Module) -> nn.Module:
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(
            objective.to(self.device),
            device_ids=devices,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )

    def syncing(self, objective: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else cast(Any, objective).no_sync()

    def agree(self, flag: bool) -> bool:
        return self.total(float(flag)) > 0

    def total(self, value: float) -> float:
        return float(exchanged(dist.all_reduce, self._number(value)))

    def first(self, value: float) -> float:
        return float(exchanged(partial(dist.broadcast, src=0), self._number(value)))

    def meet(self) -> None:
        self.total(0.0)

    def same(self, number: int) -> bool:
        ends = torch.tensor([number, -number], dtype=torch.int64, device=self.device)
        least, most = exchanged(partial(dist.all_reduce, op=dist.ReduceOp.MIN), ends).tolist()
        return least == -most

    def full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors) if self.leads else {}

    def _number(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self.device)


def exchanged(exchange: Callable[[Tensor], object], numbers: Tensor) -> Tensor:
    """The numbers after an exchange, when gloo's thread has let go of them.

    That thread needs Python's lock to do so, and a group that is freed holds the lock while it
    waits for its threads: right after an exchange, the two would wait for each other for ever."""
    references = sys.getrefcount(numbers)
    last = time.monotonic() + 1.0
    exchange(numbers)
    while sys.getrefcount(numbers) > references and time.monotonic() < last:
        time.sleep(0)
    return numbers


@dataclass(frozen=True, slots=True)
class Shards(Processes):
    """FSDP2: weights, gradients and moments in parts, one for each process."""

    def wrap(self, objective: nn.Module) -> nn.Module:
        objective.to(self.device)
        mesh = init_device_mesh(self.device.type, (self.world,))
        for part in objective.modules():
            if isinstance(part, (Block, SphereBlock)):
                shard(part, mesh)
        return shard(objective, mesh)

    def syncing(self, objective: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        cast(FSDPModule, objective).set_requires_gradient_sync(last)
        return nullcontext()

    def full(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One tensor after the other, so that no device holds more than one whole one."""
        found: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            put_together = whole(tensor)
            if self.leads:
                found[name] = put_together.cpu()
        return found


def shard(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """The root, too, gives its weights back after each forward pass: else an evaluation would leave
    old ones behind."""
    return cast(nn.Module, fully_shard(module, mesh=mesh, reshard_after_forward=True))


# -------------------------------------------------------------------------------------- beginning


@contextmanager
def crew_here(
    strategy: str = "ddp", *, device: str | None = None, timeout: float = TIMEOUT
) -> Generator[Crew]:
    """The crew that torchrun's environment describes, for a while; without torchrun, this process
    alone."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy {strategy!r}", fix=nearest(strategy, STRATEGIES))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield Crew(device=torch.device(kind))
        return
    rank, world, local = (whole_number(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    place = device_for(kind, local)
    with ending_together(timeout):
        dist.init_process_group(
            "nccl" if place.type == "cuda" else "gloo", timeout=timedelta(seconds=timeout)
        )
        try:
            yield (Processes if strategy == "ddp" else Shards)(rank, world, place)
        except BaseException:
            never_free(dist.group.WORLD)
            raise
        finally:
            dist.destroy_process_group()


def never_free(group: object) -> None:
    """An exchange that failed may still be in the hands of gloo's thread, which `exchanged` tells
    of: its group stays, and nobody waits."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def whole_number(name: str) -> int:
    """A number that torchrun put into the environment."""
    said = os.environ.get(name, "0" if name == "LOCAL_RANK" else "")
    if not said.isdecimal():
        raise InputError(
            f"{name}={said!r} in the environment",
            expected="a whole number, as torchrun sets it",
            fix=f"unset {name}",
        )
    return int(said)


def device_for(kind: str, local: int) -> torch.device:
    """This process's own GPU, or the processor."""
    if kind != "cuda":
        return torch.device(kind)
    if local >= torch.cuda.device_count():
        raise InputError(
            f"process {local} of this machine has no GPU of its own",
            expected=f"at most {torch.cuda.device_count()} processes",
            fix=f"--nproc-per-node {torch.cuda.device_count()}",
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


@contextmanager
def ending_together(timeout: float) -> Generator[None]:
    """What torch says when another process is gone, as one line."""
    try:
        yield
    except SightlineError:
        raise
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(
            word in str(error).lower() for word in BROKEN
        ):
            raise
        raise CrewError(
            f"another process of this run is gone, or has not answered for {timeout:g} seconds",
            expected="all of them, until the end",
            fix="see what that one said last, then start all again with --resume auto",
        ) from error
