"""Our own kernels against the equation in float64, for odd shapes, on every kind of processor that
this one can play."""

import multiprocessing

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sightline.core.attention import Scoring, equation, fused
from sightline.core.masks import Mask
from sightline.kernels import library as kernels
from tests.support.kernel_pair import off, pair

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
ACTIVATIONS = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
}


SHAPES = [  # batch, heads, kv_heads, queries, keys, dim
    (2, 4, 4, 37, 37, 16),
    (1, 6, 2, 100, 100, 40),
    (2, 3, 3, 50, 71, 24),
    (1, 2, 1, 5, 5, 96),
    (1, 1, 1, 1, 9, 3),
    (1, 2, 2, 49, 200, 64),
]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", ["nothing", "triangle", "window", "ragged"])
def test_attention_is_the_equation_and_so_are_its_gradients(shape, masked, kind) -> None:
    batch, heads, kv_heads, queries, keys, dim = shape
    (q, q64), (k, k64), (v, v64) = (
        pair(batch, heads, queries, dim, seed=1),
        pair(batch, kv_heads, keys, dim, seed=2),
        pair(batch, kv_heads, keys, dim, seed=3),
    )
    first, end = runs(masked, batch, queries, keys)
    at = torch.arange(keys)
    allowed = (at >= first[..., None]) & (at < end[..., None])
    out = kernels.attention(
        q,
        k,
        v,
        scale=0.3,
        first=None if masked == "nothing" else first.int(),
        end=None if masked == "nothing" else end.int(),
    )
    scores = (
        q64 @ k64.repeat_interleave(heads // kv_heads, 1).transpose(-2, -1) * 0.3
    ).masked_fill(~allowed[:, None], -1e300)
    truth = (scores.softmax(-1) * allowed[:, None]) @ v64.repeat_interleave(heads // kv_heads, 1)
    assert off(out, truth) < 3e-6
    slope = torch.randn(truth.shape, generator=torch.Generator().manual_seed(4))
    out.backward(slope)
    truth.backward(slope.double())
    for ours, theirs in ((q, q64), (k, k64), (v, v64)):
        assert off(ours.grad, theirs.grad) < 1e-5


def runs(masked: str, batch: int, queries: int, keys: int) -> tuple[Tensor, Tensor]:
    at = torch.arange(queries).expand(batch, -1)
    if masked == "triangle":
        return torch.zeros_like(at), (at + 1 + keys - queries).contiguous()
    if masked == "window":
        return (at - 3).contiguous(), (at + 4).clamp(max=keys).contiguous()
    if masked == "ragged":  # some queries see nothing at all
        random = torch.Generator().manual_seed(5)
        first = torch.randint(0, keys + 1, (batch, queries), generator=random)
        return first, torch.randint(0, keys + 1, (batch, queries), generator=random)
    return torch.zeros_like(at), torch.full_like(at, keys)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("count", [1, 7, 8, 1001, 40_000])
def test_activations_and_their_slopes(activation, count, kind) -> None:
    (x, x64), (up, up64) = pair(count, seed=1), pair(count, seed=2)
    with torch.no_grad():
        for one in (x, x64):
            one.mul_(4)
    for gate, gate64 in ((None, None), (up, up64)):
        y, truth = (
            kernels.activate(activation, x, gate),
            ACTIVATIONS[activation](x64) * (1.0 if gate64 is None else gate64),
        )
        assert off(y, truth) < 1e-6
        slopes, true_slopes = (
            torch.autograd.grad(one.sum(), inputs)
            for one, inputs in (
                (y, [x] if gate is None else [x, up]),
                (truth, [x64] if gate is None else [x64, up64]),
            )
        )
        assert all(off(a, b) < 2e-6 for a, b in zip(slopes, true_slopes, strict=True))


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (3, 50), (100, 8), (33, 257)])
@pytest.mark.parametrize("gained", [True, False])
def test_rms_norm_and_its_slopes(rows, width, gained, kind) -> None:
    (x, x64), (gain, gain64) = pair(rows, width, seed=1), pair(width, seed=2)
    y = kernels.rms_norm(x, gain if gained else None, 1e-5)
    truth = x64 / (x64.square().mean(-1, keepdim=True) + 1e-5).sqrt() * (gain64 if gained else 1.0)
    assert off(y, truth) < 1e-6
    slope = torch.randn(rows, width, generator=torch.Generator().manual_seed(3))
    y.backward(slope)
    truth.backward(slope.double())
    assert off(x.grad, x64.grad) < 1e-5 or width == 1  # one number: the slope is nearly 0
    assert not gained or off(gain.grad, gain64.grad) < 1e-5


