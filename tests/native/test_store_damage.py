"""Packed weights that were damaged or forged: what runs is what was packed, or the file is
refused."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.checkpoints import packed_cache as packed
from sightline.checkpoints.formats.safetensors import open_safetensors
from sightline.config.model import StackConfig
from sightline.engine import store
from sightline.engine.checksums import BLOCK, checksums, read_verified
from sightline.engine.engine import NativeEngine, Rows
from sightline.kernels import library as kernels
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
KEY = {"files": [], "of": "a test"}
NUMBERS = [
    -1,
    0,
    1,
    7,
    2**31,
    2**40,
    2**63,
    2**70,
    -(2**70),
    0.5,
    -1e300,
    float("nan"),
    float("inf"),
]
REFERENCES = [{"kept": 0}, {"kept": -1}, {"kept": 10**6}, {"kept": "x"}, {"matrix": 10**9}]
JUNK = [None, True, "", "x", [], [[]], {}, [1, 2, 3], *NUMBERS, *REFERENCES]


def stack_of(name: str) -> StackConfig:
    stack = tiny.DECODERS[name].decoder
    assert stack is not None
    return stack


def logits(engine: NativeEngine) -> torch.Tensor:
    sequence = engine.begin()
    return torch.cat(
        [engine.run([Rows(sequence, [1, 5, 2, 7], 4)]), engine.run([Rows(sequence, [4])])]
    )


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    store.write(
        tmp_path / "entry",
        KEY,
        NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"]), "int8"),
        notes=["a note"],
    )
    return tmp_path / "entry"


def test_every_flipped_bit_is_noticed_in_header_padding_and_data(entry: Path) -> None:
    whole = entry.read_bytes()
    draws = random.Random(0)
    places = {
        *range(80),
        *range(80, len(whole), len(whole) // 300),
        *range(len(whole) - 20, len(whole)),
    }
    for place in sorted(places):
        data = bytearray(whole)
        data[place] ^= 1 << draws.randrange(8)
        entry.write_bytes(data)
        with pytest.raises(store.BrokenError):
            store.read(entry, KEY, stack_of("swiglu"))
    entry.write_bytes(whole)
    assert store.read(entry, KEY, stack_of("swiglu")) is not None


def test_sums_are_of_each_block_however_the_data_is_cut(tmp_path: Path) -> None:
    data = random.Random(0).randbytes(2 * BLOCK + 100)
    sums = checksums([data])
    assert len(sums) == 3
    assert checksums([data[:10], b"", data[10 : BLOCK + 5], data[BLOCK + 5 :]]) == sums
    assert checksums([data[: 2 * BLOCK]]) == sums[:2]
    assert checksums([]) == []
    (tmp_path / "file").write_bytes(b"before" + data)
    with (tmp_path / "file").open("rb") as file:
        memory = torch.empty(len(data), dtype=torch.uint8)
        read_verified(file.fileno(), 6, memory, sums)
        assert memory.numpy().tobytes() == data
        with pytest.raises(ValueError, match="bytes 1,048,582 to 2,097,158 are damaged"):
            read_verified(file.fileno(), 6, memory, [sums[0], sums[1] ^ 1, sums[2]])
        os.truncate(file.name, BLOCK + 100)
        with pytest.raises(ValueError, match="truncated"):
            read_verified(file.fileno(), 6, memory, sums)


def forged(whole: bytes, header: Any) -> bytes:
    """The file with another header, whose own digest is right."""
    length = int.from_bytes(whole[8:16], "little")
    begins = -(-(48 + length) // store.PAGE) * store.PAGE
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    start = store.MAGIC + len(text).to_bytes(8, "little") + hashlib.sha256(text).digest() + text
    return start + bytes(-len(start) % store.PAGE) + whole[begins:]


def header_in(whole: bytes) -> dict[str, Any]:
    return json.loads(whole[48 : 48 + int.from_bytes(whole[8:16], "little")])


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every container in a header, with every index into it."""
    for index, inside in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
        yield value, index
        if isinstance(inside, (dict, list)):
            yield from places_in(inside)


def mutate(header: dict[str, Any], draws: random.Random) -> None:
    output, index = draws.choice(
        [(output, index) for output, index in places_in(header) if output is not header.get("key")]
    )
    way = draws.randrange(4)
    if way == 0:
        del output[index]
    elif way == 1 and type(output[index]) is int:
        output[index] += draws.choice([-1, 1, 8, 1 << 20])
    elif way == 2 and isinstance(output, list):
        output.insert(index, copy.deepcopy(draws.choice(output)))
    else:
        output[index] = copy.deepcopy(draws.choice(JUNK))


@pytest.mark.parametrize("name", ["swiglu", "learned", "alibi", "ngpt", "sinks", "qk-norm-joined"])
def test_a_forged_header_is_refused_or_can_be_run(name: str, tmp_path: Path) -> None:
    path = tmp_path / "entry"
    store.write(
        path, KEY, NativeEngine.of(tiny.make(tiny.DECODERS[name]), "int8_groups"), notes=["a note"]
    )
    whole = path.read_bytes()
    draws = random.Random(name)
    refused = 0
    for _ in range(100):
        header = header_in(whole)
        for _ in range(draws.randint(1, 2)):
            mutate(header, draws)
        path.write_bytes(forged(whole, header))
        try:
            result = store.read(path, KEY, stack_of(name))
        except store.BrokenError:
            refused += 1
        else:
            assert result is None or logits(result.engine).shape == (
                5,
                stack_of(name).embedding.vocab_size,
            )
    assert refused > 60


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"key": ' + b"9" * 5000 + b"}",
        b"\xff",
        b'{"size": NaN}',
    ],
)
def test_a_header_that_is_no_description_is_refused(text: bytes, entry: Path) -> None:
    entry.write_bytes(forged(entry.read_bytes(), text))
    with pytest.raises(store.BrokenError):
        store.read(entry, KEY, stack_of("swiglu"))
    store.tidy(entry.parent)


