"""The C++ kernels (`csrc/training`) as differentiable torch operations, for float32 on the CPU:
matrix products, attention, activations, RMSNorm, RoPE.

They are compiled when the package is installed, for several instruction sets; the best that this
processor has is selected when the module is loaded. Without a compiled module, `missing` is the
reason, and torch does the same work.
"""

from __future__ import annotations

import ctypes
import functools
import importlib
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

INTERFACE = 2
"""The version of the compiled module's interface; a module built from matching sources has it."""


def load(choice: str) -> tuple[Any, str]:
    """The compiled module, or why there is none. `choice` is the value of SIGHTLINE_NATIVE: empty,
    0, or the path of another build."""
    if choice == "0":
        return None, "left out by SIGHTLINE_NATIVE=0"
    try:
        module = load_file(choice) if choice else importlib.import_module("sightline._native")
    except ImportError as error:
        return None, f"not compiled on this machine ({error})"
    if getattr(module, "INTERFACE", None) != INTERFACE:
        return None, "compiled from other sources than this version's; install Sightline again"
    return module, ""


def load_file(path: str) -> Any:
    """An extension module by its path."""
    spec = importlib.util.spec_from_file_location("_native", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"SIGHTLINE_NATIVE={path} is not an extension module")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_loaded, missing = load(os.environ.get("SIGHTLINE_NATIVE", ""))
if TYPE_CHECKING:
    from sightline import _native
else:
    _native = _loaded
OWN_PRODUCTS = not missing and _native.instruction_set() != "portable" and _native.is_amd()
"""Whether large matrix products are ours. On AMD processors, with AVX-512 and with only AVX2, they
were measured to be faster than torch's (MKL); on processors of other vendors they were not
measured."""


def available() -> bool:
    return not missing


def suits(*tensors: Tensor) -> bool:
    """Whether the kernels can take these tensors: float32, on the CPU, outside of torch.compile."""
    return (
        not missing
        and not torch.compiler.is_compiling()
        and all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
    )


def learns(x: Tensor) -> bool:
    """Whether a gradient will be computed: then a fused kernel saves a pass over memory."""
    return x.requires_grad and torch.is_grad_enabled()


@functools.cache
def share_openmp_threads() -> None:
    """Run on torch's OpenMP threads where it uses libgomp: they spin while they wait, and a second
    pool would compete with them for the cores. Otherwise the module makes its own threads."""
    try:
        libraries = {
            line.split()[-1]
            for line in Path("/proc/self/maps").read_text().splitlines()
            if "libgomp" in line
        }
        if len(libraries) != 1:
            return
        openmp = ctypes.CDLL(libraries.pop())
        functions = (openmp.GOMP_parallel, openmp.omp_get_thread_num, openmp.omp_get_num_threads)
        parallel, number, count = (
            ctypes.cast(function, ctypes.c_void_p).value or 0 for function in functions
        )
        _native.use_openmp(parallel, number, count)
    except (OSError, AttributeError):
        pass


def ready():  # the type checker infers the module, with its stub
    """The compiled module, set to as many threads as torch has."""
    share_openmp_threads()
    _native.set_threads(torch.get_num_threads())
    return _native


def last_contiguous(x: Tensor) -> Tensor:
    return x if x.stride(-1) == 1 else x.contiguous()


class Attention(torch.autograd.Function):
    """softmax(q kᵀ · scale) v, where query i of a sequence sees the keys first … end − 1."""

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
        out = torch.empty(batch, queries, heads, dim).transpose(1, 2)
        lse = torch.empty(batch, heads, queries)
        ready().attention(q, k, v, scale, first, end, out, lse)
        ctx.scale = scale
        ctx.save_for_backward(q, k, v, out, lse, first, end)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        q, k, v, out, lse, first, end = ctx.saved_tensors
        gradient = last_contiguous(gradient)
        dq, dk, dv = adjacent_gradients(q, k, v) or [
            torch.empty(x.transpose(1, 2).shape).transpose(1, 2) for x in (q, k, v)
        ]
        ready().attention_backward(q, k, v, ctx.scale, first, end, out, lse, gradient, dq, dk, dv)
        return dq, dk, dv, None, None, None


