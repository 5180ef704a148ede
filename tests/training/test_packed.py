"""Packed tokens: windows cover the text, documents do not attend to each other, and changed files
are noticed."""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from sightline.errors import InputError
from sightline.training.data.batch import Batch
from sightline.training.data.packed import PackedText, Tokens, dtype_for, read_sheet
from sightline.training.loop import StepEvent
from sightline.training.loss import Objective
from sightline.training.run import Job, train
from sightline.training.state.export import Export
from tests.support.pickle_trap import Trap
from tests.training import small

END = 0


def write(path: Path, ids: list[int] | np.ndarray, dtype: str = "uint16") -> Path:
    np.asarray(ids, dtype=dtype).tofile(path)
    return path


def open_tokens(path: Path, *, dtype: str = "uint16", vocab_size: int = 1000) -> Tokens:
    return Tokens.open(path, dtype=dtype, vocab_size=vocab_size)


@pytest.fixture
def hundred(tmp_path: Path) -> Tokens:
    return open_tokens(write(tmp_path / "train.tokens", list(range(100))))


def digest(batch: Batch) -> str:
    return hashlib.sha256(
        batch.tokens.numpy().tobytes() + batch.targets.numpy().tobytes()
    ).hexdigest()


# ---------------------------------------------------------------------------------------- windows


def test_windows_are_slices_of_the_text(hundred: Tokens) -> None:
    """Token n of the text is n, so the first token of a window is its position."""
    task = PackedText(hundred, None, context=8, rows=4, seed=1)
    for step in range(30):
        batch = task.batch(step)
        first = batch.tokens[:, :1]
        assert torch.equal(batch.tokens, first + torch.arange(8))
        assert torch.equal(batch.targets, batch.tokens + 1)
        assert batch.count == 32


@settings(max_examples=40, deadline=None)
@given(length=st.integers(9, 300), context=st.integers(1, 8), seed=st.integers(0, 999))
def test_an_epoch_has_each_window_once(
    tmp_path_factory: pytest.TempPathFactory, length: int, context: int, seed: int
) -> None:
    """An epoch's windows are contiguous, and leave out less than two windows of text."""
    text = open_tokens(write(tmp_path_factory.mktemp("text") / "train.tokens", list(range(length))))
    task = PackedText(text, None, context=context, rows=1, seed=seed)
    count = task.epoch_batches
    for epoch in range(3):
        starts = sorted(int(task.batch(epoch * count + n).tokens[0, 0]) for n in range(count))
        assert [b - a for a, b in itertools.pairwise(starts)] == [context] * (count - 1)
        assert starts[0] >= 0
        assert starts[-1] + context + 1 <= length
        assert length - 1 - count * context < 2 * context


def test_epochs_have_different_offsets(hundred: Tokens) -> None:
    """Over many epochs every token but the first is a target, including the last."""
    task = PackedText(hundred, None, context=11, rows=1, seed=0)
    starts = {
        min(int(task.batch(epoch * 8 + n).tokens[0, 0]) % 11 for n in range(8))
        for epoch in range(60)
    }
    assert len(starts) > 5
    assert {int(t) for step in range(800) for t in task.batch(step).targets[0]} == set(
        range(1, 100)
    )


def test_validation_is_spread_over_the_text(hundred: Tokens, tmp_path: Path) -> None:
    held = open_tokens(write(tmp_path / "validation.tokens", list(range(50))))
    whole = PackedText(hundred, held, context=8, rows=4, seed=0)
    assert [int(row[0]) for batch in whole.validation() for row in batch.tokens] == [
        0,
        8,
        16,
        24,
        32,
        40,
    ]
    few = PackedText(hundred, held, context=8, rows=4, seed=0, evaluated=3)
    assert [int(row[0]) for batch in few.validation() for row in batch.tokens] == [0, 16, 32]
    short = open_tokens(write(tmp_path / "short.tokens", [1, 2, 3]))
    (batch,) = PackedText(hundred, short, context=8, rows=4, seed=0).validation()
    assert batch.tokens.tolist() == [[1, 2]]
    assert list(PackedText(hundred, None, context=8, rows=4, seed=0).validation()) == []


def test_a_text_shorter_than_one_window(tmp_path: Path) -> None:
    text = open_tokens(write(tmp_path / "train.tokens", list(range(8))))
    with pytest.raises(
        InputError,
        match=r"8 tokens for a context of 8; expected at least 9.*Fix: a longer text, or context=3$",
    ):
        PackedText(text, None, context=8, rows=1, seed=0)
    assert PackedText(text, None, context=7, rows=1, seed=0).batch(5).tokens.tolist() == [
        list(range(7))
    ]


