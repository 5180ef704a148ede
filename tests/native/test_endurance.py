"""What goes on for long or ends badly: memory that must not grow, children of fork, Ctrl-C in the
middle, errors beside other threads."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from sightline.engine.engine import NativeEngine, Rows
from sightline.errors import InputError
from sightline.kernels import library as kernels
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
LINUX = pytest.mark.skipif(
    not Path("/proc/self/statm").is_file(), reason="memory and threads are counted in /proc"
)
PROMPT = [3, 1, 4, 1, 5, 9, 2, 6]


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def random_step(
    engine: NativeEngine, alive: dict[int, int], dice: random.Random, most: int
) -> None:
    """One of all that can happen to an engine's sequences; `alive` holds their lengths."""
    what = dice.random()
    if not alive or (what < 0.05 and len(alive) < 12):
        alive[engine.begin()] = 0
    elif what < 0.1 and len(alive) < 12:
        old = dice.choice(list(alive))
        alive[engine.copy(old)] = alive[old]
    elif what < 0.2:
        old = dice.choice(list(alive))
        engine.forget(old)
        del alive[old]
    elif what < 0.3:
        old = dice.choice(list(alive))
        alive[old] = dice.randint(0, alive[old])
        engine.truncate(old, alive[old])
    else:
        rows = list[Rows]()
        for one in dice.sample(list(alive), dice.randint(1, len(alive))):
            count = min(dice.choice([1, 1, 1, 2, 9]), most - alive[one])
            if count:
                rows.append(
                    Rows(one, [dice.randrange(8) for _ in range(count)], dice.randint(0, count))
                )
                alive[one] += count
        if rows:
            engine.run(rows, queries=dice.random() < 0.1)


@LINUX
@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_ten_thousand_random_steps_leave_nothing(precision) -> None:
    """All memory of sequences comes back, the process does not grow, and what is left gives what a
    new sequence gives."""
    model = tiny.make(tiny.DECODERS["grouped"])
    engine, dice, alive = NativeEngine.of(model, precision), random.Random(1), dict[int, int]()
    sizes = list[int]()
    for n in range(10_000):
        random_step(engine, alive, dice, most=48)
        if n % 2000 == 1999:
            sizes.append(resident())
    for one in list(alive):
        assert engine.length(one) == alive[one]
        engine.forget(one)
    assert engine.cache_bytes == 0
    assert sizes[-1] - sizes[0] < 4 << 20
    fresh = NativeEngine.of(model, precision)
    used = [one.run([Rows(one.begin(), PROMPT, len(PROMPT))]) for one in (engine, fresh)]
    assert torch.equal(*used)


def step_in_a_child(engine: NativeEngine, sequence: int, pipe) -> None:
    pipe.send(engine.run([Rows(sequence, [7])]).tolist())
    pipe.send(torch.get_num_threads())


def test_children_of_fork_go_on_where_their_parent_was() -> None:
    before = torch.get_num_threads()
    context, engine = (
        multiprocessing.get_context("fork"),
        NativeEngine.of(tiny.make(tiny.DECODERS["grouped"]), "int8"),
    )
    try:
        torch.set_num_threads(3)
        sequence = engine.begin()
        engine.run([Rows(sequence, PROMPT)])
        ends = [context.Pipe() for _ in range(3)]
        children = [
            context.Process(target=step_in_a_child, args=(engine, sequence, theirs))
            for _, theirs in ends
        ]
        for child in children:
            child.start()
        here = engine.run([Rows(sequence, [7])]).tolist()
        for ours, _ in ends:
            assert ours.poll(60), "the child hangs"
            assert ours.recv() == here
        for child in children:
            child.join(60)
            assert child.exitcode == 0
    finally:
        torch.set_num_threads(before)


def test_an_error_in_one_thread_hangs_no_other() -> None:
    engine = NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"]), "int8")
    wanted, result = engine.run([Rows(engine.begin(), PROMPT)]), list[torch.Tensor]()

    def badly() -> None:
        for _ in range(50):
            with pytest.raises(InputError):
                engine.run([Rows(engine.begin(), [1, 10**6])])

    def well() -> None:
        result.extend(engine.run([Rows(engine.begin(), PROMPT)]) for _ in range(50))

    group = [threading.Thread(target=one, daemon=True) for one in (badly, well, badly, well)]
    for one in group:
        one.start()
    for one in group:
        one.join(60)
        assert not one.is_alive(), "a thread hangs"
    assert len(result) == 100
    assert all(torch.equal(wanted, one) for one in result)


INTERRUPTED = """
import signal, sys, threading
import torch
import sightline as sl
from sightline.engine.engine import NativeEngine, Rows

signal.signal(signal.SIGINT, signal.default_int_handler)
torch.manual_seed(0)
torch.set_num_threads(4)
engine = NativeEngine.of(sl.build(sl.llama(width=128, layers=4, heads=4, vocab_size=500, max_positions=4096)).eval(), "int8")
sequence, interrupted = engine.begin(), 0
print("ready", flush=True)
try:
    while True:
        engine.run([Rows(sequence, [1, 2, 3])])
        if engine.length(sequence) > 3000:
            engine.truncate(sequence, 3)
except KeyboardInterrupt:
    interrupted = 1
engine.truncate(sequence, 3)
again = engine.begin()
engine.run([Rows(again, [1, 2, 3])])
same = torch.equal(engine.run([Rows(sequence, [5])]), engine.run([Rows(again, [5])]))
print("interrupted", interrupted, "same", same, flush=True)
"""


@LINUX
def test_ctrl_c_in_the_middle_leaves_an_engine_that_works_and_a_process_that_ends() -> None:
    program = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "4"},
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "ready\n"
        time.sleep(0.5)
        program.send_signal(signal.SIGINT)
        output, _ = program.communicate(timeout=60)
    finally:
        program.kill()
    assert output == "interrupted 1 same True\n"
    assert program.returncode == 0
