"""The table, the merging of results, the contests, and the channel to a contestant."""

import sys

import pytest

from bench.native import figure, report
from bench.native.channel import Contestant, ContestantError
from bench.native.contests import contests, goal_of
from bench.native.verdict import Row, row_of

ROW = row_of(
    "decode",
    "SmolLM2",
    "ours int8",
    {"ours int8": [200.0, 210.0], "llama.cpp q8_0": [100.0, 100.0]},
    goal=2.0,
    shares=[0.9, 0.92],
)


def test_the_table_has_every_figure() -> None:
    head, line, empty = report.table(
        [ROW, Row("encode", "MiniLM", "ours int8", goal=1.3, remark="no encoders yet")]
    ).splitlines()
    assert head.split()[:3] == ["work", "model", "ours"]
    for part in (
        "205 (200–210) tokens/s",
        "91%",
        "llama.cpp q8_0",
        "100 (100–100)",
        "2.05× (2.00–2.10)",
        "≥ 2.00×",
        "met",
    ):
        assert part in line
    assert line.index("205") == empty.index("–")
    assert empty.endswith("≥ 1.30×  no encoders yet")


def test_perplexity_is_shown_with_its_loss() -> None:
    result = [
        {"who": "ours float32", "perplexity": 20.0, "bytes": 4e6},
        {"who": "ours int4", "perplexity": 21.0, "bytes": 1e6},
    ]
    assert report.quality_table(result).splitlines()[2].split() == [
        "ours",
        "int4",
        "21.000",
        "+5.00%",
        "1.0",
    ]


def test_works_that_were_not_run_keep_their_lines() -> None:
    old = [
        Row(work, "m", "ours int8").plain()
        for work in ("decode", "translate, one greedy", "8 streams")
    ]
    before = {
        "measured": {"gpt2 int8, prefill": 1, "gpt2 int8, decode": 2},
        "rows": [*old, ROW.plain() | {"work": "prefill", "verdict": "said by rules of before"}],
        "rounds": 3,
    }
    now = {"rows": [{"work": "decode", "n": 4}], "rounds": 9, "measured": {"gpt2 int8, decode": 5}}
    result = report.merge(before, now, ("decode", "translate", "streams"))
    assert result["measured"] == {"gpt2 int8, prefill": 1, "gpt2 int8, decode": 5}
    assert result["rows"] == [ROW.plain() | {"work": "prefill"}, {"work": "decode", "n": 4}]
    assert result["rounds"] == 9


def test_a_goal_against_another_peer_is_drawn_where_it_is_met() -> None:
    row = row_of(
        "prefill",
        "m",
        "ours int8",
        {"ours int8": [160.0], "slow": [100.0], "quick": [128.0]},
        goal=1.4,
        against="slow",
    ).plain()
    assert figure.goal_on_the_axis(row) == pytest.approx(1.4 * 100 / 128)
    assert figure.goal_on_the_axis(ROW.plain()) == 2.0


def test_the_results_and_the_figure_are_written(tmp_path) -> None:
    rows = [ROW.plain(), Row("encode", "MiniLM", "ours int8", remark="no encoders yet").plain()]
    assert '"verdict": "met"' in report.save({"rows": rows}, tmp_path / "native.json").read_text()
    assert "against llama.cpp q8_0" in figure.draw(rows, tmp_path / "native.svg").read_text()


def test_a_try_of_few_rounds_is_not_kept_among_the_results() -> None:
    assert report.results_path(4).parent != report.results_path(5).parent == report.RESULTS


def test_goals_are_those_that_were_promised() -> None:
    assert (
        goal_of("decode", "int8", "gpt2").ratio,
        goal_of("decode", "int8", "llama-1b").ratio,
    ) == (2.0, 1.5)
    assert goal_of("decode", "int4", "gpt2").bandwidth == 0.8
    assert goal_of("decode", "float16", "gpt2").ratio is None
    assert (
        goal_of("prefill", "float32", "gpt2").ratio,
        goal_of("prefill", "int8", "gpt2").against,
    ) == (1.1, "CTranslate2")
    assert goal_of("32 streams", "int8", "smollm2").ratio == 1.5
    assert goal_of("lookup", "int4", "smollm2").ratio == 1.0
    assert goal_of("translate, eight by four beams", "int8", "marian").ratio == 1.3


def test_a_billion_parameters_only_when_asked_for() -> None:
    assert {one.model for one in contests(("decode",), large=False)} == {"smollm2", "gpt2"}
    assert {
        (one.model, one.precision)
        for one in contests(("decode",), large=True, models=("llama-1b",))
    } == {
        ("llama-1b", "int8"),
        ("llama-1b", "int4"),
    }
    assert {one.works for one in contests(("prefill", "encode"), large=False)} == {
        ("prefill",),
        ("encode",),
    }


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """A contestant that answers, prints to stdout what it should not, and fails when asked to."""
    (tmp_path / "echo.py").write_text(
        "from bench.native.channel import serve\n"
        "import os\n"
        "serve({'echo': lambda q: print('noise') or {'said': q['word']}, 'fail': lambda q: 1 / 0, 'die': lambda q: os._exit(3)})\n"
    )
    monkeypatch.setattr("bench.native.channel.PATHS", (tmp_path,))
    contestant = Contestant("echo", "echo", python=sys.executable, threads=1)
    yield contestant
    contestant.close()


def test_a_contestant_answers_fails_and_goes_on(echo: Contestant) -> None:
    assert echo.ask("echo", word="a") == {"said": "a"}
    with pytest.raises(ContestantError, match="ZeroDivisionError"):
        echo.ask("fail")
    assert echo.ask("echo", word="b") == {"said": "b"}
    with pytest.raises(ContestantError, match="echo ended with code 3"):
        echo.ask("die")