# -------------------------------------------------------------------------------------- documents


def test_documents_by_hand(tmp_path: Path) -> None:
    """The first document predicts the end token, and the next starts from it."""
    text = open_tokens(write(tmp_path / "train.tokens", [5, 6, END, 7, END, 8, 9]))
    batch = PackedText(text, None, context=6, rows=1, seed=0, end=END).batch(0)
    assert batch.documents is not None
    assert batch.tokens.tolist() == [[5, 6, END, 7, END, 8]]
    assert batch.documents.tolist() == [[0, 0, 1, 1, 2, 2]]
    assert batch.targets.tolist() == [[6, END, 7, END, 8, 9]]


@torch.no_grad()
@pytest.mark.parametrize("kernel", ["equation", "fused"])
def test_a_packed_row_is_its_documents_alone(tmp_path: Path, kernel: str) -> None:
    """The law of packing: the hidden states and the loss of a row are those of its documents, each
    computed alone."""
    torch.manual_seed(0)
    model = sl.build(sl.llama(width=16, layers=2, heads=2, vocab_size=20, max_positions=32)).eval()
    ids = [3, 4, 5, END, 6, 7, END, END, 8, 9, 10, 11, END, 12]
    text = open_tokens(write(tmp_path / "train.tokens", ids))
    batch = PackedText(text, None, context=13, rows=1, seed=0, end=END).batch(0)
    together = model.hidden(batch.tokens, documents=batch.documents, kernel=kernel)[0]
    total, at = 0.0, 0
    for document in (
        [3, 4, 5, END],
        [END, 6, 7, END],
        [END, END],
        [END, 8, 9, 10, 11, END],
        [END, 12],
    ):
        tokens, targets = torch.tensor([document[:-1]]), torch.tensor([document[1:]])
        alone = model.hidden(tokens, kernel=kernel)[0]
        torch.testing.assert_close(together[at : at + len(alone)], alone, rtol=1e-4, atol=1e-5)
        total += float(
            torch.nn.functional.cross_entropy(model(tokens)[0], targets[0], reduction="sum")
        )
        at += len(alone)
    assert at == 13
    assert float(Objective(model)(batch)[1]) == pytest.approx(total, rel=1e-4)


def test_without_an_end_token_there_is_one_document(hundred: Tokens) -> None:
    assert PackedText(hundred, None, context=8, rows=4, seed=1).batch(0).documents is None
    assert PackedText(hundred, None, context=8, rows=4, seed=1, end=999).batch(0).documents is None


# ----------------------------------------------------------------------------------------- faults


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_an_id_beyond_the_vocabulary(tmp_path: Path, dtype: str) -> None:
    """Refused when the file is open_tokens, with the place."""
    width = np.dtype(dtype).itemsize
    path = write(tmp_path / "train.tokens", [1, 2, 300, 4, 301], dtype)
    with pytest.raises(
        InputError,
        match=rf"train.tokens: token 300 at position 2 \(byte {2 * width}\); expected ids below 256",
    ):
        open_tokens(path, dtype=dtype, vocab_size=256)
    assert open_tokens(path, dtype=dtype, vocab_size=302).ids.tolist() == [1, 2, 300, 4, 301]


def test_a_wrong_width(tmp_path: Path) -> None:
    """uint16 read as uint32, or half a token."""
    path = write(tmp_path / "train.tokens", [1, 2, 3, 4])
    with pytest.raises(InputError, match=r"token 131073 at position 0"):
        open_tokens(path, dtype="uint32")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(InputError, match=r"7 bytes, not a multiple of the size of uint16"):
        open_tokens(path)


def test_a_file_that_is_missing_or_empty(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"train.tokens: cannot be read \(No such file"):
        open_tokens(tmp_path / "train.tokens")
    (tmp_path / "train.tokens").touch()
    with pytest.raises(InputError, match=r"0 tokens; expected at least 1 tokens"):
        open_tokens(tmp_path / "train.tokens")


def test_dtypes() -> None:
    assert [dtype_for(size) for size in (2, 65_536, 65_537)] == ["uint16", "uint16", "uint32"]


def test_a_pickle_next_to_the_data_is_not_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "meta.pkl").write_bytes(pickle.dumps(Trap()))
    (tmp_path / "data.json").write_text('{"version": 1}', encoding="utf-8")
    assert read_sheet(tmp_path) == {"version": 1}
    with pytest.raises(
        InputError,
        match=r"has no data.json; expected a folder of prepared data. Fix: sightline data prepare FILES",
    ):
        read_sheet(tmp_path / "nowhere")
    assert not (tmp_path / "unpickled").exists()


