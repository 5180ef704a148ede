"""What recipes get: prepared texts, folders that are what their datasheet says, and pairs of which
every line is one."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sightline.errors import CheckpointError, InputError
from sightline.recipes import corpora
from sightline.recipes.corpora import (
    prepared_characters,
    prepared_folder,
    prepared_text,
    read_pairs,
)
from sightline.text.tokenizer import Tokenizer
from tests.support.pickle_trap import Trap


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SIGHTLINE_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def quiet(what: str, done: int, total: int) -> None:
    """No progress."""


def written(name: str, data: str | bytes) -> Path:
    Path(name).write_bytes(data if isinstance(data, bytes) else data.encode())
    return Path(name)


BOOK = "The cat sat on the mat, and the dog lay by the door. " * 40 + "Zebras: naïve 猫!\n"


# ------------------------------------------------------------------------------------------ texts


def test_characters_of_a_text() -> None:
    """All characters are in the vocabulary, also those that only the held-out end has."""
    result = prepared_characters(written("book.txt", BOOK), progress=quiet)
    assert result.validation is not None
    ids = [*result.train.ids.tolist(), *result.validation.ids.tolist()]
    assert len(result.validation.ids) == round(0.05 * len(ids)) == round(0.05 * (len(BOOK) + 1))
    assert result.vocab_size == len(set(BOOK)) + 2
    assert 1 not in ids
    folder = Path("tokenizer")
    folder.mkdir()
    for name, data in result.tokenizer_files.items():
        (folder / name).write_bytes(data)
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer is not None
    assert tokenizer.decode(ids) == BOOK
    assert ids[-1] == result.end == tokenizer.eos
    assert set("Z猫!") & set(tokenizer.decode(result.validation.ids.tolist()))
    assert not set("Z猫!") & set(tokenizer.decode(result.train.ids.tolist()))


def test_shakespeare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole plays are held out, each a document; a character that only they have is known."""
    train = [
        written("hamlet.txt", "To be, or not to be\n"),
        written("lear.txt", "Howl, howl, howl\n"),
    ]
    held = [written("macbeth.txt", "Is this a dagger? Zounds\n")]
    monkeypatch.setattr(corpora, "works", lambda progress: (train, held))
    result = prepared_characters(None, progress=quiet)
    assert result.validation is not None
    assert (result.train.ids == result.end).sum() == 2
    assert (result.validation.ids == result.end).sum() == 1
    assert len(result.validation.ids) == 26
    assert (
        result.vocab_size
        == len(set("To be, or not to be\nHowl, howl, howl\nIs this a dagger? Zounds\n")) + 2
    )
    assert [file["part"] for file in result.sheet["files"]] == ["train", "train", "validation"]


def test_bytes_of_a_text() -> None:
    result = prepared_text(written("book.txt", BOOK), 270, progress=quiet)
    assert result.vocab_size == 270
    assert result.end == 0
    again = prepared_text(Path("book.txt"), 270, progress=quiet)
    assert again.train.path == result.train.path
    assert prepared_text(Path("book.txt"), 271, progress=quiet).train.path != result.train.path
    with pytest.raises(
        InputError, match=r"the texts have only \d+ tokens to learn, 8,000 were requested"
    ):
        prepared_text(Path("book.txt"), 8000, progress=quiet)
    with pytest.raises(InputError, match=r"empty.txt: is empty"):
        prepared_text(written("empty.txt", ""), 270, progress=quiet)


def test_a_harmed_cache_is_made_again() -> None:
    path = prepared_characters(written("book.txt", BOOK), progress=quiet).train.path
    right = path.read_bytes()
    path.write_bytes(b"\xff\xff" + right[2:])
    assert prepared_characters(Path("book.txt"), progress=quiet).train.path == path
    assert path.read_bytes() == right


# ---------------------------------------------------------------------------------------- folders


@pytest.fixture
def folder() -> Path:
    return prepared_characters(written("book.txt", BOOK), progress=quiet).train.path.parent


