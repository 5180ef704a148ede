"""Cases in worker processes: each handles many, and is replaced when it dies, hangs or grows."""

from __future__ import annotations

import importlib
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from sightline.terminal.console import Console
from tools.fuzz.formats import FORMATS
from tools.fuzz.mutations import mutate
from tools.fuzz.outcome import SOUND, DifferenceError, Kind, RefusedError

SECONDS = 60.0  # per case, on a busy machine
EXIT_SECONDS = 5.0
POLL_SECONDS = 0.2  # of the progress bar
MEGABYTES = 512  # by which a worker may grow in one case
LONGEST_LINE = 2000

Case = tuple[str, int, int]  # format, seed, number
Outcome = tuple[Kind, str]


def make_samples(place: Path, names: list[str]) -> None:
    for name in names:
        (place / name).mkdir(parents=True)
        module(name).make(place / name)


def module(name: str) -> Any:
    return importlib.import_module(f"tools.fuzz.formats.{name}")


def samples_of(samples: Path, name: str) -> list[Path]:
    return sorted(path for path in (samples / name).iterdir() if path.is_dir())


def build_case(samples: Path, case: Case, place: Path) -> Path:
    """Write a mutated copy of a sample; returns the sample."""
    name, seed, number = case
    generator = random.Random(f"{seed}/{name}/{number}")
    sample = generator.choice(samples_of(samples, name))
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(sample, place)
    mutate(place, generator)
    return sample


# ------------------------------------------------------------------------------------ in a worker


def serve(connection: Connection, samples: Path, names: list[str], place: Path) -> None:
    """Answer cases until stdin is closed. Output of libraries is discarded."""
    silence()
    for name in names:  # libraries are imported on first use, which must not count against a case
        sample = samples_of(samples, name)[0]
        judge(name, sample, sample)
    connection.send("ready")
    while True:
        try:
            case: Case = connection.recv()
        except (EOFError, OSError):
            return
        sample = build_case(samples, case, place)
        connection.send(judge(case[0], place, sample))


def silence() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nothing, stream)


def judge(name: str, case: Path, sample: Path) -> Outcome:
    """The outcome of reading a case, if this process survives it."""
    from sightline.errors import SightlineError

    check = module(name).check
    before = peak_megabytes()
    outcome: Outcome = ("equal", "")
    try:
        check(case, sample)
    except SightlineError as error:
        line = str(error)
        outcome = (
            ("refused", line)
            if "\n" not in line and len(line) < LONGEST_LINE
            else ("traceback", f"not a one-line error: {line[:200]!r}")
        )
    except RefusedError as error:
        outcome = ("refused", str(error))
    except DifferenceError as error:
        outcome = ("difference", str(error))
    except MemoryError as error:
        outcome = ("memory", f"{error!r}")
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        outcome = (
            "traceback",
            (
                f"{type(error).__name__}: {str(error)[:150]}"
                f" ({Path(last.filename).name}:{last.lineno})"
            ),
        )
    grown = peak_megabytes() - before
    return ("memory", f"grew by {grown} MB") if grown > MEGABYTES else outcome


def peak_megabytes() -> int:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# ----------------------------------------------------------------------------------- the campaign


class Worker:
    """A process that checks cases, one at a time."""

    def __init__(self, samples: Path, names: list[str], place: Path) -> None:
        context = get_context("spawn")
        self.connection, other = context.Pipe()
        self.process = context.Process(
            target=serve, args=(other, samples, names, place), daemon=True
        )
        self.process.start()
        other.close()
        self.connection.recv()

    def judge(self, case: Case, seconds: float) -> Outcome:
        self.connection.send(case)
        try:
            if not self.connection.poll(seconds):
                return "hang", f"more than {seconds:g} s"
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join(10)
            code = self.process.exitcode or 0
            return "crash", signal.Signals(-code).name if code < 0 else f"exit code {code}"

    def stop(self) -> None:
        """Let the process end by itself; kill it if it does not."""
        self.connection.close()
        self.process.join(EXIT_SECONDS)
        self.process.kill()
        self.process.join()


@dataclass
class Campaign:
    """Cases of some formats until the time limit or the number of cases is reached."""

    samples: Path
    names: list[str]
    seed: int = 0
    first: int = 0
    cases: int | None = None
    deadline: float | None = None
    out: Path | None = None
    seconds: float = SECONDS
    counts: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    findings: list[str] = field(default_factory=list[str])
    next: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, workers: int) -> None:
        threads = [threading.Thread(target=self.work) for _ in range(workers)]
        for thread in threads:
            thread.start()
        columns = (
            BarColumn(),
            TextColumn("{task.completed:,} cases · {task.description}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=self.cases)
            while any(thread.is_alive() for thread in threads):
                description = f"{len(self.findings)} findings"
                bar.update(task, completed=self.next, description=description)
                time.sleep(POLL_SECONDS)

    def take(self) -> Case | None:
        """The next case: the formats alternate."""
        with self.lock:
            late = self.deadline is not None and time.monotonic() > self.deadline
            if late or (self.cases is not None and self.next >= self.cases):
                return None
            number = self.next
            self.next += 1
        return (
            self.names[number % len(self.names)],
            self.seed,
            self.first + number // len(self.names),
        )

    def work(self) -> None:
        place = Path(tempfile.mkdtemp(prefix="fuzz-"))
        worker: Worker | None = None
        while (case := self.take()) is not None:
            worker = worker or Worker(self.samples, self.names, place / "case")
            kind, text = worker.judge(case, self.seconds)
            self.note(case, kind, text)
            if kind in ("crash", "hang", "memory"):
                worker.stop()
                worker = None
        if worker is not None:
            worker.stop()
        shutil.rmtree(place, ignore_errors=True)

    def note(self, case: Case, kind: Kind, text: str) -> None:
        name, seed, number = case
        with self.lock:
            self.counts.setdefault(name, Counter())[kind] += 1
            if kind in SOUND:
                return
            line = f"{kind:10} {name} {seed}-{number}: {text}"
            if self.out is not None:
                saved = self.out / f"{name}-{seed}-{number}"
                sample = build_case(self.samples, case, saved / "case")
                shutil.rmtree(saved / "sample", ignore_errors=True)
                shutil.copytree(sample, saved / "sample")
                line += f"\n           python -m tools.fuzz --show {saved}"
            self.findings.append(line)
            print(line, file=sys.stderr, flush=True)

    def table(self) -> str:
        rows = [
            f"{name:10} "
            + "  ".join(f"{kind} {count}" for kind, count in sorted(self.counts[name].items()))
            for name in self.counts
        ]
        return "\n".join(
            [
                *rows,
                (
                    f"{sum(sum(each.values()) for each in self.counts.values())} cases,"
                    f" {len(self.findings)} findings"
                ),
            ]
        )


def all_names(only: list[str]) -> list[str]:
    unknown = [name for name in only if name not in FORMATS]
    if unknown:
        raise SystemExit(f"unknown format {unknown[0]!r}: choose from {', '.join(FORMATS)}")
    return only or list(FORMATS)
