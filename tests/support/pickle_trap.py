"""An object whose unpickling runs code."""

from __future__ import annotations

import os


class Trap:
    """Unpickled, it leaves a mark."""

    def __reduce__(self) -> tuple[object, tuple[str, ...]]:
        return os.mkdir, ("unpickled",)
