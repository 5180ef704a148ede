"""Two processes on this machine, by gloo: they learn what one would, and end together."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.errors import ConfigError, InputError
from sightline.training import loss
from sightline.training.config import AdamW, Muon, Schedule, TrainingConfig
from sightline.training.distributed.process_group import (
    SINGLE_PROCESS,
    ProcessGroup,
    checksum,
    full_tensor,
    is_sharded,
)
from sightline.training.distributed.strategies import join_process_group, run_collective
from sightline.training.loop import StepEvent, TrainState, make_train_state
from sightline.training.run import Evaluated, Job, train
from sightline.training.state import checkpoint as state
from sightline.training.state.export import Export
from tests.support.tiny import SIZE
from tests.training.small_groups import Random, Sentences, free_port, together

SMALL = SIZE | {"layers": 1, "width": 16, "heads": 2}
MODELS = {
    "tied": sl.llama(**SMALL),
    "untied": sl.llama(**SMALL, tied=False),
    "sphere": sl.ngpt(**SMALL),
    "masked": sl.bert(**SMALL, types=0),
    "pairs": sl.encoder_decoder(**SMALL),
    "dropout": sl.gpt(**SMALL, dropout=0.2),
    "classes": replace(sl.bert(**SMALL), head=sl.Classifier(labels=5, activation="tanh")),
}


def learner(group: ProcessGroup, model: str = "tied", **changes: Any) -> TrainState:
    settings: dict[str, Any] = {
        "steps": 4,
        "optimizer": AdamW(),
        "schedule": Schedule(warmup=0),
        "clip": 0.5,
    }
    torch.manual_seed(0)
    return make_train_state(sl.build(MODELS[model]), TrainingConfig(**(settings | changes)), group)


def weights(self: TrainState) -> dict[str, Tensor]:
    """The last ones and the averaged."""
    both = dict(self.transformer.named_parameters()) | {
        f"average of {name}": t for name, t in self.ema.items()
    }
    return {name: full_tensor(t.detach()).clone() for name, t in both.items()}


def farthest(a: dict[str, Tensor], b: dict[str, Tensor]) -> float:
    assert a.keys() == b.keys()
    return max(float((a[name] - b[name]).abs().max()) for name in a)


# --------------------------------------------------------------------------------------- the group


def test_without_torchrun_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with join_process_group(device="cpu") as group:
        assert group == SINGLE_PROCESS


def test_what_is_wrong_with_the_environment_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with (
        pytest.raises(ConfigError, match=r"strategy 'fspd'. Fix: did you mean 'fsdp'\?"),
        join_process_group("fspd"),
    ):
        pass
    monkeypatch.setenv("RANK", "first")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with (
        pytest.raises(InputError, match="RANK='first' in the environment; expected an integer"),
        join_process_group(),
    ):
        pass


def questions(group: ProcessGroup) -> list[Any]:
    group.barrier()
    mine = {"a": torch.full((2,), float(group.rank))}
    answers = [
        group.is_main,
        group.any(group.rank == 1),
        group.any(False),
        group.sum(group.rank + 0.5),
        group.broadcast(10.0 + group.rank),
    ]
    return [
        *answers,
        group.all_equal(2**61),
        group.all_equal(2**61 + group.rank),
        {name: t.tolist() for name, t in group.gather(mine).items()},
    ]


def test_a_process_group_agrees() -> None:
    shared = [True, False, 2.0, 10.0, True, False]
    assert together(questions) == [[True, *shared, {"a": [0.0, 0.0]}], [False, *shared, {}]]


# ------------------------------------------------------------------------------ the same learning


def gradients(group: ProcessGroup) -> dict[str, tuple[float, float, dict[str, Tensor]]]:
    """Of every model, with the parts of the batch and the chunks of the head as small as they get.
    Five rows are not shared evenly; with one row, a process has nothing to do but takes part."""
    result = {}
    for name, accumulate, rows in [
        (name, *more) for name in MODELS if name != "dropout" for more in ((1, 5), (2, 5), (1, 1))
    ]:
        self = learner(
            group, name, accumulate=accumulate, clip=0.0, checkpoint_activations=accumulate == 2
        )
        value, norm = self.backward(Sentences(MODELS[name], rows).batch(0)) or (0.0, 0.0)
        slopes = {
            n: full_tensor(p.grad).clone()
            for n, p in self.transformer.named_parameters()
            if p.grad is not None
        }
        result[f"{name}, {rows} rows in {accumulate}"] = value, norm, slopes
    return result


def small_chunks(group: ProcessGroup) -> dict[str, tuple[float, float, dict[str, Tensor]]]:
    loss.CHUNK = 29 * 4
    return gradients(group)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_gradients_are_those_of_one_process(strategy: str) -> None:
    alone = gradients(SINGLE_PROCESS)
    for result in together(small_chunks, strategy=strategy):
        assert result.keys() == alone.keys()
        for name, (value, norm, slopes) in alone.items():
            assert result[name][0] == pytest.approx(value, abs=1e-6), name
            assert result[name][1] == pytest.approx(norm, abs=1e-6), name
            assert farthest(result[name][2], slopes) < 1e-6, name


def learned(group: ProcessGroup) -> dict[str, tuple[list[Any], bool, dict[str, Tensor]]]:
    """Losses and gradient norms, whether the weights are in parts, and the weights and averages at
    the end."""
    result = {}
    for model, optimizer in [
        (model, optimizer) for model in ("tied", "sphere") for optimizer in (AdamW(), Muon())
    ]:
        self = learner(group, model, optimizer=optimizer, ema=0.9, accumulate=2)
        events = [(event.loss, event.grad_norm) for event in self.steps(Random(rows=5))]
        parts = all(is_sharded(p) for p in self.transformer.parameters())
        result[f"{model} {type(optimizer).__name__}"] = events, parts, weights(self)
    return result


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_learn_what_one_learns(strategy: str) -> None:
    alone = learned(SINGLE_PROCESS)
    for result in together(learned, strategy=strategy):
        for name, (events, _, final) in alone.items():
            assert np.allclose(result[name][0], events, atol=1e-5), name
            assert result[name][1] == (strategy == "fsdp"), name
            assert farthest(result[name][2], final) < 1e-5, name


# ------------------------------------------------------------------------------------------ a run


def job(task: Random, model: str = "untied", **changes: Any) -> Job:
    settings: dict[str, Any] = {
        "steps": 6,
        "schedule": Schedule(shape="constant", warmup=0),
        "save_every": 2,
        "eval_every": 2,
        "ema": 0.9,
    }
    config = TrainingConfig(**(settings | changes))
    return Job(
        name="test", make=lambda: sl.build(MODELS[model]), task=task, config=config, export=Export()
    )


def stretch(
    group: ProcessGroup, folder: Path, last: int, optimizer: Any = None, model: str = "untied"
) -> tuple[list[Any], list[Any], dict[str, Tensor]]:
    """A run, or more of it, until step `last`: its losses, the samples it learned from, and the
    weights it began with."""
    work, result = job(Random(rows=5), model, optimizer=optimizer or AdamW()), []
    begun = restored(group, work, folder)
    for event in train(
        work, folder, group=group, stop=lambda: bool(result) and result[-1][1] >= last
    ):
        if isinstance(event, StepEvent | Evaluated):
            result.append((type(event).__name__, event.step, event.loss))  # noqa: PERF401
    learned_from = {step - 1 for kind, step, _ in result if kind == "StepEvent"}
    return result, [given for given in work.task.given if given[0] in learned_from], begun


def restored(group: ProcessGroup, work: Job, folder: Path) -> dict[str, Tensor]:
    """Everything that a group of this kind reads from the newest checkpoint, put together again."""
    path, _ = state.newest_complete(folder)
    if path is None:
        return {}
    self = make_train_state(work.make(), work.config, group)
    state.restore_checkpoint(self, path)
    return {
        f"{file}/{name}": t.clone()
        for file, tensors in state.checkpoint_tensors(self).items()
        for name, t in tensors.items()
    }


@pytest.mark.parametrize(
    ("strategy", "optimizer"),
    [
        ("ddp", AdamW()),
        ("fsdp", Muon()),
        pytest.param("ddp", Muon(), marks=pytest.mark.long),
        pytest.param("fsdp", AdamW(), marks=pytest.mark.long),
    ],
)
def test_a_run_resumes_with_another_number_of_processes(
    tmp_path: Path, strategy: str, optimizer: Any
) -> None:
    """One, then two, then one again: the same samples and losses as one all along, and every tensor
    bit for bit as it was saved."""
    plain, samples, _ = stretch(SINGLE_PROCESS, tmp_path / "plain", 6, optimizer)
    first = stretch(SINGLE_PROCESS, tmp_path / "a", 2, optimizer)
    saved = contents(tmp_path / "a")
    second = together(stretch, tmp_path / "a", 4, optimizer, strategy=strategy)
    assert exactly(second[0][2], saved)
    saved = contents(tmp_path / "a")
    third = stretch(SINGLE_PROCESS, tmp_path / "a", 6, optimizer)
    assert exactly(third[2], saved)
    assert first[1] + second[0][1] + third[1] == first[1] + second[1][1] + third[1] == samples
    for rank in (0, 1):
        events = first[0] + second[rank][0] + third[0]
        assert [e[:2] for e in events] == [e[:2] for e in plain]
        assert [e[2] for e in events] == pytest.approx([e[2] for e in plain], abs=1e-5)
    assert farthest(contents(tmp_path / "a"), contents(tmp_path / "plain")) < 1e-5
    assert farthest(model_of(tmp_path / "a"), model_of(tmp_path / "plain")) < 1e-5


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.long)])
def test_as_many_processes_as_before_resume_bit_for_bit(tmp_path: Path, strategy: str) -> None:
    """With dropout, whose random numbers belong to (seed, step, process)."""
    for folder, ends in (("a", (4,)), ("b", (2, 4))):
        for last in ends:
            together(stretch, tmp_path / folder, last, Muon(), "dropout", strategy=strategy)
    assert exactly(contents(tmp_path / "a"), contents(tmp_path / "b"))


def contents(folder: Path) -> dict[str, Tensor]:
    """The newest checkpoint, read by the library."""
    from safetensors.torch import load_file

    path = folder / "checkpoints" / (folder / "checkpoints" / "LATEST").read_text()
    return {
        f"{file.stem}/{name}": tensor
        for file in path.glob("*.safetensors")
        for name, tensor in load_file(file).items()
    }


def model_of(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "model" / "model.safetensors")


def exactly(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def told_to_stop(group: ProcessGroup, folder: Path) -> int:
    """One process gets SIGTERM in its third step."""
    flag: list[bool] = []
    signal.signal(signal.SIGTERM, lambda *_: flag.append(True))
    task, last = Random(), 0
    for event in train(
        job(task, steps=100, save_every=100), folder, group=group, stop=lambda: bool(flag)
    ):
        if group.rank == 1 and getattr(event, "step", 0) == 3:
            os.kill(os.getpid(), signal.SIGTERM)
        last = event.step if isinstance(event, StepEvent) else last
    return last


def test_a_signal_to_one_ends_all_at_the_same_step(tmp_path: Path) -> None:
    assert together(told_to_stop, tmp_path) == [3, 3]
    path, _ = state.newest_complete(tmp_path)
    assert path is not None
    assert path.name == "step-00000003"


def audited(group: ProcessGroup, folder: Path) -> list[str]:
    """What this process changed below the folder, as the interpreter itself reports it."""
    changed: list[str] = []

    def look(event: str, args: tuple[Any, ...]) -> None:
        writes = (
            event == "open"
            and isinstance(args[2], int)
            and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if (writes or event in ("os.mkdir", "os.rename", "os.remove", "os.rmdir")) and str(
            folder
        ) in str(args[0]):
            changed.append(event)

    sys.addaudithook(look)
    for _ in train(job(Random()), folder, group=group):
        pass
    for _ in train(
        job(Random(), steps=8, optimizer=AdamW(lr=0.1)),
        folder,
        group=group,
        accept=frozenset({"settings"}),
    ):
        pass
    return changed


@pytest.mark.parametrize("strategy", [pytest.param("ddp", marks=pytest.mark.long), "fsdp"])
def test_only_the_first_process_writes(tmp_path: Path, strategy: str) -> None:
    first, second = together(audited, tmp_path, strategy=strategy)
    assert {"open", "os.mkdir", "os.rename"} <= set(first)
    assert second == []
    assert json.loads((tmp_path / "run.json").read_text())["training"]["optimizer"]["lr"] == 0.1


# ----------------------------------------------------------------------------------------- faults


def changed_weight(group: ProcessGroup, folder: Path, rank: int) -> None:
    """A bit flips in one process after the third step."""
    work = job(Random())
    models: list[sl.Transformer] = []
    make = work.make
    work = replace(work, make=lambda: models.append(make()) or models[-1])
    for event in train(work, folder, group=group):
        if group.rank == rank and getattr(event, "step", 0) == 3:
            models[0].decoder.norm.weight.data.view(torch.int32)[0] ^= 1


@pytest.mark.parametrize("rank", [1, pytest.param(0, marks=pytest.mark.long)])
def test_a_process_with_other_weights_is_noticed_before_they_are_saved(
    tmp_path: Path, rank: int
) -> None:
    output = together(changed_weight, tmp_path, rank)
    assert all(
        s.startswith(
            "ProcessGroupError: the processes no longer have the same weights at step 4; nothing was saved"
        )
        for s in output
    )
    assert [path.name for path in state.checkpoints(tmp_path)] == ["step-00000002"]


def test_an_exchange_ends_when_no_thread_holds_the_numbers() -> None:
    held: list[Tensor] = []
    numbers = run_collective(
        lambda tensor: (held.append(tensor), threading.Timer(0.1, held.clear).start()),
        torch.zeros(2),
    )
    assert not held
    assert numbers.tolist() == [0, 0]


def from_two_folders(group: ProcessGroup, folder: Path) -> None:
    for _ in train(job(Random()), folder / str(group.rank), group=group):
        pass


def test_a_folder_that_is_not_shared_is_noticed_on_resuming(tmp_path: Path) -> None:
    for rank, last in enumerate((4, 2)):
        stretch(SINGLE_PROCESS, tmp_path / str(rank), last)
    output = together(from_two_folders, tmp_path)
    assert [s.split(";")[0] for s in output] == [
        f"ProcessGroupError: process {n} is at step {at}, others are not"
        for n, at in enumerate((4, 2))
    ]


def dying(group: ProcessGroup, how: str) -> float:
    """The second process dies or hangs in its third step; the first goes on."""
    for event in learner(group, steps=10**6).steps(Random()):
        if group.rank == 1 and event.step == 3:
            if how == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            elif how == "fails":
                raise ValueError("out of everything")
            else:
                time.sleep(600)
    return 0.0


@pytest.mark.parametrize(
    ("how", "strategy"),
    [
        ("dies", "ddp"),
        ("fails", "fsdp"),
        ("hangs", "ddp"),
        pytest.param("dies", "fsdp", marks=pytest.mark.long),
        pytest.param("fails", "ddp", marks=pytest.mark.long),
        pytest.param("hangs", "fsdp", marks=pytest.mark.long),
    ],
)
def test_nobody_waits_for_ever(how: str, strategy: str) -> None:
    patience = 5 if how == "hangs" else 300
    first, second = together(
        dying, how, strategy=strategy, timeout=patience, need=[0] if how == "hangs" else [0, 1]
    )
    gone = f"another process of this run ended, or has not answered for {patience} seconds"
    assert first.startswith(
        f"ProcessGroupError: {gone}; expected all of them, until the end. Fix: "
    )
    assert first.endswith("--resume auto")
    assert second == (None if how != "fails" else "ValueError: out of everything")


def not_finite(group: ProcessGroup) -> tuple[list[Any], int]:
    """The second process's rows give NaN at step 2."""
    self = learner(group, on_bad="skip")
    task = Random()
    before = 0
    result = []
    for event in self.steps(Poisoned(task, self, group)):
        same = checksum(self.transformer.parameters()) == before
        result.append((event.step, event.skipped, same))
        before = checksum(self.transformer.parameters())
    return result, before


