"""The formulas of one pre-norm decoder block in the order of the computation, one symbol each.

X̃ = LN₁(X)      Q = X̃ W_Q + b_Q, …      A_i = softmax(Q_i K_iᵀ / √d_k + M)      O_i = A_i V_i
Z₁ = X + Concat(O_1, …, O_h) W_O + b_O      Z₂ = Z₁ + GELU(LN₂(Z₁) W_1 + b_1) W_2 + b_2
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sightline.config import FeedForwardConfig, LayerNorm, RMSNorm, Rotary, StackConfig
from sightline.explain.definitions import ACTIVATIONS, rotation_definition, short_number
from sightline.explain.lines import Dimension, Shape
from sightline.explain.pieces import LinearTerm, NormUse

BIASES = "GPT-2 and GPT-3 have b_Q, b_K, b_V, b_O: 16 tensors a block, not “8 groups”."
VARIANCE = "Divided by d, not by d − 1; ε is under the root: √(σ² + ε), not σ + ε."
RMS = "√d γ X/‖X‖, apart from ε: an L2 normalisation of X, not of Q and K."
ONE_ROW = "Each row sums to 1; the weight of a masked key is exactly 0."
GRADIENT = "∂Z₁/∂X = I + ∂O/∂X is not “at least 1”: where O = −X, it is 0."
TANH = "The tanh form of GELU; x Φ(x) differs from it by less than 0.0005."

Values = list[Any]  # a vector, a matrix, or one matrix per head


@dataclass(frozen=True, slots=True)
class Step:
    """One symbol: its formula, its shape, what it is, and a remark where common notes are wrong.

    `name` is the key of its values: a name of `sightline.record` where there is one, the path of a
    parameter within its block, or a word of our own.
    """

    name: str
    formula: str
    shape: Shape
    says: str = ""
    remark: str = ""

    @property
    def symbol(self) -> str:
        return self.formula.partition(" = ")[0]

    @property
    def is_weight(self) -> bool:
        return self.name.endswith((".weight", ".bias"))


@dataclass(frozen=True, slots=True)
class Part:
    """The steps between two places of the block."""

    title: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Axes:
    """The axes of a block in the letters of the formulas."""

    tokens: Dimension
    width: Dimension
    heads: Dimension
    kv_heads: Dimension
    size: Dimension
    value_size: Dimension
    hidden: Dimension

    @property
    def stream(self) -> Shape:
        """[N, d]"""
        return (self.tokens, self.width)

    def joined(self, heads: Dimension, size: Dimension) -> Dimension:
        """All heads side by side: h·d_k, which is d in most models."""
        joined = heads * size
        return self.width if joined.size == self.width.size else joined


def block_axes(stack: StackConfig, tokens: int) -> Axes:
    form = stack.block(0).attention
    heads = Dimension("h", form.heads)
    return Axes(
        tokens=Dimension("N", tokens),
        width=Dimension("d", stack.width),
        heads=heads,
        kv_heads=heads if form.kv_heads == form.heads else Dimension("h_kv", form.kv_heads),
        size=Dimension("d_k", form.head_dim),
        value_size=Dimension("d_v", form.value_width),
        hidden=Dimension("d_ff", stack.block(0).feed_forward.hidden),
    )


def block_parts(stack: StackConfig, *, tokens: int) -> tuple[Part, ...]:
    """Every step of the block, in the order of the computation."""
    axes = block_axes(stack, tokens)
    residual = Step("residual", "X", axes.stream, "the residual stream, one row per token")
    norm = norm_steps(stack, axes, "attention")
    feed_norm = norm_steps(stack, axes, "feed_forward")
    return (
        Part("norm before attention", (residual, *norm)),
        Part("queries, keys and values", tuple(projection_steps(stack, axes))),
        Part("attention in each head i", tuple(head_steps(stack, axes))),
        Part("output and first residual", tuple(output_steps(stack, axes))),
        Part("norm before feed-forward", tuple(feed_norm)),
        Part("feed-forward and second residual", tuple(feed_forward_steps(stack, axes))),
    )


def norm_steps(stack: StackConfig, axes: Axes, name: str) -> list[Step]:
    """The statistics of each row, γ and β, and the normalised rows."""
    first = name == "attention"
    mark, x, result = ("₁", "X", "X̃") if first else ("₂", "Z₁", "Z̃₁")
    form = stack.block(0).norm
    use = NormUse(form, mark, "norm", f"{name}_residual.before", axes.width)
    end = Step(
        "input" if first else "feed_forward_input",
        f"{result} = {norm_formula(form, x, mark)}",
        axes.stream,
        f"ε = {short_number(form.eps)}" if first and isinstance(form, (LayerNorm, RMSNorm)) else "",
    )
    rows = (axes.tokens,)
    if isinstance(form, LayerNorm):
        mean = Step(f"{name}_mean", f"μ{mark} = mean({x})", rows)
        square = f"σ{mark}² = mean(({x} − μ{mark})²)"
        remark = VARIANCE if first else ""
        variance = Step(f"{name}_variance", square, rows, remark=remark)
        return [mean, variance, *weight_steps(use), end]
    remark = RMS if first else ""
    square = Step(f"{name}_mean_square", f"m{mark} = mean({x}²)", rows, remark=remark)
    return [square, *weight_steps(use), end]


def norm_formula(norm: object, x: str, mark: str) -> str:
    if isinstance(norm, LayerNorm):
        bias = f" + β{mark}" if norm.bias else ""
        return f"γ{mark} ({x} − μ{mark}) / √(σ{mark}² + ε){bias}"
    gain = f"(1 + γ{mark})" if isinstance(norm, RMSNorm) and norm.plus_one else f"γ{mark}"
    return f"{gain} {x} / √(m{mark} + ε)"


def weight_steps(term: LinearTerm | NormUse, remark: str = "") -> list[Step]:
    """The matrix or gain of a term and its bias; the remark stands with the last one."""
    weights = term.weights
    return [
        Step(weight.path, weight.symbol, weight.shape, remark=remark if weight == last else "")
        for weight, last in ((weight, weights[-1]) for weight in weights)
    ]


def projection_steps(stack: StackConfig, axes: Axes) -> list[Step]:
    """X̃ W_Q + b_Q and its split into heads; K and V in the same way."""
    form = stack.block(0).attention
    keys = axes.joined(axes.kv_heads, axes.size)
    values = axes.joined(axes.kv_heads, axes.value_size)
    steps = list[Step]()
    for mark, part, writes in (
        ("Q", "query", axes.joined(axes.heads, axes.size)),
        ("K", "key", keys),
        ("V", "value", values),
    ):
        term = LinearTerm(mark, part, f"attention.{part}", axes.width, writes, form.bias)
        remark = BIASES if mark == "Q" and form.bias else ""
        shape = (axes.tokens, writes)
        steps += weight_steps(term, remark)
        steps.append(Step(f"{part}_joined", f"{mark} = {term('X̃')}", shape))
    return steps + split_steps(stack, axes)


def split_steps(stack: StackConfig, axes: Axes) -> list[Step]:
    """Q, K and V as heads; RoPE turns the heads of Q and K."""
    form = stack.block(0).attention
    rotary = form.positions if isinstance(form.positions, Rotary) else None
    turn = "R_p " if rotary else ""
    group = form.heads // form.kv_heads
    shared = f"each key and value head serves {group} query heads" if group > 1 else ""
    values = (axes.kv_heads, axes.tokens, axes.value_size)
    steps = [
        Step(
            "query",
            f"Q_i = {turn}split(Q)",
            (axes.heads, axes.tokens, axes.size),
            "head i has columns (i − 1) d_k + 1 … i d_k",
        ),
        Step("key", f"K_i = {turn}split(K)", (axes.kv_heads, axes.tokens, axes.size), shared),
        Step("value", "V_i = split(V)", values),
    ]
    return [*rotation_steps(rotary, form.head_dim, axes), *steps] if rotary else steps


def rotation_steps(rotary: Rotary, head_dim: int, axes: Axes) -> list[Step]:
    """The angles that RoPE turns each pair by."""
    pairs = (axes.tokens, Dimension("d_k/2", (rotary.dim or head_dim) // 2))
    meaning = rotation_definition(rotary, head_dim)[1]
    return [
        Step("rotation_cos", "cos(p ω)", pairs, f"R_p is {meaning}, p = 0, 1, …"),
        Step("rotation_sin", "sin(p ω)", pairs),
    ]


def head_steps(stack: StackConfig, axes: Axes) -> list[Step]:
    """Scores, mask, weights, and each head's mean of values."""
    square = (axes.tokens, axes.tokens)
    each = (axes.heads, *square)
    heads = (axes.heads, axes.tokens, axes.value_size)
    sums = (axes.heads, axes.tokens)
    return [
        Step("scores", "S_i = Q_i K_iᵀ / √d_k", each, "rows are queries, columns are keys"),
        Step("mask", "M = 0 where key ≤ query, else −∞", square),
        Step("masked_scores", "S_i + M", each),
        Step("weights", "A_i = softmax(S_i + M)", each, remark=ONE_ROW),
        Step("row_sums", "Σ_j A_i", sums, "one row per head"),
        Step("heads", "O_i = A_i V_i", heads, "each row is a weighted mean of rows of V_i"),
    ]


