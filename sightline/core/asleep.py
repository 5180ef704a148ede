"""A Transformer whose weights are still on disk.

    transformer = Asleep(config, read)    # nothing is read
    transformer.config                    # nothing is read
    transformer.decoder                   # read() is called; from now on it is an ordinary
                                          # Transformer, the same object as before

Accessing anything that is not in `known` wakes it, so nobody ever sees one that is half loaded.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, ClassVar

import torch

from sightline.config import ModelConfig
from sightline.core.model import Transformer

ONE = threading.RLock()
AS_READ = "_as_read"


class Asleep(Transformer):
    """`known`: what can be had of it without its weights."""

    known: ClassVar[frozenset[str]] = frozenset({"config", "__class__"})

    def __init__(self, config: ModelConfig, read: Callable[[], Transformer], **others: Any) -> None:
        for name, value in {"config": config, "_read": read, **others}.items():
            object.__setattr__(self, name, value)

    def __getattribute__(self, name: str) -> Any:
        if name in type(self).known:
            return object.__getattribute__(self, name)
        wake(self)
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        wake(self)
        setattr(self, name, value)

    def __delattr__(self, name: str) -> None:
        wake(self)
        delattr(self, name)


def wake(transformer: Transformer) -> None:
    """Read its weights; if that fails, it stays asleep."""
    with ONE:
        if not issubclass(type(transformer), Asleep):
            return  # another thread was quicker
        with torch.inference_mode(mode=False):  # whoever asked first, it can be trained later
            made: Transformer = object.__getattribute__(transformer, "_read")()
        own: dict[str, Any] = object.__getattribute__(transformer, "__dict__")
        own.clear()
        own.update(made.__dict__ | {AS_READ: versions(made)})
        object.__setattr__(transformer, "__class__", type(made))


def awake(transformer: Transformer) -> Transformer:
    """The same, with its weights."""
    wake(transformer)
    return transformer


def versions(transformer: Transformer) -> tuple[tuple[int, int], ...]:
    return tuple(
        (x.data_ptr(), 0 if x.is_inference() else x._version) for x in transformer.parameters()
    )


def state(transformer: Transformer) -> object:
    """Changes when a weight does: the transformer itself as long as its weights are those on disk,
    then what torch counts."""
    if issubclass(type(transformer), Asleep):
        return transformer
    now = versions(transformer)
    return transformer if now == transformer.__dict__.get(AS_READ) else now
