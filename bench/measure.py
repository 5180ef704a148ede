"""Timing on a noisy machine: competitors alternate, and only their ratios within one run are
reported."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Ratio:
    """How many times faster `ours` is than `theirs`: the median of the rounds' ratios, and their
    interquartile range."""

    name: str
    ours_ms: float
    theirs_ms: float
    ratio: float
    low: float
    high: float
    rounds: int

    @property
    def verdict(self) -> str:
        if self.low <= 1.0 <= self.high:
            return "even: the difference is within the noise"
        return "faster" if self.ratio > 1 else "slower"


def race(
    name: str, ours: Callable[[], object], theirs: Callable[[], object], *, rounds: int = 30
) -> Ratio:
    """Run both alternately; the order is reversed in every round."""
    for run in (ours, theirs, ours, theirs):
        run()
    times: dict[int, list[float]] = {0: [], 1: []}
    for n in range(rounds):
        for who, run in ((0, ours), (1, theirs)) if n % 2 == 0 else ((1, theirs), (0, ours)):
            start = time.perf_counter()
            run()
            times[who].append(time.perf_counter() - start)
    ratios = sorted(b / a for a, b in zip(times[0], times[1], strict=True))
    quarter = len(ratios) // 4
    median = statistics.median
    return Ratio(
        name,
        1e3 * median(times[0]),
        1e3 * median(times[1]),
        median(ratios),
        ratios[quarter],
        ratios[-1 - quarter],
        rounds,
    )


def peak_memory(code: str) -> float:
    """Peak MiB of a Python snippet's `run`, above the memory before the call, in a new process."""
    script = f"""
import pathlib, torch
torch.set_num_threads(2)
{code}
def kib(name):
    return int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])
pathlib.Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
before = kib("VmRSS")
run()
print((kib("VmHWM") - before) / 1024)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return float(done.stdout)


def machine() -> dict[str, object]:
    """The software and hardware of the measurement."""
    return {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "cpu": torch.backends.cpu.get_cpu_capability(),
    }


def save(name: str, ratios: list[Ratio], more: dict[str, object]) -> Path:
    """Write the results as JSON."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    path.write_text(
        json.dumps({"machine": machine(), "ratios": [asdict(r) for r in ratios], **more}, indent=2)
        + "\n"
    )
    return path
