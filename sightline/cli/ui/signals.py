"""Signals during work that must end cleanly: the first requests a stop, a second Ctrl-C does not
wait.

Clusters send SIGTERM before they kill a job; a closing terminal sends SIGHUP.
"""

from __future__ import annotations

import os
import signal
import threading
from types import FrameType
from typing import Any

REASONS = {"SIGINT": "Ctrl-C", "SIGTERM": "SIGTERM", "SIGHUP": "a closed terminal"}


class Stopping:
    """`with Stopping() as stopping:` … `stopping.requested`, polled between the steps."""

    def __init__(self) -> None:
        self.number = 0
        self._times = 0
        self._before = dict[int, Any]()

    @property
    def requested(self) -> bool:
        return self.number != 0

    @property
    def code(self) -> int:
        """The exit code that a shell reports for a process ended by this signal."""
        return 128 + self.number

    @property
    def reason(self) -> str:
        return REASONS[signal.Signals(self.number).name]

    def __enter__(self) -> Stopping:
        if threading.current_thread() is threading.main_thread():
            for name in REASONS:
                number = getattr(signal, name, None)
                # a signal ignored by nohup stays ignored
                if number is not None and signal.getsignal(number) != signal.SIG_IGN:
                    self._before[number] = signal.signal(number, self._catch)
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _catch(self, number: int, frame: FrameType | None) -> None:
        self.number = self.number or number
        if number != signal.SIGINT:
            return
        self._times += 1
        if self._times == 2:
            raise KeyboardInterrupt
        if self._times > 2:
            os._exit(128 + number)
