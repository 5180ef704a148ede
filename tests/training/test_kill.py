"""kill -9 at any instant and at every system call that changes the disk: the run goes on and ends
with the same bits."""

from __future__ import annotations

import os
import random
import shutil
import signal
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sightline.training.config import AdamW, Muon
from sightline.training.run import Event, Job, Saved, train
from sightline.training.state import checkpoint as state
from tests.training.disk import Before, watching
from tests.training.small import Numbers, checkpoint, files, job, same, train_all, weights

pytestmark = pytest.mark.usefixtures("as_users_run_it")
KILLED = -signal.SIGKILL


@pytest.fixture(name="tmp_path")
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory, where there is one: what the kernel holds survives kill -9 on any disk,
    and there fsync costs nothing."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        yield Path(folder)


def forked(work: Callable[[], Any]) -> int:
    """A child that has imported everything already."""
    child = os.fork()
    if child:
        return child
    try:
        work()
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def dying_at(number: int) -> Before:
    """This process dies before its `number`-th call; if that is a write, half of it is done."""
    left = [number]

    def before(call: str, path: Path, half: Callable[[], Any]) -> None:
        left[0] -= 1
        if left[0] == 0:
            half()
            os.kill(os.getpid(), signal.SIGKILL)

    return before


def killed_at_each_call(tmp_path: Path, what: Job, before: Path | None) -> int:
    """One child for each call from `before` to the end; each run is finished here. The number of
    kills."""
    train_all(what, tmp_path / "whole")
    wanted = weights(tmp_path / "whole")
    number = 0
    while True:
        number += 1
        folder = tmp_path / f"killed-{number}"
        if before is not None:
            shutil.copytree(before, folder)

        def work(folder: Path = folder, number: int = number) -> None:
            with watching(dying_at(number)):
                train_all(what, folder)

        status = ended(forked(work))
        assert status in (0, KILLED)
        if before is not None:
            whole_ones_stay(before, folder)
        train_all(what, folder)
        assert same(weights(folder), wanted), number
        assert not [name for name in files(folder) if ".part" in name or ".old" in name]
        assert (folder / "model" / "model.safetensors").read_bytes() == (
            tmp_path / "whole/model/model.safetensors"
        ).read_bytes()
        shutil.rmtree(folder)
        if status == 0:
            return number - 1


def whole_ones_stay(before: Path, folder: Path) -> None:
    """At least two complete checkpoints, and the newest of before is not touched."""
    assert len([path for path in state.checkpoints(folder) if not state.find_damage(path)]) >= 2
    newest, _ = state.newest_complete(before)
    assert newest is not None
    assert same(checkpoint(newest), checkpoint(folder / "checkpoints" / newest.name))


def test_at_every_call_of_the_first_save(tmp_path: Path) -> None:
    """From an empty folder: lock, run.json, metrics, model/, the first checkpoint."""
    assert (
        killed_at_each_call(
            tmp_path, job(Numbers(held_out=1), steps=1, save_every=1, eval_every=1), None
        )
        > 30
    )


def test_at_every_call_of_a_later_save_and_its_pruning(tmp_path: Path) -> None:
    """The third checkpoint of two that are kept: leftovers go, metrics are cut, model/ is replaced,
    the oldest goes."""
    what = job(Numbers(held_out=1), steps=3, save_every=1, eval_every=1, ema=0.9)
    events = stopped_at(what, tmp_path / "before", 2)
    assert [event.step for event in events if isinstance(event, Saved)] == [1, 2]
    assert killed_at_each_call(tmp_path, what, tmp_path / "before") > 40


def test_at_every_call_when_a_broken_checkpoint_is_written_again(tmp_path: Path) -> None:
    """Step 3 is there, but broken: it makes room for the new step 3 at the right moment."""
    what = job(Numbers(held_out=0), steps=3, save_every=1, keep=3)
    train_all(what, tmp_path / "before")
    broken = tmp_path / "before" / "checkpoints" / "step-00000003" / "optimizer.safetensors"
    broken.write_bytes(broken.read_bytes()[:-5])
    assert killed_at_each_call(tmp_path, what, tmp_path / "before") > 20


def stopped_at(what: Job, folder: Path, step: int) -> list[Event]:
    seen: list[Event] = []
    for event in train(
        what, folder, stop=lambda: bool(seen) and max(getattr(e, "step", 0) for e in seen) >= step
    ):
        seen.append(event)  # noqa: PERF402
    return seen


def kill_often(tmp_path: Path, kills: int) -> None:
    """A child for each kill, at random instants; as soon as one run is through, the next begins."""
    muon = Muon(lr=0.02, rest=AdamW(lr=0.01))
    what = job(steps=24, save_every=3, eval_every=4, ema=0.9, accumulate=2, optimizer=muon)
    train_all(what, tmp_path / "whole")
    wanted = weights(tmp_path / "whole")
    started = time.monotonic()
    assert ended(forked(lambda: train_all(what, tmp_path / "measured"))) == 0
    lasts = time.monotonic() - started
    chance, done, run = random.Random(0), 0, 0
    while done < kills:
        child = forked(partial(train_all, what, tmp_path / f"run-{run}"))
        time.sleep(chance.uniform(0, 0.8 * lasts))
        os.kill(child, signal.SIGKILL)
        status = ended(child)
        assert status in (0, KILLED)
        done += status == KILLED
        if status == 0:
            assert same(weights(tmp_path / f"run-{run}"), wanted)
            run += 1
    train_all(what, tmp_path / f"run-{run}")
    assert same(weights(tmp_path / f"run-{run}"), wanted)


def test_at_10_random_instants(tmp_path: Path) -> None:
    kill_often(tmp_path, 10)


@pytest.mark.long
def test_at_100_random_instants(tmp_path: Path) -> None:
    kill_often(tmp_path, 100)
