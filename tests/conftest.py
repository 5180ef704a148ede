"""One thread per test process, since pytest-xdist uses every core; shape checks once per shape."""

from __future__ import annotations

import os
import signal

os.environ.setdefault("OMP_NUM_THREADS", "1")

from collections.abc import Iterator

import jaxtyping
import pytest
import torch

from tests.support.shape_checks import check_once_per_shape

jaxtyping.jaxtyped = check_once_per_shape  # before the core is imported

from sightline.kernels import library as kernels

torch.set_num_threads(1)
if (
    signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):  # a shell's background job; the programs that tests start must hear Ctrl-C
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def as_users_run_it() -> Iterator[None]:
    """Without the shape checks that tests put into the core: what a user's mistake meets."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture(params=kernels._native.instruction_sets() if kernels.available() else [])
def kind(request):
    """Every kind of processor that this one can play, one after the other."""
    before = kernels._native.instruction_set()
    assert kernels._native.select_instruction_set(request.param)
    yield request.param
    kernels._native.select_instruction_set(before)
