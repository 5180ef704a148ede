"""Damaged .npz archives and llama2.c files: each loads, or is refused in one line. Seeded, so that
a failure can be run again."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

import sightline as sl
from sightline.errors import SightlineError
from tests.support.llama2c_files import export, llama, pieces, table
from tests.support.npz_files import META, archive, bart

JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    3,
    2**40,
    2**70,
    10**400,
    0.5,
    -1e308,
    float("nan"),
    "",
    "x",
    "\ud800" * 9,
    "\0" * 9,
    [],
    [[]],
    {},
]


def loads_or_is_refused(path: Path) -> bool:
    try:
        model = sl.load(path)
    except SightlineError as error:
        assert "\n" not in str(error)  # noqa: PT017
        return False
    if model.tokenizer is not None:
        model.tokenizer.decode(model.tokenizer.encode("cab hi"))
    return True


def damaged(data: bytes, draws: random.Random) -> bytes:
    """Other bytes here and there, a part twice, or a part gone."""
    changed = bytearray(data)
    way = draws.randrange(4)
    start = draws.choice(
        [
            draws.randrange(len(data)),
            draws.randrange(min(len(data), 100)),
            len(data) - 1 - draws.randrange(min(len(data), 900)),
        ]
    )
    if way == 0:
        return data[:start]
    if way == 1:
        return data[:start] + data[start + draws.choice([1, 4, 100]) :]
    if way == 2:
        return data[:start] + data[max(0, start - draws.choice([1, 8, 50])) :]
    for place in range(start, min(len(data), start + draws.choice([1, 1, 4]))):
        changed[place] = draws.choice([0, 1, 0x7F, 0x80, 0xFF, draws.randrange(256)])
    return bytes(changed)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sound")
    archive(folder / "model.npz", bart(), META)
    export(folder / "model.bin", llama(True), tied=True)
    (folder / "tokenizer.bin").write_bytes(table(pieces("new")))
    assert all(loads_or_is_refused(folder / name) for name in ("model.npz", "model.bin"))
    return folder


@pytest.mark.parametrize("name", ["model.npz", "model.bin", "tokenizer.bin"])
def test_a_damaged_file_loads_or_is_refused_in_one_line(
    name: str, sound: Path, tmp_path: Path
) -> None:
    whole = {
        path.name: path.read_bytes() for path in sound.iterdir() if path.suffix == Path(name).suffix
    }
    for other, data in whole.items():
        (tmp_path / other).write_bytes(data)
    for seed in range(15):
        (tmp_path / name).write_bytes(damaged(whole[name], random.Random(seed)))
        loads_or_is_refused(tmp_path / name.replace("tokenizer", "model"))


def test_strange_values_in_an_archives_meta_load_or_are_refused_in_one_line(tmp_path: Path) -> None:
    weights = bart()
    for seed in range(15):
        draws = random.Random(seed)
        meta = dict(META)
        for _ in range(draws.randint(1, 3)):
            meta[draws.choice(sorted(META))] = draws.choice(JUNK)
        loads_or_is_refused(archive(tmp_path / "model.npz", weights, json.loads(json.dumps(meta))))
