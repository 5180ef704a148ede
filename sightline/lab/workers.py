"""Parts side by side: a process per core, with one thread. A part is found by its name, so nothing
but names and numbers travels.

A worker that fails or is killed ends the run with one PartError, after everything that was measured
by then has been handed over.
"""

from __future__ import annotations

import atexit
import os
import signal
import threading
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any

from sightline.errors import SightlineError
from sightline.lab.experiment import Experiment, Part, Tier
from sightline.lab.results import plain

Wanted = tuple[str, Tier, int, str]  # experiment, tier, first seed, part
Measured = tuple[str, Any, float]  # a part's name, what it measured, its seconds
EXIT_SECONDS = 5.0  # until a process whose pipe is closed has an exit code


class PartError(SightlineError, RuntimeError):
    """A part that could not be measured; what was measured before it is kept."""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measured(part: Part) -> Measured:
    start = time.perf_counter()
    numbers = plain(part.measure())
    return part.name, numbers, round(time.perf_counter() - start, 3)


def one_by_one(experiment: Experiment, parts: Sequence[Part]) -> Iterator[Measured]:
    """Parts in this process."""
    for part in parts:
        try:
            yield measured(part)
        except Exception as error:
            raise failure(experiment.name, part.name, error) from error


def side_by_side(
    experiment: Experiment, parts: Sequence[Part], tier: Tier, seed: int
) -> Iterator[Measured]:
    """Parts as they are done; those that must be alone come first, one by one."""
    alone = [part for part in parts if part.alone or cores() == 1]
    yield from one_by_one(experiment, alone)
    rest: list[Wanted] = [
        (experiment.name, tier, seed, part.name) for part in parts if part not in alone
    ]
    if rest:
        yield from by_workers(rest)


def failure(experiment: str, part: str, error: Exception) -> PartError:
    """One line for whatever a part raised. What no input explains brings its traceback as a
    note."""
    if isinstance(error, SightlineError):
        return PartError(
            f"{experiment}, part {part}: {error.seen}", expected=error.expected, fix=error.fix
        )
    reason = " ".join(str(error).split())[:200]
    made = PartError(
        f"{experiment}, part {part} failed with {type(error).__name__}: {reason}",
        fix=again(experiment),
    )
    made.add_note("".join(traceback.format_exception(error)))
    return made


def again(experiment: str) -> str:
    return (
        f"run sightline lab run {experiment} again with the same options; what was measured is kept"
    )


# ---------------------------------------------------------------------------------- the processes


class Worker:
    """A process that measures one part at a time; kept for the next experiment, because it takes
    seconds to start."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve, args=(other,), daemon=True)
        with interrupts_ignored():
            self.process.start()
        other.close()
        self.wanted: Wanted | None = None

    def begin(self, wanted: Wanted) -> None:
        self.wanted = wanted
        with suppress(OSError):  # a dead one is noticed when it is asked for its answer
            self.connection.send(wanted)

    def answer(self) -> Measured | PartError:
        """What came back; a process that is gone is an error too."""
        assert self.wanted is not None
        try:
            answer: Measured | PartError = self.connection.recv()
        except (EOFError, OSError):
            return self.gone(self.wanted)
        self.wanted = None
        return answer

    def gone(self, wanted: Wanted) -> PartError:
        """How the process ended."""
        self.process.join(EXIT_SECONDS)
        code = self.process.exitcode or 0
        how = (
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )
        hint = "free some memory, then " if code == -getattr(signal, "SIGKILL", 9) else ""
        return PartError(
            f"{wanted[0]}: the process that measured {wanted[3]} {how}", fix=hint + again(wanted[0])
        )

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


IDLE: list[Worker] = []


def by_workers(wanted: Sequence[Wanted]) -> Iterator[Measured]:
    """Each part by whichever worker is free. Stopping before the end, for whatever reason, stops
    the busy ones."""
    waiting = list(reversed(wanted))
    crew: list[Worker] = []
    try:
        for _ in range(min(cores(), len(wanted))):
            crew.append(idle_worker() or Worker())
            crew[-1].begin(waiting.pop())
        while busy := [worker for worker in crew if worker.wanted]:
            ready = wait([worker.connection for worker in busy])
            answers = [(worker, worker.answer()) for worker in busy if worker.connection in ready]
            yield from (answer for _, answer in answers if not isinstance(answer, PartError))
            for worker, answer in answers:
                if isinstance(answer, PartError):
                    raise answer
                if waiting:
                    worker.begin(waiting.pop())
    finally:
        for worker in crew:
            IDLE.append(worker) if worker.wanted is None else worker.stop()


def idle_worker() -> Worker | None:
    """One that is alive, if there is any."""
    with suppress(IndexError):
        while True:
            worker = IDLE.pop()
            if worker.process.is_alive():
                return worker
            worker.stop()
    return None


@contextmanager
def interrupts_ignored() -> Generator[None]:
    """Processes inherit it: one that is still importing would answer Ctrl-C, which is the parent's,
    with a traceback."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@atexit.register
def stop_workers() -> None:
    while IDLE:
        IDLE.pop().stop()


def serve(connection: Connection) -> None:
    """Measure what is asked for until the parent is gone."""
    prepare()
    with suppress(EOFError, OSError):
        while True:
            connection.send(measured_by_name(connection.recv()))


def prepare() -> None:
    """Ctrl-C is the parent's; small models are quickest on one thread. Numbers below 1e-38 are 0:
    with them, where softmax is saturated, some processors are forty times slower."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def measured_by_name(wanted: Wanted) -> Measured | PartError:
    from sightline.lab.catalogue import EXPERIMENTS

    experiment, tier, seed, name = wanted
    try:
        return measured(
            next(part for part in EXPERIMENTS[experiment].parts(tier, seed) if part.name == name)
        )
    except Exception as error:
        return failure(experiment, name, error)
