"""Why attention: recall that is really learned, paths, positions and costs that are really measured;
and for each check a world in which its statement is false."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sightline.core import multi_head
from sightline.lab.experiment import Plan, TunedRate
from sightline.lab.experiments import why_attention
from sightline.lab.measures import kernel_costs, reach, rivals

FAR = 16
RATES_AND_STEPS = {
    "attention": (2.5e-3, 75), "gru": (4e-2, 75), "lstm": (1.5e-2, 150),
    "lstm-one": (1.5e-2, 25), "plain": (6e-3, 25), "dilated": (6e-3, 75),
}  # fmt: skip
LENGTHS = (512, 1024, 2048)
PATHS, POSITIONS, SOLVED, INITIALISED, PLAIN, SAVED, STEP, WORK, MEMORY, TIME = range(10)


def recalls(name: str, far: int, rate: float, steps: int) -> dict[str, Any]:
    return {
        f"recall.{name}.{far}.rate-{rate:g}.steps-{steps}.seed-{seed}": reach.train_recall(
            name, far, seed, steps=steps, rate=rate
        )
        for seed in range(6)
    }


def rows_with_noise(of: Any) -> list[dict[str, float]]:
    """Four measurements of a law, each 2% off at random."""
    random = np.random.default_rng(0)
    return [{str(n): of(n) * random.uniform(0.98, 1.02) for n in LENGTHS} for _ in range(4)]


def kernel_rows(equation: Any, fused: Any, seconds: Any) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for kernel, law in (("equation", equation), ("fused", fused)):
        for again, row in enumerate(rows_with_noise(law)):
            rows[f"memory.{kernel}.to-2048.again-{again}"] = row
    for seed, row in enumerate(rows_with_noise(seconds)):
        rows[f"kernel-time.to-2048.seed-{seed}"] = dict.fromkeys(kernel_costs.KERNELS, row)
    return rows


def step_rows(names: tuple[str, ...] = tuple(why_attention.MODELS)) -> dict[str, Any]:
    return {
        f"step-time.from-64.to-256.seed-{seed}": reach.time_training_steps(names, (64, 256), seed)
        for seed in range(3)
    }


@lru_cache(maxsize=1)
def measured() -> Mapping[str, Any]:
    """Everything measured in small; the kernels' costs by their laws."""
    numbers: dict[str, Any] = {
        "path.seed-0": why_attention.measure_path_lengths(0),
        "position.seed-0": why_attention.measure_positions(0),
        "saved.to-256": saved(),
        "work.to-64": kernel_costs.kernel_work((16, 64)),
    }
    numbers |= kernel_rows(lambda n: 72 * n**2, lambda n: 9000 * n, lambda n: 1e-8 * n**2)
    numbers |= step_rows()
    for name, (rate, steps) in RATES_AND_STEPS.items():
        numbers |= recalls(name, FAR, rate, steps)
    return numbers


def saved() -> dict[str, Any]:
    return {
        name: {str(n): reach.saved_bytes(name, n) for n in (64, 128, 256)}
        for name in why_attention.MODELS
    }


def holds(**changed: Any) -> list[bool | None]:
    """The verdict on the measured numbers, with parts of some kinds replaced."""
    kinds = {name.split(".seed-")[0].split(".rate-")[0] for name in changed}
    kept = {
        name: row
        for name, row in measured().items()
        if not any(name == kind or name.startswith(f"{kind}.") for kind in kinds)
    }
    return [check.holds for check in why_attention.judge_why_attention(kept | changed)]


def test_what_is_measured_supports_the_claim() -> None:
    result = holds()
    result[STEP] = True  # at 4 × 256 tokens the order depends on the machine
    assert result == [True] * 10


# ------------------------------------------------------------------- worlds in which it is false


