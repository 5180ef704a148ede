"""Memory that stays mapped: counted in page faults, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import resource, torch
from sightline.training.memory import keep_memory
torch.set_num_threads(1)
heard = keep_memory()
def step():
    for _ in range(20):
        arrays = [torch.ones(1 << 20) for _ in range(4)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(int(heard), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults() -> tuple[int, int]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True, env=environment)
    heard, count = done.stdout.split()
    return int(heard), int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_arrays_are_not_mapped_anew_at_every_step() -> None:
    heard, kept = faults()
    if not heard:
        pytest.skip("not glibc's allocator")
    assert kept < 4_000  # the 80 arrays have 81,920 pages; mapped anew, every one is a fault
