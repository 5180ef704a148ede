"""Crews for the tests: processes of this machine that talk by gloo, as torchrun would start
them."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import pickle
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch

import sightline as sl
from sightline.training.data.batch import IGNORED, Batch
from sightline.training.distributed.strategies import join_process_group

PRELOADED = [  # imported once, not in each process
    "tests.training.small_groups",
    "sightline.training.run",
    "sightline.training.distributed.strategies",
    "torch.distributed.fsdp",
    "torch._dynamo",
    "pytest",
]
PATIENCE = 120  # seconds until a test that hangs fails


class Random:
    """Next-token prediction on random tokens; remembers which steps it was asked for, and what it
    gave."""

    fingerprint = "random"

    def __init__(self, rows: int = 4, time: int = 6, vocab_size: int = 29) -> None:
        self.rows, self.time, self.vocab_size = rows, time, vocab_size
        self.given: list[tuple[int, int]] = []

    def batch(self, step: int) -> Batch:
        tokens = torch.from_numpy(
            np.random.default_rng([7, step]).integers(
                0, self.vocab_size, (self.rows, self.time + 1)
            )
        )
        self.given.append((step, int(tokens.sum())))
        return Batch(
            tokens=tokens[:, :-1].contiguous(),
            targets=tokens[:, 1:].contiguous(),
            count=self.rows * self.time,
        )

    def validation(self):
        yield self.batch(10**6)


class Sentences:
    """A batch for any model: next tokens, masked tokens, a source, or a label for each row."""

    def __init__(self, config: sl.ModelConfig, rows: int) -> None:
        self.config, self.rows = config, rows

    def batch(self, step: int) -> Batch:
        made = Random(self.rows).batch(step)
        if isinstance(self.config.head, sl.Classifier):
            return replace(
                made, targets=made.targets[:, 0] % self.config.head.labels, count=self.rows
            )
        if self.config.encoder is not None and self.config.decoder is not None:
            return replace(made, source=made.targets.flip(1))
        if self.config.encoder is not None:
            hidden = made.tokens % 3 == 0
            return replace(
                made, targets=torch.where(hidden, made.tokens, IGNORED), count=int(hidden.sum())
            )
        return made


def together(
    work: Callable[..., Any],
    *args: Any,
    world: int = 2,
    strategy: str = "ddp",
    timeout: float = 60.0,
    need: Sequence[int] | None = None,
) -> list[Any]:
    """What `work(group, *args)` gives in each process; an exception as its text; None from one that
    was killed, or is not needed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    port, started = free_port(), []
    for rank in range(world):
        here, there = context.Pipe(duplex=False)
        process = context.Process(
            target=member,
            args=(there, rank, world, port, strategy, timeout, work, args),
            daemon=True,
        )
        process.start()
        there.close()
        started.append((process, here))
    try:
        return [
            answer(here) if need is None or rank in need else None
            for rank, (_, here) in enumerate(started)
        ]
    finally:
        for process, _ in started:
            process.kill()
            process.join()


def answer(here: Connection) -> Any:
    assert wait([here], PATIENCE), "a process hangs"
    try:
        return pickle.loads(here.recv_bytes())
    except EOFError:
        return None


def member(
    pipe: Connection,
    rank: int,
    world: int,
    port: int,
    strategy: str,
    timeout: float,
    work: Callable[..., Any],
    args: Any,
) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": f"{rank}",
        "LOCAL_RANK": f"{rank}",
        "WORLD_SIZE": f"{world}",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": f"{port}",
    }
    try:
        with join_process_group(strategy, timeout=timeout) as group:
            result = work(group, *args)
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
        traceback.print_exc(file=sys.stderr)
    pipe.send_bytes(pickle.dumps(result))
    pipe.close()


PORTS = itertools.count()


def free_port() -> int:
    """One that nobody has, below those that the system gives to whoever asks for any; tests side by
    side begin at other places."""
    for _ in range(1_000):
        port = 20_000 + (97 * os.getpid() + next(PORTS)) % 12_000
        with socket.socket() as server, suppress(OSError):
            server.bind(("127.0.0.1", port))
            return port
    raise OSError("no port of 127.0.0.1 is free")
