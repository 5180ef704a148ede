"""Direct logit attribution: the logit of a token, or the difference of two, as an exact sum over
the parts of the model.

    logit = embedding + Σ heads + Σ attention biases + Σ feed-forwards + Σ norm biases + output bias

Each part is its contribution to the residual stream, projected on the direction of the logit, with
every normalization scale frozen (see `frozen`). So the parts sum exactly for every norm placement:
pre, parallel, sandwich, output, and also post-LN and nGPT, where a part's share shrinks with each
norm above it. A soft cap and a masked head's activation are frozen likewise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.core.attention import repeat_kv_heads
from sightline.core.block import ParallelBlock
from sightline.core.hypersphere import SphereBlock
from sightline.core.model import Transformer
from sightline.core.multi_head import Attention, merge_heads
from sightline.errors import InputError
from sightline.lens.attributions.frozen import (
    PulledBack,
    Vectors,
    steps_of,
    streams_of,
    through_head,
    through_linear,
    through_norm,
)
from sightline.lens.attributions.logit_lens import vocabulary_size
from sightline.lens.trace.layer import Rows, checked_index, checked_rows
from sightline.lens.trace.prompt import Text, trace_prompt
from sightline.lens.trace.subject import Subject, Token, eval_transformer, read_tokens
from sightline.lens.trace.trace import Trace

WRITES = ("embedding", "residual", "heads", "attention", "feed_forward", "output")
Parts = dict[tuple[str, int | None], Tensor]


@dataclass(frozen=True, slots=True)
class Attribution:
    """The parts of the logit of `answers` (minus that of `against`) at each of `positions`, in
    float64. Layers with fewer heads than others are padded with zeros; `norm_bias` is nonzero only
    where norms follow the residual steps (post-LN)."""

    name: str
    tokens: tuple[Token, ...]
    source: tuple[Token, ...] | None
    positions: tuple[int, ...]
    answers: tuple[Token, ...]
    against: Token | None
    logit: Float[Tensor, " position"]
    embedding: Float[Tensor, " position"]
    heads: Float[Tensor, "layer head position"]
    attention_bias: Float[Tensor, "layer position"]
    feed_forward: Float[Tensor, "layer position"]
    norm_bias: Float[Tensor, "layer position"]
    output_bias: Float[Tensor, " position"]
    cross_heads: Float[Tensor, "layer head position"] | None = None
    cross_bias: Float[Tensor, "layer position"] | None = None
    by_key: Float[Tensor, "layer head key"] | None = None
    cross_by_key: Float[Tensor, "layer head source"] | None = None

    def __repr__(self) -> str:
        name = self.name or "a model"
        against = "" if self.against is None else f" − logit of {self.against.text!r}"
        answer = f"logit of {self.answers[-1].text!r}{against}"
        layers, heads, positions = self.heads.shape
        return f"<Attribution of {name}: {answer}, {layers} × {heads} heads, {positions} positions>"

    def _repr_html_(self) -> str:
        """The largest parts at the last position, for notebooks."""
        from sightline.lens.draw.result_table import result_table

        return result_table(repr(self), ("part", "contribution"), self.ranked()[:40])

    @property
    def total(self) -> Float[Tensor, " position"]:
        """The sum of all parts."""
        layered = (
            self.heads,
            self.attention_bias,
            self.feed_forward,
            self.norm_bias,
            self.cross_heads,
            self.cross_bias,
        )
        parts = [part.flatten(0, -2).sum(0) for part in layered if part is not None]
        return torch.stack([self.embedding, self.output_bias, *parts]).sum(0)

    @property
    def gap(self) -> float:
        """The largest difference between the sum and the model's logit: rounding error."""
        return float((self.total - self.logit).abs().max())

    def ranked(self, position: int = -1) -> list[tuple[str, float]]:
        """Every part by name, largest absolute value first."""
        column = checked_index("position", position, len(self.positions))
        parts = [
            ("embedding", float(self.embedding[column])),
            ("output bias", float(self.output_bias[column])),
        ]
        for what, part in (("head", self.heads), ("cross head", self.cross_heads)):
            rows = [] if part is None else part[..., column].tolist()
            parts += [
                (f"layer {layer} {what} {head}", value)
                for layer, row in enumerate(rows)
                for head, value in enumerate(row)
            ]
        layered = {
            "attention bias": self.attention_bias,
            "cross bias": self.cross_bias,
            "norm bias": self.norm_bias,
        }
        for what, part in (layered | {"feed-forward": self.feed_forward}).items():
            rows = [] if part is None else part[..., column].tolist()
            parts += [(f"layer {layer} {what}", value) for layer, value in enumerate(rows)]
        return sorted(parts, key=lambda part: -abs(part[1]))

    def to_dict(self) -> dict[str, Any]:
        """A JSON-serializable dict."""
        layered = (
            "heads",
            "attention_bias",
            "feed_forward",
            "norm_bias",
            "cross_heads",
            "cross_bias",
            "by_key",
            "cross_by_key",
        )
        numbers = {
            name: getattr(self, name) for name in ("logit", "embedding", "output_bias", *layered)
        }
        return {
            "name": self.name,
            "tokens": [token.text for token in self.tokens],
            "source": None if self.source is None else [token.text for token in self.source],
            "positions": list(self.positions),
            "answers": [token.text for token in self.answers],
            "against": None if self.against is None else self.against.text,
            "gap": self.gap,
        } | {name: None if value is None else value.tolist() for name, value in numbers.items()}