class Changed(nn.Module):
    """A model whose hidden states are changed."""

    def __init__(self, model: Any, change: Any) -> None:
        super().__init__()
        self.model = model
        self.change = change

    def hidden(self, tokens: Tensor) -> Tensor:
        return self.change(self.model.hidden(tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.change(self.model(tokens))


def test_a_plain_cnn_that_is_dilated_breaks_the_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    build = rivals.build_rival

    def dilated(name: str, *args: Any, **options: Any) -> Any:
        return build("dilated" if name == "plain" else name, *args, **options)

    monkeypatch.setattr(reach, "build_rival", dilated)
    assert holds(**{"path.seed-0": why_attention.measure_path_lengths(0)})[PATHS] is False
    assert holds(**{"position.seed-0": why_attention.measure_positions(0)})[POSITIONS] is False
    assert holds(**recalls("plain", FAR, 6e-3, 10))[PLAIN] is False


def test_a_cnn_that_counts_keeps_its_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    build = rivals.build_rival

    def counting(*args: Any, **options: Any) -> Any:
        model = build(*args, **options)
        return Changed(model, lambda x: x + torch.arange(x.shape[1])[:, None])

    monkeypatch.setattr(reach, "build_rival", counting)
    assert holds(**{"position.seed-0": why_attention.measure_positions(0)})[POSITIONS] is False


def test_models_that_do_not_learn_do_not_recall() -> None:
    assert holds(**recalls("gru", FAR, 1e-9, 5))[SOLVED] is False
    assert (
        holds(**recalls("lstm", FAR, 1e-9, 5), **recalls("lstm-one", FAR, 0.0, 5))[INITIALISED]
        is not True
    )


def test_forget_bias_one_may_be_better() -> None:
    learned = {
        name.replace("recall.gru", "recall.lstm-one"): row
        for name, row in measured().items()
        if name.startswith("recall.gru")
    }
    assert holds(**recalls("lstm", FAR, 1e-9, 5), **learned)[INITIALISED] is False


def test_a_plain_cnn_within_its_reach_depends_on_the_symbol() -> None:
    near = recalls("plain", 8, 6e-3, 5)
    at_far = {name.replace(".8.", f".{FAR}."): row for name, row in near.items()}
    assert holds(**at_far)[PLAIN] is False


def test_activations_that_grow_as_n_squared(monkeypatch: pytest.MonkeyPatch) -> None:
    build = rivals.build_rival

    def squares(x: Tensor) -> Tensor:
        return (x @ x.mT).repeat(64, 1, 1).exp().mean(0) @ x

    def squared(*args: Any, **options: Any) -> Any:
        return Changed(build(*args, **options), squares)

    monkeypatch.setattr(reach, "build_rival", squared)
    assert holds(**{"saved.to-256": saved()})[SAVED] is False


def test_a_slow_lstm(monkeypatch: pytest.MonkeyPatch) -> None:
    build = rivals.build_rival

    def slow(name: str, *args: Any, **options: Any) -> Any:
        model = build(name, *args, **options)
        return Changed(model, lambda x: time.sleep(0.05) or x) if name == "lstm" else model

    monkeypatch.setattr(reach, "build_rival", slow)
    assert holds(**step_rows(("attention", "lstm")))[STEP] is False
    monkeypatch.setattr(
        reach,
        "build_rival",
        lambda name, *args, **options: slow(
            {"lstm": "attention", "attention": "lstm"}[name], *args, **options
        ),
    )
    assert holds(**step_rows(("attention", "lstm")))[STEP] is True


def test_attention_that_leaves_a_product_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multi_head, "attention", lambda q, k, v, **options: q @ k.mT)
    assert holds(**{"work.to-64": kernel_costs.kernel_work((16, 64))})[WORK] is False


def test_other_laws_of_growth() -> None:
    square, linear = (lambda n: 72.0 * n**2), (lambda n: 9000.0 * n)
    result = [
        holds(**kernel_rows(square, square, linear)),
        holds(**kernel_rows(linear, linear, lambda n: 1e-3 * n**0.8)),
        holds(**kernel_rows(square, linear, linear)),
    ]
    assert [row[MEMORY] for row in result] == [False, False, True]
    assert result[1][TIME] is False
    assert result[2][TIME] is None
    assert [rows[PATHS] for rows in result] == [True] * 3


# --------------------------------------------------------------------------------- measuring code


@pytest.mark.parametrize("name", ["plain", "dilated"])
def test_the_view_of_the_convolutions_by_impulse(name: str) -> None:
    """Seven layers of kernel 3 by brute force: where an impulse arrives."""
    seen = np.zeros(300, dtype=bool)
    seen[0] = True
    for layer in range(rivals.LAYERS):
        dilation = 2**layer if name == "dilated" else 1
        seen = seen | np.roll(seen, dilation) | np.roll(seen, 2 * dilation)
    far = int(np.flatnonzero(seen).max())
    assert far == why_attention.REACH[name]
    assert reach.depends_on_first(name, far, layers=rivals.LAYERS, seed=0)
    assert not reach.depends_on_first(name, far + 1, layers=rivals.LAYERS, seed=0)


def test_a_convolution_by_torch() -> None:
    """The layer is torch's causal conv1d with the same weights."""
    layer, x = rivals.Convolution(6, 4), torch.randn(2, 30, 6)
    kernel = layer.weight.weight.reshape(6, rivals.KERNEL, 6).permute(0, 2, 1).flip(-1)
    padded = torch.nn.functional.pad(x.transpose(1, 2), (8, 0))
    expected = x + torch.nn.functional.conv1d(
        padded, kernel, layer.weight.bias, dilation=4
    ).relu().transpose(1, 2)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("kind", ["lstm", "gru"])
def test_chrono_gates_remember(kind: rivals.Cell) -> None:
    """With no other input, a unit's state decays by sigmoid(ln u) = u / (u + 1) per step."""
    torch.manual_seed(0)
    model = rivals.Recurrent(4, 3, hidden=500, kind=kind, memory=100)
    gate = rivals.gate_bias(model.cells, rivals.FORGET[kind]).detach().exp()
    assert 1 <= float(gate.min()) < 5
    assert 95 < float(gate.max()) <= 100
    with torch.no_grad():
        for weight in map(model.cells.get_parameter, ("weight_ih_l0", "weight_hh_l0")):
            weight.zero_()
        rivals.gate_bias(model.cells, 2).zero_()  # the candidate
        state = torch.ones(1, 1, 500)
        zeros = torch.zeros(1, 1, 3)
        after = (
            model.cells(zeros, (state, state))[1][1]
            if kind == "lstm"
            else model.cells(zeros, state)[1]
        )
    torch.testing.assert_close(after[0, 0], gate / (gate + 1))


def test_the_question_is_about_the_first_symbol() -> None:
    tokens, symbols = reach.recall_batch(9, 32, torch.Generator().manual_seed(0))
    assert tokens.shape == (32, 10)
    assert bool((tokens[:, 0] == symbols).all())
    assert int(symbols.max()) < reach.VALUES <= int(tokens[:, 1:].min())


def test_the_exponent_of_a_power() -> None:
    assert kernel_costs.growth_exponent(
        {"100": 3e-4 * 100**1.7, "200": 3e-4 * 200**1.7, "900": 3e-4 * 900**1.7}
    ) == pytest.approx(1.7)


@pytest.mark.long
def test_bytes_are_seen_to_grow_as_they_should() -> None:
    equation, fused = (
        kernel_costs.kernel_memory(kernel, (512, 1024, 2048)) for kernel in kernel_costs.KERNELS
    )
    assert equation["2048"] > 4 * 2048**2 * 4 > fused["2048"]


# -------------------------------------------------------------------------------------- the rest


def test_every_part_has_its_own_name() -> None:
    rates = {name: TunedRate(name, 1e-3, False, ()) for name in why_attention.MODELS}
    for tier in ("quick", "default", "full"):
        parts = why_attention.why_attention_parts(Plan(tier, 100, rates))
        names = [part.name for part in [*why_attention.why_attention_pilots(tier), *parts]]
        assert len(set(names)) == len(names)


def test_memory_that_was_not_measured_is_left_open() -> None:
    unmeasured = {f"memory.{kernel}.to-2048.again-0": {} for kernel in kernel_costs.KERNELS}
    kept = {name: row for name, row in measured().items() if not name.startswith("memory.")}
    numbers = kept | unmeasured
    assert why_attention.judge_why_attention(numbers)[MEMORY].holds is None
    assert set(why_attention.draw_why_attention(numbers)) == {"why-attention", "why-attention-cost"}


def test_it_can_be_drawn_and_summarized() -> None:
    assert set(why_attention.draw_why_attention(measured())) == {
        "why-attention",
        "why-attention-cost",
    }
    summary = why_attention.summarize_why_attention(measured())
    assert "LSTM" in summary.en
    assert "LSTM" in summary.ja
