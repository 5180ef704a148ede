"""Several processes, one model: DDP and FSDP2 in the process group that torchrun started.

    torchrun --nproc-per-node 2 -m sightline train shakespeare --out runs/a

    ddp     every process holds the full model; gradients are averaged while the backward pass is
            still running
    fsdp    every process holds a shard of each weight, gradient and moment; a block is gathered
            when it runs

The loss is multiplied by world / count: the average over processes is then the gradient of the mean
over the global batch. If a process ends or hangs, the others end with a message within `timeout`
seconds.
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
from sightline.training.distributed.process_group import (
    ProcessGroup,
    ProcessGroupError,
    full_tensor,
)

Strategy = Literal["ddp", "fsdp"]
STRATEGIES = ("ddp", "fsdp")
TIMEOUT = 600.0  # seconds; more than writing a large checkpoint takes, while the others wait
CONNECTION_WORDS = (
    "gloo",
    "nccl",
    "connection",
    "socket",
    "timed out",
    "timeout",
    "store",
)  # words in torch's errors when a process is lost


@dataclass(frozen=True, slots=True)
class DDPGroup(ProcessGroup):
    """One of several processes with DDP. Methods are collectives: all processes must call them."""

    def wrap(self, objective: nn.Module) -> nn.Module:
        devices = [self.device] if self.device.type == "cuda" else None
        return DistributedDataParallel(
            objective.to(self.device),
            device_ids=devices,
            forward_sync_buffers=False,
            gradient_as_bucket_view=True,
        )

    def gradient_sync(self, objective: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        return nullcontext() if last else cast(Any, objective).no_sync()

    def any(self, flag: bool) -> bool:
        return self.sum(float(flag)) > 0

    def sum(self, value: float) -> float:
        return float(run_collective(dist.all_reduce, self._number(value)))

    def broadcast(self, value: float) -> float:
        return float(run_collective(partial(dist.broadcast, src=0), self._number(value)))

    def barrier(self) -> None:
        self.sum(0.0)

    def all_equal(self, number: int) -> bool:
        ends = torch.tensor([number, -number], dtype=torch.int64, device=self.device)
        least, most = run_collective(partial(dist.all_reduce, op=dist.ReduceOp.MIN), ends).tolist()
        return least == -most

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return dict(tensors) if self.is_main else {}

    def _number(self, value: float) -> Tensor:
        return torch.tensor(value, dtype=torch.float64, device=self.device)


def run_collective(exchange: Callable[[Tensor], object], numbers: Tensor) -> Tensor:
    """Run a collective on a tensor, and wait until gloo's thread has released it.

    That thread needs the GIL to release it, and a process group that is being freed holds the GIL
    while it waits for its threads: without the wait, the two can deadlock."""
    references = sys.getrefcount(numbers)
    last = time.monotonic() + 1.0
    exchange(numbers)
    while sys.getrefcount(numbers) > references and time.monotonic() < last:
        time.sleep(0)
    return numbers


@dataclass(frozen=True, slots=True)
class FSDPGroup(DDPGroup):
    """FSDP2: weights, gradients and moments are sharded over the processes."""

    def wrap(self, objective: nn.Module) -> nn.Module:
        objective.to(self.device)
        mesh = init_device_mesh(self.device.type, (self.world_size,))
        for part in objective.modules():
            if isinstance(part, (Block, SphereBlock)):
                shard_module(part, mesh)
        return shard_module(objective, mesh)

    def gradient_sync(self, objective: nn.Module, *, last: bool) -> AbstractContextManager[object]:
        cast(FSDPModule, objective).set_requires_gradient_sync(last)
        return nullcontext()

    def gather(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """One tensor at a time, so that no device holds more than one full tensor."""
        gathered: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            full = full_tensor(tensor)
            if self.is_main:
                gathered[name] = full.cpu()
        return gathered


def shard_module(module: nn.Module, mesh: DeviceMesh) -> nn.Module:
    """Shard a module. The root is resharded after each forward pass, too: otherwise an evaluation
    would leave stale weights."""
    return cast(nn.Module, fully_shard(module, mesh=mesh, reshard_after_forward=True))


# -------------------------------------------------------------------------------------- start-up


@contextmanager
def join_process_group(
    strategy: str = "ddp", *, device: str | None = None, timeout: float = TIMEOUT
) -> Generator[ProcessGroup]:
    """Join the process group that torchrun's environment describes; without torchrun, a group of
    one."""
    if strategy not in STRATEGIES:
        raise ConfigError(f"strategy {strategy!r}", fix=nearest(strategy, STRATEGIES))
    kind = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield ProcessGroup(device=torch.device(kind))
        return
    rank, world_size, local = (rank_variable(name) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    place = device_for(kind, local)
    with peer_errors(timeout):
        dist.init_process_group(
            "nccl" if place.type == "cuda" else "gloo", timeout=timedelta(seconds=timeout)
        )
        try:
            yield (DDPGroup if strategy == "ddp" else FSDPGroup)(rank, world_size, place)
        except BaseException:
            keep_alive(dist.group.WORLD)
            raise
        finally:
            dist.destroy_process_group()


def keep_alive(group: object) -> None:
    """Never free a process group: gloo's thread may still hold tensors of a failed collective (see
    `run_collective`)."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(group))


def rank_variable(name: str) -> int:
    """An integer that torchrun set in the environment."""
    value = os.environ.get(name, "0" if name == "LOCAL_RANK" else "")
    if not value.isdecimal():
        raise InputError(
            f"{name}={value!r} in the environment",
            expected="an integer, as torchrun sets it",
            fix=f"unset {name}",
        )
    return int(value)


def device_for(kind: str, local: int) -> torch.device:
    """This process's GPU, or the CPU."""
    if kind != "cuda":
        return torch.device(kind)
    if local >= torch.cuda.device_count():
        raise InputError(
            f"process {local} of this machine has no GPU",
            expected=f"at most {torch.cuda.device_count()} processes",
            fix=f"--nproc-per-node {torch.cuda.device_count()}",
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


@contextmanager
def peer_errors(timeout: float) -> Generator[None]:
    """Turn torch's errors about a lost process into one line."""
    try:
        yield
    except SightlineError:
        raise
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not any(
            word in str(error).lower() for word in CONNECTION_WORDS
        ):
            raise
        raise ProcessGroupError(
            f"another process of this run ended, or has not answered for {timeout:g} seconds",
            expected="all of them, until the end",
            fix="read the output of that process, then start all again with --resume auto",
        ) from error
