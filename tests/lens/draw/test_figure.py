"""Figures are SVG with text in it, or PNG, the same bytes each time, and say in one line what they
cannot draw."""

from __future__ import annotations

import re
import subprocess
import sys
import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sightline.errors import InputError
from sightline.lens.draw import fonts
from sightline.lens.draw.figure import figure_of, import_matplotlib, text_of, write_figure
from sightline.lens.draw.fonts import font_settings
from sightline.lens.draw.sphere_figure import arc
from sightline.lens.draw.view import View
from sightline.lens.draw.views import VIEWS, view_of
from tests.support.drawn_trace import traced

pytest.importorskip("matplotlib")


def small(kind: str = "map") -> View:
    model, trace = traced("both")
    return view_of(trace, kind, subject=model)


@pytest.mark.parametrize("kind", VIEWS)
def test_every_view_is_a_figure_whose_text_is_text(kind: str, tmp_path: Path) -> None:
    view = replace(small(kind), title=f"A title: $1 & <{kind}>")
    written = write_figure(view, tmp_path / "a.svg")
    text = " ".join(
        "".join(part.itertext()) for part in ET.parse(written).iter() if part.tag.endswith("text")
    )
    assert f"A title: $1 & <{kind}>" in " ".join(text.split())
    assert "both" in text
    if kind not in ("heads", "sphere"):
        assert view.rows[1] in text
    again = write_figure(view, tmp_path / "b.svg")
    assert written.read_bytes() == again.read_bytes()


def test_a_png_is_a_png_and_the_same_again(tmp_path: Path) -> None:
    one, two = (write_figure(small(), tmp_path / name) for name in ("a.png", "b.PNG"))
    assert one.read_bytes()[:4] == b"\x89PNG"
    assert one.read_bytes() == two.read_bytes()


def test_the_image_is_the_values() -> None:
    view = small()
    with import_matplotlib().rc_context(font_settings(text_of(view))):
        (axes, bar) = figure_of(view).axes
    np.testing.assert_array_equal(axes.images[0].get_array().filled(np.nan), view.values)
    assert [label.get_text() for label in axes.get_yticklabels()] == list(view.rows)
    assert axes.get_xlabel() == view.column_axis
    assert "attention weight" in bar.get_ylabel()


def test_all_heads_stand_at_their_place() -> None:
    view = small("heads")
    with import_matplotlib().rc_context(font_settings("")):
        whole = figure_of(view).axes[0].images[0].get_array().filled(np.nan)
    rows, columns = view.values.shape[2:]
    np.testing.assert_array_equal(whole[-rows:, -columns:], view.values[-1, -1])
    np.testing.assert_array_equal(whole[:rows, -columns:], view.values[0, -1])


def test_many_tokens_have_fewer_labels() -> None:
    values = np.eye(200, dtype=np.float32)
    names = tuple(f"t{n}" for n in range(200))
    view = View("map", "Title", "caption", names, names, "query", "key", values)
    with import_matplotlib().rc_context(font_settings("")):
        shown = [label.get_text() for label in figure_of(view).axes[0].get_yticklabels()]
    assert shown[:3] == ["0 t0", "3 t3", "6 t6"]


def test_light_goes_along_the_sphere() -> None:
    start, end = np.array([1.0, 0, 0]), np.array([0, 0.6, 0.8])
    way = arc(start, end)
    np.testing.assert_allclose(np.linalg.norm(way, axis=1), 1)
    np.testing.assert_allclose(way[[0, -1]], [start, end], atol=1e-12)
    assert np.isfinite(arc(start, -start)).all()
    assert np.isfinite(arc(start, start)).all()


def test_letters_without_a_font_are_said_once_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fonts, "FONTS", ("DejaVu Sans",))
    monkeypatch.setattr(fonts, "_warned", set[str]())
    view = replace(small(), title="吾輩は猫である")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        write_figure(view, tmp_path / "a.png")
        write_figure(view, tmp_path / "b.png")
    output = capsys.readouterr().err
    assert re.fullmatch(
        r"note: no installed font has \S+: boxes are drawn instead\. Fix: install Noto Sans CJK JP \(fonts-noto-cjk\)\n",
        output,
    )


def test_japanese_is_drawn_where_a_font_is_installed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if not set(font_settings("猫")["font.family"]) - {"DejaVu Sans"}:
        pytest.skip("no CJK font")
    capsys.readouterr()
    write_figure(replace(small(), title="吾輩は猫である"), tmp_path / "a.png")
    assert capsys.readouterr().err == ""


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"expected \.svg, \.png, \.pdf. Fix: a\.svg"):
        write_figure(small(), tmp_path / "a.gif")
    with pytest.raises(InputError, match="cannot be written"):
        write_figure(small(), tmp_path / "nowhere" / "a.svg")


def test_matplotlib_is_loaded_only_to_draw() -> None:
    code = "import sys, sightline.lens.draw.show, sightline.cli.commands.see.trace; assert not any(name.startswith('matplotlib') for name in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
