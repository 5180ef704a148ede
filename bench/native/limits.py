"""The machine's limits, measured between the contestants' turns: memory bandwidth, and torch's
float32 matrix product."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import torch

from bench.native.channel import ROOT
from bench.training import peak

SOURCE = Path(__file__).with_name("bandwidth.c")
PROGRAM = ROOT / "build" / "peers-models" / "bandwidth"


class Bandwidth:
    """Read bandwidth in GB/s of `threads` threads, from large pages. Unknown without a C compiler;
    shares of it are then omitted."""

    def __init__(self, threads: int) -> None:
        self.process: subprocess.Popen[str] | None = None
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        if compiler is None:
            return
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(
            [compiler, "-O3", "-march=native", "-pthread", str(SOURCE), "-o", str(PROGRAM)],
            check=True,
        )
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [str(PROGRAM), str(threads)], stdin=pipe, stdout=pipe, text=True
        )

    def measure(self) -> float | None:
        if self.process is None or self.process.stdin is None or self.process.stdout is None:
            return None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            self.process.stdin.close()
            self.process.wait(timeout=20)


def gemm_peak(threads: int) -> float:
    """GFLOP/s of the fastest of ten large products."""
    torch.set_num_threads(threads)
    return peak()
