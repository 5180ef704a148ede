"""Saved and opened, a trace is the same bit for bit; a file that is not whole, or no trace, is
refused in one line."""

from __future__ import annotations

import copy
import json
import os
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import sightline as sl
from sightline.checkpoints.defaults import Defaults
from sightline.core.attention import Scoring
from sightline.core.positions import TensorBias
from sightline.lens.trace.layer import HeadBias, Look
from sightline.lens.trace.trace import Trace, trace_of
from sightline.text.tokenizer import Tokenizer
from tests.support.tiny import ALL, ENCODER_DECODERS, make

pytestmark = pytest.mark.usefixtures(
    "as_users_run_it"
)  # the shapes are checked elsewhere; here they would take half of the time
IDS, SOURCE = [3, 7, 1, 4, 9, 2, 8], [5, 6, 7, 8, 2]
LETTERS = Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy")


def model_of(name: str, tokenizer: Tokenizer | None = None) -> sl.Model:
    return sl.Model(make(ALL[name]), tokenizer, defaults=Defaults(decoder_start=1), name=name)


def trace(name: str, **options: Any) -> Trace:
    return model_of(name).trace(IDS, source=SOURCE if name in ENCODER_DECODERS else None, **options)


def equal(a: Trace, b: Trace) -> None:
    for field in ("name", "config", "tokens", "text", "source", "source_text", "rows"):
        assert getattr(a, field) == getattr(b, field), field
    assert torch.equal(a.logits, b.logits)
    assert a.kept.keys() == b.kept.keys()
    assert all(torch.equal(value, b.kept[place]) for place, value in a.kept.items())
    assert list(a.looks) == list(b.looks)
    for site, look in a.looks.items():
        other = b.looks[site]
        for kind in (Look.weights, Look.scores):
            assert torch.equal(kind(look), kind(other))
        for part in ("query", "key", "value"):
            x, y = getattr(look, part), getattr(other, part)
            assert (x is None and y is None) or torch.equal(x, y)


@pytest.mark.parametrize("name", ALL)
def test_saved_and_opened_is_the_same_bit_for_bit(name: str, tmp_path: Path) -> None:
    result = trace(name, what=("query", "key", "value", "residual", "output"))
    assert result.kept
    equal(result, sl.Trace.open(result.save(tmp_path / "seen.trace")))
    assert [file.name for file in tmp_path.iterdir()] == ["seen.trace"]


def test_the_saved_file_is_the_one_that_is_flushed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library's `save_file` renames a file of its own over ours, with mode 600."""
    synced: list[int] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_ino)
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    file = trace("rotary").save(tmp_path / "t.safetensors")
    plain = tmp_path / "plain"
    plain.touch()
    assert file.stat().st_ino in synced
    assert file.stat().st_mode == plain.stat().st_mode
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plain", "t.safetensors"]


def test_texts_of_every_kind_and_a_second_time_in_the_same_place(tmp_path: Path) -> None:
    file = tmp_path / "a trace"
    for text in ("abc", 'b"\\n', "cabbage"):
        result = model_of("rotary", LETTERS).trace("abc")
        result = replace(result, text=text + " 猫🙂\ud800", name="\n")
        equal(result, sl.Trace.open(result.save(str(file))))


def test_what_was_watched_while_it_was_written(tmp_path: Path) -> None:
    result = (
        model_of("window", LETTERS)
        .generate("abcab", max_tokens=4, ignore_eos=True, trace=True)
        .trace
    )
    assert result is not None
    equal(result, sl.Trace.open(result.save(tmp_path / "x")))
    *_, piece = model_of("window", LETTERS).stream(
        "abcab", max_tokens=4, ignore_eos=True, trace=True
    )
    assert piece.trace is not None
    equal(piece.trace, sl.Trace.open(piece.trace.save(tmp_path / "x")))


def test_an_edited_pass_with_a_bias_of_its_own(tmp_path: Path) -> None:
    bias = torch.randn(1, 4, 7, 7)
    edits = {("decoder", 0, "bias"): lambda _: TensorBias(bias)}
    result = trace_of(model_of("rotary"), IDS, edits=edits)
    equal(result, sl.Trace.open(result.save(tmp_path / "x")))
    look = result.look(0)
    strange = replace(
        result,
        looks={
            look.site: replace(
                look, scoring=replace(look.scoring, bias=HeadBias(TensorBias(bias), 1))
            )
        },
    )
    with pytest.raises(
        sl.InputError, match=r"a bias of kind HeadBias; expected ALiBi, T5's table or given values"
    ):
        strange.save(tmp_path / "y")
    assert not (tmp_path / "y").exists()


