"""Thousands of damaged folders: each loads with every tensor readable, or is refused with a
CheckpointError. Nothing else, and soon.

Seeded, so a failure names a case that can be run again: `run(range(seed, seed + 1), …)`.
"""

from __future__ import annotations

import json
import os
import random
import resource
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.checkpoints.formats import folder
from sightline.checkpoints.formats import writing as write
from sightline.errors import CheckpointError

MOST_SECONDS = 5.0
MOST_MEMORY = 256 * 2**20
EVIL = b"cposix\nsystem\n(S'touch canary'\ntR."
MAGIC = [
    EVIL,
    b"\x80\x02}q\x00.",
    b"PK\x03\x04",
    b"GGUF\x03\0\0\0",
    b"\x89HDF\r\n\x1a\n",
    b"%PDF-1.4",
    b"",
    b"{}",
    b"\0" * 64,
]
VALUES: list[Any] = [
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**18, 0.5, 1e308, "", "F32", "F8_E4M3", "BF16", "../x", "/dev/zero", "a\0b", "\u202e",
    "model.safetensors", "config.json", [], [0], [0, 0], [10**18, 10**18], [-1], {}, {"a": {}}, [[]], "x" * 5000, "\ud800", [0.0], ["1"],
]  # fmt: skip

Mutation = Callable[[random.Random, Path], None]


def strange_files() -> dict[str, bytes]:
    """A small folder in shards, with code and a hostile pickle that must never run."""
    return {
        "config.json": json.dumps(
            {
                "model_type": "gpt2",
                "n_layer": 2,
                "rope": {"a": [1, 2.5]},
                "auto_map": {"M": "evil.M"},
            }
        ).encode(),
        "evil.py": b"open('canary', 'w')",
        "pytorch_model.bin": EVIL,
    }


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, bytes]]:
    """The undamaged folders: one file, and shards."""
    made = {}
    tensors = {
        f"h.{n}.w": torch.full((2, n + 1), float(n)).to(
            [torch.float32, torch.bfloat16, torch.int8][n % 3]
        )
        for n in range(5)
    }
    for name, most in (("one", 10**9), ("shards", 30)):
        where = tmp_path_factory.mktemp("sound") / name
        write.save_folder(where, tensors, keys={}, max_shard_bytes=most)
        files = {path.name: path.read_bytes() for path in where.iterdir()}
        made[name] = files | strange_files()
    return made


def flip(rng: random.Random, path: Path) -> None:
    data = bytearray(path.read_bytes())
    for _ in range(rng.choice([1, 1, 2, 8])):
        if data:
            data[_place(rng, len(data))] ^= 1 << rng.randrange(8)
    path.write_bytes(data)


def cut(rng: random.Random, path: Path) -> None:
    path.write_bytes(path.read_bytes()[: rng.randrange(path.stat().st_size + 1)])


def insert(rng: random.Random, path: Path) -> None:
    data, at = path.read_bytes(), _place(rng, path.stat().st_size + 1)
    extra = rng.choice(
        [
            rng.randbytes(rng.randrange(1, 9)),
            b"[" * 5000,
            b"9" * 5000,
            b"NaN",
            b'"',
            b"{",
            b"\xff",
            b" ",
        ]
    )
    path.write_bytes(data[:at] + extra + data[at:])


def remove(rng: random.Random, path: Path) -> None:
    data, at = path.read_bytes(), rng.randrange(path.stat().st_size + 1)
    path.write_bytes(data[:at] + data[at + rng.randrange(1, 9) :])


def overwrite(rng: random.Random, path: Path) -> None:
    data = path.read_bytes()
    magic = rng.choice(MAGIC)
    path.write_bytes(rng.choice([magic, magic + data[len(magic) :], magic + data]))


def swap_value(rng: random.Random, path: Path) -> None:
    """Another value somewhere in the JSON, with everything else (the header's length too) made
    right again."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little") if path.suffix == ".safetensors" else 0
    text, rest = (data[8 : 8 + length], data[8 + length :]) if length else (data, b"")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return
    made = json.dumps(_swapped(rng, value)).encode()
    path.write_bytes(len(made).to_bytes(8, "little") + made + rest if length else made)


def replace_file(rng: random.Random, path: Path) -> None:
    path.unlink()
    action = rng.randrange(4)
    if action == 0:
        os.mkfifo(path)
    elif action == 1:
        path.symlink_to(rng.choice(["/dev/zero", "../..", path.name, "evil.py", "/etc/hostname"]))
    elif action == 2:
        path.mkdir()


def _place(rng: random.Random, size: int) -> int:
    """Anywhere, but half of the time among the first bytes, where the header's length is."""
    return rng.randrange(min(size, 64) if rng.random() < 0.5 else size)