@torch.no_grad()
def attribution(
    subject: Subject,
    text: Text | Trace,
    *,
    source: Text | None = None,
    token: int | None = None,
    against: int | None = None,
    positions: Rows = -1,
    by_key: bool = False,
) -> Attribution:
    """Decompose the logit of `token` (by default the model's prediction), minus that of `against`,
    at the last position, at others or at all (`positions=None`). `by_key` splits each head further
    by the attended token, for a single position."""
    transformer = eval_transformer(subject)
    size = vocabulary_size(transformer)
    has_cross = transformer.last_stack.config.block(0).cross_attention is not None
    what = (
        *WRITES,
        *(("cross_heads", "cross_attention") if has_cross else ()),
        *(("query", "key", "value") if by_key else ()),
    )
    trace = trace_prompt(subject, text, source=source, what=what)
    rows = list(checked_rows(positions, len(trace.tokens)))
    if not rows or (by_key and len(rows) != 1):
        raise InputError(
            f"{len(rows)} positions",
            expected="one" if by_key else "one or more",
            fix="positions=-1",
        )
    logits = trace.logits[rows]
    answers = (
        logits.argmax(-1)
        if token is None
        else torch.full((len(rows),), checked_index("token", token, size), device=logits.device)
    )
    other = (
        None if against is None else torch.full_like(answers, checked_index("token", against, size))
    )
    logit = logits.gather(-1, answers[:, None])[:, 0].double()
    backpass = LogitBackpass(transformer, trace, rows, by_key=by_key)
    backpass.back(answers, other)
    return Attribution(
        name=trace.name,
        tokens=trace.tokens,
        source=trace.source,
        positions=tuple(rows),
        answers=tuple(read_tokens(subject.tokenizer, [id])[0] for id in answers.tolist()),
        against=None if against is None else read_tokens(subject.tokenizer, [against])[0],
        logit=logit if other is None else logit - logits.gather(-1, other[:, None])[:, 0].double(),
        **backpass.collect(has_cross=has_cross),
    )


