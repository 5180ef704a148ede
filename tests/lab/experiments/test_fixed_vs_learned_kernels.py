"""Kernels: laws by NumPy, and verdicts from raw tensors and trained kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from sightline.lab.experiments import fixed_vs_learned_kernels as lab
from sightline.lab.learning import seeded_generator
from sightline.lab.measures import kernel_smoother as smoother
from sightline.lab.measures import kernels
from sightline.lab.results import to_json_numbers

STEPS = 150


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    """A short real run."""
    result: dict[str, Any] = {}
    for seed in (0, 1):
        result[f"smoother.seed-{seed}"] = lab.measure_smoother(seed)
        result[f"exact.seed-{seed}"] = lab.measure_laws(seed)
        for kind in lab.KERNELS:
            result[f"fixed.{kind}.steps-{STEPS}.seed-{seed}"] = lab.choose(kind, STEPS, seed)
        for kind in lab.LEARNED:
            rate = 0.3 if kind == "cosine" else 0.03
            name = f"learned.{kind}.rate-{rate:g}.steps-{STEPS}.seed-{seed}"
            result[name] = lab.train(kind, rate, STEPS, seed)
    for kind in lab.LEARNED:
        for rate, score in ((0.01, 0.3), (0.03, 0.2), (0.1, 0.3)):
            result[f"pilot.{kind}.rate-{rate:g}.steps-{STEPS}.seed-0"] = {"score": score}
    return to_json_numbers(result)


def with_rows(numbers: dict[str, Any], arm: str, rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in numbers if name.startswith(f"{arm}.")]
    return numbers | {name: numbers[name] | row for name, row in zip(names, rows * 2, strict=False)}


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in lab.judge_kernels(numbers)]


# --------------------------------------------------------------------------------------------- laws


def test_the_smoother_is_nadaraya_and_watsons() -> None:
    """By a loop in NumPy, in three dimensions."""
    random = np.random.default_rng(0)
    x, places, values = (random.normal(size=size) for size in ((7, 3), (30, 3), (30, 2)))
    wanted = np.zeros((7, 2))
    for n, point in enumerate(x):
        masses = [np.exp(-np.sum((point - place) ** 2) / (2 * 0.6**2)) for place in places]
        wanted[n] = sum(k * value for k, value in zip(masses, values, strict=True)) / sum(masses)
    given = [torch.from_numpy(one) for one in (x, places, values)]
    for formula in (smoother.attention_smoother, smoother.kernel_smoother):
        np.testing.assert_allclose(formula(*given, 0.6).numpy(), wanted, atol=1e-9)


def test_to_leave_oneself_out_is_a_mask() -> None:
    at = torch.arange(6.0).double()[:, None]
    values = torch.randn(6, 1, generator=torch.Generator().manual_seed(1)).double()
    result = smoother.attention_smoother(at, at, values, 1.0, leave_out=True)
    for n in range(6):
        others = [i for i in range(6) if i != n]
        torch.testing.assert_close(
            result[n : n + 1],
            smoother.kernel_smoother(at[n : n + 1], at[others], values[others], 1.0),
        )


@pytest.mark.parametrize("kind", lab.LEARNED)
def test_a_kernel_is_its_formula(kind: str) -> None:
    random = np.random.default_rng(0)
    q, k = random.normal(size=(3, 5)), random.normal(size=(4, 5))
    result = kernels.log_kernel(kind, torch.from_numpy(q), torch.from_numpy(k), 0.7).exp().numpy()
    for i, a in enumerate(q):
        for j, b in enumerate(k):
            cosine = a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            wanted = {
                "rbf": np.exp(-0.7 * np.sum((a - b) ** 2) / 2),
                "polynomial": (1 + 0.7 * a @ b) ** 2,
                "dot": np.exp(0.7 * a @ b),
                "cosine": np.exp(0.7 * cosine),
                "flat": np.exp(cosine),
            }[kind]
            assert result[i, j] == pytest.approx(wanted, rel=1e-6)


def test_vectors_of_any_length_are_no_rbf_smoother(numbers: dict[str, Any]) -> None:
    random = seeded_generator(5)
    query, key = (torch.randn(n, 16, generator=random, dtype=torch.float64) for n in (4, 9))
    for given, holding in (((normalize(query), normalize(key)), True), ((query, key), False)):
        apart = kernels.kernel_difference(*given)
        result = with_rows(numbers, "exact", [{"apart": apart}])
        assert holds(result)[2] is holding


def test_without_normalisation_the_bound_is_broken(numbers: dict[str, Any]) -> None:
    assert kernels.largest_weight(64, 1.0) == pytest.approx(0.105, abs=1e-3)
    free = kernels.highest_found_weight(64, 1.0, 0, normalized=False)
    assert holds(with_rows(numbers, "exact", [{"found": free}]))[3] is False
    flat = kernels.highest_found_weight(64, 1.0, 0)
    assert holds(with_rows(numbers, "exact", [{"with root d": flat}]))[4] is False


# ----------------------------------------------------------------------------------------- training


def test_a_short_run_supports_the_claim(numbers: dict[str, Any]) -> None:
    assert [held is not False for held in holds(numbers)] == [True] * 10
    errors = {name: row["error"] for name, row in numbers.items() if name.startswith("learned.rbf")}
    assert max(errors.values()) < 0.2


def test_projections_that_learn_nothing_do_not_lower_the_error(numbers: dict[str, Any]) -> None:
    untrained = [lab.train("rbf", 0.0, 2, seed) for seed in (0, 1)]
    result = with_rows(numbers, "learned.rbf", untrained)
    assert lab.learning_checks(result)[0].holds is False


def test_a_projection_of_other_dimensions_does_not_find_the_plane(numbers: dict[str, Any]) -> None:
    plane = kernels.relevant_plane(0)
    blind = torch.randn(16, 8, generator=seeded_generator(1))
    blind = (
        blind - blind @ plane @ plane.T + 0.01 * torch.randn(16, 8, generator=seeded_generator(2))
    )
    rows = [{"in plane": kernels.share_in_plane(blind[n * 8 : n * 8 + 8], plane)} for n in (0, 1)]
    assert all(row["in plane"] < 0.01 for row in rows)
    assert lab.learning_checks(with_rows(numbers, "learned.rbf", rows))[2].holds is False


def test_kernels_that_swap_their_errors_are_not_supported(numbers: dict[str, Any]) -> None:
    """Real rows under another kernel's name."""
    rows = {arm: lab.rows_of(numbers, f"learned.{arm}") for arm in lab.LEARNED}
    swapped = numbers
    for arm, other in (("dot", "rbf"), ("rbf", "dot"), ("flat", "cosine"), ("cosine", "flat")):
        swapped = with_rows(swapped, f"learned.{arm}", [dict(row) for row in rows[other]])
    checks = lab.learning_checks(swapped)
    assert checks[3].holds is not True
    assert checks[4].holds is not True