def test_documents_and_less_than_all(tmp_path: Path) -> None:
    look = trace("rotary").look(0)
    inside = torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    mask = replace(look.scoring.mask, query_document=inside, key_document=inside, offset=None)
    scoring = Scoring(mask, look.scoring.scale)
    result = replace(trace("rotary"), looks={look.site: replace(look, value=None, scoring=scoring)})
    again = sl.Trace.open(result.save(tmp_path / "x"))
    assert torch.equal(result.weights(0), again.weights(0))
    assert bool((again.weights(0)[:, 3:, :3] == 0).all())
    with pytest.raises(sl.InputError, match="a trace without values"):
        again.look(0).mixed()


def test_opening_needs_no_model_and_no_random_state(tmp_path: Path) -> None:
    file = trace("t5").save(tmp_path / "x")
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    opened = sl.Trace.open(file)
    assert torch.equal(torch.rand(3), expected)
    assert not opened.weights(0).requires_grad
    assert opened.bytes > 0


# ------------------------------------------------------------------------------- what is no trace


def head_of(file: Path) -> dict[str, Any]:
    data = file.read_bytes()
    return json.loads(data[8 : 8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]


def rewritten(
    file: Path, change: Callable[[dict[str, Any], dict[str, torch.Tensor]], None]
) -> None:
    """The same file with another head, or other tensors."""
    output, tensors = json.loads(head_of(file)["trace"]), load_file(file)
    change(output, tensors)
    save_file(tensors, file, {"form": "sightline trace 1", "trace": json.dumps(output)})


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def cut_in_the_head(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:60])


def weights(file: Path) -> None:
    save_file({"w": torch.ones(2)}, file)


def later(file: Path) -> None:
    save_file(load_file(file), file, {"form": "sightline trace 3", "trace": "{}"})


def no_json(file: Path) -> None:
    save_file(load_file(file), file, {"form": "sightline trace 1", "trace": "{broken"})


def no_head(file: Path) -> None:
    save_file(load_file(file), file, {"form": "sightline trace 1"})


def only_a_list(file: Path) -> None:
    save_file(load_file(file), file, {"form": "sightline trace 1", "trace": "[1, 2]"})


def folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


