"""The entry point of `sightline`: Ctrl-C prints no traceback, even during the imports."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
RETRY_DELAY = 0.05  # seconds, so that the signal does not hit the same `__del__` again


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, leave)
    from sightline.cli.main import main as run

    signal.signal(signal.SIGINT, interrupt)
    sys.exit(run())


def leave(number: int, frame: FrameType | None) -> None:
    """Ctrl-C during the imports: exit at once, nothing has begun."""
    os._exit(INTERRUPTED)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C: raise KeyboardInterrupt; errors in `__del__` of half-built objects stay silent."""
    sys.unraisablehook = after_interrupt
    raise KeyboardInterrupt


def after_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Python prints a KeyboardInterrupt raised inside `__del__` and continues. Send the signal
    again a little later instead."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        again = threading.Timer(
            RETRY_DELAY, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
        )
        again.daemon = True
        again.start()
