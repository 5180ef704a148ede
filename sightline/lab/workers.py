"""Measure parts in parallel: one single-threaded process per core. Only part names and numbers are
sent between processes.

A worker that fails or is killed ends the run with one PartError, after all finished measurements
have been returned.
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

from sightline.errors import SightlineError, short_reason
from sightline.lab.experiment import Experiment, ExperimentPart, Plan
from sightline.lab.results import to_json_numbers
from sightline.lab.tuning import PILOT_SEED

PartKey = tuple[str, Plan, str]  # experiment, plan, part name
Measurement = tuple[str, Any, float]  # part name, numbers, core-seconds
EXIT_SECONDS = 5.0  # how long to wait for the exit code after the pipe closed


class PartError(SightlineError, RuntimeError):
    """A part that could not be measured; the parts measured before it are saved."""


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def measure_part(part: ExperimentPart) -> Measurement:
    """The seconds are those of all cores: they do not depend on what else runs."""
    start = time.process_time()
    numbers = to_json_numbers(part.measure())
    return part.name, numbers, round(time.process_time() - start, 3)


def measure_in_process(
    experiment: Experiment, parts: Sequence[ExperimentPart]
) -> Iterator[Measurement]:
    """Measure parts sequentially in this process."""
    for part in parts:
        try:
            yield measure_part(part)
        except Exception as error:
            raise part_error(experiment.name, part.name, error) from error


def measure_in_parallel(
    experiment: Experiment, parts: Sequence[ExperimentPart], plan: Plan
) -> Iterator[Measurement]:
    """Yield measurements as they finish; parts marked `alone` are measured first, one by one."""
    alone = [part for part in parts if part.alone or cores() == 1]
    yield from measure_in_process(experiment, alone)
    rest: list[PartKey] = [
        (experiment.name, plan, part.name) for part in parts if part not in alone
    ]
    if rest:
        yield from measure_with_workers(rest)


def part_error(experiment: str, part: str, error: Exception) -> PartError:
    """One PartError for any exception of a part; unexpected ones keep their traceback as a note."""
    if isinstance(error, SightlineError):
        return PartError(
            f"{experiment}, part {part}: {error.seen}", expected=error.expected, fix=error.fix
        )
    wrapped = PartError(
        f"{experiment}, part {part} failed with {type(error).__name__}: {short_reason(error)}",
        fix=rerun_hint(experiment),
    )
    wrapped.add_note("".join(traceback.format_exception(error)))
    return wrapped


def rerun_hint(experiment: str) -> str:
    return (
        f"run sightline lab run {experiment} again with the same options; finished parts are reused"
    )


# ------------------------------------------------------------------------------------- processes


class Worker:
    """A process that measures one part at a time; reused for the next experiment, because starting
    one takes seconds."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(target=serve_parts, args=(other,), daemon=True)
        with interrupts_ignored():
            self.process.start()
        other.close()
        self.key: PartKey | None = None

    def start(self, key: PartKey) -> None:
        self.key = key
        with suppress(OSError):  # a dead process is noticed in `receive`
            self.connection.send(key)

    def receive(self) -> Measurement | PartError:
        """The measurement or the error that the process sent; an error if the process died."""
        assert self.key is not None
        try:
            answer: Measurement | PartError = self.connection.recv()
        except (EOFError, OSError):
            return self.exit_error(self.key)
        self.key = None
        return answer

    def exit_error(self, key: PartKey) -> PartError:
        """An error that states how the process ended."""
        self.process.join(EXIT_SECONDS)
        code = self.process.exitcode or 0
        how = (
            f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
        )
        hint = "free some memory, then " if code == -getattr(signal, "SIGKILL", 9) else ""
        return PartError(
            f"{key[0]}: the process that measured {key[2]} {how}",
            fix=hint + rerun_hint(key[0]),
        )

    def stop(self) -> None:
        self.connection.close()
        self.process.kill()
        self.process.join()


IDLE: list[Worker] = []


def measure_with_workers(keys: Sequence[PartKey]) -> Iterator[Measurement]:
    """Give each part to the next free worker. Leaving early, for any reason, stops the busy
    workers."""
    waiting = list(reversed(keys))
    workers: list[Worker] = []
    try:
        for _ in range(min(cores(), len(keys))):
            workers.append(idle_worker() or Worker())
            workers[-1].start(waiting.pop())
        while busy := [worker for worker in workers if worker.key]:
            ready = wait([worker.connection for worker in busy])
            answers = [(worker, worker.receive()) for worker in busy if worker.connection in ready]
            yield from (answer for _, answer in answers if not isinstance(answer, PartError))
            for worker, answer in answers:
                if isinstance(answer, PartError):
                    raise answer
                if waiting:
                    worker.start(waiting.pop())
    finally:
        for worker in workers:
            IDLE.append(worker) if worker.key is None else worker.stop()


def idle_worker() -> Worker | None:
    """An idle worker that is still alive, or None."""
    with suppress(IndexError):
        while True:
            worker = IDLE.pop()
            if worker.process.is_alive():
                return worker
            worker.stop()
    return None


@contextmanager
def interrupts_ignored() -> Generator[None]:
    """Ignore Ctrl-C while a child process starts: it inherits this, and would otherwise print a
    traceback if interrupted during its imports."""
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


def serve_parts(connection: Connection) -> None:
    """Measure the requested parts until the parent closes the pipe."""
    prepare_worker()
    with suppress(EOFError, OSError):
        while True:
            connection.send(measure_by_name(connection.recv()))


def prepare_worker() -> None:
    """Ignore Ctrl-C (the parent handles it), use one thread, and flush denormals: with a saturated
    softmax they make some processors forty times slower."""
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def measure_by_name(key: PartKey) -> Measurement | PartError:
    from sightline.lab.catalogue import EXPERIMENTS

    name, plan, wanted = key
    experiment = EXPERIMENTS[name]
    try:
        parts = experiment.pilots(plan.tier) if plan.seed == PILOT_SEED else experiment.parts(plan)
        return measure_part(next(part for part in parts if part.name == wanted))
    except Exception as error:
        return part_error(name, wanted, error)
