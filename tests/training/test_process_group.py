"""A group of one, and the tensors that processes share."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sightline.training.distributed.process_group import (
    SINGLE_PROCESS,
    ProcessGroup,
    checksum,
    full_tensor,
    is_sharded,
    shard_like,
)


def test_one_process_alone_agrees_with_itself() -> None:
    assert SINGLE_PROCESS.is_main
    assert SINGLE_PROCESS.device == torch.device("cpu")
    assert [SINGLE_PROCESS.any(flag) for flag in (True, False)] == [True, False]
    assert SINGLE_PROCESS.sum(2.5) == SINGLE_PROCESS.broadcast(2.5) == 2.5
    assert SINGLE_PROCESS.all_equal(7)
    tensors = {"a": torch.ones(2)}
    assert SINGLE_PROCESS.gather(tensors) == tensors
    SINGLE_PROCESS.barrier()


def test_only_the_first_leads() -> None:
    assert [ProcessGroup(rank, 3).is_main for rank in range(3)] == [True, False, False]


def test_the_objective_moves_to_the_device_of_the_group() -> None:
    module = nn.Linear(2, 3)
    assert SINGLE_PROCESS.wrap(module) is module
    with SINGLE_PROCESS.gradient_sync(module, last=False):
        pass
    assert ProcessGroup(device=torch.device("meta")).wrap(module).weight.device.type == "meta"


def test_a_plain_tensor_is_whole_already() -> None:
    tensor = torch.randn(3, 4)
    assert not is_sharded(tensor)
    assert full_tensor(tensor) is tensor
    assert shard_like(tensor, torch.zeros(3, 4)) is tensor


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_the_checksum_is_the_sum_of_the_bits(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(5, 7).to(dtype), torch.randn(7).to(dtype)
    kind = {2: np.int16, 4: np.int32, 8: np.int64}[dtype.itemsize]
    bits = [np.frombuffer(t.contiguous().view(torch.uint8).numpy().tobytes(), kind) for t in (a, b)]
    by_hand = sum(int(n) for part in bits for n in part)
    if dtype == torch.float64:  # sums of 64 bits go round
        by_hand = sum((sum(int(n) for n in part) + 2**63) % 2**64 - 2**63 for part in bits)
    assert checksum([a, b]) == by_hand % 2**62


def test_the_checksum_notices_one_bit() -> None:
    tensor = torch.randn(100)
    other = tensor.clone()
    other.view(torch.int32)[63] ^= 1
    assert checksum([tensor]) != checksum([other])
    assert checksum([tensor]) == checksum([tensor.clone()])
