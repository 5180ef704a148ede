"""What rounds of figures say."""

import pytest

from bench.native.verdict import NOISY, Row, Spread, best_of, judge, ratio_of, row_of


def test_a_spread_is_the_median_and_the_whole_range() -> None:
    assert Spread.of([3.0, 1.0, 2.0, 9.0, 2.5]) == Spread(2.5, 1.0, 9.0)


def test_ratios_are_taken_round_by_round() -> None:
    """A slow round slows both: the speeds' ranges overlap, the ratios' does not."""
    assert ratio_of([200.0, 100.0, 50.0], [100.0, 50.0, 25.0]) == Spread(2.0, 2.0, 2.0)
    with pytest.raises(ValueError, match="shorter"):
        ratio_of([1.0, 2.0], [1.0])


def test_a_ratio_whose_range_holds_one_is_not_called() -> None:
    assert judge(Spread(1.3, 0.99, 1.6), 1.2) == NOISY
    assert judge(Spread(1.3, 1.0, 1.6), None) == NOISY
    assert judge(Spread(0.9, 0.5, 1.01), 1.2) == NOISY


@pytest.mark.parametrize(
    ("ratio", "goal", "message"),
    [
        (Spread(2.2, 2.0, 2.4), 2.0, "met"),
        (Spread(2.2, 1.8, 2.4), 2.0, "met by the median, not in every round"),
        (Spread(1.8, 1.7, 1.9), 2.0, "short of the goal"),
        (Spread(1.8, 1.7, 2.1), 2.0, "short by the median, reached in some rounds"),
        (Spread(1.8, 1.7, 2.1), None, "ahead"),
        (Spread(0.8, 0.7, 0.9), None, "behind"),
    ],
)
def test_what_is_said_of_a_goal(ratio: Spread, goal: float | None, message: str) -> None:
    assert judge(ratio, goal) == message


def test_the_best_peer_has_the_largest_median() -> None:
    assert best_of({"a": [1.0, 1.0, 90.0], "b": [2.0, 2.0, 2.0]}) == "b"


def test_a_row_is_ours_against_the_best_peer() -> None:
    speeds = {
        "ours int8": [200.0, 220.0, 210.0],
        "slow": [50.0, 50.0, 50.0],
        "quick": [100.0, 110.0, 105.0],
    }
    row = row_of(
        "decode", "m", "ours int8", speeds, goal=2.0, shares=[0.8, 0.85, 0.82], bandwidth_goal=0.9
    )
    assert (row.peer, row.ratio) == ("quick", Spread(2.0, 2.0, 2.0))
    assert row.verdict == "met; bandwidth below 90%"
    assert row.others is not None
    assert row.others["slow"].median == 50
    assert row.plain()["verdict"] == row.verdict


def test_without_a_peer_nothing_is_claimed() -> None:
    row = row_of("decode", "m", "ours int8", {"ours int8": [1.0]}, goal=2.0)
    assert row.ratio is None
    assert row.verdict == "no peer could run it"
    assert Row("encode", "m", "ours int8", remark="no encoders yet").verdict == "no encoders yet"


def test_a_goal_against_a_named_peer_is_judged_against_that_one() -> None:
    speeds = {
        "ours int8": [160.0, 150.0],
        "CTranslate2 int8": [100.0, 100.0],
        "OpenVINO q8_0": [140.0, 160.0],
    }
    row = row_of("prefill", "m", "ours int8", speeds, goal=1.4, against="CTranslate2")
    assert (row.peer, row.goal_peer) == ("OpenVINO q8_0", "CTranslate2 int8")
    assert row.verdict == f"met: 1.55× CTranslate2 int8; OpenVINO q8_0: {NOISY}"
    alone = row_of(
        "prefill",
        "m",
        "ours int8",
        {"ours int8": [160.0], "CTranslate2 int8": [100.0]},
        goal=1.4,
        against="CTranslate2",
    )
    assert (alone.goal_peer, alone.promised, alone.verdict) == ("", None, "met")


def test_a_goal_above_what_memory_gives_is_said_to_be_so() -> None:
    speeds = {"ours int8": [150.0, 150.0], "quick": [100.0, 100.0]}
    row = row_of("decode", "m", "ours int8", speeds, goal=2.0, shares=[0.9, 0.9])
    assert row.ceiling == Spread(
        pytest.approx(1.667, abs=1e-3),
        pytest.approx(1.667, abs=1e-3),
        pytest.approx(1.667, abs=1e-3),
    )
    assert row.verdict == "short of the goal; the whole bandwidth would give 1.67×"
    assert (
        "whole"
        not in row_of("decode", "m", "ours int8", speeds, goal=1.2, shares=[0.9, 0.9]).verdict
    )
    moved = row_of(
        "decode", "m", "ours int8", speeds, goal=2.0, shares=[1.1, 1.1]
    )  # bandwidth that was less when it was measured
    assert moved.verdict == "short of the goal"
    reached = row_of(
        "decode",
        "m",
        "ours int8",
        {"ours int8": [150.0, 150.0, 210.0], "quick": [100.0] * 3},
        goal=2.0,
        shares=[0.9] * 3,
    )
    assert reached.verdict == "short by the median, reached in some rounds"


def test_a_goal_against_one_that_did_not_run_is_not_called() -> None:
    row = row_of(
        "prefill",
        "m",
        "ours int8",
        {"ours int8": [160.0], "slow": [100.0]},
        goal=1.4,
        against="CTranslate2",
    )
    assert row.verdict == "the goal is against CTranslate2, which did not run; slow: ahead"
    assert Row.of(row.plain()) == row
