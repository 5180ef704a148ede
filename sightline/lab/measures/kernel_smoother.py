"""A kernel smoother is attention with a fixed kernel (Nadaraya 1964, Watson 1964).

ŷ(x) = Σ_i K(x − x_i) y_i / Σ_i K(x − x_i)          K Gaussian of width h
     = softmax(x·x_i / h² − |x_i|² / 2h²) y
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

BANDWIDTHS = (0.01, 0.02, 0.04, 0.08, 0.16)  # fractions of the range


def attention_smoother(
    x: Tensor, places: Tensor, values: Tensor, width: float, *, leave_out: bool = False
) -> Tensor:
    """Attention with q = x, k = x_i, v = y_i, scale 1/h² and the bias −|x_i|²/2h². A mask excludes
    each point from its own mean."""
    import torch

    from sightline.core.multi_head import attention

    bias = (-places.square().sum(-1) / (2 * width**2)).expand(len(x), -1)
    if leave_out:
        bias = bias.masked_fill(torch.eye(len(x), dtype=torch.bool), -torch.inf)
    mixed = attention(
        x[None, None],
        places[None, None],
        values[None, None],
        scale=1 / width**2,
        bias=bias[None, None],
        kernel="equation",
    )
    assert isinstance(mixed, torch.Tensor)
    return mixed[0, 0]


def kernel_smoother(
    x: Tensor, places: Tensor, values: Tensor, width: float, *, leave_out: bool = False
) -> Tensor:
    """Nadaraya–Watson by definition: Σ K y / Σ K."""
    import torch

    kernel = torch.exp(-(x[:, None] - places[None]).square().sum(-1) / (2 * width**2))
    kernel = kernel.fill_diagonal_(0) if leave_out else kernel
    return kernel @ values / kernel.sum(-1, keepdim=True)


def measure_smoother(seed: int) -> dict[str, Any]:
    """y = 2 sin x + x^0.8 with noise: attention against the formula, and against the truth, at the
    bandwidth with the lowest leave-one-out error."""
    import torch

    random = torch.Generator().manual_seed(seed)
    places = 5 * torch.rand(80, 1, generator=random, dtype=torch.float64).sort(0).values
    truth = lambda x: 2 * x.sin() + x**0.8  # noqa: E731
    values = truth(places) + 0.5 * torch.randn(80, 1, generator=random, dtype=torch.float64)
    x = torch.linspace(0.2, 4.8, 60).double()[:, None]
    widths = [5 * width for width in BANDWIDTHS]
    left_out = [
        attention_smoother(places, places, values, width, leave_out=True) for width in widths
    ]
    by_hand = [kernel_smoother(places, places, values, width, leave_out=True) for width in widths]
    errors = [float((curve - values).square().mean()) for curve in left_out]
    best = widths[errors.index(min(errors))]
    smooth = attention_smoother(x, places, values, best)
    difference = max(
        float((a - b).abs().max())
        for a, b in zip(
            (*left_out, smooth), (*by_hand, kernel_smoother(x, places, values, best)), strict=True
        )
    )
    error = float((smooth - truth(x)).square().mean().sqrt())
    flat = float((values.mean() - truth(x)).square().mean().sqrt())
    curve = {
        "places": places[:, 0],
        "values": values[:, 0],
        "x": x[:, 0],
        "found": smooth[:, 0],
        "truth": truth(x)[:, 0],
    }
    return {
        "apart": difference,
        "width": best,
        "errors": errors,
        "error": error,
        "flat": flat,
        **curve,
    }


def smooth_losses(losses: Sequence[float]) -> dict[str, Any]:
    """A noisy curve smoothed by attention over its steps, at the bandwidth with the lowest
    leave-one-out error."""
    import torch

    values = torch.tensor(losses, dtype=torch.float64)[:, None]
    at = torch.linspace(0, 1, len(losses), dtype=torch.float64)[:, None]
    wide = [width for width in BANDWIDTHS if width * len(losses) >= 1] or BANDWIDTHS[-1:]
    errors = [
        float((attention_smoother(at, at, values, width, leave_out=True) - values).square().mean())
        for width in wide
    ]
    best = wide[errors.index(min(errors))]
    smooth = attention_smoother(at, at, values, best)
    return {
        "course": smooth[:, 0],
        "width": best,
        "apart": float((smooth - kernel_smoother(at, at, values, best)).abs().max()),
    }
