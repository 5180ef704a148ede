"""Labelled texts: reading, errors by line, and batches."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from sightline.errors import InputError
from sightline.training.data.labelled import Examples, Labelled, read_labelled


def write(place: Path, name: str, text: str) -> Path:
    (place / name).write_text(text, encoding="utf-8", newline="")
    return place / name


def test_csv_and_jsonl_give_the_same_examples(tmp_path: Path) -> None:
    table = write(
        tmp_path,
        "a.csv",
        '\ufefftext,label,id\r\n"What, a ""film""!\nTruly.",good,1\r\nToo long.,bad,2\r\nWell.,good,3\r\n',
    )
    lines = write(
        tmp_path,
        "a.jsonl",
        '{"text": "What, a \\"film\\"!\\nTruly.", "label": "good"}\n\n{"label": "bad", "text": "Too long."}\n{"text": "Well.", "label": "good"}\n',
    )
    for examples in (read_labelled(table), read_labelled(lines)):
        assert examples.texts == ['What, a "film"!\nTruly.', "Too long.", "Well."]
        assert examples.labels == ["good", "bad", "good"]
        assert examples.names == ["bad", "good"]


def test_numeric_labels_are_sorted_by_value() -> None:
    assert Examples(["x"] * 4, ["10", "9", "b", "a"]).names == ["9", "10", "a", "b"]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        (
            "a.csv",
            "text,label\na,b\n,c\n",
            r"a.csv, line 3: no text; expected text and label in every row\. Fix: correct the line",
        ),
        ("a.csv", "text,label\na,b\nc\n", "line 3: no label"),
        ("a.csv", 'text,label\n"two\nlines",b\nc,\n', "line 4: no label"),
        ("a.csv", "text,lable\na,b\n", "line 2: no label"),
        ("a.csv", 'text,label\n"a,b\n', "line 2: not CSV"),
        ("a.csv", "text,label\n", "has no rows"),
        ("a.csv", "text,label\na,b\nc,b\n", r"every label is 'b'; expected two labels or more"),
        ("a.jsonl", '{"text": "a", "label": 1}\n[]\n', "line 2: no JSON object"),
        (
            "a.jsonl",
            '{"text": "a", "label": 1}\n{"text": "a", "label": true}\n',
            "line 2: no label",
        ),
        ("a.jsonl", '{"text": "a", "label": 1}\n{"text": 3, "label": 2}\n', "line 2: no text"),
        ("a.jsonl", "[" * 100_000, "line 1: no JSON object"),
        ("a.jsonl", "a\0b", "is not text"),
        ("a.txt", "text,label\n", "expected a .csv or .jsonl file"),
    ],
)
def test_errors_name_the_line(name: str, text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read_labelled(write(tmp_path, name, text))


def test_files_that_are_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("text,label\nä,b\n".encode("latin-1"))
    with pytest.raises(InputError, match="not UTF-8"):
        read_labelled(tmp_path / "a.csv")
    with pytest.raises(InputError, match="No such file"):
        read_labelled(tmp_path / "b.csv")


def task(seed: int = 0) -> Labelled:
    rows = [[n + 1] * (1 + n % 13) for n in range(100)]
    held = ([[7] * 3, [8] * 20], [1, 2])
    return Labelled(rows, [n % 3 for n in range(100)], 0, 64, seed, held_out=held, longest=10)


def test_batches_hold_rows_with_their_labels() -> None:
    labelled, seen = task(), list[int]()
    for step in range(labelled.epoch_batches):
        batch = labelled.batch(step)
        assert batch.tokens.numel() <= 64
        assert batch.count == len(batch.targets) == batch.rows
        for row, label in zip(batch.tokens, batch.targets, strict=True):
            n = int(row[0]) - 1
            assert row.tolist() == ([n + 1] * min(10, 1 + n % 13) + [0] * 10)[: len(row)]
            assert int(label) == n % 3
            seen.append(n)
        lengths = torch.tensor([min(10, 1 + (int(row[0]) - 1) % 13) for row in batch.tokens])
        real = torch.arange(batch.tokens.shape[1])[None] < lengths[:, None]
        assert bool(real.all()) if batch.padding is None else torch.equal(~batch.padding, real)
    assert sorted(seen) == list(range(100))


def test_a_step_is_a_function_of_the_seed() -> None:
    assert torch.equal(task().batch(40).tokens, task().batch(40).tokens)
    assert task().fingerprint == task().fingerprint != task(1).fingerprint
    (held,) = task().validation()
    assert held.tokens.shape == (2, 10)
    assert held.targets.tolist() == [1, 2]


def test_every_tenth_is_held_out() -> None:
    examples = Examples([str(n) for n in range(25)], ["a"] * 25)
    train, held = examples.hold_out(10)
    assert held.texts == ["9", "19"]
    assert len(train) == 23


def test_empty_rows_are_refused() -> None:
    with pytest.raises(InputError, match="no text with any tokens"):
        Labelled([[], []], [0, 1], 0, 64, 0)
