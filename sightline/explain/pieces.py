"""Building blocks of equations: the stack they belong to, linear maps, norms, allowed pairs."""

from __future__ import annotations

from dataclasses import dataclass

from sightline.config import LayerNorm, NoNorm, Norm, StackConfig
from sightline.explain.definitions import norm_text
from sightline.explain.lines import Definition, Dimension, Line, Shape, Weight

Where = tuple[Definition, ...]


@dataclass(frozen=True, slots=True)
class StackContext:
    """What the equations of one stack share: its name, tokens and width, and the encoder output
    that it may attend to."""

    name: str
    config: StackConfig
    tokens: Dimension
    memory: Shape | None = None

    @property
    def width(self) -> Dimension:
        return Dimension("d_model", self.config.width)

    @property
    def stream(self) -> Shape:
        """The residual stream: [T, d_model]"""
        return (self.tokens, self.width)

    @property
    def layer(self) -> str:
        """The path of a layer's parameters: `decoder.{n}`"""
        return self.name + ".{n}"


@dataclass(frozen=True, slots=True)
class LinearTerm:
    """`x W + b`: its symbols in equations and its path in the model."""

    mark: str
    part: str
    path: str
    reads: Dimension
    writes: Dimension
    bias: bool

    def __call__(self, x: str) -> str:
        return f"{x} W_{self.mark} + b_{self.mark}" if self.bias else f"{x} W_{self.mark}"

    @property
    def weights(self) -> tuple[Weight, ...]:
        matrix = Weight(
            f"W_{self.mark}", self.part, f"{self.path}.weight", (self.reads, self.writes)
        )
        return (
            (matrix, Weight(f"b_{self.mark}", self.part, f"{self.path}.bias", (self.writes,)))
            if self.bias
            else (matrix,)
        )

    def line(
        self,
        equation: str,
        shape: Shape,
        tokens: int,
        *,
        norms: tuple[NormUse, ...] = (),
        scales: tuple[Weight, ...] = (),
        where: Where = (),
    ) -> Line:
        """The equation that introduces this matrix: 2 · tokens · in · out FLOPs."""
        weights = (*(weight for norm in norms for weight in norm.weights), *self.weights, *scales)
        flops = 2 * tokens * self.reads.size * self.writes.size
        where = (*(norm.definition for norm in norms if norm.weights), *where)
        return Line(
            equation,
            shape,
            weights=weights,
            part=self.part,
            flops=flops,
            square_flops=flops,
            where=where,
        )


@dataclass(frozen=True, slots=True)
class NormUse:
    """One norm: `LN₁(x)`, or x itself where there is none."""

    norm: Norm
    mark: str
    part: str
    path: str
    over: Dimension

    @property
    def name(self) -> str:
        return f"{'LN' if isinstance(self.norm, LayerNorm) else 'RMS'}{self.mark}"

    def __call__(self, x: str) -> str:
        return x if isinstance(self.norm, NoNorm) else f"{self.name}({x})"

    @property
    def weights(self) -> tuple[Weight, ...]:
        if isinstance(self.norm, NoNorm):
            return ()
        gain = Weight(f"γ{self.mark}", self.part, f"{self.path}.weight", (self.over,))
        has_bias = isinstance(self.norm, LayerNorm) and self.norm.bias
        return (
            (gain, Weight(f"β{self.mark}", self.part, f"{self.path}.bias", (self.over,)))
            if has_bias
            else (gain,)
        )

    @property
    def definition(self) -> Definition:
        return f"{self.name}(x)", norm_text(self.norm)


def allowed_pairs(queries: int, keys: int, *, causal: bool, window: int | None) -> int:
    """How many (query, key) pairs a mask allows.

    none              queries · keys
    causal            Σ_i min(i + 1, w) = w (w + 1) / 2 + (T − w) w,          w = min(window, T)
    window, two-sided Σ_{|d| < w} (T − |d|) = T (2w − 1) − w (w − 1)
    """
    if not causal and window is None:
        return queries * keys
    near = keys if window is None else min(window, keys)
    if causal:
        return near * (near + 1) // 2 + (keys - near) * near
    return keys * (2 * near - 1) - near * (near - 1)