class LogitBackpass:
    """The pass from the logit back to the embedding: each step records its part and pulls the
    direction back."""

    def __init__(
        self, transformer: Transformer, trace: Trace, rows: Sequence[int], *, by_key: bool
    ) -> None:
        self.transformer = transformer
        self.trace = trace
        self.rows = list(rows)
        self.by_key = by_key
        self.stack = transformer.last_stack
        self.parts: Parts = {}

    def back(self, answers: Tensor, against: Tensor | None) -> None:
        """Run the whole pass."""
        final = self._streams(self.stack.config.layers - 1)[-1]
        pulled = (
            self._readout(answers)
            if against is None
            else _difference(self._readout(answers), self._readout(against))
        )
        normed = through_norm(self.stack.norm, final, pulled.g)
        self.parts["output_bias", None] = pulled.bias + normed.bias
        g = normed.g
        for layer in reversed(range(self.stack.config.layers)):
            g = self._block(layer, g)
        self.parts["embedding", None] = (self._at("embedding", None).double() * g).sum(-1)

    def _at(self, name: str, layer: int | None) -> Tensor:
        return self.trace[name, layer][self.rows]

    def _readout(self, tokens: Tensor) -> PulledBack:
        return through_head(self.transformer, self._at("output", None), tokens)

    def _streams(self, layer: int) -> list[Tensor]:
        return streams_of(self.stack[layer], lambda name: self._at(name, layer))

    def _block(self, layer: int, g: Vectors) -> Vectors:
        """Back through one block."""
        block = self.stack[layer]
        if isinstance(block, SphereBlock):
            return self._sphere(layer, block, g)
        norm_bias = torch.zeros_like(g[:, 0])
        streams = self._streams(layer)
        for (name, residual), x in reversed(list(zip(steps_of(block), streams, strict=False))):
            added = self._at(name, layer)
            if not isinstance(block, ParallelBlock):
                after = through_norm(residual.after, x + added, g)
                g = after.g
                norm_bias = norm_bias + after.bias
            if name == "feed_forward":
                self.parts[name, layer] = (added.double() * g).sum(-1)
                continue
            module = block.attention if name == "attention" else block.cross_attention
            assert module is not None
            inside = through_norm(residual.inside, self._raw(module, layer), g)
            self._heads(module, layer, inside)
        self.parts["norm_bias", layer] = norm_bias
        return g

    def _sphere(self, layer: int, block: SphereBlock, g: Vectors) -> Vectors:
        """x ← (x + α (a − x)) / n is ((1 − α) x + α a) / n: the rest of x, and the step towards
        a."""
        first, second, _ = (x.double() for x in self._streams(layer))
        alpha = block.feed_forward_step().double()
        added = self._at("feed_forward", layer).double()
        g = g / (second + added).norm(dim=-1, keepdim=True)
        self.parts["feed_forward", layer] = ((added + alpha * second) * g).sum(-1)
        g = (1 - alpha) * g
        alpha = block.attention_step().double()
        g = g / (first + self._at("attention", layer).double()).norm(dim=-1, keepdim=True)
        raw = self._raw(block.attention, layer).double().norm(dim=-1, keepdim=True)
        self._heads(block.attention, layer, PulledBack(alpha * g / raw, torch.zeros_like(g[:, 0])))
        self.parts["norm_bias", layer] = torch.zeros_like(g[:, 0])
        return (1 - alpha) * g

    def _raw(self, module: Attention, layer: int) -> Tensor:
        """The output of attention before its output norm."""
        mixed = self.trace[module.names + "heads", layer][:, self.rows]
        return module.output(merge_heads(mixed[None]))[0]

    def _heads(self, module: Attention, layer: int, pulled: PulledBack) -> None:
        """Each head's part, h_i · (W_Oᵀ g) over the head's columns, and the bias."""
        mixed = self.trace[module.names + "heads", layer][
            :, self.rows
        ].double()  # [heads, position, value_dim]
        heads, _, value_dim = mixed.shape
        output = through_linear(module.output, heads * value_dim, pulled.g)
        head_directions = output.g.unflatten(-1, (heads, value_dim)).transpose(0, 1)
        self.parts[module.names + "heads", layer] = (mixed * head_directions).sum(-1)
        self.parts[module.names + "bias", layer] = output.bias + pulled.bias
        if self.by_key:
            look = self.trace.look(layer, cross=bool(module.names))
            value = repeat_kv_heads(look.needed_value(), heads)[0].double()
            self.parts[module.names + "by_key", layer] = (
                look.weights(rows=self.rows[0]).double()
                * (value @ head_directions[:, 0, :, None])[..., 0]
            )

    def collect(self, *, has_cross: bool) -> dict[str, Any]:
        """The parts of all layers, stacked."""
        names = {
            "heads": "heads",
            "attention_bias": "bias",
            "feed_forward": "feed_forward",
            "norm_bias": "norm_bias",
        }
        names |= {"cross_heads": "cross_heads", "cross_bias": "cross_bias"} if has_cross else {}
        names |= {"by_key": "by_key"} if self.by_key else {}
        names |= {"cross_by_key": "cross_by_key"} if self.by_key and has_cross else {}
        layered = {
            ours: _stack_padded([self.parts[name, n] for n in range(self.stack.config.layers)])
            for ours, name in names.items()
        }
        return layered | {name: self.parts[name, None] for name in ("embedding", "output_bias")}


def _difference(one: PulledBack, other: PulledBack) -> PulledBack:
    return PulledBack(one.g - other.g, one.bias - other.bias)


def _stack_padded(parts: list[Tensor]) -> Tensor:
    """[layer, …], padded with zeros where a layer has fewer heads than another."""
    most = max(len(part) for part in parts)
    return torch.stack(
        [torch.cat((part, part.new_zeros(most - len(part), *part.shape[1:]))) for part in parts]
    )