@pytest.mark.parametrize(("dim", "pairs"), [(2, 1), (24, 8), (40, 20), (64, 32)])
@pytest.mark.parametrize("rows", [1, 3])
def test_rotation_and_the_way_back(dim, pairs, rows, kind) -> None:
    x, x64 = pair(3, 2, 11, dim, seed=1)
    angle = torch.randn(rows, 1, 11, pairs, generator=torch.Generator().manual_seed(2))
    y = kernels.rotate(x.transpose(1, 2).contiguous().transpose(1, 2), angle.cos(), angle.sin())
    a, b = x64[..., :pairs], x64[..., pairs : 2 * pairs]
    cosine, sine = angle.double().cos(), angle.double().sin()
    truth = torch.cat((a * cosine - b * sine, b * cosine + a * sine, x64[..., 2 * pairs :]), -1)
    assert off(y, truth) < 1e-6
    slope = torch.randn(truth.shape, generator=torch.Generator().manual_seed(3))
    y.backward(slope)
    truth.backward(slope.double())
    assert off(x.grad, x64.grad) < 1e-6


def test_the_number_of_threads_changes_no_bit() -> None:
    before, result = torch.get_num_threads(), []
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            (q, _), (k, _), (v, _), (gain, _) = (
                pair(3, 4, 70, 24, seed=1),
                pair(3, 2, 70, 24, seed=2),
                pair(3, 2, 70, 24, seed=3),
                pair(24, seed=4),
            )
            out = kernels.rms_norm(
                kernels.activate("gelu", kernels.attention(q, k, v, scale=0.2)), gain, 1e-5
            )
            result.append([out.detach(), *torch.autograd.grad(out.square().sum(), (q, k, v, gain))])
    finally:
        torch.set_num_threads(before)
    assert all(
        torch.equal(a, b) for other in result[1:] for a, b in zip(result[0], other, strict=True)
    )


def test_a_row_does_not_depend_on_the_others() -> None:
    q, k, v = (
        torch.randn(4, 3, 65, 16, generator=torch.Generator().manual_seed(n)) for n in range(3)
    )
    together = kernels.attention(q, k, v, scale=0.25)
    for row in range(4):
        assert torch.equal(
            together[row : row + 1],
            kernels.attention(q[row : row + 1], k[row : row + 1], v[row : row + 1], scale=0.25),
        )


def masks() -> dict[str, Mask]:
    at = torch.arange(7)[None]
    documents = torch.tensor([[0, 0, 1, 1, 1, 2, 2], [3, 3, 3, 3, 3, 3, 3]])
    restarted = torch.tensor([[0, 1, 0, 1, 2, 0, 1], [0, 1, 2, 3, 4, 5, 6]])
    return {
        "triangle": Mask(at, at, causal=True, offset=0),
        "window": Mask(at, at, causal=True, window=3, offset=0),
        "near": Mask(at, at, window=3, offset=0),
        "all": Mask(at, at, offset=0),
        "cached": Mask(at + 4, torch.arange(11)[None], causal=True, offset=4),
        "cached window": Mask(at + 4, torch.arange(11)[None], causal=True, window=4, offset=4),
        "documents": Mask(restarted, restarted, True, None, None, documents, documents),
        "documents, window": Mask(restarted, restarted, True, 2, None, documents, documents),
    }


@pytest.mark.parametrize("name", masks())
def test_runs_are_the_predicate(name) -> None:
    mask = masks()[name]
    result = mask.key_ranges()
    assert result is not None
    at = torch.arange(mask.keys)
    assert torch.equal(
        (at >= result[0][..., None]) & (at < result[1][..., None]), mask.allowed()[:, 0]
    )


def test_runs_are_not_claimed_where_they_are_not_known() -> None:
    at, mixed = torch.arange(4)[None], torch.tensor([[0, 1, 0, 1]])
    assert Mask(at, at.masked_fill(at == 1, -1)).key_ranges() is None
    assert Mask(at, at, True, None, None, mixed, mixed).key_ranges() is None
    assert Mask(at, at, False, None, None, mixed, mixed).key_ranges() is None


