"""Every legal configuration learns, and works as any PyTorch module does."""

from __future__ import annotations

import copy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import sightline as sl
from tests.support.tiny import ALL, GENERATORS, distance, inputs, make


@pytest.mark.parametrize("name", ALL)
def test_every_legal_configuration_overfits_one_tiny_batch(name: str) -> None:
    torch.manual_seed(0)
    model, arguments = sl.build(ALL[name]).train(), inputs(ALL[name], batch=2, time=6)
    target = torch.randint(0, 29, (2, 6))
    with torch.no_grad():
        answers = torch.randn_like(model(**arguments))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, fused=True)
    first = last = float("inf")
    for step in range(120):
        output = model(**arguments)
        if output.shape[-1] == 29:
            loss = F.cross_entropy(output.flatten(0, 1), target.flatten())
        else:
            loss = F.mse_loss(output, answers.tanh() if name == "bert-pooled" else answers)
        last = float(loss.detach())
        first = last if step == 0 else first
        if last < 0.1 * first:
            break
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        model.normalize_weights()
    assert last < 0.1 * first, f"{first:.3f} → {last:.3f}"


@pytest.mark.parametrize("name", ALL)
def test_every_parameter_gets_a_gradient(name: str) -> None:
    model = make(ALL[name]).train()
    output = model(**inputs(ALL[name]))
    (output * torch.randn_like(output)).sum().backward()
    for path, parameter in model.named_parameters():
        if parameter.requires_grad:
            assert parameter.grad is not None, path
            assert bool(torch.isfinite(parameter.grad).all()), path


@pytest.mark.parametrize("name", ALL)
def test_copies_and_saved_weights_are_the_same_model(name: str) -> None:
    model, arguments = make(ALL[name]), inputs(ALL[name])
    expected = model(**arguments)
    assert torch.equal(expected, copy.deepcopy(model)(**arguments))
    other = sl.build(ALL[name]).eval()
    other.load_state_dict(model.state_dict())
    assert torch.equal(expected, other(**arguments))


@pytest.mark.parametrize(
    "name",
    ["learned", "grouped", "alibi", "relative", "window", "ngpt", "bert", "transformer", "t5"],
)
def test_autocast_runs_and_is_near(name: str) -> None:
    model, arguments = make(ALL[name]), inputs(ALL[name])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = model(**arguments)
    assert distance(model(**arguments), low.float()) < 0.1


COMPILED = [
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


@pytest.mark.parametrize(
    ("backend", "names"),
    [
        pytest.param("eager", ["t5"], id="captured as one graph"),
        pytest.param("aot_eager", COMPILED, id="with its backward pass", marks=pytest.mark.long),
    ],
)
def test_torch_compile_gives_the_same_in_one_graph(backend: str, names: list[str]) -> None:
    """In another process: the shape checks that tests put into the core are not for compilers."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.laws.compiled", backend, *names],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert f"{len(names) + 1} models compiled" in done.stdout


def test_the_brick_inside_anybodys_model() -> None:
    class Theirs(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mix = sl.MultiHeadAttention(16, heads=4, positions=sl.Rotary(), kv_heads=2)
            self.head = torch.nn.Linear(16, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.mix(x, causal=True))

    model, x = Theirs(), torch.randn(2, 7, 16)
    assert copy.deepcopy(model)(x).equal(model(x))
    assert model.double()(x.double()).dtype == torch.float64
    with torch.device("meta"):
        assert Theirs()(torch.empty(2, 7, 16)).shape == (2, 7, 3)
    assert next(iter(dict(model.named_parameters()))) == "mix.query.weight"


def test_parameter_paths_read_as_sentences() -> None:
    paths = dict(sl.build(GENERATORS["transformer"]).named_parameters())
    for path in (
        "decoder.1.attention.query.weight",
        "decoder.0.cross_attention.value.bias",
        "encoder.embedding.tokens.weight",
        "encoder.1.feed_forward.down.weight",
    ):
        assert path in paths


def test_the_same_seed_builds_the_same_model() -> None:
    one, two = (torch.manual_seed(3) and sl.build(GENERATORS["rotary"]) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))