def job(path: Path) -> Job:
    task = PackedText(open_tokens(path, vocab_size=small.VOCAB), None, context=6, rows=2, seed=0)
    return Job(name="packed", make=small.model, task=task, config=small.config(), export=Export())


def test_changed_data_is_refused_on_resume(tmp_path: Path) -> None:
    path = write(tmp_path / "train.tokens", [n % small.VOCAB for n in range(60)])
    for event in train(job(path), tmp_path / "run"):
        if isinstance(event, StepEvent) and event.step == 3:
            break
    write(path, [(n * 5) % small.VOCAB for n in range(60)])
    with pytest.raises(
        InputError, match=r"the data has changed since this run began.*Fix: --accept-data-change"
    ):
        list(train(job(path), tmp_path / "run"))
    assert list(train(job(path), tmp_path / "run", accept=frozenset({"data"})))


def remove(path: Path) -> None:
    path.unlink()


def truncate(path: Path) -> None:
    os.truncate(path, 20)


def replace(path: Path) -> None:
    other = write(path.with_name("other"), list(range(100, 200)))
    other.replace(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [(remove, "No such file"), (truncate, "changed while"), (replace, "changed while")],
)
def test_a_file_that_changes_in_use(
    hundred: Tokens, damage: Callable[[Path], None], message: str
) -> None:
    """An error names the file; a page missing from a mapped file would kill the process. Once the
    file is restored, no batch is skipped."""
    task = PackedText(hundred, None, context=8, rows=4, seed=0)
    before, after, data = digest(task.batch(0)), digest(task.batch(1)), hundred.path.read_bytes()
    assert before != after
    damage(hundred.path)
    with pytest.raises(InputError, match=rf"train.tokens: .*{message}.*--resume auto"):
        task.batch(1)
    hundred.path.write_bytes(data)
    again = PackedText(open_tokens(hundred.path), None, context=8, rows=4, seed=0)
    assert [digest(again.batch(1)), digest(again.batch(0))] == [after, before]


def test_a_disk_error(hundred: Tokens, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated: np.fromfile fails."""

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(np, "fromfile", fail)
    with pytest.raises(InputError, match=r"train.tokens: cannot be read \(Input/output error\)"):
        PackedText(hundred, None, context=8, rows=4, seed=0).batch(0)


@settings(max_examples=20, deadline=None)
@given(rows=st.integers(1, 6), steps=st.permutations(range(12)))
def test_batches_do_not_depend_on_the_order_of_calls(
    tmp_path_factory: pytest.TempPathFactory, rows: int, steps: list[int]
) -> None:
    """A batch is a function of its step: there is no iterator state to lose."""
    path = write(tmp_path_factory.mktemp("text") / "train.tokens", list(range(70)))
    one = PackedText(open_tokens(path), None, context=8, rows=rows, seed=3)
    in_order = [digest(one.batch(step)) for step in range(12)]
    other = PackedText(open_tokens(path), None, context=8, rows=rows, seed=3)
    assert {step: digest(other.batch(step)) for step in steps} == dict(enumerate(in_order))


def test_another_process_makes_the_same_batch(hundred: Tokens) -> None:
    """A new process computes the same batch of a step."""
    program = (
        "import hashlib, sys; from pathlib import Path; from sightline.training.data.packed import PackedText, Tokens;"
        "t = PackedText(Tokens.open(Path(sys.argv[1]), dtype='uint16', vocab_size=1000), None, context=8, rows=4, seed=5);"
        "b = t.batch(77); print(hashlib.sha256(b.tokens.numpy().tobytes() + b.targets.numpy().tobytes()).hexdigest())"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program, str(hundred.path)],
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    task = PackedText(hundred, None, context=8, rows=4, seed=5)
    for step in range(77):
        task.batch(step)
    assert finished.stdout.strip() == digest(task.batch(77))


def test_the_fingerprint_depends_on_the_data(hundred: Tokens, tmp_path: Path) -> None:
    other = open_tokens(write(tmp_path / "other.tokens", list(range(1, 101))))
    tasks = [
        PackedText(hundred, None, 8, 4, 0),
        PackedText(other, None, 8, 4, 0),
        PackedText(hundred, other, 8, 4, 0),
        PackedText(hundred, None, 7, 4, 0),
        PackedText(hundred, None, 8, 5, 0),
        PackedText(hundred, None, 8, 4, 1),
        PackedText(hundred, None, 8, 4, 0, END),
    ]
    assert len({task.fingerprint for task in tasks}) == len(tasks)
