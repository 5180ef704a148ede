"""Ctrl-C at any moment: no noise, and it is heard."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, time
from sightline.cli.entry import interrupt
signal.signal(signal.SIGINT, interrupt)

class Cache:
    def __init__(self):
        {first}
        self.rows = []

    def __del__(self):
        {last}
        self.rows.clear()

def work():
    Cache()
    time.sleep(20)

try:
    work()
except KeyboardInterrupt:
    print("heard")
"""
PRESS = "os.kill(os.getpid(), signal.SIGINT)"


def pressed(first: str, last: str) -> subprocess.CompletedProcess[str]:
    program = PROGRAM.format(first=first, last=last)
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )


def test_ctrl_c_while_an_object_is_half_made_prints_nothing() -> None:
    done = pressed(PRESS, "pass")
    assert (done.stdout, done.stderr) == ("heard\n", "")


def test_ctrl_c_while_an_object_is_deleted_is_heard_and_prints_nothing() -> None:
    done = pressed("pass", PRESS)
    assert (done.stdout, done.stderr) == ("heard\n", "")
