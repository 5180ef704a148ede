"""Run by test_learning: models and the brick under torch.compile, whole graph, forward and
backward."""

from __future__ import annotations

import torch

import sightline as sl
from tests.support.tiny import ALL, distance, inputs, make

NAMES = [
    "learned",
    "grouped",
    "alibi",
    "relative",
    "window-alternating",
    "ngpt",
    "bert",
    "transformer",
    "t5",
]


def main() -> None:
    for name in NAMES:
        torch.compiler.reset()  # each model is a compilation of its own
        model, arguments = make(ALL[name]), inputs(ALL[name])
        compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
        expected, found = model(**arguments), compiled(**arguments)
        assert distance(expected, found) < 1e-5, name
        found.square().mean().backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad), name
    brick, x = (
        sl.MultiHeadAttention(16, heads=4, positions=sl.Rotary(), kv_heads=2),
        torch.randn(2, 7, 16),
    )
    assert torch.compile(brick, backend="aot_eager", fullgraph=True)(x, causal=True).allclose(
        brick(x, causal=True), atol=1e-6
    )
    print(f"{len(NAMES) + 1} models compiled")


if __name__ == "__main__":
    main()
