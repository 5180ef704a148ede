"""The task by brute force, and what is measured inside its models."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sightline.lab.learning import build_seeded
from sightline.lab.measures import two_relations as task


def test_questions_by_brute_force() -> None:
    """Each answer found again by a search through the row."""
    batch, content, place = task.questions(40, 3, 5)
    for n, (*tokens, question) in enumerate(batch.tokens.tolist()):
        keys = [token // task.SIZE for token in tokens]
        values = [token % task.SIZE for token in tokens]
        assert sorted(keys) == list(range(task.SIZE))
        key, at = divmod(question - task.PAIRS, task.SIZE)
        assert (keys.index(key), at) == (int(content[n]), int(place[n]))
        answer = values[keys.index(key)] * task.SIZE + values[at]
        assert batch.targets[n].tolist() == [-100] * task.SIZE + [answer]
        assert content[n] != place[n]
    assert int(batch.tokens.max()) < task.VOCABULARY


def test_half_an_answer_is_not_learned() -> None:
    """By brute force over many questions: one half known, or both without their order."""
    batch, _, _ = task.questions(4000, 0, 0)
    first, second = batch.targets[:, -1] // task.SIZE, batch.targets[:, -1] % task.SIZE
    assert float((second == 0).double().mean()) == pytest.approx(1 / task.SIZE, abs=0.03)
    ordered = 0.5 + 0.5 * float((first == second).double().mean())
    assert ordered == pytest.approx(0.6, abs=0.03)
    assert ordered < task.LEARNED


def test_steps_are_those_of_the_first_high_accuracy() -> None:
    row: dict[str, Any] = {"limit": 600, "course": [0.5, 0.96]}
    assert (task.has_learned(row), task.steps_to_learn(row)) == (True, 2 * task.EVERY)
    row["course"] = [0.5, 0.95]
    assert (task.has_learned(row), task.steps_to_learn(row)) == (False, 600)


def test_training_stops_when_learned_and_at_the_limit(as_users_run_it: None) -> None:
    """A real run: two heads learn it and divide the work; one head does not in ten steps."""
    two = task.train_until_learned(2, 8e-3, 0, limit=300)
    assert two["course"][-1] > task.LEARNED > max(two["course"][:-1])
    assert len(two["course"]) < 60
    assert task.division_of_work(two["to content"].tolist(), two["to place"].tolist()) > 0.5
    one = task.train_until_learned(1, 8e-3, 0, limit=10)
    assert len(one["course"]) == 2
    assert not task.has_learned(one)


@pytest.mark.parametrize("heads", [1, 2, 8])
def test_ranks_are_numpys(heads: int) -> None:
    model = build_seeded(task.one_block_config(heads), 0)
    attention = model.last_stack[0].attention
    query, key = (
        layer.weight.detach().double().numpy() for layer in (attention.query, attention.key)
    )
    size = task.WIDTH // heads
    for head, (rank, most) in enumerate(
        zip(*(task.head_ranks(model)[name] for name in ("rank", "rank of 90%")), strict=True)
    ):
        rows = slice(head * size, (head + 1) * size)
        product = query[rows].T @ key[rows]
        values = np.linalg.svd(product, compute_uv=False) ** 2
        assert rank == np.linalg.matrix_rank(product) == size
        assert values[:most].sum() >= 0.9 * values.sum() > values[: most - 1].sum()


@pytest.mark.parametrize(
    ("content", "place", "work"),
    [([0.9, 0.1], [0.1, 0.8], 0.8), ([0.9, 0.0], [0.9, 0.0], 0.0), ([0.5], [0.5], 0.0)],
)
def test_work_is_divided_between_two_different_heads(
    content: list[float], place: list[float], work: float
) -> None:
    assert task.division_of_work(content, place) == pytest.approx(work)
