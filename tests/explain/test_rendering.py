"""The explanation on a screen, as a page, as JSON; and the three words."""

from __future__ import annotations

import io
import json
import re

import numpy as np
import pytest
from rich.cells import cell_len
from rich.console import Console

import sightline as sl
from sightline.explain import explain, listing, terminal, three_words, to_markdown
from sightline.explain.example import X
from sightline.explain.wording import share_text, with_unit
from tests.explain.legal import EXTRA
from tests.support import tiny

GRID = tiny.ALL | EXTRA


def screen(config: sl.ModelConfig, *, width: int = 120, name: str = "model") -> str:
    return "\n".join(
        line.plain for line in terminal.render_explanation(explain(config, name=name), width=width)
    )


@pytest.mark.parametrize("name", GRID)
def test_the_screen_has_every_equation_with_its_shape(name: str) -> None:
    config, text = GRID[name], screen(GRID[name], width=200)
    for section in explain(config).sections:
        for line in section.lines:
            shape = ", ".join(axis.symbol for axis in line.shape)
            sizes = " × ".join(str(axis.size) for axis in line.shape)
            assert re.search(
                rf"^ +{re.escape(line.equation)} +\[{re.escape(shape)}\] +{re.escape(sizes)}( |$)",
                text,
                re.MULTILINE,
            )
    assert f"{explain(config).parameters:,} parameters" in text


@pytest.mark.parametrize("name", sl.PUBLISHED)
@pytest.mark.parametrize("width", [70, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_screen(name: str, width: int) -> None:
    lines = screen(sl.PUBLISHED[name](), width=width).splitlines()
    assert max(cell_len(line) for line in lines) <= width
    assert not any(line.endswith(" ") for line in lines)


def test_narrow_screens_lose_sizes_first_and_then_counts() -> None:
    config = sl.PUBLISHED["gpt2"]()
    wide, middle, narrow = (screen(config, width=width) for width in (120, 75, 60))
    assert "12 × 1024 × 64" in wide
    assert "592,128" in wide
    assert "12 × 1024 × 64" not in middle
    assert "592,128" in middle
    assert "592,128" not in narrow
    assert "[h, T, d_k]" in narrow


def test_columns_stand_at_one_place() -> None:
    text = screen(sl.PUBLISHED["t5-small"]())
    starts = {
        match.start(1) - match.start()
        for match in re.finditer(r"^    \S.*?   (\[[hST], )", text, re.MULTILINE)
    }
    assert len(re.findall(r"   \[[hST], ", text)) > 20
    assert len(starts) == 1


def test_shared_and_tied_matrices_are_said_to_be() -> None:
    text = screen(sl.PUBLISHED["transformer-base"]())
    assert re.search(r"x = √d_model W_E\[t\] \+ PE\[p\] .* shared\n", text)
    assert re.search(r"logits = x W_Eᵀ .* tied\n", text)


def test_patterns_name_their_layers() -> None:
    text = screen(EXTRA["patterned"])
    for heading in (
        "decoder layers 0, 3, 6 × 3",
        "decoder layers 1, 4 × 2",
        "decoder layers 2, 5 × 2",
    ):
        assert heading in text


def test_colour_only_where_there_is_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = terminal.render_explanation(explain(sl.PUBLISHED["gpt2"]()), width=100)

    def printed(**options: object) -> str:
        console = Console(file=io.StringIO(), highlight=False, width=100, **options)  # type: ignore[arg-type]
        for line in lines:
            console.print(line, soft_wrap=True)
        return console.file.getvalue()  # type: ignore[attr-defined]

    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in printed(force_terminal=True, color_system="standard")
    assert "\x1b[" not in printed()


# ---------------------------------------------------------------------------- page, JSON, numbers


@pytest.mark.parametrize("name", GRID)
def test_pages_are_tables_of_even_rows(name: str) -> None:
    page = to_markdown(explain(GRID[name], name=name))
    assert page.startswith(f"# {name}\n")
    for table in re.findall(r"(?:^\|.*\n)+", page, re.MULTILINE):
        rows = [re.split(r"(?<!\\)\|", row) for row in table.splitlines()]
        assert len({len(row) for row in rows}) == 1
    assert f"**{explain(GRID[name]).parameters:,}**" in page


@pytest.mark.parametrize("name", GRID)
def test_json_says_the_same_as_the_value(name: str) -> None:
    about = explain(GRID[name], name=name)
    plain = json.loads(json.dumps(about.to_plain(), allow_nan=False))
    assert plain["parameters"]["total"] == about.parameters
    assert sum(part["parameters"] for part in plain["parameters"]["parts"]) == about.parameters
    assert (
        sum(plain["flops"]["parts"].values())
        == plain["flops"]["forward"]
        <= plain["flops"]["forward_with_masked_pairs"]
    )
    assert len(plain["flops"]["parts"]) == sum(1 for part in about.parts if part.flops)
    assert plain["training_memory"]["total"] == about.training_memory.total


def test_the_list_has_every_published_model() -> None:
    models = listing.model_values(sl.PUBLISHED)
    assert [model["name"] for model in models] == list(sl.PUBLISHED)
    text = [line.plain for line in listing.render_models(sl.PUBLISHED, width=60)]
    assert len(text) == len(sl.PUBLISHED) + 1
    assert all(cell_len(line) <= 60 for line in text)
    assert "124,439,808" in text[3]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (99_949, "99.95 kB"),
        (99_950, "100.0 kB"),
        (999_949, "999.9 kB"),
        (10**6, "1.00 MB"),
    ],
)
def test_numbers_people_can_read(value: int, text: str) -> None:
    assert with_unit(value, "B") == text


def test_shares() -> None:
    assert share_text(1, 3) == "33.3%"
    assert share_text(0, 3) == share_text(3, 0) == ""


# ------------------------------------------------------------------------------------ three words


def test_three_words_against_numpy() -> None:
    x = np.array(X)
    scores = x @ x.T / np.sqrt(x.shape[1])
    weights = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    for step, wanted in zip(three_words(), (x, scores, weights, weights @ x), strict=True):
        np.testing.assert_allclose(np.array(step.rows), wanted, rtol=1e-12)


def test_three_words_have_the_right_weights() -> None:
    weights = [[round(weight, 3) for weight in row] for row in three_words()[2].rows]
    assert weights == [[0.396, 0.324, 0.279], [0.313, 0.380, 0.307], [0.277, 0.315, 0.408]]
