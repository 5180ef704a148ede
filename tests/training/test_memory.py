"""Memory that stays mapped: counted in page faults, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

CODE = """
import resource, sys, torch
from sightline.training.memory import keep_memory
torch.set_num_threads(1)
heard = sys.argv[1] == "keep" and keep_memory()
def step():
    for _ in range(20):
        arrays = [torch.ones(1 << 20) for _ in range(4)]
step()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step()
print(int(heard), resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> tuple[int, int]:
    """Whether the allocator listened, and the faults of one step. A threshold that is set does not
    adapt itself to what was freed."""
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))
    }
    environment |= {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}
    done = subprocess.run(
        [sys.executable, "-c", CODE, how],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    heard, count = done.stdout.split()
    return int(heard), int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
def test_arrays_are_not_mapped_again_at_every_step() -> None:
    heard, kept = faults("keep")
    if not heard:
        pytest.skip("not glibc's allocator")
    _, usual = faults("as usual")
    assert kept < usual / 3
