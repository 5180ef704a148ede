"""A Transformer written as the engine's operations: one for each line of its mathematics.

    x ← embed(token)
    each block:   qkv ← W norm(x);   mixed ← attend(qkv);   x ← x + W_O mixed;
                  h ← act(W_g norm(x)) ⊙ W_u norm(x);   x ← x + W_D h
    logits ← W norm(x)

Norms are part of the product that reads them, additions part of the product that writes: the stream
goes through memory as seldom as possible.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sightline.config import ALiBi, AttentionConfig, Learned, RelativeBias, Rotary, Sinusoidal
from sightline.core.block import Block, ParallelBlock
from sightline.core.hypersphere import (
    SphereAttention,
    SphereBlock,
    SphereFeedForward,
    SphereMeasure,
)
from sightline.core.model import Transformer
from sightline.core.multi_head import Attention, CosineMeasure
from sightline.core.norms import LayerNormLayer, PerHeadNorm, RMSNormLayer
from sightline.core.output import LanguageOutput
from sightline.core.positions import alibi_slopes, relative_bucket, rotary_frequencies, sinusoidal
from sightline.core.stack import Stack
from sightline.engine.matrices import interleaved
from sightline.errors import InputError

KINDS = ("embed", "norm", "linear", "attend", "blend", "add", "keep")
NORMS = ("none", "layer", "rms", "unit")
CURVES = ("none", "relu", "gelu", "gelu_tanh", "silu", "relu_squared", "tanh")
UNLIMITED = 2**31 - 1  # positions are 32 bits wide
STREAM, JOINED, MIXED, HIDDEN, SIDE = range(
    5
)  # buffers: the residual stream, q k v, heads' outputs, the feed-forward's middle, a side arm


@dataclass(slots=True)
class Matrix:
    """A matrix of the program before it is packed. `make` gives it as [rows, inputs] float32;
    `sensitive`: errors in it cost most."""

    name: str
    rows: int
    inputs: int
    make: Callable[[], Tensor]
    sensitive: bool = False


@dataclass(frozen=True, slots=True)
class Kept:
    """A small tensor of the program, by its number."""

    number: int


@dataclass(slots=True)
class Program:
    """Operations, the matrices that they name, the small tensors that they point to, and the
    buffers' widths. `cross_from`: the layer of the memory at which the first block's
    cross-attention looks; `max_positions`: how long a sequence may be."""

    widths: list[int]
    kv_heads: list[int]
    dims: list[int]
    max_positions: int
    operations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    matrices: list[Matrix] = field(default_factory=list[Matrix])
    kept: list[Tensor] = field(default_factory=list[Tensor])
    cross_from: int = 0

    def add(self, kind: str, **said: Any) -> None:
        self.operations.append(
            {"kind": KINDS.index(kind)}
            | {name: value for name, value in said.items() if value is not None}
        )

    def matrix(
        self,
        name: str,
        shape: Sequence[int],
        make: Callable[[], Tensor],
        *,
        sensitive: bool = False,
    ) -> int:
        rows, inputs = shape
        self.matrices.append(Matrix(name, rows, inputs, make, sensitive))
        return len(self.matrices) - 1

    def place(self, x: Tensor | None) -> Kept | None:
        """A small tensor, which is kept as long as the program."""
        if x is None:
            return None
        self.kept.append(
            x.detach().to(torch.float32, copy=True).contiguous()
        )  # the engine has weights of its own
        return Kept(len(self.kept) - 1)

    def addressed(self, said: dict[str, Any]) -> dict[str, Any]:
        """An operation with the addresses of its small tensors."""

        def one(value: Any) -> Any:
            if isinstance(value, Kept):
                return self.kept[value.number].data_ptr()
            return self.addressed(value) if isinstance(value, dict) else value

        return {name: one(value) for name, value in said.items()}

    def norm(self, layer: nn.Module) -> dict[str, Any] | None:
        if isinstance(layer, LayerNormLayer):
            gain = self.place(layer.weight)
            bias = self.place(layer.bias)
            return {"kind": 1, "epsilon": layer.eps, "gain": gain} | (
                {} if bias is None else {"bias": bias}
            )
        if isinstance(layer, RMSNormLayer):
            return {
                "kind": 2,
                "epsilon": layer.eps,
                "gain": self.place(layer.weight + 1 if layer.plus_one else layer.weight),
            }
        return None


def program_of(transformer: Transformer) -> Program:
    """A decoder alone with a language head."""
    if transformer.encoder is not None:
        raise InputError(
            "the native engine for a model that is no decoder with a language head",
            fix="engine='torch'",
        )
    return decoder_program(transformer)


def decoder_program(transformer: Transformer) -> Program:
    """A decoder with a language head. Where there is an encoder, keys and values of the source are
    what `encoder_program` keeps."""
    stack = transformer.decoder
    output = transformer.output
    encoder = transformer.encoder
    if stack is None or not isinstance(output, LanguageOutput):
        raise InputError(
            "the native engine for a model that is no decoder with a language head",
            fix="engine='torch'",
        )
    program = empty_program(stack, cross_from=0 if encoder is None else encoder.config.layers)
    add_embedding(program, stack)
    for n in range(stack.config.layers):
        add_block(program, stack, n)
    add_output(program, stack, output)
    return program


def empty_program(stack: Stack, *, cross_from: int = 0) -> Program:
    """Room for a stack's operations."""
    blocks = [stack.config.block(n) for n in range(stack.config.layers)]
    forms = [
        form
        for block in blocks
        for form in (block.attention, block.cross_attention)
        if form is not None
    ]
    check_forms(forms)
    joined = max((form.heads + 2 * form.kv_heads) * form.head_dim for form in forms)
    mixed = max(form.heads * form.head_dim for form in forms)
    hidden = max(block.feed_forward.hidden for block in blocks)
    width = stack.config.width
    own = [block.attention for block in blocks]
    widths = [width, joined, mixed, hidden, width]
    kv_heads = [form.kv_heads for form in own]
    dims = [form.head_dim for form in own]
    return Program(widths, kv_heads, dims, longest(stack, forms), cross_from=cross_from)


