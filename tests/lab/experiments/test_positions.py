"""Positions: the exact laws against NumPy, and verdicts that follow the losses."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiment import Plan, TunedRate
from sightline.lab.experiments import positions
from sightline.lab.measures import longer_texts, position_laws
from sightline.lab.results import to_json_numbers
from sightline.training.loop import NotFiniteError

CONTEXT = 16
SYMBOLS = 5
CHAIN = 0.9 * torch.eye(SYMBOLS).roll(1, 1) + 0.02


@pytest.fixture(scope="module")
def text() -> torch.Tensor:
    """Rows of a Markov chain, 8 trained lengths long."""
    random = np.random.default_rng(0)
    rows = random.integers(SYMBOLS, size=(32, 1))
    for _ in range(positions.TIMES[-1] * CONTEXT):
        following = (CHAIN.numpy()[rows[:, -1]].cumsum(1) < random.random((32, 1))).sum(1)
        rows = np.concatenate([rows, following.clip(max=SYMBOLS - 1)[:, None]], axis=1)
    return torch.from_numpy(rows)


class Reader(torch.nn.Module):
    """Knows the chain, less `slow`; it loses `fades` of that per trained length beyond the
    first."""

    def __init__(self, *, fades: float = 0.0, slow: float = 0.0) -> None:
        super().__init__()
        self.fades, self.slow = fades, slow

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        beyond = (torch.arange(tokens.shape[1]) - CONTEXT).clamp(min=0) / CONTEXT
        sharp = (1.0 - self.slow - self.fades * beyond).clamp(0, 1)
        return CHAIN.log()[tokens] * sharp[None, :, None]


World = dict[str, tuple[float, float]]
TRUE: World = {  # scheme → fades, slow
    "none": (0.05, 0.3), "sinusoidal": (0.1, 0.2), "learned": (0.1, 0.2), "rope": (0.1, 0.1),
    "yarn": (0.05, 0.1), "t5": (0.0, 0.1), "alibi": (0.0, 0.2), "alibi-window": (0.0, 0.2),
    "rope-window": (0.0, 0.1),
}  # fmt: skip


def with_losses(exact: dict[str, Any], text: torch.Tensor, **changed: Any) -> dict[str, Any]:
    """The losses of readers of a text on each third of it, through the measurement, beside the
    real exact parts."""
    numbers = copy.deepcopy(exact)
    for seed in range(3):
        rows = text[seed::3][:10]
        row: dict[str, Any] = {"context": CONTEXT}
        for scheme, (fades, slow) in (TRUE | changed).items():
            reader: Any = Reader(fades=fades, slow=slow + 0.001 * seed * len(scheme))
            models = dict.fromkeys(positions.TIMES, reader)
            row[scheme] = to_json_numbers(longer_texts.losses_by_length(models, rows, CONTEXT))
        numbers[f"length.all.context-16.seed-{seed}"] = row
    return numbers


@pytest.fixture(scope="module")
def exact() -> dict[str, Any]:
    """The quick tier's parts that train nothing."""
    rates = {arm: TunedRate(arm, 1e-2, False, ()) for arm in positions.ARMS}
    return {
        part.name: to_json_numbers(part.measure())
        for part in positions.positions_parts(Plan("quick", rates=rates))
        if not part.name.startswith("length.")
    }


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in positions.judge_positions(numbers)]


def test_the_verdict_where_it_is_true(exact: dict[str, Any], text: torch.Tensor) -> None:
    assert holds(with_losses(exact, text)) == [True] * 13


def test_each_statement_fails_where_it_is_false(exact: dict[str, Any], text: torch.Tensor) -> None:
    worse = dict.fromkeys(("learned", "sinusoidal", "rope"), (0.0, 0.5))
    equal = with_losses(exact, text, **worse)  # worse throughout, and no steeper than ALiBi
    assert holds(equal)[7:] == [None, None, None, True, True, True]
    gentler = with_losses(exact, text, alibi=(0.05, 0.1), **worse)
    assert holds(gentler)[7:10] == [False, False, False]
    fading = with_losses(exact, text, alibi=(0.2, 0.1))
    assert holds(fading)[7:] == [False, False, False, False, False, True]
    reading = with_losses(exact, text, **{"alibi-window": (0.02, 0.2)})
    assert holds(reading)[11] is False  # without the window ALiBi is better: it uses the text
    windowed = with_losses(exact, text, **{"rope-window": (0.0, 0.3)})
    assert holds(windowed)[12] is False


