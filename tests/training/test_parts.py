"""Checkpoints that every process writes its part of: read by any other number of processes, bit for
bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.errors import CheckpointError
from sightline.training.config import AdamW, Muon, TrainingConfig
from sightline.training.distributed.process_group import SINGLE_PROCESS, ProcessGroup, full_tensor
from sightline.training.loop import TrainState, make_train_state
from sightline.training.state.sharded import load_parts, save_parts, shards_of
from tests.support.tiny import SIZE
from tests.training.small_groups import Random, together


def learner(group: ProcessGroup, optimizer: Any, seed: int) -> TrainState:
    torch.manual_seed(seed)
    config = TrainingConfig(steps=2, optimizer=optimizer, ema=0.9)
    return make_train_state(
        sl.build(sl.llama(**(SIZE | {"width": 18, "heads": 3, "layers": 1}), tied=False)),
        config,
        group,
    )


def everything(self: TrainState) -> dict[str, Tensor]:
    return {name: full_tensor(tensor).clone() for name, tensor in shards_of(self).items()} | {
        "step": torch.tensor(self.step)
    }


def saved(group: ProcessGroup, folder: Path, optimizer: Any) -> dict[str, Tensor]:
    self = learner(group, optimizer, 0)
    list(self.steps(Random(rows=5)))
    save_parts(self, folder)
    return everything(self)


def loaded(group: ProcessGroup, folder: Path, optimizer: Any) -> dict[str, Tensor]:
    self = learner(group, optimizer, 1)
    load_parts(self, folder)
    return everything(self)


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize("optimizer", [Muon(), pytest.param(AdamW(), marks=pytest.mark.long)])
def test_two_write_and_one_two_or_three_read(tmp_path: Path, optimizer: Any) -> None:
    """18 rows do not divide by 4, nor 29 by 2: parts are cut unevenly, and cut anew."""
    before, _ = together(saved, tmp_path / "a", optimizer, strategy="fsdp")
    assert len(list((tmp_path / "a").glob("*.safetensors"))) == 2
    assert not list(tmp_path.glob(".*"))
    assert any(name.startswith("optimizer/") for name in before)
    assert same(loaded(SINGLE_PROCESS, tmp_path / "a", optimizer), before)
    assert all(
        same(result, before)
        for result in together(loaded, tmp_path / "a", optimizer, strategy="ddp")
    )
    assert all(
        same(result, before)
        for result in together(loaded, tmp_path / "a", optimizer, strategy="fsdp", world=3)
    )


def test_one_writes_for_itself(tmp_path: Path) -> None:
    before = saved(SINGLE_PROCESS, tmp_path / "a", AdamW())
    assert same(loaded(SINGLE_PROCESS, tmp_path / "a", AdamW()), before)
    with pytest.raises(CheckpointError, match="exists; expected a new name"):
        saved(SINGLE_PROCESS, tmp_path / "a", AdamW())


def test_a_part_that_was_changed_is_refused(tmp_path: Path) -> None:
    saved(SINGLE_PROCESS, tmp_path / "a", AdamW())
    (part,) = (tmp_path / "a").glob("*.safetensors")
    part.write_bytes(part.read_bytes()[:-1] + b"?")
    with pytest.raises(CheckpointError, match="was changed or truncated"):
        loaded(SINGLE_PROCESS, tmp_path / "a", AdamW())
    with pytest.raises(CheckpointError, match="its manifest or a part is missing or broken"):
        loaded(SINGLE_PROCESS, tmp_path / "b", AdamW())
