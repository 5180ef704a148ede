"""Locks that are free in a forked child, with the state that they guard consistent.

A fork waits until every such lock is free, so no child is created in the middle of a step. A thread
may hold only one of them at a time: otherwise the fork could wait for a thread that waits for the
fork.
"""

from __future__ import annotations

import os
import threading
import weakref

_known: dict[int, weakref.ref[threading.RLock]] = {}
_forking = threading.local()


def new_lock() -> threading.RLock:
    """A reentrant lock."""
    lock = threading.RLock()
    number = id(lock)
    _known[number] = weakref.ref(lock, lambda _: _known.pop(number, None))
    return lock


def _hold_all() -> None:
    locks = [lock for known in list(_known.values()) if (lock := known()) is not None]
    for lock in locks:
        lock.acquire()
    _forking.held = locks


def _release_all() -> None:
    for lock in _forking.held:
        lock.release()
    del _forking.held


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_hold_all, after_in_parent=_release_all, after_in_child=_release_all)