@pytest.mark.parametrize("name", masks())
def test_core_uses_them_and_stays_the_equation(name, monkeypatch) -> None:
    mask, called = masks()[name], []
    monkeypatch.setattr(
        kernels,
        "attention",
        lambda *args, real=kernels.attention, **named: called.append(1) or real(*args, **named),
    )
    q, k, v = (
        torch.randn(2, 2, count, 8, generator=torch.Generator().manual_seed(n), requires_grad=True)
        for n, count in enumerate((mask.queries, mask.keys, mask.keys))
    )
    scoring = Scoring(mask, 0.35)
    ours, theirs = fused(q, k, v, scoring), equation(q, k, v, scoring)
    assert called
    assert off(ours, theirs) < 1e-6
    for a, b in zip(
        torch.autograd.grad(ours.square().sum(), (q, k, v)),
        torch.autograd.grad(theirs.square().sum(), (q, k, v)),
        strict=True,
    ):
        assert off(a, b) < 1e-5


def in_a_child(pipe) -> None:
    x = torch.linspace(-3, 3, 100_000)
    pipe.send(float(kernels.activate("gelu", x).double().sum()))


def test_a_forked_child_can_use_them() -> None:
    x = torch.linspace(-3, 3, 100_000)
    here = float(kernels.activate("gelu", x).double().sum())
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe()
    child = context.Process(target=in_a_child, args=(theirs,))
    child.start()
    assert ours.poll(30), "the child hangs"
    assert ours.recv() == here
    child.join(10)
    assert child.exitcode == 0


def test_without_them_torch_does_the_work(monkeypatch) -> None:
    monkeypatch.setattr(kernels, "missing", "not compiled")
    monkeypatch.setattr(kernels, "_native", None)
    at = torch.arange(9)[None]
    q = torch.randn(1, 2, 9, 8, requires_grad=True)
    fused(q, q, q, Scoring(Mask(at, at, causal=True, offset=0), 0.3)).sum().backward()
    assert q.grad is not None


def parts_of(x, weights, heads, kv_heads, *, joined: bool):
    """q, k and v of one product, or of three."""
    parts = (
        kernels.linear_parts(x, weights, [None] * 3)
        if joined
        else [torch.nn.functional.linear(x, weight) for weight in weights]
    )
    return [
        part.unflatten(-1, (count, -1)).transpose(1, 2)
        for part, count in zip(parts, (heads, kv_heads, kv_heads), strict=True)
    ]


@pytest.mark.parametrize(("heads", "kv_heads"), [(3, 3), (4, 2)])
@pytest.mark.parametrize("time", [1, 7, 50])
def test_gradients_of_parts_stand_side_by_side(
    heads: int, kv_heads: int, time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    x = torch.randn(2, time, 24, requires_grad=True)
    weights = [
        torch.randn(count * 8, 24, requires_grad=True) for count in (heads, kv_heads, kv_heads)
    ]
    end = torch.arange(1, time + 1, dtype=torch.int32).expand(2, time).contiguous()
    result, joins, cat = [], [], torch.cat
    monkeypatch.setattr(
        torch, "cat", lambda parts, *a, **k: joins.append(parts[0].shape) or cat(parts, *a, **k)
    )
    for joined in (True, False):
        loss = (
            kernels.attention(
                *parts_of(x, weights, heads, kv_heads, joined=joined), scale=0.3, end=end
            )
            .square()
            .sum()
        )
        joins.clear()
        result.append(torch.autograd.grad(loss, [x, *weights]))
        assert joins == [] or time == 1  # nobody copies them into one
    for ours, theirs in zip(*result, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_parts_whose_gradients_come_from_anywhere() -> None:
    torch.manual_seed(0)
    x, weights = (
        torch.randn(3, 4, requires_grad=True),
        [torch.randn(rows, 4, requires_grad=True) for rows in (2, 5)],
    )
    slopes = torch.randn(3, 7).split([2, 5], dim=-1)
    for given in (
        slopes,
        [slope.contiguous() for slope in slopes],
        [slopes[0], torch.randn(3, 5)],
        [torch.ones(1, 1).expand(3, 2), slopes[1]],
    ):
        ours = torch.autograd.grad(
            kernels.linear_parts(x, weights, [None, None]), [x, *weights], given
        )
        theirs = torch.autograd.grad(
            [torch.nn.functional.linear(x, weight) for weight in weights], [x, *weights], given
        )
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b)