def change(entry: Path, path: list[Any], value: Any) -> None:
    whole = entry.read_bytes()
    header = header_in(whole)
    output: Any = header
    for step in path[:-1]:
        output = output[step]
    output[path[-1]] = value
    entry.write_bytes(forged(whole, header))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (["program", "operations", 1, "matrix"], 10**6, "'matrix' is not from"),
        (["program", "operations", 1, "norm", "gain"], {"kept": 10**6}, "'gain' is missing"),
        (["program", "operations", 1, "out"], 5, "'out' is not from"),
        (["program", "operations", 1, "kind"], 6, "a kind that no decoder has"),
        (["program", "widths"], [8] * 5, "width"),
        (["program", "kv_heads"], [10**6] * 2, "key-value heads are not the model's"),
        (["matrices", 0, 2], 2**62, "impossible size"),
        (["matrices", 0, 1], "int9", "unknown precision"),
        (["kept", 0], [2**39, 2**39], "impossibly large"),
        (["kept", 0], [-1], "impossible shape"),
        (["sums"], [], "one checksum per block"),
        (["notes"], [1], "notes are not text"),
    ],
)
def test_what_is_wrong_with_a_header_is_said(
    path: list[Any], value: Any, message: str, entry: Path
) -> None:
    change(entry, path, value)
    with pytest.raises(store.BrokenError, match=message):
        store.read(entry, KEY, stack_of("swiglu"))


def test_an_entry_of_another_model_is_refused_even_under_this_models_key(entry: Path) -> None:
    with pytest.raises(store.BrokenError, match="not the model's"):
        store.read(entry, KEY, stack_of("grouped"))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint, and a cache of its own in which small models are kept, too."""
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(packed, "SMALLEST_CACHED", 0)
    return sl.Model(tiny.make(tiny.DECODERS["grouped"])).save(tmp_path / "model")


def load(folder: Path) -> sl.Model:
    return sl.load(folder, engine="native", dtype="int8")


def engine_of(model: sl.Model) -> NativeEngine:
    engine = model.runner.engine
    assert isinstance(engine, NativeEngine)
    return engine


def test_a_store_that_is_cut_short_or_rewritten_while_it_is_in_use_changes_nothing(
    folder: Path, tmp_path: Path
) -> None:
    load(folder)
    model = load(folder)
    wanted = logits(engine_of(model))
    (entry,) = (tmp_path / "home" / "packed").iterdir()
    entry.write_bytes(bytes(entry.stat().st_size))
    assert torch.equal(logits(engine_of(model)), wanted)
    os.truncate(entry, 0)
    assert torch.equal(logits(engine_of(model)), wanted)


def test_a_flipped_bit_in_the_weights_is_repacked_with_a_note(folder: Path, tmp_path: Path) -> None:
    wanted = logits(engine_of(load(folder)))
    (entry,) = (tmp_path / "home" / "packed").iterdir()
    whole = bytearray(entry.read_bytes())
    whole[-8192] ^= 4
    entry.write_bytes(whole)
    model = load(folder)
    assert any("rebuilt" in note and "damaged" in note for note in model.notes)
    assert torch.equal(logits(engine_of(model)), wanted)
    assert not any("rebuilt" in note for note in load(folder).notes)


def test_other_weights_of_the_same_size_and_time_are_noticed_tensor_by_tensor(folder: Path) -> None:
    weights = folder / "model.safetensors"
    source = load(folder).source
    assert source is not None
    before = weights.stat()
    seen = [packed.cache_key(source, "int8")]
    start = weights.stat().st_size - sum(
        entry.numbers * 4 for entry in open_safetensors(weights).values()
    )
    for entry in open_safetensors(weights).values():
        with weights.open("r+b") as file:
            file.seek(start)
            file.write(b"\0\0\x80\x3f")
        os.utime(weights, ns=(before.st_atime_ns, before.st_mtime_ns))
        start += entry.numbers * 4
        seen.append(packed.cache_key(source, "int8"))
    assert weights.stat().st_mtime_ns == before.st_mtime_ns
    assert weights.stat().st_size == before.st_size
    assert all(one != other for n, one in enumerate(seen) for other in seen[:n])
    model = load(folder)
    assert torch.equal(
        logits(engine_of(model)), logits(NativeEngine.of(sl.load(folder).transformer, "int8"))
    )


def test_samples_reach_from_the_first_byte_to_the_last(tmp_path: Path) -> None:
    size = 3 * packed.SAMPLES * packed.SAMPLE_BYTES
    path = tmp_path / "weights"
    path.write_bytes(bytes(size))
    seen = {packed.sample_digest(path)}
    for place in (0, packed.SAMPLE_BYTES - 1, size - packed.SAMPLE_BYTES, size - 1):
        data = bytearray(size)
        data[place] = 1
        path.write_bytes(data)
        seen.add(packed.sample_digest(path))
    assert len(seen) == 5
    small = [
        packed.sample_digest(path)
        for place in range(50)
        if path.write_bytes(bytes(place) + b"\1" + bytes(49 - place))
    ]
    assert len(set(small)) == 50
