"""In-context regression: the exact step by NumPy, the known methods by NumPy and calculus, one
small model really trained, the verdict."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sightline.lab.experiment import Plan, verdict_of
from sightline.lab.experiments import icl_gradient_descent as experiment
from sightline.lab.learning import seeded_generator
from sightline.lab.measures import regression
from sightline.lab.results import to_json_numbers

SMALL = experiment.RegressionSize(dimension=1, width=16, steps=300, batch=256, rate=1e-2, seeds=1)


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    """One seed of each kind, in one dimension."""
    return {
        "exact.seed-0": to_json_numbers(experiment.exact_part(0)),
        "linear.dimension-4.seed-0": to_json_numbers(experiment.linear_part(0)),
        "trained.dimension-1.seed-0": to_json_numbers(experiment.trained_part(SMALL, 0)),
    }


# ------------------------------------------------------------------------------------- exact laws


def by_hand(x: NDArray[Any], y: NDArray[Any], w: NDArray[Any], rate: float) -> NDArray[Any]:
    """W − η/n Σ (W x_i − y_i) x_iᵀ, one example at a time."""
    step = np.zeros_like(w)
    for one, target in zip(x, y, strict=True):
        step += np.outer(w @ one - target, one)
    return w - rate / len(x) * step


@pytest.mark.parametrize("layers", [1, 4])
def test_linear_attention_is_gradient_descent_by_numpy(layers: int) -> None:
    drawn = np.random.default_rng(0)
    x, y, asked, start = (drawn.normal(size=shape) for shape in ((7, 3), (7, 2), (4, 3), (2, 3)))
    layer, w = (
        regression.set_by_hand(
            regression.linear_attention(5).double(), torch.tensor(start), 0.2 / 7
        ),
        start,
    )
    tokens = torch.tensor(np.concatenate((np.hstack((x, y)), np.hstack((asked, -asked @ w.T)))))[
        None
    ]
    for _ in range(layers):
        tokens, w = regression.linear_step(layer, tokens, 7), by_hand(x, y, w, 0.2)
    assert tokens[0, 7:, 3:].detach().numpy() == pytest.approx(-asked @ w.T, abs=1e-12)
    assert tokens[0, :7, 3:].detach().numpy() == pytest.approx(
        y - x @ (w - start).T, abs=1e-12
    )  # what is left to be learned


def test_the_exact_part_is_within_rounding() -> None:
    for seed in range(3):
        found = experiment.exact_part(seed)
        assert max(found["float64"].values()) < 1e-13
        assert max(found["float32"]["dual"], found["float32"]["layers-1"]) < 1e-6


def test_wrong_weights_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step size that is a thousandth off is not equal."""
    right = regression.set_by_hand
    monkeypatch.setattr(
        regression, "set_by_hand", lambda layer, start, rate: right(layer, start, 1.001 * rate)
    )
    assert regression.exactness(0, "float64", depth=1)["layers-1"] > 1e-5


def test_ridge_least_squares_and_descent_by_numpy() -> None:
    of = regression.draw_tasks(3, 4, 9, seeded_generator(0, 1))
    for n in range(3):
        x, y, asked = (part[n].double().numpy() for part in (of.x, of.y, of.queries))
        grown = np.vstack(
            (x, regression.NOISE * np.eye(4))
        )  # ridge is least squares with d more examples
        assert regression.ridge(of)[n].numpy() == pytest.approx(
            asked @ np.linalg.lstsq(grown, np.append(y, np.zeros(4)))[0], abs=1e-4
        )
        assert regression.least_squares(of)[n].numpy() == pytest.approx(
            asked @ np.linalg.lstsq(x, y)[0], abs=1e-4
        )
        w = np.zeros((1, 4))
        for _ in range(5):
            w = by_hand(x, y[:, None], w, 0.3)
        assert regression.descend(of, [0.1, 0.3], 5)[1, n].numpy() == pytest.approx(
            (asked @ w.T)[:, 0], abs=1e-4
        )


