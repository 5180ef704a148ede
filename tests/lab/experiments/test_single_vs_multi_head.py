"""One head and several: the task is what it says, the verdict follows the numbers."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sightline.lab.experiments import single_vs_multi_head as lab
from sightline.lab.results import to_json_numbers


def row(course: list[float], content: list[float], place: list[float]) -> dict[str, Any]:
    counts = {"attention parameters": 4 * 32**2, "parameters": 9, "steps": lab.EVERY * len(course)}
    return {
        "right": course[-1],
        "course": course,
        "content right": 0.5,
        "place right": 1.0,
        "to content": content,
        "to place": place,
        **counts,
    }


def numbers(
    *, one: float = 0.2, eight: int = 3, alone: float = 0.99, look: float = 0.9
) -> dict[str, Any]:
    """Ten looks: several heads learn by the third, one head does not, unless said otherwise."""
    found: dict[str, Any] = {}
    for seed in range(3):
        for heads in lab.HEADS:
            late, others = eight if heads == 8 else 3, [0.05] * (heads - 2)
            course = (
                [one] * 10
                if heads == 1
                else [0.2] * (late - 1) + [0.99 + 1e-3 * seed] * (11 - late)
            )
            content, place = (
                ([0.5], [0.3]) if heads == 1 else ([look, 0.05, *others], [0.05, 0.9, *others])
            )
            found[f"together.heads-{heads}.steps-1.seed-{seed}"] = row(course, content, place)
        found[f"apart.heads-1.steps-1.seed-{seed}"] = row([alone], [0.5], [0.5])
    return found


def test_questions_by_brute_force() -> None:
    """Each answer found again by a search through the row."""
    for task in lab.TASKS:
        batch, content, place = lab.questions(task, 40, 3, 5)
        for n, (*tokens, question) in enumerate(batch.tokens.tolist()):
            keys, values = (
                [token // lab.SIZE for token in tokens],
                [token % lab.SIZE for token in tokens],
            )
            assert sorted(keys) == list(range(lab.SIZE))
            if task == "together":
                key, at = divmod(question - lab.PAIRS, lab.SIZE)
                assert (keys.index(key), at) == (int(content[n]), int(place[n]))
                answer = values[keys.index(key)] * lab.SIZE + values[at]
            else:
                kind, what = divmod(question - 2 * lab.PAIRS, lab.SIZE)
                answer = (values[what] if kind else values[keys.index(what)]) * (lab.SIZE + 1)
            assert batch.targets[n].tolist() == [-100] * lab.SIZE + [answer]
            assert content[n] != place[n]
    assert int(batch.tokens.max()) < lab.VOCABULARY


def test_two_heads_learn_it_and_divide_the_work(as_users_run_it: None) -> None:
    """A real run, made small; the parameters are those of one head."""
    two, one = (
        to_json_numbers(lab.train_heads("together", heads, steps, 0))
        for heads, steps in ((2, 300), (1, 2))
    )
    assert two["right"] > 0.95 > 0.3 > one["right"]
    assert lab.division_of_work(two) > 0.5 > lab.division_of_work(one) == 0
    assert two["attention parameters"] == one["attention parameters"] == 4 * lab.WIDTH**2
    assert two["parameters"] == one["parameters"]


def test_the_verdict_follows_the_numbers() -> None:
    assert [check.holds for check in lab.judge_multi_head(numbers())] == [True] * 6
    assert [check.holds for check in lab.judge_multi_head(numbers(one=0.99))] == [
        True,
        True,
        True,
        False,
        False,
        True,
    ]
    assert [check.holds for check in lab.judge_multi_head(numbers(alone=0.5, look=0.2))] == [
        True,
        False,
        True,
        True,
        True,
        False,
    ]
    assert [check.holds for check in lab.judge_multi_head(numbers(eight=9))][4] is False
    doubtful = numbers()
    doubtful["together.heads-8.steps-1.seed-0"]["course"] = [0.2] * 10
    assert lab.judge_multi_head(doubtful)[4].holds is None


def test_steps_and_who_is_behind() -> None:
    """Learned at the second of three looks; the last look may come early."""
    two, one = (row(course, [0.5], [0.5]) for course in ([0.5, 0.96, 1.0], [0.1, 0.3, 1.0]))
    assert (
        lab.steps_to_learn(two),
        lab.steps_to_learn(one),
        lab.accuracy_when_two_learned(one, two),
    ) == (
        2 * lab.EVERY,
        3 * lab.EVERY,
        0.3,
    )
    two["steps"] = 2 * lab.EVERY - 5
    assert (lab.steps_to_learn(two), lab.accuracy_when_two_learned(one, two)) == (
        2 * lab.EVERY - 5,
        0.3,
    )


def test_more_parameters_are_found_out() -> None:
    wrong = numbers()
    wrong["together.heads-2.steps-1.seed-1"]["attention parameters"] *= 2
    assert lab.judge_multi_head(wrong)[0].holds is False


@pytest.mark.parametrize(
    ("content", "place", "found"),
    [([0.9, 0.1], [0.1, 0.8], 0.8), ([0.9, 0.0], [0.9, 0.0], 0.0), ([0.5], [0.5], 0.0)],
)
def test_divided_is_of_two_different_heads(
    content: list[float], place: list[float], found: float
) -> None:
    assert lab.division_of_work({"to content": content, "to place": place}) == pytest.approx(found)


def test_it_can_be_drawn_and_told() -> None:
    assert set(lab.draw_multi_head(numbers())) == {"single-vs-multi-head"}
    assert "0 learned it" in lab.summarize_multi_head(numbers()).en
    assert "They put unequal weights" in lab.summarize_multi_head(numbers(one=0.99)).en
    assert torch.is_tensor(lab.questions("together", 2, 0, 0)[1])
