"""A transformer whose weights are read when they are first needed.

weights = LazyTransformer(config, read)    # nothing is read
weights.config                             # nothing is read
weights.get()                              # read() is called once; later calls return the same
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch

from sightline.config import ModelConfig
from sightline.core.model import Transformer

Versions = tuple[tuple[int, int], ...]


class LazyTransformer:
    """Concurrent threads read once. If reading fails, the next call retries."""

    def __init__(self, config: ModelConfig, read: Callable[[], Transformer]) -> None:
        self.config = config
        self._read = read
        self._lock = threading.Lock()
        self._transformer: Transformer | None = None
        self._versions_on_disk: Versions | None = None

    @staticmethod
    def of(transformer: Transformer | LazyTransformer) -> LazyTransformer:
        """One that is already in memory; a lazy one as it is."""
        if isinstance(transformer, LazyTransformer):
            return transformer
        weights = LazyTransformer(transformer.config, lambda: transformer)
        weights._transformer = transformer
        return weights

    @property
    def is_read(self) -> bool:
        return self._transformer is not None

    def get(self) -> Transformer:
        if self._transformer is None:
            with self._lock:
                if self._transformer is None:
                    with torch.inference_mode(mode=False):  # so that it can be trained later
                        transformer = self._read()
                    self._versions_on_disk = parameter_versions(transformer)
                    self._transformer = transformer
        return self._transformer

    @property
    def version(self) -> object:
        """Changes when a weight changes. Before and after reading it is the same, as long as the
        weights are those on disk."""
        if self._transformer is None:
            return self
        versions = parameter_versions(self._transformer)
        return self if versions == self._versions_on_disk else versions


def parameter_versions(transformer: Transformer) -> Versions:
    """Address and torch's version counter of each parameter."""
    return tuple(
        (x.data_ptr(), 0 if x.is_inference() else x._version) for x in transformer.parameters()
    )