@pytest.mark.parametrize(("dot", "flat", "holding"), [(0.4, 0.5, True), (0.05, 0.08, False)])
def test_the_form_is_judged_by_the_errors(
    numbers: dict[str, Any], dot: float, flat: float, holding: bool
) -> None:
    given = {"dot": dot, "flat": flat, "rbf": 0.1, "cosine": 0.11}
    for n, (kind, error) in enumerate(given.items()):
        rows = [{"error": error + 0.001 * (n + 1) * seed} for seed in (0, 1)]
        numbers = with_rows(numbers, f"learned.{kind}", rows)
    assert [check.holds for check in lab.learning_checks(numbers)[3:]] == [holding, holding]


def test_a_scale_at_the_end_of_its_range_is_noticed(numbers: dict[str, Any]) -> None:
    assert kernels.fixed_kernel("rbf", 1, 0)["at edge"] is False
    result = with_rows(numbers, "fixed.rbf", [{"at edge": True}])
    assert lab.learning_checks(result)[1].holds is False


def test_noise_that_is_not_smoothed_is_not_a_curve(numbers: dict[str, Any]) -> None:
    rows = [{"error": 1.3}, {"error": 1.31}]
    result = with_rows(numbers, "smoother", [row | {"flat": 1.0} for row in rows])
    assert lab.exact_checks(result)[0].holds is False
    apart = with_rows(numbers, "smoother", [{"apart": 1e-3}])
    assert lab.exact_checks(apart)[1].holds is False


def test_it_can_be_drawn_and_summarized(numbers: dict[str, Any]) -> None:
    assert set(lab.draw_kernels(numbers)) == {"fixed-vs-learned-kernels"}
    assert "LDA" in lab.summarize_kernels(numbers).en