def test_least_squares_with_few_examples_is_the_shortest() -> None:
    of = regression.draw_tasks(2, 5, 3, seeded_generator(0, 2))
    expected = [
        asked @ np.linalg.lstsq(x, y)[0]
        for x, y, asked in zip(of.x.numpy(), of.y.numpy(), of.queries.numpy(), strict=True)
    ]
    assert regression.least_squares(of).numpy() == pytest.approx(np.array(expected), abs=1e-3)


def test_no_method_beats_ridge_and_no_step_size_beats_the_best() -> None:
    of = regression.draw_tasks(2000, 3, 6, seeded_generator(0, 2))
    best = regression.mean_squared_error(regression.ridge(of), of)
    assert best < regression.mean_squared_error(regression.least_squares(of), of)
    for steps in (1, 2, 5):
        found = regression.mean_squared_error(regression.best_descent(of, steps), of)
        others = [
            regression.mean_squared_error(one, of)
            for one in regression.descend(of, (0.05, 0.2, 0.4, 0.8, 1.6), steps)
        ]
        assert best < found < 1.02 * min(others)


def test_nobody_looks_at_a_query() -> None:
    """The prediction for one question does not depend on which others are asked, nor on the order
    of the examples."""
    torch.manual_seed(0)
    model, of = (
        regression.Regressor(3, width=16),
        regression.draw_tasks(2, 3, 5, seeded_generator(0, 3)),
    )
    whole, turned = model(of), torch.randperm(5)
    alone = model(
        regression.Tasks(of.x[:, turned], of.y[:, turned], of.queries[:, 2:3], of.answers[:, 2:3])
    )
    assert alone[:, 0].tolist() == pytest.approx(whole[:, 2].tolist(), abs=1e-5)


# ------------------------------------------------------------------------------------ the verdict


def test_real_numbers_support_it(numbers: dict[str, Any]) -> None:
    checks = experiment.judge_icl(numbers)
    assert [check.holds for check in checks] == [True] * 6, [check.measured for check in checks]


@pytest.mark.parametrize(
    ("part", "edit", "check"),
    [
        ("exact", lambda row: row["float32"].update({"layers-1": 2e-6}), 0),
        ("exact", lambda row: row["float64"].update({"dual": 2e-6}), 1),
        ("exact", lambda row: row["float64"].update({"layers-10": 2e-6}), 2),
        ("linear", lambda row: row.update(trained=1.06 * row["descent-1"]), 3),
        ("linear", lambda row: row.update(trained=0.94 * row["descent-1"]), 3),
        ("trained", lambda row: row.update(trained=[1.11 * error for error in row["ridge"]]), 4),
        (
            "trained",
            lambda row: row.update(trained=[1.01 * error for error in row["descent-1"]]),
            5,
        ),
    ],
)
def test_numbers_that_contradict_are_not_supported(
    numbers: dict[str, Any], part: str, edit: Any, check: int
) -> None:
    edited = copy.deepcopy(numbers)
    edit(next(row for name, row in edited.items() if name.startswith(part)))
    checks = experiment.judge_icl(edited)
    assert checks[check].holds is False
    assert verdict_of(checks) == "not supported"


def test_seeds_that_disagree_leave_it_open(numbers: dict[str, Any]) -> None:
    row = numbers["trained.dimension-1.seed-0"]
    poor = row | {"trained": [1.3 * error for error in row["ridge"]]}
    assert experiment.judge_icl(numbers | {"trained.dimension-1.seed-1": poor})[4].holds is None


def test_summary_and_figures(numbers: dict[str, Any]) -> None:
    words, row = experiment.summarize_icl(numbers), numbers["trained.dimension-1.seed-0"]
    assert f"{experiment.error_at_twice_dimension(row, 'ridge'):.3f}" in words.en
    assert f"{experiment.error_at_twice_dimension(row, 'ridge'):.3f}" in words.ja
    errors, exact = experiment.draw_icl(numbers)["icl-gradient-descent"].axes
    assert len(errors.lines) == 3 + len(experiment.GRADIENT_STEPS) + 1
    assert exact.get_yscale() == "log"


def test_every_part_has_its_own_name() -> None:
    for tier in ("quick", "default", "full"):
        names = [part.name for part in experiment.icl_parts(Plan(tier, 0))]
        assert len(set(names)) == len(names) == 3 * experiment.SIZES[tier].seeds
