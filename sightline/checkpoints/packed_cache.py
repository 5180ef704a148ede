"""Load a checkpoint for the native engine: its packed weights are cached on disk, and later loads
read only those.

    loaded = load_packed(source, "int8")
    loaded.engine     # has the packed weights
    loaded.weights    # the transformer, read from the checkpoint when something needs it

A cache entry is keyed by the files it was made from (paths, sizes, modification times and samples
of their bytes), by the config and tensor list, and by this build of Sightline. An entry that does
not match, or is damaged, is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sightline.checkpoints.identity import identify
from sightline.checkpoints.load import Progress, load_weights
from sightline.checkpoints.source import Source
from sightline.checkpoints.sources.directories import packed as packed_folder
from sightline.core.lazy import LazyTransformer
from sightline.core.model import Transformer
from sightline.engine import store
from sightline.engine.engine import NativeEngine
from sightline.engine.matrices import Precision
from sightline.errors import CheckpointError
from sightline.families.schema.family import Family
from sightline.files.regular import open_regular_file

SMALLEST_CACHED = 4_000_000  # parameters; a smaller model is packed faster than read from the cache
WEIGHTS = (".safetensors", ".bin", ".index.json")
SAMPLES = 64  # samples per file; smaller files are compared in full
SAMPLE_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class PackedLoad:
    """A checkpoint for the native engine. `engine` is None if nothing was cached: then the weights
    are in memory and still have to be packed."""

    weights: LazyTransformer
    family: Family
    head: str
    engine: NativeEngine | None


def load_packed(
    source: Source,
    precision: Precision,
    *,
    strict: bool = False,
    progress: Progress | None = None,
    write: bool = True,
) -> PackedLoad:
    """From the cache of packed weights if they are there. Otherwise the checkpoint is read and,
    with `write`, packed and added to the cache; without it, packing is left to the runner."""
    identity = identify(source, strict=strict)
    family = identity.family
    head = identity.head
    path = packed_path(source, precision) if is_worth_caching(source) else None
    if path is None:
        transformer = load_weights(source, strict=strict, progress=progress).transformer
        return PackedLoad(LazyTransformer.of(transformer), family, head, None)
    key = cache_key(source, precision)
    engine = read_packed(path, key, source, strict=strict)
    if engine is None and not write:
        transformer = load_weights(source, strict=strict, progress=progress).transformer
        return PackedLoad(LazyTransformer.of(transformer), family, head, None)
    if engine is None:
        before = len(source.notes)
        transformer = load_weights(source, strict=strict, progress=progress).transformer
        engine = NativeEngine.of(transformer, precision)
        source.notes += engine.notes
        if not store_packed(path, key, engine, source, notes=source.notes[before:]):
            return PackedLoad(LazyTransformer.of(transformer), family, head, engine)
        store.release(engine)
    return PackedLoad(lazy_transformer(source, strict=strict), family, head, engine)


def is_worth_caching(source: Source) -> bool:
    """Whether this is a decoder-only model that is not small."""
    config = identify(source).config
    return (
        config.encoder is None
        and sum(entry.numbers for entry in source.tensors.values()) >= SMALLEST_CACHED
    )


def lazy_transformer(source: Source, *, strict: bool) -> LazyTransformer:
    """The transformer, whose weights are read on first use."""
    config = identify(source, strict=strict).config

    def read() -> Transformer:
        return load_weights(
            replace(source, notes=[]), dtype=torch.float32, strict=strict
        ).transformer  # its notes are in `source` already

    return LazyTransformer(config, read)


def read_packed(path: Path, key: store.Key, source: Source, *, strict: bool) -> NativeEngine | None:
    """The cached engine for this checkpoint, or None. With `strict`, an entry with warnings is not
    used, so that the weights are checked again."""
    config = identify(source).config
    assert config.decoder is not None
    try:
        entry = store.read(path, key, config.decoder)
    except store.BrokenError as error:
        source.notes.append(f"the packed weights in {path} are rebuilt: {error}")
        return None
    if entry is None or (strict and any(note.startswith("warning") for note in entry.notes)):
        return None
    source.notes += [note for note in entry.notes if note not in source.notes]
    return entry.engine


def store_packed(
    path: Path, key: store.Key, engine: NativeEngine, source: Source, *, notes: list[str]
) -> bool:
    """Write an engine's weights to the cache, unless the checkpoint changed in the meantime. A
    cache that cannot be written is noted, and is not an error."""
    try:
        if cache_key(source, key["precision"]) != key:
            return False
        store.tidy(path.parent)
        store.write(path, key, engine, notes=notes)
    except OSError as error:
        source.notes.append(
            f"the packed weights could not be cached in {path.parent}: {error.strerror or error}"
        )
        return False
    return True


def packed_path(source: Source, precision: Precision) -> Path | None:
    """One file per checkpoint and precision, so that a changed checkpoint replaces its own
    entry."""
    where = source.where.resolve()
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in where.stem)[
        :60
    ]
    mark = hashlib.sha256(str(where).encode(errors="surrogateescape")).hexdigest()[:12]
    try:
        return packed_folder() / f"{name}-{precision}-{mark}{store.SUFFIX}"
    except CheckpointError:  # no home
        return None


def cache_key(source: Source, precision: Precision) -> store.Key:
    """The key of a cache entry: precision, files, config and tensor list."""
    contents = [
        source.keys,
        [[entry.name, entry.shape, str(entry.dtype)] for entry in source.tensors.values()],
    ]
    text = json.dumps(contents, sort_keys=True, default=str).encode(errors="surrogateescape")
    return store.key_of(
        precision=precision, files=file_fingerprints(source), said=hashlib.sha256(text).hexdigest()
    )


def file_fingerprints(source: Source) -> list[tuple[str, int, int, int, int, str]]:
    """For each file: path, size, mtime, ctime, inode, and a digest of samples of its bytes.

    The ctime changes with every write and cannot be set, so other weights of the same size and
    mtime are noticed. The samples are for file systems without a ctime.
    """
    where = source.where.resolve()
    files = (
        [
            path
            for path in where.iterdir()
            if path.name == "config.json" or path.name.endswith(WEIGHTS)
        ]
        if where.is_dir()
        else [where]
    )
    return [file_fingerprint(path) for path in sorted(files) if path.is_file()]


def file_fingerprint(path: Path) -> tuple[str, int, int, int, int, str]:
    status = path.stat()
    return (
        str(path),
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        status.st_ino,
        sample_digest(path),
    )


def sample_digest(path: Path) -> str:
    """The SHA-256 of samples of a file's bytes; empty if it cannot be read."""
    try:
        with open_regular_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= SAMPLES * SAMPLE_BYTES:
                return hashlib.sha256(file.read(SAMPLES * SAMPLE_BYTES)).hexdigest()
            starts = [(size - SAMPLE_BYTES) * number // (SAMPLES - 1) for number in range(SAMPLES)]
            return hashlib.sha256(
                b"".join(os.pread(file.fileno(), SAMPLE_BYTES, start) for start in starts)
            ).hexdigest()
    except OSError:
        return ""
