"""Kernels of our own, in C++ (`csrc/`), for float32 on a processor: products, attention with its
gradient, activations, RMSNorm.

They were compiled when the package was installed, for several kinds of processor; the best that
this one can run is chosen when they are loaded. Where they could not be compiled, `missing` says
so, and torch does the same work.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def load(wanted: str) -> tuple[Any, str]:
    """The compiled module, or why there is none. `SIGHTLINE_NATIVE` may be 0, or the path of
    another build of it."""
    if wanted == "0":
        return None, "left out by SIGHTLINE_NATIVE=0"
    try:
        if not wanted:
            return importlib.import_module("sightline._native"), ""
        spec = importlib.util.spec_from_file_location("_native", wanted)
        if spec is None or spec.loader is None:
            return None, f"SIGHTLINE_NATIVE={wanted} is no extension module"
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module, ""
    except ImportError as error:
        return None, f"not compiled on this machine ({error})"


_native, missing = load(os.environ.get("SIGHTLINE_NATIVE", ""))
OWN_PRODUCTS = not missing and _native.kind() != "portable" and bool(_native.by_amd())
"""Whether matrix products are ours. On an AMD processor, with its AVX-512 and with its AVX2 alone,
they were measured to be faster than those of torch's library, which is Intel's; on processors of
other makers they were not measured."""
CURVES = ("relu", "gelu", "gelu_tanh", "silu")


def available() -> bool:
    return not missing


def suits(*tensors: Tensor) -> bool:
    """Whether the kernels can be given these: float32, in memory of this process, outside of
    torch.compile."""
    return (
        not missing
        and not torch.compiler.is_compiling()
        and all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
    )


def learns(x: Tensor) -> bool:
    """Whether a gradient will be asked for: the pass over memory that is saved is worth a call of
    our own then."""
    return x.requires_grad and torch.is_grad_enabled()


@functools.cache
def join_team() -> None:
    """Work on torch's own threads where it has libgomp: they wait by spinning, and a second team
    would fight with them."""
    try:
        loaded = {
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "libgomp" in line
        }
        if len(loaded) == 1:
            team = ctypes.CDLL(loaded.pop())
            asked = (team.GOMP_parallel, team.omp_get_thread_num, team.omp_get_num_threads)
            _native.set_team(*(ctypes.cast(one, ctypes.c_void_p).value for one in asked))
    except (OSError, AttributeError):
        pass  # then a team of our own


def ready() -> Any:
    """The compiled module, with as many threads as torch has."""
    join_team()
    _native.set_threads(torch.get_num_threads())
    return _native


def address(x: Tensor | None) -> int:
    return 0 if x is None else x.data_ptr()


def strided(x: Tensor) -> tuple[int, int, int, int]:
    """[batch, heads, time, dim] as the kernels take it."""
    return x.data_ptr(), x.stride(0), x.stride(1), x.stride(2)


def last_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


class Attention(torch.autograd.Function):
    """softmax(q kᵀ · scale) v, where query i of a row sees the keys first … end − 1."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        scale: float,
        first: Tensor | None,
        end: Tensor | None,
    ) -> Tensor:
        q, k, v = (last_contiguous(x) for x in (q, k, v))
        batch, heads, queries, dim = q.shape
        ctx.sizes = (batch, heads, k.shape[1], queries, k.shape[2], dim)
        ctx.scale = scale
        out = torch.empty(batch, queries, heads, dim).transpose(1, 2)
        logs = torch.empty(batch, heads, queries)
        ready().attention(
            ctx.sizes,
            scale,
            address(first),
            address(end),
            *map(strided, (q, k, v, out)),
            logs.data_ptr(),
        )
        ctx.save_for_backward(q, k, v, out, logs, first, end)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, out, logs, first, end = ctx.saved_tensors
        slope = last_contiguous(slope)
        dq, dk, dv = side_by_side(q, k, v) or [
            torch.empty(x.transpose(1, 2).shape).transpose(1, 2) for x in (q, k, v)
        ]
        before = map(strided, (q, k, v, out))
        after = map(strided, (slope, dq, dk, dv))
        ready().attention_back(
            ctx.sizes, ctx.scale, address(first), address(end), *before, logs.data_ptr(), *after
        )
        return dq, dk, dv, None, None, None