class Poisoned:
    """At step 2, an infinite smoothing in the second process alone."""

    fingerprint = "poison"

    def __init__(self, task: Random, self_: TrainState, group: ProcessGroup) -> None:
        self.task, self.learner, self.group = task, self_, group

    def batch(self, step: int) -> Any:
        objective: Any = self.learner.objective
        objective.module.z_loss = float("inf") if step == 2 and self.group.rank == 1 else 0.0
        return self.task.batch(step)


def test_what_is_not_finite_in_one_is_left_out_by_all() -> None:
    first, second = together(not_finite)
    assert first == second
    assert [(step, skipped) for step, skipped, _ in first[0]] == [
        (1, False),
        (2, False),
        (3, True),
        (4, False),
    ]
    assert [same for *_, same in first[0]] == [False, False, True, False]


SCRIPT = """
from sightline.training.distributed.strategies import join_process_group, run_collective
with join_process_group(device="cpu") as group:
    print(f"[{group.rank} of {group.world_size}: {group.sum(group.rank + 1):g}]", flush=True)
"""


def test_under_torchrun(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "2",
        str(tmp_path / "script.py"),
    ]
    output = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True).stdout
    assert sorted(part for part in output.replace("]", "]\n").split() if part) == sorted(
        ["[0", "of", "2:", "3]", "[1", "of", "2:", "3]"]
    )


@pytest.mark.parametrize("badly", [False, True])
def test_the_group_of_a_failed_exchange_is_never_freed(
    badly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Freeing it would wait for gloo's thread, which may wait for us."""
    for name, value in {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }.items():
        monkeypatch.setenv(name, value)
    group: object = None
    with suppress(ValueError), join_process_group() as joined:
        assert joined.sum(2.0) == 2.0
        group = torch.distributed.group.WORLD
        before = sys.getrefcount(group)
        if badly:
            raise ValueError
    after = sys.getrefcount(group)
    assert (after > 2) == badly, (before, after)
