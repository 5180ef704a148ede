"""Faults while training: full disks, signals, memory, data that is gone.
Numbers that are not finite are in test_not_finite.py."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sightline.errors import CheckpointError, InputError
from sightline.training.config import AdamW, Schedule
from sightline.training.data.batch import Batch
from sightline.training.loop import (
    BatchError,
    MemoryFullError,
    StepEvent,
    TrainState,
    make_train_state,
)
from sightline.training.run import Evaluated, Event, Job, train
from sightline.training.state import checkpoint as state
from tests.training.disk import failing_at, watching
from tests.training.small import (
    Numbers,
    Poison,
    config,
    files,
    job,
    model,
    notes,
    same,
    saved,
    stopping,
    train_all,
    weights,
)

pytestmark = pytest.mark.usefixtures("as_users_run_it")


# ------------------------------------------------------------------------------------ a full disk


@pytest.fixture(name="begun")
def two_checkpoints(tmp_path: Path) -> Path:
    """A run of six steps that was stopped after four."""
    stopping(job(eval_every=2), tmp_path / "begun", 4)
    return tmp_path / "begun"


@pytest.mark.parametrize(
    "code", [errno.ENOSPC, errno.EIO, errno.EROFS], ids=lambda code: errno.errorcode[code]
)
def test_a_save_that_fails_at_any_write_leaves_what_was_there(tmp_path: Path, code: int) -> None:
    """At each call in turn. The checkpoints before are bit-equal, nothing half-written stays,
    the error says so."""
    who = make_train_state(model(), config())
    for step in (1, 2):
        who.step = step
        state.save_checkpoint(who, tmp_path, {}, validation=None, keep=2)
    before, number, failures = files(tmp_path), 0, 0
    while True:
        number, who.step = number + 1, 3
        error, reached = saved_with_fault(who, tmp_path, number, code)
        if error:
            assert os.strerror(code) in error or "not on disk yet" in error
            assert "untouched" in error
            assert files(tmp_path) == before
            failures += 1
        else:
            assert state.find_damage(tmp_path / "checkpoints" / "step-00000003") == ""
            assert len([p for p in state.checkpoints(tmp_path) if not state.find_damage(p)]) >= 2
            if reached < number:
                break
        shutil.rmtree(tmp_path)
        for name, data in before.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(data)
    assert failures > 10


def saved_with_fault(who: TrainState, folder: Path, number: int, code: int) -> tuple[str, int]:
    """What the save said, if it failed, and how many calls it made."""
    reached: list[str] = []
    fail = failing_at(number, code)

    def before(call: str, path: Path, half: Any) -> None:
        reached.append(call)
        fail(call, path, half)

    try:
        with watching(before):
            state.save_checkpoint(who, folder, {}, validation=None, keep=2)
    except CheckpointError as error:
        return str(error), len(reached)
    return "", len(reached)


@pytest.mark.parametrize("part", ["checkpoints", "model", "metrics.jsonl"])
def test_training_continues_when_the_disk_is_full_temporarily(tmp_path: Path, part: str) -> None:
    """Everything under one name fails until step 3; then there is room again. The weights are those
    of a run without a fault."""
    train_all(job(save_every=1, eval_every=1), tmp_path / "whole")
    seen: list[Event] = []

    def full(call: str, path: Path, half: Any) -> None:
        below = part in "/".join(path.parts[-3:])
        if (
            below
            and call in ("open", "write", "mkdir")
            and not any(getattr(event, "step", 0) > 3 for event in seen)
        ):
            half()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with watching(full):
        for event in train(job(save_every=1, eval_every=1), tmp_path / "run"):
            seen.append(event)  # noqa: PERF402
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert any("No space left on device" in text for text in notes(seen))
    assert saved(seen)[-1] == 6
    whole, run = (tmp_path / name / "model" / "model.safetensors" for name in ("whole", "run"))
    assert whole.read_bytes() == run.read_bytes()
    lines = [
        json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [line["step"] for line in lines if line["kind"] == "step"][-2:] == [5, 6]
    if part == "metrics.jsonl":
        assert len([text for text in notes(seen) if "metrics.jsonl" in text]) == 1


def test_a_last_checkpoint_that_cannot_be_written_is_an_error(tmp_path: Path, begun: Path) -> None:
    """There is no later one to wait for. The kernel itself refuses to let files grow."""
    before = {
        name: data for name, data in files(begun).items() if name.startswith("checkpoints/step")
    }
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with pytest.raises((CheckpointError, InputError), match="File too large"):
            train_all(job(eval_every=2), begun)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert {
        name: data for name, data in files(begun).items() if name.startswith("checkpoints/")
    } | before == {
        **before,
        "checkpoints/LATEST": b"step-00000004",
    }
    train_all(job(eval_every=2), begun)
    train_all(job(eval_every=2), tmp_path / "whole")
    assert same(weights(begun), weights(tmp_path / "whole"))


def test_a_stop_whose_save_fails_is_an_error(tmp_path: Path) -> None:
    def full(call: str, path: Path, half: Any) -> None:
        if ".step-00000003" in str(path) and call == "write":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with watching(full), pytest.raises(CheckpointError, match="step-00000003 could not be written"):
        stopping(job(), tmp_path, 3)
    assert state.newest_complete(tmp_path) == (tmp_path / "checkpoints" / "step-00000002", [])


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"cannot be written to \("):
        train_all(job(), tmp_path / "file" / "run")


# ---------------------------------------------------------------------------------------- signals


@pytest.mark.parametrize("moment", ["step", "part", "evaluation", "save"])
def test_sigterm_saves_and_ends(tmp_path: Path, moment: str) -> None:
    """A real signal at a chosen moment sets the flag; nothing else begins, the state is saved,
    and the rest gives the same bits."""
    caught: list[int] = []
    handler = signal.signal(signal.SIGTERM, lambda number, frame: caught.append(number))
    asked = {"validation": 0}

    def terminate() -> None:
        os.kill(os.getpid(), signal.SIGTERM)

    def before(step: int, batch: Batch) -> Batch:
        if step == 3 and moment == "step" and not caught:
            terminate()
        return batch

    def held_out(number: int) -> None:
        asked["validation"] += 1
        if moment == "evaluation" and number == 1 and not caught:
            terminate()

    task = Numbers(before=before, before_validation=held_out)
    what = job(task, accumulate=3)
    hooked = Poison()

    def half_way(module: Any, args: Any, output: Any) -> None:
        hooked.now += 1
        if moment == "part" and hooked.now == 3 * 3 + 1:  # type: ignore[comparison-overlap]
            terminate()

    def make() -> Any:
        made = model(dropout=0.1)
        made.last_stack.register_forward_hook(half_way)
        return made

    try:
        seen: list[Event] = []
        with watching(
            lambda call, path, half: (
                terminate()
                if moment == "save" and ".step-00000002" in str(path) and not caught
                else None
            )
        ):
            for event in train(
                replace(what, make=make), tmp_path / "run", stop=lambda: bool(caught)
            ):
                seen.append(event)  # noqa: PERF402
    finally:
        signal.signal(signal.SIGTERM, handler)
    assert caught
    last = {"step": 3, "part": 3, "evaluation": 3, "save": 2}[moment]
    assert (
        saved(seen)[-1] == last == max(event.step for event in seen if isinstance(event, StepEvent))
    )
    if moment == "evaluation":
        assert asked["validation"] == 2
        assert not [event for event in seen if isinstance(event, Evaluated)]
    rest = train_all(what, tmp_path / "run")
    train_all(what, tmp_path / "whole")
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))
    assert [event.step for event in [*seen, *rest] if isinstance(event, Evaluated)] == [3, 6]
    assert (tmp_path / "run/model/model.safetensors").read_bytes() == (
        tmp_path / "whole/model/model.safetensors"
    ).read_bytes()


# ----------------------------------------------------------------------------------------- memory


def test_memory_that_torch_cannot_have(tmp_path: Path) -> None:
    """A real allocation of 2⁶⁰ bytes at step 3. The state before it is saved; half the batch
    at a time is what is offered."""
    poison = Poison()

    def hungry(step: int, batch: Batch) -> Batch:
        poison.now = step == 3
        return batch

    def hook(module: Any, args: Any, output: Any) -> None:
        if poison.now and module.training and not small[0]:
            torch.empty(1 << 58)

    def make() -> Any:
        made = model(dropout=0.1)
        made.last_stack.register_forward_hook(hook)
        return made

    small = [False]
    what = job(Numbers(before=hungry), make=make)
    with pytest.raises(
        MemoryFullError,
        match=r"step 3: not enough memory for a batch of 3 × 6 tokens in 1 part; .*Fix: accumulate=2",
    ):
        train_all(what, tmp_path / "run")
    assert state.newest_complete(tmp_path / "run") == (
        tmp_path / "run" / "checkpoints" / "step-00000003",
        [],
    )
    small[0] = True
    events = train_all(replace(what, config=config(accumulate=2)), tmp_path / "run")
    assert "changed: training.accumulate: 1 → 2; results may differ in the last bits" in notes(
        events
    )
    assert saved(events)[-1] == 6


def test_other_errors_of_torch_are_not_called_memory(tmp_path: Path) -> None:
    def wrong(step: int, batch: Batch) -> Batch:
        return replace(batch, targets=batch.targets + 1000)

    with pytest.raises(Exception) as caught:
        train_all(job(Numbers(before=wrong)), tmp_path)
    assert not isinstance(caught.value, MemoryFullError)


# ------------------------------------------------------------------------------------------- data


def test_data_that_is_gone(tmp_path: Path) -> None:
    """The checkpoint first, then the error, which names the step; with the data back, the run
    goes on as if nothing had been."""
    shards = tmp_path / "shards"
    shards.mkdir()
    for step in range(6):
        np.save(shards / f"{step}.npy", Numbers().made(0, step).tokens.numpy())

    def read(step: int, batch: Batch) -> Batch:
        return replace(batch, tokens=torch.from_numpy(np.load(shards / f"{step}.npy")))

    what = job(Numbers(before=read))
    (shards / "3.npy").rename(tmp_path / "away.npy")
    with pytest.raises(
        BatchError, match=r"step 3: the batch could not be made: FileNotFoundError: .*3\.npy"
    ) as caught:
        train_all(what, tmp_path / "run")
    assert isinstance(caught.value.__cause__, FileNotFoundError)
    assert (
        state.newest_complete(tmp_path / "run")[0]
        == tmp_path / "run" / "checkpoints" / "step-00000003"
    )
    (tmp_path / "away.npy").rename(shards / "3.npy")
    train_all(what, tmp_path / "run")
    train_all(what, tmp_path / "whole")
    assert same(weights(tmp_path / "run"), weights(tmp_path / "whole"))


def test_held_out_data_that_is_gone(tmp_path: Path) -> None:
    gone = [True]

    def read(number: int) -> None:
        if gone[0] and number == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    what = job(Numbers(before_validation=read))
    with pytest.raises(BatchError, match="step 3: the held-out data could not be read: OSError"):
        train_all(what, tmp_path)
    assert state.newest_complete(tmp_path)[0] == tmp_path / "checkpoints" / "step-00000003"
    gone[0] = False
    assert [event.step for event in train_all(what, tmp_path) if isinstance(event, Evaluated)] == [
        3,
        6,
    ]


@pytest.mark.parametrize("change", ["data", "lr", "seed", "schedule", "model"])
def test_a_run_does_not_go_on_otherwise_unnoticed(tmp_path: Path, change: str) -> None:
    stopping(job(), tmp_path, 3)
    changed: dict[str, Job] = {
        "data": job(Numbers(fingerprint="others")),
        "lr": job(optimizer=AdamW(lr=0.02)),
        "seed": job(seed=1),
        "schedule": job(schedule=Schedule(shape="linear", warmup=2)),
        "model": job(make=lambda: model(dropout=0.2)),
    }
    stated = {
        "data": "the data has changed since this run began",
        "lr": "training.optimizer.lr: 0.01 → 0.02",
        "seed": "training.seed: 0 → 1",
        "schedule": "training.schedule.shape: cosine → linear",
        "model": "model.decoder.embedding.dropout: 0.1 → 0.2",
    }
    before = files(tmp_path)
    with pytest.raises(InputError) as caught:
        train_all(changed[change], tmp_path)
    assert stated[change] in str(caught.value)
    assert ("--accept-data-change" if change == "data" else "--accept-changes") in caught.value.fix
    assert "\n" not in str(caught.value)
    assert files(tmp_path) == before
    events = train_all(
        changed[change], tmp_path, accept=frozenset({"data" if change == "data" else "settings"})
    )
    assert any(text.startswith("changed: ") for text in notes(events))
    assert saved(events)[-1] == 6
    assert not any(
        text.startswith("changed: ") for text in notes(train_all(changed[change], tmp_path))
    )


def test_other_versions_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stopping(job(), tmp_path, 2)
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert any(
        text.startswith("changed: torch: ") and " → 9.9" in text
        for text in notes(train_all(job(), tmp_path))
    )


# ----------------------------------------------------------------------------------- two trainers


def test_a_second_trainer_is_refused(tmp_path: Path) -> None:
    """In this process, and from another; as soon as the first is gone, even killed, the next
    may begin."""
    first = train(job(), tmp_path)
    next(first)
    with pytest.raises(InputError, match="another trainer is using this folder"):
        train_all(job(), tmp_path)
    child = os.fork()
    if not child:
        try:
            train_all(job(), tmp_path)
        except InputError as error:
            os._exit(7 if "another trainer" in str(error) else 1)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    first.close()  # type: ignore[attr-defined]
    assert saved(train_all(job(), tmp_path))[-1] == 6


def test_the_lock_of_a_killed_trainer_is_gone(tmp_path: Path) -> None:
    here, there = os.pipe()
    child = os.fork()
    if not child:
        for _ in train(job(), tmp_path):
            os.write(there, b"x")
            signal.pause()
    assert os.read(here, 1) == b"x"
    with pytest.raises(InputError, match="another trainer"):
        train_all(job(), tmp_path)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert saved(train_all(job(), tmp_path))[-1] == 6