def output_steps(stack: StackConfig, axes: Axes) -> list[Step]:
    """Concat(O_1, …, O_h) W_O + b_O, added to the stream."""
    joined = axes.joined(axes.heads, axes.value_size)
    bias = stack.block(0).attention.output_bias
    term = LinearTerm("O", "output", "attention.output", joined, axes.width, bias)
    return [
        Step("concat", "C = Concat(O_1, …, O_h)", (axes.tokens, joined)),
        *weight_steps(term),
        Step("attention", f"O = {term('C')}", axes.stream),
        Step("attended", "Z₁ = X + O", axes.stream, remark=GRADIENT),
    ]


def feed_forward_steps(stack: StackConfig, axes: Axes) -> list[Step]:
    """W_2 act(W_1 x), or W_2 (act(W_G x) ⊙ W_1 x), added to the stream."""
    form = stack.block(0).feed_forward
    inner = (axes.tokens, axes.hidden)
    steps = list[Step]()
    for mark, part, result in (("G", "gate", "G"), ("1", "up", "H")):
        if part == "up" or form.gated:
            path = f"feed_forward.{part}"
            term = LinearTerm(mark, part, path, axes.width, axes.hidden, form.bias)
            steps += [*weight_steps(term), Step(part, f"{result} = {term('Z̃₁')}", inner)]
    down = LinearTerm("2", "down", "feed_forward.down", axes.hidden, axes.width, form.bias)
    return [
        *steps,
        activation_step(form, inner),
        *weight_steps(down),
        Step("feed_forward", f"F = {down('U')}", axes.stream),
        Step("block_output", "Z₂ = Z₁ + F", axes.stream, "what the next block reads"),
    ]


def activation_step(form: FeedForwardConfig, inner: Shape) -> Step:
    act = form.activation
    formula = f"U = {act}(G) ⊙ H" if form.gated else f"U = {act}(H)"
    remark = TANH if act == "gelu_tanh" else ""
    return Step("hidden", formula, inner, f"{act}(x) = {ACTIVATIONS[act]}", remark)