class Activate(torch.autograd.Function):
    """act(x), or act(x) ⊙ up."""

    @staticmethod
    def forward(ctx: Any, activation: str, x: Tensor, up: Tensor | None) -> Tensor:
        x = x.contiguous()
        up = None if up is None else up.contiguous()
        y = torch.empty_like(x)
        native = ready()
        ctx.activation = native.Activation[activation]
        native.activate(ctx.activation, x, up, y)
        ctx.save_for_backward(x, up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, up = ctx.saved_tensors
        dx = torch.empty_like(x)
        dup = None if up is None else torch.empty_like(up)
        ready().activate_backward(ctx.activation, x, up, gradient.contiguous(), dx, dup)
        return None, dx, dup


class RootMeanSquare(torch.autograd.Function):
    """x / √(mean x² + ε) · gain."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, gain: Tensor | None, epsilon: float) -> Tensor:
        x = x.contiguous()
        y = torch.empty_like(x)
        inverse = torch.empty(x.numel() // x.shape[-1])
        ready().rms_norm(x, gain, epsilon, y, inverse)
        ctx.save_for_backward(x, gain, inverse)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        x, gain, inverse = ctx.saved_tensors
        dx = torch.empty_like(x)
        dgain = torch.empty_like(gain) if gain is not None and ctx.needs_input_grad[1] else None
        scratch = (
            None if dgain is None else torch.empty((len(inverse) + 31) // 32, x.shape[-1])
        )  # partial sums of dgain, one per 32 rows
        ready().rms_norm_backward(x, gain, inverse, gradient.contiguous(), dx, dgain, scratch)
        return dx, dgain, None


FEWEST_ROWS = 192  # of a product for which our kernel is faster than torch's
LEAST_WORK = 1 << 24  # multiplications of such a product


def worth(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    """Whether our W x + b is faster than torch's: many rows, large matrices, and a gradient to be
    computed. Shapes that do not match are left to torch and its error."""
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


def product(a: Tensor, b: Tensor, bias: Tensor | None = None, out: Tensor | None = None) -> Tensor:
    """a b + bias of matrices in row- or column-major order; into `out` if given, whose last
    dimension is the columns."""
    assert a.shape[1] == b.shape[0]
    a, b = (x if 1 in x.stride() else x.contiguous() for x in (a, b))
    out = a.new_empty(a.shape[0], b.shape[1]) if out is None else out
    ready().matmul(a, b, bias, out)
    return out


class Linear(torch.autograd.Function):
    """W x + b for every row of x;  dx = dy W,  dW = dyᵀ x,  db = Σ dy."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        for_x, for_weight, _ = ctx.needs_input_grad
        ctx.save_for_backward(rows if for_weight else None, weight if for_x else None)
        return product(rows, weight.t(), bias, x.new_empty(*x.shape[:-1], len(weight)))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        rows, weight = ctx.saved_tensors
        dy = gradient.reshape(-1, gradient.shape[-1])
        for_x, for_weight, for_bias = ctx.needs_input_grad
        dx = None
        if for_x:
            dx = gradient.new_empty(*gradient.shape[:-1], weight.shape[1])
            product(dy, weight, out=dx)
        dweight = product(dy.t(), rows) if for_weight else None
        return dx, dweight, dy.sum(0) if for_bias else None


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """W x + b, by our kernel where it is faster."""
    if worth(x, weight, bias):
        return Linear.apply(x, weight, bias)  # pyright: ignore[reportReturnType]
    return torch.nn.functional.linear(x, weight, bias)


def linear_parts(
    x: Tensor, weights: Sequence[Tensor], biases: Sequence[Tensor | None]
) -> tuple[Tensor, ...]:
    """W₁ x + b₁, W₂ x + b₂, …: one large product is faster than several small ones, and so is its
    gradient."""
    parts = [bias for bias in biases if bias is not None]
    joined = linear(x, torch.cat(list(weights)), torch.cat(parts) if parts else None)
    widths = [len(weight) for weight in weights]
    return Parts.apply(joined, widths) if suits(joined) else joined.split(widths, dim=-1)  # pyright: ignore[reportReturnType]


class Parts(torch.autograd.Function):
    """The columns of one product as several tensors. Their gradients are not copied where they are
    adjacent in memory already."""

    @staticmethod
    def forward(ctx: Any, joined: Tensor, widths: list[int]) -> tuple[Tensor, ...]:
        return joined.split(widths, dim=-1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        first = gradients[0]
        widths = [gradient.shape[-1] for gradient in gradients]
        form = torch.empty((*first.shape[:-1], sum(widths)), device="meta")
        room = first.untyped_storage().nbytes() // first.element_size() - first.storage_offset()
        if first.stride() == form.stride() and form.numel() <= room:
            whole = first.as_strided(form.shape, form.stride())
            if all(map(same_place, gradients, whole.split(widths, dim=-1))):
                return whole, None
        return torch.cat(gradients, dim=-1), None


def same_place(x: Tensor, y: Tensor) -> bool:
    return x.data_ptr() == y.data_ptr() and x.stride() == y.stride()


def adjacent_gradients(q: Tensor, k: Tensor, v: Tensor) -> list[Tensor] | None:
    """Tensors for the gradients of q, k and v, adjacent in memory as q, k and v are where they are
    parts of one product, [batch, time, joined]; else None."""
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
    """RoPE: pairs (x_i, x_{i + pairs}) rotated by their angles."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cosines: Tensor, sines: Tensor) -> Tensor:
        ctx.save_for_backward(cosines, sines)
        return Rotate.rotate_by(x, cosines, sines, 1.0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        cosines, sines = ctx.saved_tensors
        return Rotate.rotate_by(gradient, cosines, sines, -1.0), None, None

    @staticmethod
    def rotate_by(x: Tensor, cosines: Tensor, sines: Tensor, direction: float) -> Tensor:
        batch, heads, time, dim = x.shape
        y = torch.empty(batch, time, heads, dim).transpose(1, 2)
        ready().rotate(last_contiguous(x), cosines, sines, direction, y)
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


def activate(activation: str, x: Tensor, up: Tensor | None = None) -> Tensor:
    """act(x), or act(x) ⊙ up, for relu, gelu, gelu_tanh and silu."""
    return Activate.apply(activation, x, up)  # pyright: ignore[reportReturnType]


def rms_norm(x: Tensor, gain: Tensor | None, epsilon: float) -> Tensor:
    return RootMeanSquare.apply(x, gain, epsilon)  # pyright: ignore[reportReturnType]