def longest(stack: Stack, forms: Sequence[AttentionConfig]) -> int:
    """How many positions the engine has numbers for: a table ends somewhere, angles and buckets do
    not."""
    tabled = isinstance(stack.config.embedding.positions, (Learned, Sinusoidal))
    sloped = any(isinstance(form.positions, ALiBi) for form in forms)
    return stack.config.max_positions if tabled or sloped else UNLIMITED


def check_forms(forms: Sequence[AttentionConfig]) -> None:
    """What the engine does not know."""
    for form in forms:
        if form.value_width != form.head_dim:
            raise InputError(
                "values of another width than keys",
                expected="value_dim = head_dim",
                fix="engine='torch'",
            )
        if form.head_dim > 1024:
            raise InputError(
                f"heads of {form.head_dim} numbers", expected="at most 1,024", fix="engine='torch'"
            )


def add_embedding(program: Program, stack: Stack) -> None:
    embedding = stack.embedding
    config = stack.config
    weight = embedding.tokens.weight
    matrix = program.matrix("embedding", weight.shape, lambda: weight, sensitive=True)
    form = config.embedding.positions
    table = None
    if isinstance(form, Learned) and embedding.positions is not None:
        table = embedding.positions.weight[form.offset :]
    if isinstance(form, Sinusoidal):
        table = sinusoidal(torch.arange(config.max_positions)[None], config.width, form)[0]
    norm = {"kind": 3} if config.on_sphere else program.norm(embedding.norm)
    types = None if embedding.types is None else embedding.types.weight[0]
    scale = config.embedding.scale
    program.add(
        "embed",
        out=STREAM,
        matrix=matrix,
        scale=scale,
        positions=program.place(table),
        types=program.place(types),
        norm=norm,
    )


def add_block(program: Program, stack: Stack, n: int) -> None:
    block = stack[n]
    if isinstance(block, SphereBlock):
        add_attention(program, stack, n, block.attention, None, out=SIDE)
        program.add("blend", **{"in": SIDE}, out=STREAM, step=program.place(block.attention_step()))
        add_sphere_feed_forward(program, n, block.feed_forward)
        program.add(
            "blend", **{"in": SIDE}, out=STREAM, step=program.place(block.feed_forward_step())
        )
        return
    first = block.attention_residual
    second = block.feed_forward_residual
    if isinstance(
        block, ParallelBlock
    ):  # both read the stream as it was, so the first waits at the side
        add_attention(program, stack, n, block.attention, program.norm(first.before), out=SIDE)
        add_feed_forward(program, n, block, program.norm(second.before), out=STREAM, adds=True)
        program.add("add", **{"in": SIDE}, out=STREAM)
        return
    for residual, arm in (
        (first, "attention"),
        (block.cross_residual, "cross"),
        (second, "feed_forward"),
    ):
        if residual is None:
            continue
        inside = program.norm(residual.inside)
        after = program.norm(residual.after)
        out, adds = (STREAM, True) if inside is None else (SIDE, False)
        if arm == "attention":
            add_attention(
                program,
                stack,
                n,
                block.attention,
                program.norm(residual.before),
                out=out,
                adds=adds,
            )
        elif arm == "cross":
            add_cross_attention(
                program, n, block.cross_attention, program.norm(residual.before), out=out, adds=adds
            )
        else:
            add_feed_forward(program, n, block, program.norm(residual.before), out=out, adds=adds)
        if inside is not None:
            program.add("norm", **{"in": SIDE}, out=SIDE, norm=inside, dim=stack.config.width)
            program.add("add", **{"in": SIDE}, out=STREAM)
        if after is not None:
            program.add("norm", **{"in": STREAM}, out=STREAM, norm=after, dim=stack.config.width)