def test_a_prepared_folder(folder: Path) -> None:
    """What else lies there, a pickle for one, stays shut."""
    (folder / "meta.pkl").write_bytes(pickle.dumps(Trap()))
    result = prepared_folder(folder)
    assert result.sheet["documents"] == 1
    assert result.tokenizer_files.keys() == {"tokenizer.json", "tokenizer_config.json"}
    assert not Path("unpickled").exists()


def test_a_folder_that_was_changed(folder: Path) -> None:
    tokens = np.fromfile(folder / "train.tokens", dtype="uint16")
    tokens[3] += 1
    tokens.tofile(folder / "train.tokens")
    with pytest.raises(
        InputError,
        match=r"train.tokens was changed or truncated; expected the files as they were made. Fix: prepare it",
    ):
        prepared_folder(folder)
    (folder / "train.tokens").unlink()
    with pytest.raises(InputError, match=r"train.tokens cannot be opened: No such file"):
        prepared_folder(folder)
    with pytest.raises(
        InputError,
        match=r"has no data.json; expected a folder of prepared data. Fix: sightline data prepare FILES",
    ):
        prepared_folder(Path("nowhere"))


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": "many"},
        {"dtype": "float64"},
        {"dtype": None},
        {"end": 10**6},
        {"sha256": None},
        {"sha256": {}},
        {"sha256": {"train.tokens": "", "../../secret": ""}},
        {"tokens": ...},
    ],
)
def test_a_datasheet_that_is_none(folder: Path, change: dict[str, Any]) -> None:
    sheet = json.loads((folder / "data.json").read_text()) | change
    (folder / "data.json").write_text(
        json.dumps({name: value for name, value in sheet.items() if value is not ...})
    )
    with pytest.raises(InputError, match=r"data.json: is not a datasheet"):
        prepared_folder(folder)


def test_a_datasheet_that_is_not_json(folder: Path) -> None:
    (folder / "data.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"data.json is not JSON at character 1"):
        prepared_folder(folder)


# ------------------------------------------------------------------------------------------ pairs


def test_pairs_of_either_kind() -> None:
    both = (["the cat", "a\u2028dog"], ["猫", "犬"])
    tsv = written("pairs.tsv", "\ufeffthe cat\t猫\r\na\u2028dog\t犬\r\n\r\n")
    assert read_pairs(tsv, None, None) == both
    source, target = written("a.en", "the cat\na\u2028dog\n"), written("a.ja", "猫\n犬")
    assert read_pairs(None, source, target) == both


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a\tb\nc\n", r"pairs.tsv: line 2 has 1 column; expected two, with one tab between them"),
        ("a\tb\tc\n", r"pairs.tsv: line 1 has 3 columns; expected two"),
        ("a\tb\n\nc\td\n", r"pairs.tsv: line 2 has 1 column;"),
        (
            "a\tb\nc\t \n",
            r"pairs.tsv: line 2 has an empty side; expected a sentence on both. Fix: remove the pair",
        ),
        ("\tb\n", r"pairs.tsv: line 1 has an empty side"),
        ("", r"pairs.tsv: is empty"),
        (b"a\tb\0\n", r"pairs.tsv: byte 3 is zero"),
        ("a\tb\n".encode("utf-16"), r"pairs.tsv: is UTF-16"),
        (b"na\xefve\tx\n", r"pairs.tsv: byte 2 is not UTF-8"),
    ],
)
def test_bad_pairs(data: str | bytes, message: str) -> None:
    with pytest.raises(InputError, match=message) as error:
        read_pairs(written("pairs.tsv", data), None, None)
    assert "\n" not in str(error.value)


def test_bad_columns() -> None:
    three, two, hole = written("a", "1\n2\n3\n"), written("b", "1\n2\n"), written("c", "1\n\n3\n")
    with pytest.raises(
        InputError, match=r"a has 3 lines, b has 2; expected the same number in both"
    ):
        read_pairs(None, three, two)
    with pytest.raises(InputError, match=r"c: line 2 has an empty side"):
        read_pairs(None, three, hole)
    with pytest.raises(InputError, match=r"nowhere: cannot be read \(No such file"):
        read_pairs(None, three, Path("nowhere"))
    with pytest.raises(
        InputError, match=r"one side of the pairs is missing.*Fix: source=FILE and target=FILE"
    ):
        read_pairs(None, three, None)
