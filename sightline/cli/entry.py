"""Where `sightline` starts: quiet under Ctrl-C from its first moment, before the rest is even imported."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED = 130


def main() -> None:
    """Run the command line."""
    signal.signal(signal.SIGINT, leave)
    from sightline.cli.main import main as run

    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.exit(run())


def leave(number: int, frame: FrameType | None) -> None:
    """Nothing has begun: nothing is lost."""
    os._exit(INTERRUPTED)
