"""Preparing data: tokens match the text, the datasheet is correct, and folders are written
atomically."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sightline.errors import InputError
from sightline.text.tokenizer import Tokenizer
from sightline.training.data import prepare as module
from sightline.training.data.chunk_encoders import Encoder, character_encoder
from sightline.training.data.documents import READ
from sightline.training.data.prepare import Plan, cached, find_prepared_damage, prepare, sources

LETTERS = "abcdefghij \n"


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))


def file_of(folder: Path, text: str, name: str = "text.txt") -> Path:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder / name


def ids(folder: Path, name: str, dtype: str = "uint16") -> list[int]:
    return np.fromfile(folder / name, dtype=dtype).tolist()


def expected(encoder: Encoder, *documents: str) -> list[int]:
    """Each document's characters and the end token."""
    tokens: list[int] = []
    for text in documents:
        tokens += [*map(int, encoder.encode_chunk(text, first=True)), encoder.end or 0]
    return tokens


@pytest.fixture
def letters() -> Encoder:
    return character_encoder([LETTERS])


# ----------------------------------------------------------------------------------------- tokens


def test_files_are_documents(tmp_path: Path, letters: Encoder) -> None:
    paths = [file_of(tmp_path, text, f"{n}.txt") for n, text in enumerate(("abc\r\n", "dede"))]
    prepare(Plan(files=sources(paths), validation=0), letters, tmp_path / "out")
    assert ids(tmp_path / "out", "train.tokens") == expected(letters, "abc\n", "dede")
    assert not (tmp_path / "out" / "validation.tokens").exists()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(text=st.text(LETTERS, min_size=8, max_size=200), part=st.sampled_from([0.25, 0.3, 0.5]))
def test_the_end_of_the_text_is_held_out(
    tmp_path: Path, letters: Encoder, text: str, part: float
) -> None:
    plan = Plan(files=sources([file_of(tmp_path, text)]), separator="\n", validation=part)
    sheet = (
        prepare(plan, letters, tmp_path / "out", overwrite=True)
        if (tmp_path / "out").exists()
        else _prepare(plan, letters, tmp_path)
    )
    if sheet is None:
        return
    train, held = ids(tmp_path / "out", "train.tokens"), ids(tmp_path / "out", "validation.tokens")
    assert train + held == expected(letters, *(line for line in text.split("\n") if line))
    assert len(held) == round(part * len(train + held))
    assert sheet["tokens"] == {"train": len(train), "validation": len(held)}


def _prepare(plan: Plan, letters: Encoder, folder: Path) -> dict[str, Any] | None:
    try:
        return prepare(plan, letters, folder / "out")
    except InputError:
        return None


def test_whole_files_are_held_out(tmp_path: Path, letters: Encoder) -> None:
    train, held = file_of(tmp_path, "abcabc"), file_of(tmp_path, "jjj", "held.txt")
    sheet = prepare(
        Plan(files=sources([train]), held_out=sources([held])), letters, tmp_path / "out"
    )
    assert ids(tmp_path / "out", "train.tokens") == expected(letters, "abcabc")
    assert ids(tmp_path / "out", "validation.tokens") == expected(letters, "jjj")
    assert [file["part"] for file in sheet["files"]] == ["train", "validation"]
    assert sheet["held out"] == "whole files"


def test_a_large_vocabulary(tmp_path: Path) -> None:
    signs = "".join(
        map(chr, range(0x3400, 0x3400 + 70_000 - 0xA000))
    )  # the rest is above the surrogates
    signs += "".join(map(chr, range(0x20000, 0x20000 + 60_000)))
    encoder = character_encoder([signs])
    assert encoder.vocab_size > 1 << 16
    sheet = prepare(
        Plan(files=sources([file_of(tmp_path, signs)]), validation=0), encoder, tmp_path / "out"
    )
    assert sheet["dtype"] == "uint32"
    assert ids(tmp_path / "out", "train.tokens", "uint32") == expected(encoder, signs)