def test_a_window_hides_what_is_further_back() -> None:
    """The first token of a text changes the last output of one layer, and not with a window."""
    from sightline.lab.learning import build_seeded

    for window, changes in ((None, True), (32, False)):
        config = longer_texts.position_scheme_config("alibi", "quick", 7, window=window)
        model = build_seeded(config, 0).eval()
        tokens = torch.randint(0, 7, (1, 40), generator=torch.Generator().manual_seed(0))
        other = tokens.clone()
        other[0, 0] = (tokens[0, 0] + 1) % 7
        with torch.inference_mode():
            difference = (model(tokens) - model(other))[0].abs().amax(-1)
        assert bool(difference[-1] > 0) is changes
        assert difference[31] > 0  # 32 tokens are seen, itself included


def test_a_run_that_diverges_has_no_score(monkeypatch: pytest.MonkeyPatch) -> None:
    def diverges(*args: Any, **options: Any) -> Any:
        raise NotFiniteError("loss nan")

    monkeypatch.setattr(longer_texts, "train_scheme", diverges)
    score = longer_texts.pilot_score("rope", 1.0, 0, tier="quick")["score"]
    assert to_json_numbers(score) is None


def test_broken_laws_are_not_supported(exact: dict[str, Any], text: torch.Tensor) -> None:
    numbers = with_losses(exact, text)
    numbers["order.none.seed-100"]["encoder"] = 0.1
    numbers["sinusoids"] = {"first": [0.841, 0.541, 0.01, 1, 0, 1, 0, 1], "off": 0.1, "bent": 0.0}
    numbers["distance.rope.seed-100"]["within"] = 0.2
    assert holds(numbers)[:7] == [
        False,
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_sinusoids_by_numpy() -> None:
    result = position_laws.measure_sinusoids()
    angle = 10000.0 ** (-np.arange(0, 8, 2) / 8)
    np.testing.assert_allclose(
        result["first"].numpy(), np.stack((np.sin(angle), np.cos(angle)), 1).ravel(), atol=1e-7
    )
    assert result["off"] < 1e-6


@pytest.mark.parametrize("seed", [0, 1])
def test_only_a_model_without_positions_and_mask_is_equivariant(seed: int) -> None:
    without = position_laws.measure_order("none", seed)
    assert without["encoder"] < 1e-12 < 1e-3 < without["causal"]
    assert without["encoder unmoved"] > 0.1
    assert position_laws.measure_order("rope", seed)["encoder"] > 1e-6


def test_rope_scores_by_numpy() -> None:
    """Scores of one word repeated are Re Σ q̄ k e^{i(n − m)ω} of its first score pair by pair;
    here: a function of n − m."""
    scores = position_laws.first_scores("rope", 0).numpy()
    toeplitz = scores[:, 0, np.abs(np.subtract.outer(np.arange(96), np.arange(96)))]
    upper = np.triu(np.ones((96, 96), bool))
    np.testing.assert_allclose(scores[:, upper], toeplitz[:, upper], atol=1e-5 * np.ptp(scores))
    assert np.ptp(scores) > 0


def test_alibi_scores_by_numpy() -> None:
    scores = position_laws.first_scores("alibi", 0).numpy()
    distance = np.abs(np.subtract.outer(np.arange(96), np.arange(96)))
    expected = -np.array([2.0**-2, 2.0**-4, 2.0**-6, 2.0**-8])[:, None, None] * distance
    np.testing.assert_allclose(scores - scores[:, :1, :1], expected, atol=1e-5)


def test_losses_by_hand() -> None:
    """A table instead of a model: the loss at each length is the mean of −log p over the same
    characters."""
    table = torch.randn(5, 5, generator=torch.Generator().manual_seed(0))
    rows = torch.randint(0, 5, (3, 8 * 16 + 1), generator=torch.Generator().manual_seed(1))

    class Table(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return table[tokens]

    result = longer_texts.losses_by_length(dict.fromkeys(positions.TIMES, Table()), rows, 16)  # pyright: ignore
    log_p = table.numpy() - np.log(np.exp(table.numpy()).sum(1, keepdims=True))
    by_hand = -log_p[rows[:, :-1].numpy(), rows[:, 1:].numpy()]
    np.testing.assert_allclose(result["by_length"], [by_hand.mean()] * 4, rtol=1e-6)
    np.testing.assert_allclose(result["along"], by_hand.mean(0).reshape(16, -1).mean(1), rtol=1e-6)


def test_it_can_be_drawn_and_told(exact: dict[str, Any], text: torch.Tensor) -> None:
    numbers = with_losses(exact, text)
    assert set(positions.draw_positions(numbers)) == {"positions", "positions-scores"}
    words = positions.summarize_positions(numbers)
    assert "RoPE, windowed 0." in words.en
    assert "RoPE（ウィンドウ付き） 0." in words.ja
