"""Threads of one process that use the engine and the kernels at the same time, each with a number
of threads of its own."""

import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from sightline.engine.encoder_runners import pair_runner
from sightline.kernels import library as kernels
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
ROOT = Path(__file__).parents[2]


def test_another_threads_count_is_not_ours() -> None:
    """The count was global: a step sized its buffers by one number and started as many threads as
    another thread had just asked for."""
    before, seen = torch.get_num_threads(), []

    def other() -> None:
        torch.set_num_threads(5)
        seen.append(kernels.ready().threads())

    try:
        torch.set_num_threads(3)
        native = kernels.ready()
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert (native.threads(), seen) == (3, [5])
    finally:
        torch.set_num_threads(before)


def test_models_race_with_changing_counts_and_write_what_they_write_alone() -> None:
    """A second of the long race, in a process of its own: what goes wrong there is a crash or a
    hang."""
    command = [
        sys.executable,
        "-m",
        "tools.race",
        "--seconds",
        "1",
        "--only",
        "int8",
        "float32",
        "changes",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


def test_a_decoder_and_the_encoder_that_it_looks_at_take_turns() -> None:
    """The decoder reads the encoder's cache, which a new source may move."""
    twin = pair_runner(tiny.make(tiny.ENCODER_DECODERS["t5"]))
    assert twin.engine.lock is twin.native.engine.lock
