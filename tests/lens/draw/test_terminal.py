"""The terminal shows the strongest cell as the strongest sign, within the width, at any width, with
and without colours."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

from sightline.lens.draw.terminal import print_view, render_view
from sightline.lens.draw.view import View
from sightline.lens.draw.views import VIEWS, view_of
from sightline.terminal.ink import bar, colour, colour_count, fitted, legend, right, shade
from tests.support.drawn_trace import traced

WORDS = ("吾輩", "は", "cat", "の", "mat")


def planted(count: int = 5, names: tuple[str, ...] = WORDS) -> View:
    """Everyone looks at what stands two before."""
    values = np.where(np.tri(count, dtype=bool), 0.0, np.nan).astype(np.float32)
    for row in range(count):
        values[row, max(0, row - 2)] = 1.0
    shown = tuple(names[n % len(names)] for n in range(count))
    return View("map", "Title", "caption", shown, shown, "query", "key", values)


def written(view: View, width: int = 80, *, colours: bool = False) -> list[str]:
    return [line.plain for line in render_view(view, width=width, colours=colours)]


def test_a_map_without_colours_cell_by_cell() -> None:
    lines = written(planted())
    assert lines[0] == "Title"
    assert lines[1] == "         c   m"
    assert lines[2] == "     吾  a   a"
    assert lines[3] == "     輩はt のt"
    assert lines[4:9] == [
        "吾輩 ██        ",
        "  は ██··      ",
        " cat ██····    ",
        "  の ··██····  ",
        " mat ····██····",
    ]
    assert lines[10].startswith("attention weight: █ 0.75")


def test_colours_are_where_the_weights_are() -> None:
    view = planted()
    row = list(render_view(view, width=80, colours=True))[7]
    assert row.plain.startswith("  の ")
    spans = {(span.start, span.end): str(span.style) for span in row.spans}
    assert spans[4, 6] == f"on {colour(view, 0.0)}" == "on #440154"
    assert spans[6, 8] == f"on {colour(view, 1.0)}" == "on #fde725"
    assert all(start < 12 for start, _ in spans)  # the last cell is hidden, and is left empty


@pytest.mark.parametrize("width", [24, 40, 80, 200])
@pytest.mark.parametrize("count", [5, 45, 130])
@pytest.mark.parametrize("colours", [False, True])
def test_it_fits_the_width(width: int, count: int, colours: bool) -> None:
    view = planted(count)
    lines = written(view, width, colours=colours)
    assert max(map(cell_len, lines[1:-4])) <= width
    if count > width - 18:
        assert "share a row" in " ".join(line.strip() for line in lines)
    else:
        assert "tokens share" not in " ".join(lines) or count > 48


def test_two_rows_share_a_line_where_there_are_colours() -> None:
    view = planted(60)
    plain = [line for line in written(view, 100, colours=True) if "▀" in line]
    assert len(plain) == 30
    assert plain[3].startswith("   6 は ")
    assert written(view, 100, colours=True)[1].split() == ["╷0", "╷10", "╷20", "╷30", "╷40", "╷50"]


def test_lines_name_the_strongest_keys_with_their_share() -> None:
    values = np.array(
        [[1.0, np.nan, np.nan], [0.25, 0.75, np.nan], [0.004, 0.62, 0.376]], dtype=np.float32
    )
    view = View("lines", "Title", "caption", ("a", "b", "c"), ("a", "b", "c"), "", "", values)
    lines = written(view)
    assert [line.split() for line in lines[1:4]] == [
        ["a", "→", "a", "████████", "100%"],
        ["b", "→", "b", "██████", "75%", "a", "██", "25%"],
        ["c", "→", "b", "█████", "62%", "c", "███", "38%"],
    ]


def test_small_maps_share_one_scale() -> None:
    values = np.stack([np.full((2, 6, 6), 0.25), np.full((2, 6, 6), 1.0)]).astype(np.float32)
    view = View("heads", "Title", "caption", ("0", "1"), ("0", "1"), "layer", "head", values)
    lines = written(view)
    assert lines[2] == "  0 ▒▒▒▒▒▒ ▒▒▒▒▒▒"
    assert lines[6] == "  1 ██████ ██████"


@pytest.mark.parametrize("kind", VIEWS)
@pytest.mark.parametrize("colours", [False, True])
@pytest.mark.parametrize("width", [30, 100])
def test_every_view_has_a_picture(kind: str, colours: bool, width: int) -> None:
    model, trace = traced("both")
    view = view_of(trace, kind, subject=model)
    lines = written(view, width, colours=colours)
    assert " ".join(" ".join(lines).split()).startswith(view.title)
    assert any("both" in line for line in lines)
    assert len(lines) > 8
    assert cell_len(lines[0].rstrip()) <= width
    assert max(map(cell_len, lines)) <= max(width, 60)


def test_the_sky_has_a_sign_for_each_place_that_is_not_shared() -> None:
    query = np.array([[-0.9, 0.0, 0.43]], dtype=np.float32)
    key = np.array([[0.9, 0.0, 0.43], [0.0, -0.9, 0.43]], dtype=np.float32)
    view = View(
        "sphere",
        "Title",
        "caption",
        ("ask",),
        ("right", "low"),
        "",
        "",
        np.array([[0.9, 0.1]], dtype=np.float32),
    )
    view = replace(view, extra={"query": query, "key": key})
    lines = written(view, 60)
    ring = next(n for n, line in enumerate(lines) if "○" in line)
    assert lines[ring].index("○") < 12
    assert lines[ring].index("✦") > 48
    assert any("low" in line for line in lines[ring + 5 :])


def test_no_colour_is_heard(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"force_terminal": True, "color_system": "truecolor", "width": 60}
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert colour_count(Console(**options))
    assert not colour_count(Console(**{**options, "color_system": "standard"}))
    monkeypatch.setenv("NO_COLOR", "1")
    screen = Console(file=io.StringIO(), **options)
    assert not colour_count(screen)
    print_view(planted(), screen)
    shown = screen.file.getvalue()
    assert "██" in shown
    assert "[38;" not in shown
    assert "[48;" not in shown


def test_signs_and_bars() -> None:
    view = planted()
    assert [shade(view, value) for value in (1.0, 0.6, 0.3, 0.1, 0.01, float("nan"))] == [
        "█",
        "▓",
        "▒",
        "░",
        "·",
        " ",
    ]
    cosines = replace(view, values=np.array([[0.5, -0.5]], dtype=np.float32), signed=True)
    assert [shade(cosines, value) for value in (0.5, -0.5, -0.1, 0.0)] == ["█", "=", "-", "·"]
    assert "= −0.25" in legend(cosines, colours=False).plain
    assert [bar(part, 4) for part in (0, 0.5, 1, 0.03125, 2, float("nan"))] == [
        "    ",
        "██  ",
        "████",
        "▏   ",
        "████",
        "    ",
    ]
    assert (fitted("吾輩は猫", 5), cell_len(fitted("吾輩は猫", 5))) == ("吾輩…", 5)
    assert right("猫", 4) == "  猫"


def luminance(number: int) -> float:
    """Relative luminance (WCAG) of a colour of xterm's 256: a cube of six levels, then greys."""
    levels = (0, 95, 135, 175, 215, 255)
    grey = 8 + 10 * (number - 232)
    cube = number - 16
    channels = (
        (grey,) * 3
        if number >= 232
        else (levels[cube // 36], levels[cube // 6 % 6], levels[cube % 6])
    )
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4
        for part in (channel / 255 for channel in channels)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("signed", [False, True])
def test_256_colours_grow_brighter_with_the_weight(
    signed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    ramp = np.linspace(-1.0 if signed else 0.0, 1.0, 101, dtype=np.float32)[None]
    names = tuple(str(n) for n in range(101))
    screen = Console(file=io.StringIO(), force_terminal=True, color_system="256", width=250)
    print_view(
        View("map", "Title", "caption", ("row",), names, "query", "key", ramp, signed=signed),
        screen,
    )
    row = next(
        line
        for line in screen.file.getvalue().splitlines()
        if " row" in line or line.startswith("row")
    )
    shown = [luminance(int(number)) for number in re.findall(r"48;5;(\d+)m", row)]
    assert len(shown) == 101
    assert len(set(shown)) > 8
    rising, falling = (shown[:51], shown[50:]) if signed else (shown, [])
    assert rising == sorted(rising)
    assert falling == sorted(falling, reverse=True)