def _swapped(rng: random.Random, value: Any) -> Any:
    """The value with one node exchanged, added or removed."""
    if not isinstance(value, (dict, list)) or not value or rng.random() < 0.2:
        return rng.choice(VALUES)
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key, made = rng.choice(keys), value.copy()
    if rng.random() < 0.15:
        del made[key]
    elif isinstance(made, dict) and rng.random() < 0.15:
        made[rng.choice(["__metadata__", "../x", "a\nb", "z", ""])] = made.pop(key)
    else:
        made[key] = _swapped(rng, value[key])
    return made


MUTATIONS: list[Mutation] = [
    flip,
    flip,
    cut,
    insert,
    remove,
    overwrite,
    swap_value,
    swap_value,
    swap_value,
    replace_file,
]


def place(where: Path, files: dict[str, bytes]) -> None:
    """The files as they should be, over whatever is there."""
    for name, data in files.items():
        path = where / name
        if path.is_dir() and not path.is_symlink():
            path.rmdir()
        elif path.is_symlink() or not path.is_file():
            path.unlink(missing_ok=True)
        path.write_bytes(data)


def damaged(
    tmp_path: Path, seed: int, sound: dict[str, dict[str, bytes]]
) -> tuple[Path, dict[str, bytes]]:
    """The folder of that seed, after one to three mutations, and the files to put back
    afterwards."""
    rng = random.Random(seed)
    kind = rng.choice(["one", "shards"])
    where, touched = tmp_path / kind, set[str]()
    readable = [name for name in sound[kind] if name not in ("evil.py", "pytorch_model.bin")]
    for _ in range(rng.choice([1, 1, 2, 3])):
        path = where / rng.choice(readable)
        touched.add(path.name)
        if path.is_file() and not path.is_symlink():
            rng.choice(MUTATIONS)(rng, path)
    return where, {name: sound[kind][name] for name in touched}


def outcome(where: Path, *, verify: bool = False) -> str:
    """`"read"` if every tensor could be touched, or the one line of the refusal. Any other
    exception is the test's failure."""
    try:
        source = folder.read_folder(where, verify=verify)
        for entry in source.tensors.values():
            tensor = entry.read()
            assert tuple(tensor.shape) == entry.shape
            assert tensor.dtype == entry.dtype
            float(tensor.double().sum())
        str(source)
    except CheckpointError as error:
        line = str(error)
        assert line.isprintable()
        assert "Fix: " in line
        return line
    return "read"


def run(cases: range, sound: dict[str, dict[str, bytes]], tmp_path: Path) -> dict[str, int]:
    counts = {"read": 0, "refused": 0}
    for kind, files in sound.items():
        (tmp_path / kind).mkdir()
        place(tmp_path / kind, files)
    for seed in cases:
        where, originals = damaged(tmp_path, seed, sound)
        size = sum(
            path.stat().st_size
            for path in where.iterdir()
            if path.is_file() and not path.is_symlink()
        )
        tracemalloc.reset_peak()
        started = time.perf_counter()
        try:
            result = outcome(where)
        except BaseException as error:
            raise AssertionError(f"seed {seed} raised {error!r}") from error
        assert time.perf_counter() - started < MOST_SECONDS, seed
        assert tracemalloc.get_traced_memory()[1] <= size + MOST_MEMORY, seed
        counts["read" if result == "read" else "refused"] += 1
        place(where, originals)
    assert not list(tmp_path.rglob("canary"))
    return counts


def checked(
    cases: range,
    sound: dict[str, dict[str, bytes]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    canaries = tmp_path / "here"
    canaries.mkdir()
    monkeypatch.chdir(canaries)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tracemalloc.start()
    try:
        counts = run(cases, sound, tmp_path)
    finally:
        tracemalloc.stop()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown <= MOST_MEMORY
    assert not os.listdir(canaries)
    assert counts["read"] > len(cases) // 50, "the mutations miss everything that loads"
    assert counts["refused"] > len(cases) // 2, "the mutations hit nothing"


def test_the_undamaged_folders_load(sound: dict[str, dict[str, bytes]], tmp_path: Path) -> None:
    for name, files in sound.items():
        (tmp_path / name).mkdir()
        place(tmp_path / name, files)
        assert outcome(tmp_path / name) == "read"


def test_five_hundred_damaged_folders(
    sound: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(range(500), sound, tmp_path, monkeypatch)


@pytest.mark.long
def test_many_more_damaged_folders(
    sound: dict[str, dict[str, bytes]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checked(range(500, 12_000), sound, tmp_path, monkeypatch)


def test_every_bit_of_a_small_file_is_under_the_checksum(tmp_path: Path) -> None:
    where = tmp_path / "m"
    write.save_folder(where, {"a": torch.ones(2)}, keys={"n": 1})
    path = where / "model.safetensors"
    data = path.read_bytes()
    for bit in range(8 * len(data)):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        assert outcome(where, verify=True) != "read", bit
