"""Superposition: worlds with and without it, planted as weights and as streams, through measurement
and verdict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import Plan, TunedRate, verdict_of
from sightline.lab.experiments import superposition
from sightline.lab.experiments.superposition import CODER, DENSE, SPARSE, SuperpositionPlan
from sightline.lab.learning import seeded_generator
from sightline.lab.measures import sparse_autoencoder, toy_superposition
from sightline.lab.measures.sparse_autoencoder import Autoencoder, Stream
from sightline.lab.measures.toy_superposition import DIMENSIONS, FEATURES
from sightline.lab.results import to_json_numbers

WIDTH = 24
SEEDS = range(100, 106)


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller dictionaries and fewer rows."""
    for name, value in {"ACTIVE": 3, "ATOMS": 48, "FEWEST": 5}.items():
        monkeypatch.setattr(sparse_autoencoder, name, value)
    monkeypatch.setattr(toy_superposition, "TESTED", 4000)


# ------------------------------------------------------------------------------------------- toys


def one_each(seed: int) -> torch.Tensor:
    """One feature per dimension: no superposition."""
    weight = torch.eye(DIMENSIONS, FEATURES)
    return weight + 0.01 * torch.randn(weight.shape, generator=seeded_generator(seed, 7))


def in_pairs(seed: int) -> torch.Tensor:
    """Two features per dimension, as antipodes, which interfere only where both are present."""
    weight = one_each(seed)
    weight[:, DIMENSIONS : 2 * DIMENSIONS] = -torch.eye(DIMENSIONS)
    return weight


def toy(weight: torch.Tensor, density: float, seed: int) -> dict[str, Any]:
    x = toy_superposition.sparse_features(4000, density, seeded_generator(seed, 2))
    bias = torch.where(weight.norm(dim=0) > 0.5, torch.zeros(()), x.mean(0))
    return to_json_numbers(toy_superposition.measure_toy(x, weight, bias))


def toys(dense: Any, sparse: Any) -> dict[str, Any]:
    """Planted weights of both kinds of features, measured."""
    return {
        f"toy.{superposition.arm_of(density)}.steps-1.rate-0.01.seed-{seed}": toy(
            make(seed), density, seed
        )
        for seed in SEEDS
        for make, density in ((dense, DENSE), (sparse, SPARSE))
    }


def toy_holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in superposition.toy_checks(numbers)]


def test_pairs_of_sparse_features_are_superposition() -> None:
    assert toy_holds(toys(one_each, in_pairs)) == [True] * 3


def test_worlds_without_superposition_or_without_its_gain_are_seen() -> None:
    result = toy_holds(toys(in_pairs, one_each))
    assert result[:2] == [False, False]
    assert result[2] is not True


def test_the_error_without_superposition_is_that_of_numpy() -> None:
    x = toy_superposition.sparse_features(500, 0.3, seeded_generator(1))
    assert float((x > 0).double().mean()) == pytest.approx(0.3, abs=0.05)
    rows = x.double().numpy()
    kept = rows.copy()
    kept[:, DIMENSIONS:] = rows[:, DIMENSIONS:].mean(0)
    weighted = (0.9 ** np.arange(FEATURES) * (rows - kept) ** 2).sum(1)
    expected = weighted.sum() / (len(rows) - 1)
    assert toy_superposition.error_without_superposition(x) == pytest.approx(expected, rel=1e-4)


def test_a_toy_learns() -> None:
    long, short = (toy_superposition.train_toy(SPARSE, steps, 0.03, 0) for steps in (150, 2))
    assert long["score"] < short["score"]
    assert 0 <= long["represented"] <= FEATURES
    assert np.shape(long["products"]) == (FEATURES, FEATURES)


# ----------------------------------------------------------------------------------- dictionaries


def planted(seed: int, *, sparse: bool) -> tuple[Stream, Autoencoder]:
    """Rows that are sums of three of 48 atoms in 24 dimensions, with the dictionary itself as the
    autoencoder; or noise without atoms, with a dictionary that never saw it."""
    random = seeded_generator(seed, 8)
    atoms = torch.nn.functional.normalize(torch.randn(48, WIDTH, generator=random), dim=1)
    chosen = torch.rand(1600, 48, generator=random).topk(3, dim=1).indices
    strength = torch.tensor([3.0, 2.0, 1.0]).expand(1600, 3)
    x = torch.zeros(1600, 48).scatter(1, chosen, strength) @ atoms
    tokens = chosen[800:, 0].tolist()
    if not sparse:
        x = torch.randn(1600, WIDTH, generator=random)
        tokens = torch.randint(48, (800,), generator=random).tolist()
    contexts = [f"a [{token}]" for token in tokens]
    stream = Stream(x[:800], x[800:], tokens, contexts)
    encoder = torch.linalg.pinv(atoms.T @ atoms) @ atoms.T if sparse else atoms.T
    return stream, Autoencoder(encoder.T.contiguous(), torch.zeros(48), atoms, torch.zeros(WIDTH))