def add_attention(
    program: Program,
    stack: Stack,
    n: int,
    layer: Attention,
    norm: dict[str, Any] | None,
    *,
    out: int,
    adds: bool = False,
) -> None:
    form = layer.config
    parts = (layer.query, layer.key, layer.value)
    rows = (form.heads + 2 * form.kv_heads) * form.head_dim
    joined = program.matrix(
        f"{n}.attention.joined",
        (rows, layer.width),
        lambda: torch.cat([part.weight for part in parts]),
    )
    bias = torch.cat([part.bias for part in parts]) if form.bias else None
    program.add(
        "linear", **{"in": STREAM}, out=JOINED, matrix=joined, norm=norm, bias=program.place(bias)
    )
    if form.query_key_norm is not None and not form.query_key_norm.per_head:
        wide = form.heads * form.head_dim
        narrow = form.kv_heads * form.head_dim
        program.add(
            "norm",
            **{"in": JOINED},
            out=JOINED,
            norm=program.norm(layer.query_norm),
            layer=0,
            dim=wide,
        )
        program.add(
            "norm",
            **{"in": JOINED},
            out=JOINED,
            norm=program.norm(layer.key_norm),
            layer=wide,
            dim=narrow,
        )
    program.add(
        "attend",
        **{"in": JOINED},
        out=MIXED,
        layer=n,
        **scoring(program, stack, layer),
        **head_work(program, layer),
    )
    weight = layer.output.weight
    output_bias = layer.output.bias
    matrix = program.matrix(f"{n}.attention.output", weight.shape, lambda: weight)
    program.add(
        "linear",
        **{"in": MIXED},
        out=out,
        adds=adds,
        matrix=matrix,
        bias=program.place(output_bias),
    )


def add_cross_attention(
    program: Program,
    n: int,
    layer: Attention | None,
    norm: dict[str, Any] | None,
    *,
    out: int,
    adds: bool = False,
) -> None:
    """Queries that look at what is kept of the source."""
    assert layer is not None
    form = layer.config
    query = layer.query
    output = layer.output
    matrix = program.matrix(f"{n}.cross_attention.query", query.weight.shape, lambda: query.weight)
    program.add(
        "linear",
        **{"in": STREAM},
        out=JOINED,
        matrix=matrix,
        norm=norm,
        bias=program.place(query.bias),
    )
    if form.query_key_norm is not None and not form.query_key_norm.per_head:
        program.add(
            "norm",
            **{"in": JOINED},
            out=JOINED,
            norm=program.norm(layer.query_norm),
            dim=form.heads * form.head_dim,
        )
    said: dict[str, Any] = {
        "heads": form.heads,
        "kv_heads": form.kv_heads,
        "dim": form.head_dim,
        "score_scale": layer.scale,
    }
    said |= {
        "score_cap": form.softcap,
        "sinks": program.place(layer.sinks),
        "causal": False,
        "cross": True,
    }
    program.add(
        "attend",
        **{"in": JOINED},
        out=MIXED,
        layer=program.cross_from + n,
        **said,
        **head_work(program, layer),
    )
    matrix = program.matrix(
        f"{n}.cross_attention.output", output.weight.shape, lambda: output.weight
    )
    program.add(
        "linear",
        **{"in": MIXED},
        out=out,
        adds=adds,
        matrix=matrix,
        bias=program.place(output.bias),
    )


def scoring(program: Program, stack: Stack, layer: Attention) -> dict[str, Any]:
    form = layer.config
    said: dict[str, Any] = {
        "heads": form.heads,
        "kv_heads": form.kv_heads,
        "dim": form.head_dim,
        "score_scale": layer.scale,
    }
    said |= {
        "score_cap": form.softcap,
        "window": form.window,
        "sinks": program.place(layer.sinks),
        "causal": stack.config.causal,
    }
    return said | distance_bias(program, stack, form)


def distance_bias(program: Program, stack: Stack, form: AttentionConfig) -> dict[str, Any]:
    """A bias by distance, key − query from −reach to reach; beyond that the last counts, as it does
    for T5."""
    if isinstance(form.positions, ALiBi):
        reach = stack.config.max_positions
        distance = torch.arange(-reach, reach + 1).abs()
        return {
            "distance_bias": program.place(
                -torch.tensor(alibi_slopes(form.heads))[:, None] * distance
            ),
            "reach": reach,
        }
    if isinstance(form.positions, RelativeBias) and stack.relative is not None:
        reach = form.positions.max_distance + 1
        table = stack.relative
        buckets = relative_bucket(
            torch.arange(-reach, reach + 1),
            table.weight.shape[0],
            table.max_distance,
            causal=table.causal,
        )
        return {"distance_bias": program.place(table.weight[buckets].T), "reach": reach}
    return {}


