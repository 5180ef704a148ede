"""Relations count as found only beyond chance and beyond any fixed distance; what is not found is
left open."""

from __future__ import annotations

from typing import Any

from sightline.lab.experiments import heads_look_at


def numbers(p_offset: float) -> dict[str, Any]:
    best = {"layer": 3, "head": 1, "rate": 0.8, "p_chance": 1e-6, "p_offset": p_offset}
    row = {
        "links": 20,
        "chance": 0.1,
        "offset": -2,
        "offset_rate": 0.3,
        "rates": [[0.1, 0.8]],
        "looks": "a",
        "finds": "b",
        "best": best,
    }
    kinds = [row | {"relation": f"{kind} → other"} for kind in heads_look_at.KINDS]
    counts = {
        "previous": 2,
        "next": 0,
        "self": 1,
        "induction": 1,
        "broad": 3,
        "unclear": 9,
        "sink": 4,
    }
    return {"model.relations": kinds, "model.roles.seed-0": {"counts": counts, "best": {}}}


def test_found_and_left_open() -> None:
    assert [check.holds for check in heads_look_at.judge_heads_look_at(numbers(1e-4))] == [True] * 5
    assert [check.holds for check in heads_look_at.judge_heads_look_at(numbers(0.3))] == [
        None
    ] * 3 + [True] * 2


def test_a_model_of_one_kind_of_head_is_refuted() -> None:
    given = numbers(1e-4)
    given["model.roles.seed-0"]["counts"] = {"broad": 9}
    assert [check.holds for check in heads_look_at.judge_heads_look_at(given)][3:] == [False, False]


def test_it_can_be_drawn() -> None:
    assert set(heads_look_at.draw_heads_look_at(numbers(1e-4))) == {"heads-look-at"}