def dictionaries(*, sparse: bool) -> list[dict[str, Any]]:
    result = list[dict[str, Any]]()
    for seed in SEEDS:
        stream, coder = planted(seed, sparse=sparse)
        if sparse:
            coder = sparse_autoencoder.trained_autoencoder(
                stream.training, steps=250, rate=0.01, seed=seed, atoms=48
            )
        row = sparse_autoencoder.measure_dictionaries(stream, coder, seed)
        result.append(to_json_numbers(row))
    return result


def test_planted_atoms_are_learned_and_noise_has_none() -> None:
    rows = dictionaries(sparse=True)
    checks = superposition.dictionary_checks(rows)
    assert [check.holds for check in checks] == [True, True], [check.measured for check in checks]
    assert all(row["active"] <= 3 for row in rows)
    noise = superposition.dictionary_checks(dictionaries(sparse=False))
    assert noise[0].holds is False
    assert noise[1].holds is not True


def test_reconstructions_are_least_squares() -> None:
    """Against NumPy, one row at a time."""
    x = torch.randn(5, WIDTH, generator=seeded_generator(3)).double()
    atoms = sparse_autoencoder.random_atoms(WIDTH, 0).double()
    made = sparse_autoencoder.best_reconstruction(x.float(), atoms.float()).numpy()
    for row, result in zip(x.numpy(), made, strict=True):
        chosen = np.argsort(-np.abs(atoms.numpy() @ row))[:3]
        basis = atoms.numpy()[chosen].T
        expected = basis @ np.linalg.lstsq(basis, row, rcond=None)[0]
        np.testing.assert_allclose(result, expected, atol=1e-2)


def test_explained_variance_and_purity_by_hand() -> None:
    x = torch.tensor([[0.0, 1.0], [2.0, 3.0]])
    assert sparse_autoencoder.explained_variance(x, x) == 1.0
    assert sparse_autoencoder.explained_variance(x, x.mean(0).expand(2, 2)) == pytest.approx(0.0)
    codes = torch.zeros(20, 2)
    codes[:12, 0] = torch.arange(12, 0, -1).float()
    tokens = [7] * 5 + [8] * 3 + [9] * 2 + [1] * 10
    assert sparse_autoencoder.frequent_atoms(codes) == [0]
    assert sparse_autoencoder.mean_purity(codes, tokens) == pytest.approx(0.5)
    activity = torch.arange(40.0)
    assert sparse_autoencoder.distinct_contexts(activity, ["a", "b"] * 20) == ["b", "a"]


def test_everything_is_judged_summarised_and_drawn() -> None:
    numbers: dict[str, Any] = toys(one_each, in_pairs)
    stream, coder = planted(100, sparse=True)
    for seed in SEEDS:
        row = sparse_autoencoder.measure_dictionaries(stream, coder, seed)
        row["explained"][CODER] -= 0.001 * (seed - 100)
        row["purity"][CODER] -= 0.001 * (seed - 100)
        numbers[f"{CODER}.stories-1.length-1.steps-1.rate-0.01.text-100.seed-{seed}"] = (
            to_json_numbers(row)
        )
    assert verdict_of(superposition.judge_superposition(numbers)) in ("supported", "inconclusive")
    words = superposition.summarize_superposition(numbers)
    assert "drawn at random, not chosen" in words.en
    assert "乱数で引いた" in words.ja
    assert set(superposition.draw_superposition(numbers)) == {"superposition"}


@pytest.mark.long
def test_the_stream_of_a_real_model() -> None:
    plan = SuperpositionPlan(1, 1, 1, 8, 24, 20, 1)
    row = superposition.compare_dictionaries(plan, 0.003, 100, 100)
    assert row["explained"][CODER] > 0
    assert 0 < row["active"] <= 3
    stream = sparse_autoencoder.stream_of_stories(8, 24, 100)
    assert len(stream.contexts) == len(stream.tokens) == len(stream.held_out)


def test_part_names_state_rates_and_text() -> None:
    arms = [superposition.arm_of(density) for density in superposition.DENSITIES["default"]]
    rates = {arm: TunedRate(arm, 0.01, False, ()) for arm in (*arms, CODER)}
    assert [superposition.density_of(arm) for arm in arms] == [1.0, 0.3, 0.1, 0.03, 0.01]
    names = [p.name for p in superposition.superposition_parts(Plan("default", 1000, rates))]
    assert len(set(names)) == len(names) == 5 * 8 + 4
    assert all(".rate-0.01." in name for name in names)
    assert "text-1000" in names[-1]
    pilots = [part.name for part in superposition.superposition_pilots("default")]
    assert len(set(pilots)) == len(pilots)