def head_work(program: Program, layer: Attention) -> dict[str, Any]:
    """What q and k pass before they meet."""
    form = layer.config
    said = dict[str, Any]()
    if isinstance(layer.query_norm, PerHeadNorm) and isinstance(layer.key_norm, PerHeadNorm):
        said |= {
            "query_norm": program.norm(layer.query_norm.norm),
            "key_norm": program.norm(layer.key_norm.norm),
        }
    if isinstance(form.positions, Rotary):
        frequencies, amplitude = rotary_frequencies(
            form.positions, form.positions.dim or form.head_dim
        )
        said |= {
            "pairs": len(frequencies),
            "frequencies": program.place(frequencies),
            "amplitude": amplitude,
        }
    if isinstance(layer.measure, CosineMeasure):
        scale = layer.measure.scale[:, None].expand(-1, form.head_dim)
        said |= {"unit": True, "query_scale": program.place(scale)}
    if isinstance(layer, SphereAttention) and isinstance(layer.measure, SphereMeasure):
        scale = layer.measure.scale()
        queries = scale.repeat_interleave(layer.measure.group, dim=0)
        said |= {
            "unit": True,
            "query_scale": program.place(queries),
            "key_scale": program.place(scale),
        }
    return said


def add_feed_forward(
    program: Program, n: int, block: Block, norm: dict[str, Any] | None, *, out: int, adds: bool
) -> None:
    layer = block.feed_forward
    up = layer.up
    gate = layer.gate
    down = layer.down
    curve = CURVES.index(layer.activation_name)
    hidden = up.weight.shape[0]
    if gate is None:
        matrix = program.matrix(f"{n}.feed_forward.up", up.weight.shape, lambda: up.weight)
        program.add(
            "linear",
            **{"in": STREAM},
            out=HIDDEN,
            matrix=matrix,
            norm=norm,
            bias=program.place(up.bias),
            curve=curve,
        )
    else:
        bias = None if up.bias is None else torch.cat([gate.bias, up.bias])
        matrix = gated_matrix(program, n, gate, up)
        said = {"curve": curve, "gated": True, "dim": hidden}
        program.add(
            "linear",
            **{"in": STREAM},
            out=HIDDEN,
            matrix=matrix,
            norm=norm,
            bias=program.place(bias),
            **said,
        )
    matrix = program.matrix(f"{n}.feed_forward.down", down.weight.shape, lambda: down.weight)
    program.add(
        "linear", **{"in": HIDDEN}, out=out, adds=adds, matrix=matrix, bias=program.place(down.bias)
    )


def gated_matrix(program: Program, n: int, gate: nn.Linear, up: nn.Linear) -> int:
    rows = 2 * (-(-gate.weight.shape[0] // 8) * 8)
    return program.matrix(
        f"{n}.feed_forward.joined",
        (rows, gate.weight.shape[1]),
        lambda: interleaved(gate.weight, up.weight),
    )


def add_sphere_feed_forward(program: Program, n: int, layer: SphereFeedForward) -> None:
    """down(u s_u ⊙ silu(v s_v √width))"""
    scales = torch.cat([layer.gate_scale() * math.sqrt(layer.width), layer.up_scale()])
    said = {
        "curve": CURVES.index(layer.activation_name),
        "gated": True,
        "dim": layer.up.weight.shape[0],
        "step": program.place(scales),
    }
    program.add(
        "linear",
        **{"in": STREAM},
        out=HIDDEN,
        matrix=gated_matrix(program, n, layer.gate, layer.up),
        **said,
    )
    matrix = program.matrix(
        f"{n}.feed_forward.down", layer.down.weight.shape, lambda: layer.down.weight
    )
    program.add("linear", **{"in": HIDDEN}, out=SIDE, matrix=matrix)


def add_output(program: Program, stack: Stack, output: LanguageOutput) -> None:
    """Logits of the rows that are asked for. A tied head reads the embedding's matrix."""
    own = output.vocabulary.weight
    config = output.config
    matrix = 0 if own is None else program.matrix("output", own.shape, lambda: own, sensitive=True)
    factor = None if output.logit_scale is None else output.logit_scale()
    bias = output.vocabulary.bias
    norm = program.norm(stack.norm)
    if norm is not None:
        program.add("norm", **{"in": STREAM}, out=STREAM, norm=norm, dim=stack.config.width)
    said = {"scale": config.scale, "softcap": config.softcap, "last": True}
    program.add(
        "linear",
        **{"in": STREAM},
        matrix=matrix,
        bias=program.place(bias),
        factor=program.place(factor),
        **said,
    )