class Activate(torch.autograd.Function):
    """act(x), or act(x) ⊙ up."""

    @staticmethod
    def forward(ctx: Any, kind: int, x: Tensor, up: Tensor | None) -> Tensor:
        x = x.contiguous()
        up = None if up is None else up.contiguous()
        ctx.kind = kind
        y = torch.empty_like(x)
        ready().activate(kind, x.numel(), x.data_ptr(), address(up), y.data_ptr())
        ctx.save_for_backward(x, up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, up = ctx.saved_tensors
        slope = slope.contiguous()
        dx = torch.empty_like(x)
        dup = None if up is None else torch.empty_like(up)
        ready().activate_back(
            ctx.kind,
            x.numel(),
            x.data_ptr(),
            address(up),
            slope.data_ptr(),
            dx.data_ptr(),
            address(dup),
        )
        return None, dx, dup


class RootMeanSquare(torch.autograd.Function):
    """x / √(mean x² + ε) · gain."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None, epsilon: float) -> Tensor:
        x = x.contiguous()
        width = x.shape[-1]
        y = torch.empty_like(x)
        inverse = torch.empty(x.numel() // width)
        ready().rms_norm(
            len(inverse),
            width,
            x.data_ptr(),
            address(gain),
            epsilon,
            y.data_ptr(),
            inverse.data_ptr(),
        )
        ctx.save_for_backward(x, gain, inverse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, gain, inverse = ctx.saved_tensors
        slope = slope.contiguous()
        width = x.shape[-1]
        dx = torch.empty_like(x)
        dgain = torch.empty_like(gain) if gain is not None and ctx.needs_input_grad[1] else None
        scratch = torch.empty((len(inverse) + 31) // 32, width) if dgain is not None else None
        given = (x.data_ptr(), address(gain), inverse.data_ptr(), slope.data_ptr())
        ready().rms_norm_back(
            len(inverse), width, *given, dx.data_ptr(), address(dgain), address(scratch)
        )
        return dx, dgain, None


FEWEST_ROWS, LEAST_WORK = (
    192,
    1 << 24,
)  # of a product that is worth a call of our own: rows, and products of two numbers


def worth(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether our own W x + b is quicker than torch's: many rows, large matrices, a gradient to
    come. What does not fit is left to torch, which says so."""
    rows = x.numel() // max(1, x.shape[-1])
    return (
        OWN_PRODUCTS
        and rows >= FEWEST_ROWS
        and rows * weight.numel() >= LEAST_WORK
        and suits(x, weight)
        and torch.is_grad_enabled()
        and (x.requires_grad or weight.requires_grad)
        and not torch.is_autocast_enabled("cpu")
        and type(weight) in (Tensor, torch.nn.Parameter)
        and weight.ndim == 2
        and x.shape[-1] == weight.shape[1]
        and (
            bias is None
            or (suits(bias) and bias.shape == weight.shape[:1] and bias.is_contiguous())
        )
    )


def standing(x: Tensor) -> tuple[int, int, int]:
    return x.data_ptr(), x.stride(0), x.stride(1)


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """a b + bias, of matrices that stand either way; into `out` where it is given, whose last axis
    is the columns."""
    assert a.shape[1] == b.shape[0]
    a, b = (x if 1 in x.stride() else x.contiguous() for x in (a, b))
    out = a.new_empty(a.shape[0], b.shape[1]) if out is None else out
    ready().matmul(
        (a.shape[0], b.shape[1], a.shape[1]),
        standing(a),
        standing(b),
        address(bias),
        out.data_ptr(),
        b.shape[1],
    )
    return out


class Linear(torch.autograd.Function):
    """W x + b for every row of x;  dx = dy W,  dW = dyᵀ x,  db = Σ dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows, (for_x, for_weight, _) = x.reshape(-1, x.shape[-1]), ctx.needs_input_grad
        ctx.save_for_backward(rows if for_weight else None, weight if for_x else None)
        return product(rows, weight.t(), bias, x.new_empty(*x.shape[:-1], len(weight)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, weight = ctx.saved_tensors
        slopes, (for_x, for_weight, for_bias) = (
            slope.reshape(-1, slope.shape[-1]),
            ctx.needs_input_grad,
        )
        dx = (
            product(slopes, weight, out=slope.new_empty(*slope.shape[:-1], weight.shape[1]))
            if for_x
            else None
        )
        return (
            dx,
            product(slopes.t(), rows) if for_weight else None,
            slopes.sum(0) if for_bias else None,
        )


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W x + b, by our own product where it is worth it."""
    if worth(x, weight, bias):
        return Linear.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
    return torch.nn.functional.linear(x, weight, bias)


def linear_parts(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """W₁ x + b₁, W₂ x + b₂, …: one large product is quicker than several small ones, and so is its
    gradient."""
    given = [bias for bias in biases if bias is not None]
    joined = linear(x, torch.cat(list(weights)), torch.cat(given) if given else None)
    widths = [len(weight) for weight in weights]
    return Parts.apply(joined, widths) if suits(joined) else joined.split(widths, dim=-1)  # pyright: ignore[reportReturnType]


class Parts(torch.autograd.Function):
    """Columns of one product as several. Their gradients are not copied where they already stand
    side by side."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, widths: list[int]) -> tuple[Tensor, ...]:
        return joined.split(widths, dim=-1)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first = slopes[0]
        widths = [slope.shape[-1] for slope in slopes]
        form = torch.empty((*first.shape[:-1], sum(widths)), device="meta")
        room = first.untyped_storage().nbytes() // first.element_size() - first.storage_offset()
        if first.stride() == form.stride() and form.numel() <= room:
            whole = first.as_strided(form.shape, form.stride())
            if all(map(same_place, slopes, whole.split(widths, dim=-1))):
                return whole, None
        return torch.cat(slopes, dim=-1), None


def same_place(x: Tensor, y: Tensor) -> bool:
    return x.data_ptr() == y.data_ptr() and x.stride() == y.stride()


def side_by_side(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor] | None:
    """Room for the gradients of q, k and v as these stand themselves where they are parts of one
    product, [batch, time, joined]."""
    batch, _, time, dim = q.shape
    widths = [x.shape[1] * dim for x in (q, k, v)]
    if (
        k.shape[2] != time
        or v.shape[-1] != dim
        or q.stride() != (time * sum(widths), dim, sum(widths), 1)
    ):
        return None
    ends = [q.data_ptr(), *(4 * sum(widths[:n]) + q.data_ptr() for n in (1, 2))]
    if any(
        x.data_ptr() != end or x.stride() != q.stride()
        for x, end in zip((q, k, v), ends, strict=True)
    ):
        return None
    parts = torch.empty(batch, time, sum(widths)).split(widths, dim=-1)
    return [part.unflatten(-1, (-1, dim)).transpose(1, 2) for part in parts]


class Rotate(torch.autograd.Function):
    """Pairs (x_i, x_{i + pairs}) turned by their angles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return Rotate.turned(x, cosines, sines, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cosines, sines = ctx.saved_tensors
        return Rotate.turned(slope, cosines, sines, -1.0), None, None

    @staticmethod
    def turned(x: Tensor, cosines: Tensor, sines: Tensor, turn: float) -> Tensor:
        x, (batch, heads, time, dim) = last_contiguous(x), x.shape
        y = torch.empty(batch, time, heads, dim).transpose(1, 2)
        sizes = (batch, heads, time, dim, cosines.shape[-1])
        row = cosines.stride(0) if len(cosines) > 1 else 0
        ready().rotate(
            sizes, cosines.data_ptr(), sines.data_ptr(), row, turn, strided(x), strided(y)
        )
        return y


def rotate(x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
    """cosines, sines: [#batch, 1, time, pairs], contiguous."""
    return Rotate.apply(x, cosines, sines)  # pyright: ignore[reportReturnType]


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    scale: float,
    first: Tensor | None = None,
    end: Tensor | None = None,
) -> Tensor:
    """first, end: int32 [batch, queries]; without them every query sees every key."""
    return Attention.apply(q, k, v, scale, first, end)  # pyright: ignore[reportReturnType]


def activate(curve: str, x: Tensor, up: Tensor | None = None) -> Tensor:
    return Activate.apply(CURVES.index(curve), x, up)  # pyright: ignore[reportReturnType]


def rms_norm(x: Tensor, gain: Tensor | None, epsilon: float) -> Tensor:
    return RootMeanSquare.apply(x, gain, epsilon)  # pyright: ignore[reportReturnType]
