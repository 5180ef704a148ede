"""Children that are forked while other threads are in the middle of a step."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sightline.engine.forks import new_lock
from sightline.kernels import library as kernels

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork") or not kernels.available(), reason="no fork, or no kernels"
)

CHILDREN = """
import os, signal, threading, time
import torch
from sightline.generation.decode import Request, decode
from sightline.engine.runner import native_runner
from tests.support import tiny

twin = native_runner(tiny.make(tiny.DECODERS["grouped"]), "int8")

def write():
    return [event.token for event in decode(twin, Request(prompt=[3, 1, 4], max_tokens=12))]

def generate():
    torch.set_num_threads(2)
    while not stop.is_set():
        write()

def child(wanted):
    signal.alarm(60)  # a child that hangs is killed, which its parent sees
    torch.set_num_threads(1 + os.getpid() % 2)
    os._exit(0 if write() == wanted else 1)

wanted, stop = write(), threading.Event()
threads = [threading.Thread(target=generate, daemon=True) for _ in range(2)]
for thread in threads:
    thread.start()
ends = []
for n in range(20):
    number = os.fork()
    if not number:
        child(wanted)
    ends.append(os.waitpid(number, 0)[1])
stop.set()
for thread in threads:
    thread.join(60)
print(ends == [0] * 20 and write() == wanted, ends, flush=True)
"""


def test_twenty_children_forked_while_a_thread_generates_all_generate() -> None:
    """Of twenty, four waited for ever for a lock whose thread had stayed with their parent."""
    done = subprocess.run(
        [sys.executable, "-c", CHILDREN], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert done.stdout.startswith("True"), (done.stdout, done.stderr[-2000:])


def test_a_fork_waits_for_a_lock_and_its_child_can_take_it() -> None:
    lock, taken, released = new_lock(), threading.Event(), []

    def hold() -> None:
        with lock:
            taken.set()
            released.append(threading.Event().wait(0.2))

    thread = threading.Thread(target=hold)
    thread.start()
    taken.wait()
    number = os.fork()
    if not number:
        os._exit(0 if released and lock.acquire(blocking=False) else 1)
    assert os.waitpid(number, 0)[1] == 0
    thread.join()
    assert lock.acquire(blocking=False)
    lock.release()


def test_a_lock_that_nobody_has_is_not_kept() -> None:
    from sightline.engine import forks

    before = len(forks._known)
    lock = new_lock()
    assert len(forks._known) == before + 1
    del lock
    assert len(forks._known) == before
