"""A checkpoint for the native engine: its packed weights are kept in the cache, and the second time
only they are read.

    loaded = load_packed(source, "int8")
    loaded.engine     # has the packed weights
    loaded.weights    # the transformer, read from the checkpoint when something needs it

An entry belongs to the files that it was made from (their paths, sizes, modification times and
samples of their bytes), to what they say, and to this build of Sightline. One that does not match,
or is damaged, is rebuilt.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from sightline.checkpoints.identity import understand
from sightline.checkpoints.load import Progress
from sightline.checkpoints.load import load as load_source
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

SMALLEST = 4_000_000  # numbers; a smaller model is packed sooner than its entry is found
WEIGHTS = (".safetensors", ".bin", ".index.json")
SAMPLES = 64  # pieces of each file that are compared; smaller files are compared whole
SAMPLE = 1 << 14  # bytes of a piece


@dataclass(frozen=True, slots=True)
class PackedLoad:
    """A checkpoint for the native engine. `engine` is None where nothing was kept: the weights are
    in memory then, and are still to be packed."""

    weights: LazyTransformer
    family: Family
    head: str
    engine: NativeEngine | None


def load_packed(
    source: Source, precision: Precision, *, strict: bool = False, progress: Progress | None = None
) -> PackedLoad:
    """From the cache of packed weights if they are there; else the checkpoint is read, packed and
    kept."""
    family, head, _ = understand(source, strict=strict)
    path = place_of(source, precision) if worth_keeping(source) else None
    if path is None:
        transformer = load_source(source, strict=strict, progress=progress).transformer
        return PackedLoad(LazyTransformer.of(transformer), family, head, None)
    key = key_of(source, precision)
    engine = found_in(path, key, source, strict=strict)
    if engine is None:
        before = len(source.notes)
        transformer = load_source(source, strict=strict, progress=progress).transformer
        engine = NativeEngine.of(transformer, precision)
        source.notes += engine.notes
        if not keep(path, key, engine, source, notes=source.notes[before:]):
            return PackedLoad(LazyTransformer.of(transformer), family, head, engine)
        store.release(engine)
    return PackedLoad(unread(source, strict=strict), family, head, engine)


def worth_keeping(source: Source) -> bool:
    """A decoder alone that is not small."""
    *_, config = understand(source)
    return (
        config.encoder is None
        and sum(entry.numbers for entry in source.tensors.values()) >= SMALLEST
    )


def unread(source: Source, *, strict: bool) -> LazyTransformer:
    """The transformer, of which nothing is read yet."""
    *_, config = understand(source, strict=strict)

    def read() -> Transformer:
        return load_source(
            replace(source, notes=[]), dtype=torch.float32, strict=strict
        ).transformer  # its notes are known

    return LazyTransformer(config, read)


def found_in(path: Path, key: store.Key, source: Source, *, strict: bool) -> NativeEngine | None:
    """The engine that was kept for this very checkpoint. `strict` wants to see the weights if there
    was something to warn of."""
    *_, config = understand(source)
    assert config.decoder is not None
    try:
        entry = store.read(path, key, config.decoder)
    except store.BrokenError as error:
        source.notes.append(f"the packed weights in {path} are made anew: {error}")
        return None
    if entry is None or (strict and any(note.startswith("warning") for note in entry.notes)):
        return None
    source.notes += [note for note in entry.notes if note not in source.notes]
    return entry.engine


def keep(
    path: Path, key: store.Key, engine: NativeEngine, source: Source, *, notes: list[str]
) -> bool:
    """Put an engine's weights into the cache, unless the checkpoint changed meanwhile. A cache that
    cannot be written is no error."""
    try:
        if key_of(source, key["precision"]) != key:
            return False
        store.tidy(path.parent)
        store.write(path, key, engine, notes=notes)
    except OSError as error:
        source.notes.append(
            f"the packed weights are not kept for the next time: {path.parent}:"
            f" {error.strerror or error}"
        )
        return False
    return True


def place_of(source: Source, precision: Precision) -> Path | None:
    """One file for each checkpoint and precision: a checkpoint that changes replaces its own."""
    where = source.where.resolve()
    name = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in where.stem)[
        :60
    ]
    mark = hashlib.sha256(str(where).encode(errors="surrogateescape")).hexdigest()[:12]
    try:
        return packed_folder() / f"{name}-{precision}-{mark}{store.SUFFIX}"
    except CheckpointError:  # no home
        return None


def key_of(source: Source, precision: Precision) -> store.Key:
    """What an entry belongs to."""
    said = [
        source.keys,
        [[entry.name, entry.shape, str(entry.dtype)] for entry in source.tensors.values()],
    ]
    text = json.dumps(said, sort_keys=True, default=str).encode(errors="surrogateescape")
    return store.key_of(
        precision=precision, files=files_of(source), said=hashlib.sha256(text).hexdigest()
    )


def files_of(source: Source) -> list[tuple[str, int, int, int, int, str]]:
    """Of each of the checkpoint's files: name, size, time of change of its content and of its
    inode, inode, digest of its samples.

    The time of the inode moves with every write and cannot be set, so that other weights of the
    same size and time are noticed. The samples are for file systems that keep no such time.
    """
    where = source.where.resolve()
    inside = (
        [
            path
            for path in where.iterdir()
            if path.name == "config.json" or path.name.endswith(WEIGHTS)
        ]
        if where.is_dir()
        else [where]
    )
    return [described(path) for path in sorted(inside) if path.is_file()]


def described(path: Path) -> tuple[str, int, int, int, int, str]:
    seen = path.stat()
    return str(path), seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino, sampled(path)


def sampled(path: Path) -> str:
    """The digest of some of a file's bytes. What cannot be read is not what the weights came
    from."""
    try:
        with open_regular_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size <= SAMPLES * SAMPLE:
                return hashlib.sha256(file.read(SAMPLES * SAMPLE)).hexdigest()
            starts = [(size - SAMPLE) * number // (SAMPLES - 1) for number in range(SAMPLES)]
            return hashlib.sha256(
                b"".join(os.pread(file.fileno(), SAMPLE, start) for start in starts)
            ).hexdigest()
    except OSError:
        return ""
