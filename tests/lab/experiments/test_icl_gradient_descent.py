"""In-context regression: the exact step by NumPy, the known methods by NumPy and calculus, one
small model really trained, the verdict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sightline.lab.experiment import Plan, TunedRate
from sightline.lab.experiments import icl_gradient_descent as experiment
from sightline.lab.learning import seeded_generator
from sightline.lab.measures import regression
from sightline.lab.measures import regression_pictures as pictures
from sightline.lab.results import to_json_numbers

SMALL = experiment.RegressionSize(
    dimension=1, width=16, steps=300, batch=256, seeds=1, rates=(1e-3, 1e-2, 1e-1),
    pilot_steps=20, linear_steps=300,
)  # fmt: skip
EXACT, DUAL, LAYERS, LINEAR, ERROR, NEARER = range(6)


@pytest.fixture(autouse=True)
def _few_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regression, "TASKS", 300)


@lru_cache(maxsize=1)
def measured() -> Mapping[str, Any]:
    """Real models: two seeds of linear attention in four dimensions and of a Transformer in one."""
    numbers: dict[str, Any] = {}
    for seed in range(2):
        numbers |= {
            f"exact.seed-{seed}": to_json_numbers(experiment.exact_part(seed)),
            f"linear.seed-{seed}": experiment.linear_part(SMALL, 1.6e-2, seed),
            f"trained.seed-{seed}": experiment.trained_part(SMALL, 1e-2, seed),
        }
    return numbers


def holds(**changed: Any) -> list[bool | None]:
    kinds = {name.split(".")[0] for name in changed}
    kept = {name: row for name, row in measured().items() if name.split(".")[0] not in kinds}
    return [check.holds for check in experiment.judge_icl(kept | changed)]


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
        result = experiment.exact_part(seed)
        assert max(result["float64"].values()) < 1e-13
        assert max(result["float32"]["dual"], result["float32"]["layers-1"]) < 1e-6


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
        result = regression.mean_squared_error(regression.best_descent(of, steps), of)
        others = [
            regression.mean_squared_error(one, of)
            for one in regression.descend(of, (0.05, 0.2, 0.4, 0.8, 1.6), steps)
        ]
        assert best < result < 1.02 * min(others)


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


def test_one_step_of_gd_plus_without_shrinking_is_gradient_descent() -> None:
    of = regression.draw_tasks(3, 4, 9, seeded_generator(0, 1))
    for steps in (1, 3):
        torch.testing.assert_close(
            regression.descend_plus(of, 0.3, 0.0, steps), regression.descend(of, [0.3], steps)[0]
        )


def test_gd_plus_by_numpy() -> None:
    of = regression.draw_tasks(1, 3, 7, seeded_generator(0, 2))
    x, y, asked = (part[0].double().numpy() for part in (of.x, of.y, of.queries))
    predicted = np.zeros(len(asked))
    for _ in range(2):
        step = 0.4 / 7 * sum(target * one for target, one in zip(y, x, strict=True))
        predicted += asked @ step
        y = y - x @ step
        shrunk = np.eye(3) - 0.1 / 7 * sum(np.outer(one, one) for one in x)
        x, asked = x @ shrunk, asked @ shrunk
    ours = regression.descend_plus(of, 0.4, 0.1, 2)[0]
    assert ours.numpy() == pytest.approx(predicted, abs=1e-5)


def test_newton_converges_to_ridge() -> None:
    of = regression.draw_tasks(20, 4, 8, seeded_generator(0, 3))
    away = [
        float((regression.newton(of, 1.0, steps) - regression.ridge(of)).abs().max())
        for steps in (1, 3, 5, 14)
    ]
    assert away == sorted(away, reverse=True)
    assert away[-1] < 1e-4


def test_a_method_that_diverges_is_not_the_best() -> None:
    of = regression.draw_tasks(2, 2, 4, seeded_generator(0, 4))
    nan, zero = torch.full_like(of.answers, torch.nan), torch.zeros_like(of.answers)
    assert regression.best_of([nan, zero, 1e30 * of.answers], of) is zero


# ------------------------------------------------------------------------------------ the verdict


def test_real_numbers_support_it() -> None:
    result = experiment.judge_icl(measured())
    assert [check.holds for check in result[:4]] == [True] * 4, [c.measured for c in result]
    assert False not in [
        check.holds for check in result
    ]  # two seeds in one dimension decide little


class Answers(nn.Module):
    """A model that answers like a known method, almost."""

    def __init__(self, method: Callable[[regression.Tasks], Tensor], noise: float) -> None:
        super().__init__()
        self.method = method
        self.noise = noise

    def forward(self, of: regression.Tasks) -> Tensor:
        predicted = self.method(of)
        return predicted + self.noise * torch.randn(
            predicted.shape, generator=seeded_generator(len(of.x))
        )


def answered(
    monkeypatch: pytest.MonkeyPatch, method: Callable[[regression.Tasks], Tensor]
) -> dict[str, Any]:
    """What is measured where training gives this method."""
    monkeypatch.setattr(regression, "train_regressor", lambda *_, **__: Answers(method, noise=0.02))
    size = experiment.RegressionSize(2, 16, 1, 1, 1, (1e-3, 1e-2, 1e-1), 1, 1)
    rows = {f"linear.seed-{n}": experiment.linear_part(size, 1e-2, n) for n in range(3)}
    return rows | {f"trained.seed-{n}": experiment.trained_part(size, 1e-2, n) for n in range(3)}


def test_a_transformer_that_is_ridge_and_one_that_is_one_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    as_ridge = holds(**answered(monkeypatch, regression.ridge))
    assert as_ridge[LINEAR] is False
    assert as_ridge[ERROR:] == [True, True]
    as_step = holds(**answered(monkeypatch, lambda of: regression.best_descent(of, 1)))
    assert as_step[LINEAR] is True
    assert as_step[ERROR:] == [False, False]


def test_a_layer_with_another_step_size_is_not_the_construction(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    right = regression.set_by_hand
    monkeypatch.setattr(
        regression, "set_by_hand", lambda layer, start, rate: right(layer, start, 1.001 * rate)
    )
    result = holds(**{"exact.seed-0": to_json_numbers(experiment.exact_part(0))})
    assert (result[EXACT], result[LAYERS]) == (False, False)


def test_a_dual_form_with_another_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    right = regression.gradient_step
    monkeypatch.setattr(
        regression, "gradient_step", lambda w, x, y, rate: right(w, x, y, 1.001 * rate)
    )
    assert holds(**{"exact.seed-0": to_json_numbers(experiment.exact_part(0))})[DUAL] is False


def test_summary_and_figures() -> None:
    words = experiment.summarize_icl(measured())
    assert "Ten gradient steps are" in words.en
    assert "勾配降下10ステップとの差" in words.ja
    errors, distances, exact = experiment.draw_icl(measured())["icl-gradient-descent"].axes
    assert len(errors.lines) == 1 + len(pictures.DRAWN) + 1
    assert len(distances.get_yticks()) == len(pictures.METHODS)
    assert exact.get_yscale() == "log"


def test_every_part_has_its_own_name() -> None:
    rates = {name: TunedRate(name, 1e-3, False, ()) for name in experiment.NAMES}
    for tier in ("quick", "default", "full"):
        parts = [*experiment.icl_pilots(tier), *experiment.icl_parts(Plan(tier, 100, rates))]
        assert len({part.name for part in parts}) == len(parts)
