"""Run by test_learning: models and the attention layer under torch.compile, as one graph, forward
and backward. `python -m tests.laws.compiled BACKEND NAME …`"""

from __future__ import annotations

import sys

import torch

import sightline as sl
from tests.support.tiny import ALL, distance, inputs, make


def main() -> None:
    backend, *names = sys.argv[1:]
    for name in names:
        torch.compiler.reset()  # each model is a compilation of its own
        model, arguments = make(ALL[name]), inputs(ALL[name])
        compiled = torch.compile(model, backend=backend, fullgraph=True)
        expected, output = model(**arguments), compiled(**arguments)
        assert distance(expected, output) < 1e-5, name
        output.square().mean().backward()
        assert all(p.grad is not None for p in model.parameters() if p.requires_grad), name
    layer = sl.MultiHeadAttention(16, heads=4, positions=sl.Rotary(), kv_heads=2)
    x = torch.randn(2, 7, 16)
    compiled = torch.compile(layer, backend=backend, fullgraph=True)
    assert compiled(x, causal=True).allclose(layer(x, causal=True), atol=1e-6)
    print(f"{len(names) + 1} models compiled")


if __name__ == "__main__":
    main()