BROKEN: dict[str, tuple[Callable[[Path], None], str]] = {
    "cut": (cut, "is not a trace: "),
    "cut in its head": (cut_in_the_head, "is not a trace: "),
    "empty": (lambda file: file.write_bytes(b"") and None, "is not a trace: "),
    "text": (lambda file: file.write_text("The cat sat on the mat") and None, "is not a trace: "),
    "gone": (lambda file: file.unlink(), "is not a file; expected one that trace.save wrote"),
    "a folder": (folder, "is not a file"),
    "weights": (weights, "is not a trace; expected 'sightline trace 2' in its metadata"),
    "of a later form": (later, "expected 'sightline trace 2'"),
    "broken JSON": (no_json, "is a damaged trace: JSONDecodeError"),
    "no JSON": (no_head, "is a damaged trace: KeyError: 'trace'"),
    "another JSON": (only_a_list, "is a damaged trace: TypeError"),
    "no logits": (
        lambda file: rewritten(file, lambda _, tensors: tensors.__delitem__("logits")),
        "the tensor logits is missing",
    ),
    "no query": (
        lambda file: rewritten(file, lambda _, tensors: tensors.__delitem__("look.1.query")),
        "look.1.query is missing",
    ),
    "no sinks": (
        lambda file: rewritten(file, lambda _, tensors: tensors.__delitem__("look.0.sinks")),
        "look.0.sinks is missing",
    ),
    "no looks": (
        lambda file: rewritten(file, lambda output, _: output.__delitem__("looks")),
        "KeyError: 'looks'",
    ),
    "fewer keys": (
        lambda file: rewritten(
            file,
            lambda _, tensors: tensors.update(
                {"look.0.key": tensors["look.0.key"][:, :, 1:].clone()}
            ),
        ),
        "inconsistent shapes",
    ),
    "another config": (
        lambda file: rewritten(file, lambda output, _: output["config"].update(width=-1)),
        "is a damaged trace: ",
    ),
    "other rows": (
        lambda file: rewritten(file, lambda output, _: output.update(rows=["a", "b"])),
        "is a damaged trace: TypeError",
    ),
    "other tokens": (
        lambda file: rewritten(file, lambda output, _: output.update(tokens=[{"sound": 3}])),
        "is a damaged trace: TypeError",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_file_that_is_no_whole_trace_is_refused_in_one_line(what: str, tmp_path: Path) -> None:
    file = trace("sinks").save(tmp_path / "x")
    change, words = BROKEN[what]
    change(file)
    with pytest.raises(sl.InputError) as refusal:
        sl.Trace.open(file)
    assert words in str(refusal.value)
    assert str(file) in str(refusal.value)
    assert "Fix: model.trace(text).save(file)" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("place", ["none/x", "file/x", "", "."])
def test_a_place_that_cannot_be_written_to(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("here before")
    with pytest.raises(
        sl.InputError, match=r"cannot be written: .*Fix: give a place that can be written to"
    ) as refusal:
        trace("rotary").save(place)
    assert "\n" not in str(refusal.value)
    assert [file.name for file in tmp_path.iterdir()] == ["file"]
    assert Path("file").read_text() == "here before"


def opened_or_refused(file: Path) -> Trace | None:
    try:
        return sl.Trace.open(file)
    except sl.InputError:
        return None


def test_any_changed_byte_of_a_trace_is_noticed_or_changes_nothing(tmp_path: Path) -> None:
    file = trace("sinks", what=("query", "key", "value", "residual")).save(tmp_path / "x")
    whole, wanted = file.read_bytes(), sl.Trace.open(file)
    draws = random.Random(0)
    refused = 0
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(draws.choice([1, 1, 4])):
            data[draws.randrange(len(data))] ^= 1 << draws.randrange(8)
        file.write_bytes(data[: draws.randrange(len(data))] if draws.random() < 0.1 else data)
        result = opened_or_refused(file)
        if result is None:
            refused += 1
        else:
            equal(result, wanted)
    assert refused > 280


JUNK: list[Any] = [
    None,
    True,
    -1,
    0,
    3,
    2**70,
    0.5,
    -1e308,
    float("nan"),
    "",
    "x",
    [],
    {},
    [1, 2],
    {"kind": "given", "values": "logits"},
]


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    for index, inside in list(value.items()) if isinstance(value, dict) else list(enumerate(value)):
        yield value, index
        if isinstance(inside, (dict, list)):
            yield from places_in(inside)


def vary(output: dict[str, Any], tensors: dict[str, torch.Tensor], draws: random.Random) -> None:
    """One value of the head, or one tensor, that is another one."""
    if draws.random() < 0.3:
        name = draws.choice(sorted(tensors))
        tensors[name] = draws.choice(
            [
                torch.ones(2),
                torch.ones(0),
                tensors[name].flatten(),
                tensors[name].long(),
                tensors[name][..., :1].clone(),
            ]
        )
        return
    parent, index = draws.choice(list(places_in(output)))
    if draws.random() < 0.2:
        del parent[index]
    else:
        parent[index] = copy.deepcopy(draws.choice(JUNK))


@pytest.mark.parametrize("name", ["sinks", "alibi", "t5", "window"])
def test_a_forged_trace_is_refused_or_can_be_looked_at(name: str, tmp_path: Path) -> None:
    file = trace(name, what=("query", "key", "value", "residual")).save(tmp_path / "x")
    whole, draws = file.read_bytes(), random.Random(name)
    for _ in range(50):
        file.write_bytes(whole)
        rewritten(file, lambda output, tensors: vary(output, tensors, draws))
        result = opened_or_refused(file)
        if result is None:
            continue
        for stack, layer, cross in result.looks:
            look = result.look(layer, stack=stack, cross=cross)
            assert look.weights().shape == look.scores().shape
            assert look.weights(head=0).ndim == 2
