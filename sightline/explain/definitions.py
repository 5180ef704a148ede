"""What the letters in the equations mean: norms, activations, rotations, biases, in one line
each."""

from __future__ import annotations

import math
import re

from sightline.config import (
    Activation,
    Cosine,
    LayerNorm,
    LinearScaling,
    Llama3Scaling,
    Norm,
    NTKScaling,
    RelativeBias,
    RMSNorm,
    Rotary,
    Sinusoidal,
    YaRNScaling,
)
from sightline.explain.lines import Definition, Section

ACTIVATIONS: dict[Activation, str] = {
    "relu": "max(0, x)",
    "gelu": "x Φ(x), with Φ the normal distribution",
    "gelu_tanh": "x/2 (1 + tanh(√(2/π) (x + 0.044715 x³)))",
    "silu": "x / (1 + exp(−x))",
    "relu_squared": "max(0, x)²",
    "tanh": "(exp(x) − exp(−x)) / (exp(x) + exp(−x))",
}
UNIT: Definition = ("unit(x)", "x / ‖x‖")


def number(value: float) -> str:
    """10000, 0.0625, 1e-05: short, and nothing that matters rounded away."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def activation(name: Activation) -> Definition:
    return f"{name}(x)", ACTIVATIONS[name]


def norm_text(norm: Norm) -> str:
    if isinstance(norm, LayerNorm):
        return (
            f"γ (x − mean) / √(variance + ε){' + β' if norm.bias else ''},  ε = {number(norm.eps)}"
        )
    if isinstance(norm, RMSNorm):
        return f"{'(1 + γ)' if norm.plus_one else 'γ'} x / √(mean(x²) + ε),  ε = {number(norm.eps)}"
    return "x"


def sinusoid(form: Sinusoidal) -> Definition:
    return "ω", f"ω_i = {number(form.base)}^(−2i/d_model)"


def rotation(form: Rotary, head_dim: int) -> Definition:
    """How RoPE turns q and k."""
    dim = form.dim or head_dim
    letter = "d_k" if dim == head_dim else str(dim)
    scaling = form.scaling
    base = number(form.base)
    tail = ""
    if isinstance(scaling, NTKScaling) and dim > 2:
        tail = f"; the base is {base} × {number(scaling.factor)}^({dim}/{dim - 2}) (NTK)"
        base = number(form.base * scaling.factor ** (dim / (dim - 2)))
    if isinstance(scaling, LinearScaling):
        tail = f" / {number(scaling.factor)}"
    if isinstance(scaling, Llama3Scaling):
        tail = (
            f"; pairs slow over {scaling.original_positions} positions / {number(scaling.factor)}"
            " (Llama 3)"
        )
    if isinstance(scaling, YaRNScaling):
        tail = (
            f"; pairs slow over {scaling.original_positions} positions / {number(scaling.factor)},"
            f" all × {_yarn(scaling)} (YaRN)"
        )
    part = "" if dim == head_dim else f" of the first {dim}"
    return (
        "R_p",
        (
            f"RoPE: turns each pair (i, i + {letter}/2){part} by p ω_i,  ω_i ="
            f" {base}^(−2i/{letter}){tail}"
        ),
    )


def _yarn(scaling: YaRNScaling) -> str:
    """YaRN's factor on the rotated vectors: 0.1 ln(factor) + 1 unless given."""
    given = scaling.attention_factor
    return number(
        given
        if given is not None
        else 0.1 * math.log(scaling.factor) + 1
        if scaling.factor > 1
        else 1.0
    )


def alibi(heads: int) -> Definition:
    """Slopes 2^(−8k/h); where h is not a power of two, those of the power below and then every
    other one of the next."""
    if heads & (heads - 1) == 0:
        return "m", f"ALiBi's slope of head k = 1 … {heads}: 2^(−8k/{heads})"
    below = 1 << (heads.bit_length() - 1)
    return (
        "m",
        (
            f"ALiBi's slopes: 2^(−8k/{below}) for {below} heads, then every other of"
            f" 2^(−8k/{2 * below})"
        ),
    )


def relative(form: RelativeBias, *, causal: bool) -> Definition:
    """T5's buckets: half of them hold one distance each."""
    exact = form.buckets // (2 if causal else 4)
    sides = "" if causal else " each way"
    return (
        "B",
        (
            f"T5's table for all layers: distances below {exact}{sides} have a bucket each, farther"
            f" share up to {form.max_distance}"
        ),
    )


def cosine(form: Cosine) -> Definition:
    return (
        "τ",
        (
            f"one number per head, {'learned from' if form.learnable else 'fixed at'}"
            f" {number(form.scale)};  q kᵀ = τ cos θ"
        ),
    )


def grouped(heads: int, kv_heads: int) -> Definition:
    return "h_kv", f"each key and value head serves {heads // kv_heads} query heads"


def collect(sections: list[Section]) -> list[Definition]:
    """Every definition once, in order of appearance; all norms of one form under one name.

    A letter that means two things is named with the places that mean each: `R_p (decoder block 1)`.
    """
    meanings: dict[str, dict[str, list[str]]] = {}
    for section in sections:
        several = any(other.block for other in sections if other.stack == section.stack)
        place = (
            f"{section.stack} block {section.block}"
            if several and section.block is not None
            else section.stack
        )
        for name, text in (definition for line in section.lines for definition in line.where):
            family = re.sub(r"^(LN|RMS)[^(]*", r"\1", name)
            places = meanings.setdefault(family, {}).setdefault(text, [])
            if place not in places:
                places.append(place)
    return [
        (family if len(texts) == 1 else f"{family} in {', '.join(places)}", text)
        for family, texts in meanings.items()
        for text, places in texts.items()
    ]
