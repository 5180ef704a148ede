"""The equations of one attention layer; only the terms that its configuration has.

q = x W_Q    k = y W_K    v = y W_V            y is x, or the encoder's states in cross-attention
s = q kᵀ / √d_k      a = softmax(s)      z = a v
"""

from __future__ import annotations

from sightline.config import (
    ALiBi,
    AttentionConfig,
    Cosine,
    Dot,
    HeadNorm,
    NoNorm,
    RelativeBias,
    Rotary,
)
from sightline.explain import definitions
from sightline.explain.definitions import UNIT, short_number
from sightline.explain.lines import Definition, Dimension, Line, Shape, Weight
from sightline.explain.pieces import LinearTerm, NormUse, StackContext, allowed_pairs


class AttentionLines:
    """The equations of one attention layer, from x to z; the output projection belongs to the
    residual step."""

    def __init__(
        self,
        scene: StackContext,
        form: AttentionConfig,
        norm: NormUse,
        *,
        cross: bool = False,
        on_sphere: bool = False,
        brings_table: bool = False,
    ) -> None:
        self.scene = scene
        self.form = form
        self.norm = norm
        self.cross = cross
        self.on_sphere = on_sphere
        self.brings_table = brings_table
        self.path = f"{scene.layer}.{'cross_attention' if cross else 'attention'}"
        self.keys, self.context = scene.memory if cross and scene.memory else scene.stream
        self.heads = Dimension("h", form.heads)
        self.kv_heads = (
            self.heads if form.kv_heads == form.heads else Dimension("h_kv", form.kv_heads)
        )
        self.size = Dimension("d_k", form.head_dim)
        self.value_size = Dimension("d_v", form.value_width)
        self.query_shape: Shape = (self.heads, scene.tokens, self.size)
        self.key_shape: Shape = (self.kv_heads, self.keys, self.size)
        self.score_shape: Shape = (self.heads, scene.tokens, self.keys)

    def lines(self) -> list[Line]:
        return [*self.projections(), *self.measures(), *self.scores(), *self.mixing()]

    def projections(self) -> list[Line]:
        """q, k and v as heads."""
        x = self.norm("x")
        y = "y" if self.cross else x
        query = self.linear("Q", "query", self.scene.width, self.heads * self.size)
        key = self.linear("K", "key", self.context, self.kv_heads * self.size)
        value = self.linear("V", "value", self.context, self.kv_heads * self.value_size)
        shared = (
            ()
            if self.kv_heads is self.heads
            else (definitions.grouped_definition(self.form.heads, self.form.kv_heads),)
        )
        return [
            query.line(
                f"q = {query(x)}", self.query_shape, self.scene.tokens.size, norms=(self.norm,)
            ),
            key.line(f"k = {key(y)}", self.key_shape, self.keys.size, where=shared),
            value.line(
                f"v = {value(y)}", (self.kv_heads, self.keys, self.value_size), self.keys.size
            ),
        ]

    def linear(self, mark: str, part: str, reads: Dimension, writes: Dimension) -> LinearTerm:
        return LinearTerm(mark, part, f"{self.path}.{part}", reads, writes, self.form.bias)

    def output(self) -> LinearTerm:
        """concat(z) W_O + b_O"""
        return LinearTerm(
            "O",
            "output",
            f"{self.path}.output",
            self.heads * self.value_size,
            self.scene.width,
            self.form.output_bias,
        )

    # ------------------------------------------------------------------ transformations of q and k

    def measures(self) -> list[Line]:
        """QK-norm, then rotation, then unit length: the order in which the model applies them."""
        form = self.form
        lines = list[Line]()
        if form.query_key_norm is not None and not isinstance(form.query_key_norm.norm, NoNorm):
            lines += self.head_norms(form.query_key_norm)
        if isinstance(form.positions, Rotary):
            lines += self.both(
                "R_p q",
                "R_p k",
                where=definitions.rotation_definition(form.positions, form.head_dim),
            )
        if isinstance(form.kind, Cosine):
            scale = Weight("τ", "cosine_scale", f"{self.path}.measure.scale", (self.heads,))
            lines += self.both(
                "τ unit(q)", "unit(k)", scale, where=definitions.cosine_definition(form.kind)
            )
        if self.on_sphere:
            scale = Weight(
                "s_qk",
                "query_key_scale",
                f"{self.path}.measure.scale.weight",
                (self.kv_heads, self.size),
            )
            lines += self.both("s_qk ⊙ unit(q)", "s_qk ⊙ unit(k)", scale, where=UNIT)
        return lines

    def both(self, query: str, key: str, *weights: Weight, where: Definition) -> list[Line]:
        definitions_used = (where, UNIT) if "unit" in key else (where,)
        return [
            Line(f"q = {query}", self.query_shape, weights=weights, where=definitions_used),
            Line(f"k = {key}", self.key_shape),
        ]

    def head_norms(self, config: HeadNorm) -> list[Line]:
        """QK-norm, per head or over all heads as one vector."""
        lines: list[Line] = []
        for name, part, heads, shape in (
            ("q", "query", self.heads, self.query_shape),
            ("k", "key", self.kv_heads, self.key_shape),
        ):
            over = self.size if config.per_head else heads * self.size
            path = f"{self.path}.{part}_norm" + (".norm" if config.per_head else "")
            use = NormUse(config.norm, f"_{name}", f"{part}_norm", path, over)
            joined = "" if config.per_head else "  over all heads as one"
            lines.append(
                Line(
                    f"{name} = {use(name)}{joined}",
                    shape,
                    weights=use.weights,
                    where=(use.definition,),
                )
            )
        return lines

    # --------------------------------------------------------------------------- scores to weights

    def pair_line(self, equation: str, shape: Shape, part: str, size: int) -> Line:
        """A product over pairs of tokens: 2 · h · size · pairs FLOPs, for the pairs that the mask
        allows and for all pairs."""
        queries = self.scene.tokens.size
        keys = self.keys.size
        causal = self.scene.config.causal and not self.cross
        allowed = allowed_pairs(queries, keys, causal=causal, window=self.form.window)
        cost = 2 * self.heads.size * size
        return Line(
            equation, shape, part=part, flops=cost * allowed, square_flops=cost * queries * keys
        )

    def scores(self) -> list[Line]:
        """q kᵀ, scaled, capped, biased."""
        lines = [self.pair_line(f"s = {self.scaled()}", self.score_shape, "scores", self.size.size)]
        if self.form.softcap is not None:
            cap = short_number(self.form.softcap)
            lines.append(Line(f"s = {cap} tanh(s / {cap})", self.score_shape))
        return lines + self.bias()

    def scaled(self) -> str:
        kind = self.form.kind
        if self.on_sphere:
            return "√d_k q kᵀ"
        if isinstance(kind, Cosine) or kind.scale == 1.0:
            return "q kᵀ"
        return "q kᵀ / √d_k" if kind == Dot() else f"{short_number(kind.scale or 0.0)} q kᵀ"

    def bias(self) -> list[Line]:
        form = self.form.positions
        causal = self.scene.config.causal
        if isinstance(form, ALiBi):
            return [
                Line(
                    "s = s − m |i − j|",
                    self.score_shape,
                    where=(definitions.alibi_definition(self.form.heads),),
                )
            ]
        if isinstance(form, RelativeBias):
            table = Weight(
                "B",
                "relative_bias",
                f"{self.scene.name}.relative.weight",
                (Dimension("buckets", form.buckets), self.heads),
            )
            where = (definitions.relative_definition(form, causal=causal),)
            weights = (table,) if self.brings_table else ()
            return [
                Line(
                    "s = s + B[bucket(j − i)]",
                    self.score_shape,
                    weights=weights,
                    where=where,
                    reuses="shared",
                )
            ]
        return []

    def mixing(self) -> list[Line]:
        """The softmax and the weighted sum of values."""
        sinks = (
            (Weight("σ", "sinks", f"{self.path}.sinks", (self.heads,)),) if self.form.sinks else ()
        )
        softmax = "exp(s) / (exp(σ) + Σ exp(s))" if self.form.sinks else "softmax(s)"
        where = (
            (("σ", "attention sink: one learned score per head, without a value"),)
            if self.form.sinks
            else ()
        )
        return [
            Line(
                f"a = {softmax}  over {self.keys_seen()}",
                self.score_shape,
                weights=sinks,
                where=where,
            ),
            self.pair_line(
                "z = a v",
                (self.heads, self.scene.tokens, self.value_size),
                "mix",
                self.value_size.size,
            ),
        ]

    def keys_seen(self) -> str:
        window = self.form.window
        causal = self.scene.config.causal
        if self.cross or (window is None and not causal):
            return "all j"
        if window is None:
            return "j ≤ i"
        return f"i − {window} < j ≤ i" if causal else f"|i − j| < {window}"
