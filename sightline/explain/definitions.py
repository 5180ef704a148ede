"""Definitions of the symbols in the equations: norms, activations, rotations, biases."""

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


def short_number(value: float) -> str:
    """Format a number with up to six significant digits: 10000, 0.0625, 1e-05."""
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else f"{value:.6g}"


def activation(name: Activation) -> Definition:
    return f"{name}(x)", ACTIVATIONS[name]


def norm_text(norm: Norm) -> str:
    if isinstance(norm, LayerNorm):
        bias = " + β" if norm.bias else ""
        return f"γ (x − mean) / √(variance + ε){bias},  ε = {short_number(norm.eps)}"
    if isinstance(norm, RMSNorm):
        gain = "(1 + γ)" if norm.plus_one else "γ"
        return f"{gain} x / √(mean(x²) + ε),  ε = {short_number(norm.eps)}"
    return "x"


def sinusoid_definition(form: Sinusoidal) -> Definition:
    return "ω", f"ω_i = {short_number(form.base)}^(−2i/d_model)"


def rotation_definition(form: Rotary, head_dim: int) -> Definition:
    """RoPE's rotation of q and k."""
    dim = form.dim or head_dim
    letter = "d_k" if dim == head_dim else str(dim)
    scaling = form.scaling
    base = short_number(form.base)
    tail = ""
    if isinstance(scaling, NTKScaling) and dim > 2:
        tail = f"; the base is {base} × {short_number(scaling.factor)}^({dim}/{dim - 2}) (NTK)"
        base = short_number(form.base * scaling.factor ** (dim / (dim - 2)))
    if isinstance(scaling, LinearScaling):
        tail = f" / {short_number(scaling.factor)}"
    if isinstance(scaling, Llama3Scaling):
        tail = (
            f"; pairs slow over {scaling.original_positions} positions"
            f" / {short_number(scaling.factor)} (Llama 3)"
        )
    if isinstance(scaling, YaRNScaling):
        tail = (
            f"; pairs slow over {scaling.original_positions} positions"
            f" / {short_number(scaling.factor)}, all × {_yarn_factor(scaling)} (YaRN)"
        )
    part = "" if dim == head_dim else f" of the first {dim}"
    return (
        "R_p",
        (
            f"RoPE: turns each pair (i, i + {letter}/2){part} by p ω_i,  ω_i ="
            f" {base}^(−2i/{letter}){tail}"
        ),
    )


def _yarn_factor(scaling: YaRNScaling) -> str:
    """YaRN's factor on the rotated vectors; by default 0.1 ln(factor) + 1."""
    factor = scaling.attention_factor
    if factor is None:
        factor = 0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0
    return short_number(factor)


def alibi_definition(heads: int) -> Definition:
    """Slopes 2^(−8k/h); if h is not a power of two, the slopes of the next lower power of two, then
    every other slope of the next higher one."""
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


def relative_definition(form: RelativeBias, *, causal: bool) -> Definition:
    """T5's relative-position buckets; half of them hold a single distance."""
    exact = form.buckets // (2 if causal else 4)
    sides = "" if causal else " each way"
    return (
        "B",
        (
            f"T5's table for all layers: distances below {exact}{sides} have a bucket each, farther"
            f" share up to {form.max_distance}"
        ),
    )


def cosine_definition(form: Cosine) -> Definition:
    return (
        "τ",
        (
            f"one number per head, {'learned from' if form.learnable else 'fixed at'}"
            f" {short_number(form.scale)};  q kᵀ = τ cos θ"
        ),
    )


def grouped_definition(heads: int, kv_heads: int) -> Definition:
    return "h_kv", f"each key and value head serves {heads // kv_heads} query heads"


def definitions_of(sections: list[Section]) -> list[Definition]:
    """Every definition once, in order of appearance; norms of one form share a name.

    A symbol with two meanings is listed once per meaning, with the places where it applies:
    `R_p in decoder block 1`.
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
