"""Where `sightline` starts: quiet under Ctrl-C from its first moment, before the rest is even
imported."""

from __future__ import annotations

import os
import signal
import sys
import threading
from types import FrameType

INTERRUPTED = 130
MOMENT = 0.05  # seconds: the exception that is pressed again must not meet the same `__del__`


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, leave)
    from sightline.cli.main import main as run

    signal.signal(signal.SIGINT, interrupt)
    sys.exit(run())


def leave(number: int, frame: FrameType | None) -> None:
    """Nothing has begun: nothing is lost."""
    os._exit(INTERRUPTED)


def interrupt(number: int, frame: FrameType | None) -> None:
    """Ctrl-C. What it leaves half made is taken apart in silence."""
    sys.unraisablehook = after_interrupt
    raise KeyboardInterrupt


def after_interrupt(unraisable: sys.UnraisableHookArgs) -> None:
    """Python would print what `__del__` raises and go on, as if Ctrl-C had never been pressed: so
    it is pressed again, a moment later."""
    if issubclass(unraisable.exc_type, KeyboardInterrupt):
        again = threading.Timer(
            MOMENT, signal.pthread_kill, (threading.main_thread().ident, signal.SIGINT)
        )
        again.daemon = True
        again.start()
