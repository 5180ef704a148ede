"""Why attention: paths by the formula, recall that is learned, exponents, and verdicts that follow
the numbers."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

from sightline.lab.experiments import why_attention
from sightline.lab.measures import kernel_costs, rivals


@pytest.fixture(scope="module")
def numbers() -> dict[str, Any]:
    """Real paths and recalls of one seed; times and bytes by their laws."""
    found: dict[str, Any] = {"path.seed-0": why_attention.measure_path_lengths(0)}
    for name in why_attention.MODELS:
        for far in (4, 20):
            found[f"recall.{name}.{far}.steps-75.seed-0"] = why_attention.train_recall(
                name, far, 0, 75
            )
    lengths = (512, 1024, 2048)
    found["memory.equation.to-2048.again-0"] = {str(n): 72 * n**2 for n in lengths}
    found["memory.fused.to-2048.again-0"] = {str(n): 9000 * n for n in lengths}
    found["kernel-time.to-2048.seed-0"] = {
        kernel: {str(n): 1e-8 * n**2 for n in lengths} for kernel in kernel_costs.KERNELS
    }
    found["step-time.to-128.seed-0"] = why_attention.time_training_steps((64, 128), 0)
    return found


def test_what_is_learned_bears_the_claim_out(numbers: dict[str, Any]) -> None:
    assert [check.holds for check in why_attention.judge_why_attention(numbers)] == [True] * 8


def test_edited_numbers_turn_the_verdict(numbers: dict[str, Any]) -> None:
    edited = copy.deepcopy(numbers)
    edited["path.seed-0"]["plain"]["64"] = 6
    edited["recall.attention.20.steps-75.seed-0"]["right"] = 0.2
    edited["recall.plain.20.steps-75.seed-0"]["right"] = 0.9
    edited["memory.fused.to-2048.again-0"] = edited["memory.equation.to-2048.again-0"]
    assert [check.holds for check in why_attention.judge_why_attention(edited)] == [
        False,
        False,
        True,
        False,
        True,
        True,
        False,
        True,
    ]


def test_memory_that_was_not_measured_is_left_open(numbers: dict[str, Any]) -> None:
    edited = numbers | {"memory.equation.to-2048.again-0": {}, "memory.fused.to-2048.again-0": {}}
    assert [check.holds for check in why_attention.judge_why_attention(edited)][5:7] == [None, None]
    assert set(why_attention.draw_why_attention(edited)) == {"why-attention", "why-attention-cost"}


@pytest.mark.parametrize("name", ["plain", "dilated"])
def test_the_view_of_the_convolutions_by_impulse(name: str) -> None:
    """Seven layers of kernel 3 by brute force: where an impulse arrives."""
    seen = np.zeros(300, dtype=bool)
    seen[0] = True
    for layer in range(rivals.LAYERS):
        dilation = 2**layer if name == "dilated" else 1
        seen = seen | np.roll(seen, dilation) | np.roll(seen, 2 * dilation)
    far = int(np.flatnonzero(seen).max())
    assert far == {"plain": 14, "dilated": 254}[name]
    assert rivals.depends_on_first(name, far, layers=rivals.LAYERS, seed=0)
    assert not rivals.depends_on_first(name, far + 1, layers=rivals.LAYERS, seed=0)


def test_a_convolution_by_torch() -> None:
    """The layer is torch's causal conv1d with the same weights."""
    layer, x = rivals.Convolution(6, 4), torch.randn(2, 30, 6)
    kernel = layer.weight.weight.reshape(6, rivals.KERNEL, 6).permute(0, 2, 1).flip(-1)
    padded = torch.nn.functional.pad(x.transpose(1, 2), (8, 0))
    expected = x + torch.nn.functional.conv1d(
        padded, kernel, layer.weight.bias, dilation=4
    ).relu().transpose(1, 2)
    torch.testing.assert_close(layer(x), expected)


def test_the_question_is_about_the_first_symbol() -> None:
    tokens, symbols = why_attention.recall_batch(9, 32, torch.Generator().manual_seed(0))
    assert tokens.shape == (32, 10)
    assert bool((tokens[:, 0] == symbols).all())
    assert int(symbols.max()) < why_attention.VALUES <= int(tokens[:, 1:].min())


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


def test_it_can_be_drawn_and_told(numbers: dict[str, Any]) -> None:
    assert set(why_attention.draw_why_attention(numbers)) == {"why-attention", "why-attention-cost"}
    said = why_attention.summarize_why_attention(numbers)
    assert "LSTM" in said.en
    assert "LSTM" in said.ja
