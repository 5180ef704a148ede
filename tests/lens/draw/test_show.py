"""A trace goes where it is wanted, and JSON holds the numbers of the view."""

from __future__ import annotations

import json
import sys
from html import unescape
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

import sightline as sl
from sightline.errors import InputError
from sightline.lens.draw import show as showing
from sightline.lens.draw.show import view_json, write_view
from sightline.lens.draw.views import VIEWS, view_of
from tests.support.drawn_trace import traced


def test_in_a_terminal_it_prints(capsys: pytest.CaptureFixture[str]) -> None:
    _, trace = traced("decoder")
    assert trace.show(layer=1, head=2) is None
    assert "Attention weights: layer 1, head 2" in capsys.readouterr().out
    trace.show("lines", 0)
    assert "layer 0, mean of all heads" in capsys.readouterr().out


def test_in_a_notebook_it_is_a_page_in_a_sandbox_and_nothing_is_warned_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, trace = traced("decoder")
    shown = list[dict[str, str]]()
    notebook, display = ModuleType("IPython"), ModuleType("IPython.display")
    notebook.get_ipython = lambda: SimpleNamespace(kernel=object())
    display.display = lambda data, *, raw: shown.append(
        data if raw else {}
    )  # IPython's HTML("<iframe …") warns: it is not used
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    trace.show("heads")
    for page in (shown[0]["text/html"], trace._repr_html_()):
        assert page.startswith('<iframe sandbox="allow-scripts" srcdoc=')
        assert "<!doctype html>" in unescape(page).lower()
    assert shown[0]["text/plain"] == repr(trace)


@pytest.mark.parametrize("kind", VIEWS)
def test_every_view_becomes_every_file(kind: str, tmp_path: Path) -> None:
    model, trace = traced("both")
    for ending, begins in ((".html", b"<!"), (".svg", b"<?xml"), (".json", b"{")):
        written = write_view(trace, tmp_path / f"x{ending}", view=kind, subject=model)
        assert written.read_bytes().lower().startswith(begins)
    assert not list(tmp_path.glob(".*"))


def test_a_saved_trace_is_the_trace(tmp_path: Path) -> None:
    _, trace = traced("decoder")
    again = sl.Trace.open(write_view(trace, tmp_path / "x.safetensors"))
    np.testing.assert_array_equal(again.weights(1, 2), trace.weights(1, 2))


def test_json_has_tokens_and_weights(tmp_path: Path) -> None:
    _, trace = traced("decoder")
    trace.show(layer=1, head=2, file=tmp_path / "x.json")
    result = json.loads((tmp_path / "x.json").read_text())
    assert (result["model"], result["view"], result["layer"], result["head"]) == (
        "decoder",
        "map",
        1,
        2,
    )
    assert result["tokens"] == [token.text for token in trace.tokens]
    weights = np.array(result["weights"], dtype=float)
    np.testing.assert_allclose(np.nan_to_num(weights), trace.weights(1, 2).numpy(), atol=1e-6)
    assert result["weights"][0][1] is None  # not 0: it may not look there


def test_json_of_the_other_views() -> None:
    model, trace = traced("both")
    result = {kind: view_json(trace, view_of(trace, kind, subject=model)) for kind in VIEWS}
    json.dumps(result, allow_nan=False)
    assert np.shape(result["heads"]["weights"]) == (2, 4, 9, 9)
    assert np.shape(result["geometry"]["query_length"]) == (9,)
    assert np.shape(result["sphere"]["key_point"]) == (9, 3)
    assert (
        np.shape(result["logit-lens"]["words"])
        == np.shape(result["logit-lens"]["probability"])
        == (3, 9)
    )
    assert np.shape(result["alignment"]["weights"]) == (9, 7)


def test_what_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, trace = traced("decoder")
    for name, message in (
        ("x.gif", "ends in '.gif'"),
        ("x", "has no suffix"),
        ("nowhere/x.json", "cannot be written"),
        ("nowhere/x.html", "cannot be"),
    ):
        with pytest.raises(InputError, match=message):
            trace.show(file=tmp_path / name)
    with pytest.raises(InputError, match="did you mean 'lines'"):
        trace.show("line", file=tmp_path / "x.html")
    monkeypatch.setattr(showing, "MAX_JSON_NUMBERS", 10)
    with pytest.raises(InputError, match="81 numbers as JSON"):
        trace.show(file=tmp_path / "x.json")
