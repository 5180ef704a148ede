"""Weights that a precision has no room for: refused by name, or noted where a scale destroys a
row."""

import pytest
import torch

import sightline as sl
from sightline.checkpoints import packed_cache as packed
from sightline.core.lazy import LazyTransformer
from sightline.engine import matrices
from sightline.engine.encoder import NativeEncoder
from sightline.engine.encoder_runners import runner_for
from sightline.engine.engine import NativeEngine
from sightline.errors import InputError
from sightline.kernels import library as kernels
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
INTEGERS = ("int8", "int8_groups", "int4", "int4_min")


def model_with(value: float, name: str = "grouped"):
    """A tiny decoder with one odd weight."""
    model = tiny.make(tiny.DECODERS[name])
    with torch.no_grad():
        model.decoder[0].feed_forward.down.weight[3, 5] = value
    return model


@pytest.mark.parametrize("precision", INTEGERS)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_integers_refuse_what_is_not_finite(value, precision) -> None:
    """It was packed as some number, and text was written where float32 refuses."""
    with pytest.raises(
        InputError, match=r"^0.feed_forward.down holds NaN or infinity, packed as int"
    ):
        NativeEngine.of(model_with(value), precision)


def test_encoders_and_pairs_refuse_it_too() -> None:
    for kind in (tiny.ENCODERS, tiny.ENCODER_DECODERS):
        model = tiny.make(next(iter(kind.values())))
        with torch.no_grad():
            model.encoder[0].attention.output.weight[0, 0] = torch.nan
        with pytest.raises(InputError, match=r"0.attention.output holds NaN"):
            NativeEncoder.of(model, "int8")
        with pytest.raises(InputError, match=r"0.attention.output holds NaN"):
            runner_for(LazyTransformer.of(model), "int4")


@pytest.mark.parametrize("precision", ["float16", "int8_groups", "int4", "int4_min"])
def test_what_a_float16_cannot_hold_is_refused(precision) -> None:
    with pytest.raises(
        InputError, match=r"0.feed_forward.down holds 1e.20, packed as .*dtype='float32'"
    ):
        NativeEngine.of(model_with(1e20), precision)


def test_a_huge_weight_in_int8_is_noted() -> None:
    """A scale for a whole row: its other weights are gone."""
    engine = NativeEngine.of(model_with(1e20), "int8")
    assert len(engine.notes) == 1
    assert engine.notes[0].startswith("warning: 0.feed_forward.down, row 3: ")


@pytest.mark.parametrize("precision", matrices.PRECISIONS)
@pytest.mark.parametrize("name", ["grouped", "parallel", "ngpt"])
def test_ordinary_weights_are_packed_without_a_note(name, precision) -> None:
    assert not NativeEngine.of(tiny.make(tiny.DECODERS[name]), precision).notes
    assert not NativeEngine.of(
        model_with(0.5, name), precision
    ).notes  # some times as large as the others


@pytest.mark.parametrize("precision", INTEGERS)
@pytest.mark.parametrize("tail", [1.0, 30.0, 3000.0])
def test_destroyed_is_a_row_of_which_nine_numbers_in_ten_are_off_by_more_than_half(
    tail, precision
) -> None:
    """The rows that packing reports, against what the packed rows still hold."""
    random = torch.Generator().manual_seed(int(tail))
    weight = 0.1 * torch.randn(40, 64, generator=random)
    weight[::3, ::32] = 0.1 * tail
    engine, room = (
        kernels.ready().Engine(widths=[8], kv_heads=[], head_dims=[], half_cache=True),
        matrices.empty(precision, 40, 64),
    )
    rows, first = engine.pack(matrices.add(engine, room), weight)
    back = torch.empty_like(weight)
    engine.unpack(0, 0, back)
    off = ((back - weight).abs() / weight.abs() > 0.5).double().mean(1)
    destroyed = (off > 0.9).nonzero()[:, 0].tolist()
    assert (rows, first) == (len(destroyed), destroyed[0] if destroyed else -1)
    assert tail == 30.0 or bool(rows) == (tail == 3000.0)


@pytest.mark.parametrize("smallest", [0, 10**9])
def test_loading_tells_it_each_time(tmp_path, monkeypatch, smallest) -> None:
    """Whether its packed weights are kept or not."""
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(packed, "SMALLEST_CACHED", smallest)
    sl.Model(model_with(1e20)).save(tmp_path / "huge")
    for _ in range(2):
        model = sl.load(tmp_path / "huge", engine="native", dtype="int8")
        assert sum("0.feed_forward.down, row 3" in note for note in model.notes) == 1
        assert model.runner.notes in (
            [],
            [note for note in model.notes if note.startswith("warning")],
        )
    sl.Model(model_with(torch.nan)).save(tmp_path / "nan")
    with pytest.raises(InputError, match=r"0.feed_forward.down holds NaN"):
        sl.load(tmp_path / "nan", engine="native", dtype="int8")
