"""W x + b by our own product: numbers and gradients against float64, and when torch's is taken
instead."""

import itertools

import pytest
import torch
import torch.nn.functional as F

import sightline as sl
from sightline.core.linear import Linear
from sightline.kernels import library as kernels
from tests.support.kernel_pair import off, pair

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
# rows, depth, columns: one, none, whole panels, a bit more, several blocks of depth, several of
# columns
SIZES = [
    (1, 1, 1),
    (5, 0, 7),
    (0, 8, 4),
    (4, 8, 0),
    (6, 8, 64),
    (7, 9, 65),
    (300, 1, 17),
    (192, 100, 33),
    (193, 769, 130),
    (13, 1537, 16),
    (97, 1600, 47),
    (2, 31, 6000),
]


@pytest.fixture(autouse=True)
def as_on_amd(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "OWN_PRODUCTS", True)


@pytest.mark.parametrize("size", SIZES)
def test_products_of_any_size_either_way(size, kind) -> None:
    rows, depth, columns = size
    torch.manual_seed(depth)
    for turned_a, turned_b, biased in itertools.product((False, True), repeat=3):
        a = torch.randn(depth, rows).t() if turned_a else torch.randn(rows, depth)
        b = torch.randn(columns, depth).t() if turned_b else torch.randn(depth, columns)
        bias = torch.randn(columns) if biased else None
        added = 0 if bias is None else bias
        truth, most = (
            a.double() @ b.double() + added,
            a.double().abs() @ b.double().abs() + abs(added),
        )
        unit = 2.0**-24  # each product and each sum is rounded once
        assert bool(
            (
                (kernels.product(a, b, bias) - truth).abs() <= min((depth + 2) * unit, 1e-5) * most
            ).all()
        )


def test_what_stands_neither_way_is_copied() -> None:
    a, b = torch.randn(20, 30)[::2, ::2], torch.randn(15, 40)[:, ::2]
    assert off(kernels.product(a, b), a.double() @ b.double()) < 1e-6


@pytest.mark.parametrize("biased", [True, False])
def test_gradients_are_those_of_the_formula(biased, kind, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "LEAST_WORK", 0)
    (x, x64), (w, w64), (b, b64) = pair(4, 51, 40, seed=1), pair(70, 40, seed=2), pair(70, seed=3)
    assert kernels.worth(x, w)
    ours, truth = (
        kernels.linear(x, w, b if biased else None),
        F.linear(x64, w64, b64 if biased else None),
    )
    slope = torch.randn(4, 51, 70, generator=torch.Generator().manual_seed(4))
    ours.backward(slope)
    truth.backward(slope.double())
    pairs = [
        (ours, truth),
        (x.grad, x64.grad),
        (w.grad, w64.grad),
        *([(b.grad, b64.grad)] if biased else []),
    ]
    assert all(off(one, other) < 1e-6 for one, other in pairs)


def test_what_needs_no_gradient_gets_none(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "LEAST_WORK", 0)
    (x, _), (w, _) = pair(200, 40, seed=1), pair(70, 40, seed=2)
    kernels.linear(x, w.detach()).sum().backward()
    assert x.grad is not None
    assert w.grad is None
    kernels.linear(x.detach(), w).sum().backward()
    assert w.grad is not None


def test_what_does_not_fit_is_refused_by_torch() -> None:
    layer, x = Linear(256, 512), torch.randn(300, 300, requires_grad=True)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        layer(x)
    x, one = torch.randn(300, 256, requires_grad=True), torch.ones(1)
    for bias in (one, one.expand(512), torch.randn(1024)[::2]):
        assert not kernels.worth(x, layer.weight, bias)
        assert (
            off(
                kernels.linear(x, layer.weight, bias),
                F.linear(x.double(), layer.weight.double(), bias.double()),
            )
            < 1e-6
        )
    with pytest.raises(RuntimeError, match="dtype"):
        kernels.linear(x, layer.weight, torch.ones(512, dtype=torch.float64))


def test_a_result_may_be_changed_in_place_and_defaults_do_not_matter() -> None:
    (x, x64), (w, w64) = pair(300, 256, seed=1), pair(512, 256, seed=2)
    torch.set_default_dtype(torch.float64)
    try:
        ours = kernels.linear(x, w)
    finally:
        torch.set_default_dtype(torch.float32)
    ours.div_(2).sum().backward()
    (F.linear(x64, w64) / 2).sum().backward()
    assert ours.dtype == torch.float32
    assert off(x.grad, x64.grad) < 1e-6


def test_only_what_the_gradient_needs_is_kept() -> None:
    """A frozen matrix needs no input, an input without a gradient no matrix."""
    (x, _), (w, _) = pair(300, 256, seed=1), pair(512, 256, seed=2)
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept.append(t.shape) or t, lambda t: t):
        kernels.linear(x, w.detach())
        kernels.linear(x.detach(), w)
    assert kept == [w.shape, x.shape]


def test_the_number_of_threads_changes_no_bit() -> None:
    a, b, before = torch.randn(700, 900), torch.randn(900, 200), torch.get_num_threads()
    result = []
    for count in (1, 2, 5):
        torch.set_num_threads(count)
        result.append(kernels.product(a, b))
    torch.set_num_threads(before)
    assert all(torch.equal(one, result[0]) for one in result)


def test_torch_does_it_where_ours_cannot_or_need_not(monkeypatch) -> None:
    layer, x = Linear(256, 512), torch.randn(300, 256, requires_grad=True)
    assert kernels.worth(x, layer.weight)
    with torch.no_grad():
        assert not kernels.worth(x, layer.weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not kernels.worth(x, layer.weight)
        assert layer(x).dtype == torch.bfloat16
    assert not kernels.worth(x[:10], layer.weight)
    assert not kernels.worth(x.double(), layer.weight)
    monkeypatch.setattr(kernels, "OWN_PRODUCTS", False)
    assert not kernels.worth(x, layer.weight)
    monkeypatch.setattr(kernels, "OWN_PRODUCTS", True)
    assert kernels.worth(x, layer.weight)
    monkeypatch.setattr(kernels, "missing", "not there")
    assert not kernels.worth(x, layer.weight)


def test_a_model_learns_alike_with_it_and_without(monkeypatch) -> None:
    """The same loss and gradients, to rounding, for every kind of model that has large products."""
    tokens = torch.randint(0, 50, (4, 64), generator=torch.Generator().manual_seed(0))
    for make in (sl.gpt, sl.llama, sl.ngpt):
        torch.manual_seed(0)
        model = sl.build(make(width=64, layers=2, heads=4, vocab_size=50))

        def gradients(least: int, model=model) -> list[torch.Tensor]:
            monkeypatch.setattr(kernels, "LEAST_WORK", least)
            model.zero_grad()
            F.cross_entropy(model(tokens).flatten(0, 1), tokens.flatten()).backward()
            return [p.grad.clone() for p in model.parameters()]

        ours, torchs = gradients(0), gradients(1 << 60)
        largest = max(
            float(gradient.abs().max()) for gradient in torchs
        )  # a key's bias has none but rounding
        assert all(
            (one - other).abs().max() < 1e-5 * largest
            for one, other in zip(ours, torchs, strict=True)
        )