def test_a_text_of_many_chunks(tmp_path: Path, letters: Encoder) -> None:
    text = "abcd efg\nhij " * (3 * READ // 12)
    reports: list[tuple[str, int, int]] = []
    plan = Plan(files=sources([file_of(tmp_path, text)]))
    prepare(plan, letters, tmp_path / "out", progress=lambda *state: reports.append(state))
    assert ids(tmp_path / "out", "train.tokens") + ids(
        tmp_path / "out", "validation.tokens"
    ) == expected(letters, text)
    assert reports[-1] == ("tokenizing", len(text), len(text))
    assert len(reports) >= 3


# -------------------------------------------------------------------------------------- datasheet


def test_the_datasheet_is_correct(tmp_path: Path, letters: Encoder) -> None:
    path = file_of(tmp_path, "abc def\n" * 50)
    prepare(Plan(files=sources([path]), separator="\n"), letters, tmp_path / "out")
    sheet = json.loads((tmp_path / "out" / "data.json").read_text(encoding="utf-8"))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert sheet["files"] == [{"name": "text.txt", "bytes": 400, "sha256": digest, "part": "train"}]
    assert sheet["documents"] == 50
    assert sheet["tokens"] == {"train": 380, "validation": 20}
    assert sheet["held out"] == "the last 5 % of the tokens"
    assert (sheet["dtype"], sheet["vocab_size"], sheet["end"]) == ("uint16", 14, 0)
    assert sheet["sample"]["text"] == "abc def"
    assert sheet["sample"]["tokens"] == expected(letters, "abc def")[:-1]
    assert sheet["versions"].keys() == {"sightline", "tokenizers"}
    for name, recorded in sheet["sha256"].items():
        assert hashlib.sha256((tmp_path / "out" / name).read_bytes()).hexdigest() == recorded
    assert sheet["sha256"].keys() == {
        "train.tokens",
        "validation.tokens",
        "tokenizer.json",
        "tokenizer_config.json",
    }
    opened = Tokenizer.from_folder(tmp_path / "out")
    assert opened is not None
    assert opened.decode(ids(tmp_path / "out", "train.tokens")[:7]) == "abc def"
    assert find_prepared_damage(tmp_path / "out") == ""


@pytest.mark.parametrize(
    "name", ["train.tokens", "validation.tokens", "tokenizer.json", "data.json"]
)
@pytest.mark.parametrize("damage", ["truncated", "changed", "removed"])
def test_damage_is_found(tmp_path: Path, letters: Encoder, name: str, damage: str) -> None:
    prepare(Plan(files=sources([file_of(tmp_path, "abc def\n" * 50)])), letters, tmp_path / "out")
    path = tmp_path / "out" / name
    data = path.read_bytes()
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(data[:-2] if damage == "truncated" else bytes([data[0] ^ 1]) + data[1:])
    assert find_prepared_damage(tmp_path / "out")


# --------------------------------------------------------------------------------------- atomicity


def test_too_little_text(tmp_path: Path, letters: Encoder) -> None:
    """The error gives the token counts."""
    plan = Plan(files=sources([file_of(tmp_path, "abc")]))
    with pytest.raises(
        InputError,
        match=r"text.txt: 0 of 4 tokens would be held out; expected at least 2. Fix: more text, or --validation 0",
    ):
        prepare(plan, letters, tmp_path / "out")
    with pytest.raises(InputError, match=r"text.txt: 0 tokens to train on; expected at least 2"):
        prepare(
            Plan(files=sources([file_of(tmp_path, "\n\n")]), separator="\n", validation=0),
            letters,
            tmp_path / "out",
        )
    with pytest.raises(InputError, match=r"no text to prepare"):
        Plan(files=())
    for part in (-0.1, 0.6, float("nan")):
        with pytest.raises(InputError, match=r"expected a share from 0 to 0.5"):
            Plan(files=plan.files, validation=part)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt"]


def test_a_folder_that_exists_already(tmp_path: Path, letters: Encoder) -> None:
    plan = Plan(files=sources([file_of(tmp_path, "abc def\n" * 50)]))
    (tmp_path / "out").mkdir()
    prepare(plan, letters, tmp_path / "out")  # an empty folder is fine
    with pytest.raises(InputError, match=r"out: already exists"):
        prepare(plan, letters, tmp_path / "out")
    prepare(plan, letters, tmp_path / "out", overwrite=True)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(InputError, match=r"mine: already exists"):
        prepare(plan, letters, tmp_path / "mine", overwrite=True)


def test_a_full_disk_leaves_nothing(
    tmp_path: Path, letters: Encoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If any fsync fails, the previous files stay as they were, byte for byte."""
    plan = Plan(files=sources([file_of(tmp_path, "abc def\n" * 50)]))
    prepare(plan, letters, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    real, failures = module.os.fsync, 0
    for fails_at in range(1, 7):
        calls = 0

        def full(handle: int, fails_at: int = fails_at) -> None:
            nonlocal calls
            calls += 1
            if calls == fails_at:
                raise OSError(errno.ENOSPC, "No space left on device")
            real(handle)

        monkeypatch.setattr(module.os, "fsync", full)
        with pytest.raises(
            InputError,
            match=r"out: cannot be written \(No space left on device\). Fix: free some space",
        ):
            prepare(
                Plan(files=plan.files, validation=0.1), letters, tmp_path / "out", overwrite=True
            )
        monkeypatch.setattr(module.os, "fsync", real)
        failures += 1
        assert {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()} == before
        assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "text.txt"]
    assert failures == 6


def test_an_interruption_leaves_nothing(tmp_path: Path, letters: Encoder) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(
            Plan(files=sources([file_of(tmp_path, "abc")])),
            letters,
            tmp_path / "out",
            progress=interrupt,
        )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text.txt"]


# ------------------------------------------------------------------------------------------ cache


def test_the_cache_is_used_the_second_time(tmp_path: Path) -> None:
    calls: list[str] = []

    def encoder() -> Encoder:
        calls.append("encoder")
        return character_encoder([LETTERS])

    path = file_of(tmp_path, "abc def\n" * 50)
    first = cached(Plan(files=sources([path])), "characters", encoder)
    assert first.parent == tmp_path / "home" / "data"
    assert cached(Plan(files=sources([path])), "characters", encoder) == first
    renamed = path.rename(tmp_path / "other.txt")
    assert cached(Plan(files=sources([renamed])), "characters", encoder) == first
    assert len(calls) == 1
    others = [
        cached(Plan(files=sources([renamed])), "other", encoder),
        cached(Plan(files=sources([renamed]), validation=0.1), "characters", encoder),
        cached(Plan(files=sources([renamed]), separator="\n"), "characters", encoder),
        cached(Plan(files=sources([file_of(tmp_path, "abc def\n" * 51)])), "characters", encoder),
    ]
    assert len({first, *others}) == len(calls) == 5


def test_damaged_data_is_prepared_again(tmp_path: Path, letters: Encoder) -> None:
    plan = Plan(files=sources([file_of(tmp_path, "abc def\n" * 50)]))
    place = cached(plan, "characters", lambda: letters)
    right = (place / "train.tokens").read_bytes()
    (place / "train.tokens").write_bytes(right[:-2])
    left = place.with_name(f".{place.name}.dead.partial")
    left.mkdir()
    assert cached(plan, "characters", lambda: letters) == place
    assert (place / "train.tokens").read_bytes() == right
    assert not left.exists()


def test_a_cache_that_cannot_be_written(tmp_path: Path, letters: Encoder) -> None:
    (tmp_path / "home").touch()
    with pytest.raises(InputError, match=r"cannot be written.*Fix: set SIGHTLINE_HOME"):
        cached(Plan(files=sources([file_of(tmp_path, "abc def")])), "characters", lambda: letters)
