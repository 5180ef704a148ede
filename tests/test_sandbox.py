"""What strangers send is answered within limits, or not at all; and the next one is answered."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

from sightline.sandbox import Process, Sandbox

ANSWERS = """
import os, sys, time

def deep(n):
    return 0 if n == 0 else sorted([n], key=lambda n: deep(n - 1))

def answer(request):
    what, value = request
    if what == "sleep":
        time.sleep(value)
    if what == "memory":
        return len(bytearray(value))
    if what == "deep":
        sys.setrecursionlimit(10**6)
        deep(value)
    if what == "end":
        os._exit(3)
    return [what, value, os.getpid(), sorted(name for name in sys.modules if name.startswith("sightline"))]
"""


@pytest.fixture
def asked(tmp_path: Path) -> Sandbox:
    script = tmp_path / "answers.py"
    script.write_text(ANSWERS)
    return Sandbox(str(script), seconds=1.0, memory=1 << 29, first=["echo", 0], stack=1 << 20)


def test_an_answer_comes_from_a_process_that_is_kept_and_has_nothing_of_ours(
    asked: Sandbox,
) -> None:
    what, value, number, ours = asked.ask(["echo", "猫"])
    assert (what, value, ours) == ("echo", "猫", [])
    assert number != os.getpid()
    assert asked.ask(["echo", 1])[2] == number


@pytest.mark.parametrize(
    "request_", [["sleep", 30], ["end", 0], ["deep", 100_000]], ids=["slow", "gone", "deep"]
)
@pytest.mark.skipif(sys.platform == "win32", reason="other signals")
def test_none_comes_of_what_breaks_a_limit_and_the_next_is_answered(
    asked: Sandbox, request_: list[object]
) -> None:
    first = asked.ask(["echo", 0])[2]
    assert asked.ask(request_) is None
    assert asked.ask(["echo", 2])[2] != first


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="other systems have no such limit")
def test_memory_is_limited(asked: Sandbox) -> None:
    assert asked.ask(["memory", 1 << 20]) == 1 << 20
    assert asked.ask(["memory", 1 << 30]) is None
    assert asked.ask(["memory", 1 << 20]) == 1 << 20


def test_its_timer_has_ended_with_the_answer(
    asked: Sandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What native code prints to stderr is held back only where no other thread runs."""

    class LateTimer(threading.Timer):
        def run(self) -> None:
            super().run()
            time.sleep(0.2)

    monkeypatch.setattr(threading, "Timer", LateTimer)
    before = threading.active_count()
    asked.ask(["echo", 1])
    assert threading.active_count() == before


def test_threads_take_turns(asked: Sandbox) -> None:
    result: list[int] = []
    threads = [
        threading.Thread(target=lambda n=n: result.append(asked.ask(["echo", n])[1]))
        for n in range(12)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(result) == list(range(12))


@pytest.mark.skipif(not os.path.isdir("/proc"), reason="nowhere to look")
def test_it_knows_no_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    script = tmp_path / "answers.py"
    script.write_text(ANSWERS)
    process = Process(str(script), memory=1 << 29, alarm=5)
    try:
        assert b"secret" not in Path(f"/proc/{process.running.pid}/environ").read_bytes()
    finally:
        process.stop()
