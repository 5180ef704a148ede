"""Lowering: a Transformer as a program of the engine's operations, one per line of its mathematics.

    x ← embed(token)
    each block:   qkv ← W norm(x);   mixed ← attend(qkv);   x ← x + W_O mixed;
                  h ← act(W_g norm(x)) ⊙ W_u norm(x);   x ← x + W_D h
    logits ← W norm(x)

Norms are fused into the product that reads them, additions into the product that writes: the
residual stream passes through memory as rarely as possible.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

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
from sightline.core.norms import PerHeadNorm
from sightline.core.output import LanguageOutput
from sightline.core.positions import alibi_slopes, relative_bucket, rotary_frequencies, sinusoidal
from sightline.core.stack import Stack
from sightline.engine.matrices import interleaved
from sightline.engine.operations import (
    HIDDEN,
    JOINED,
    MIXED,
    SIDE,
    STREAM,
    Add,
    Attend,
    Blend,
    Embed,
    HeadTransform,
    Linear,
    Norm,
    Normalize,
)
from sightline.engine.program import Program
from sightline.errors import InputError

UNLIMITED = 2**31 - 1  # positions are 32 bits wide


def program_of(transformer: Transformer) -> Program:
    """The program of a decoder-only model with a language head."""
    if transformer.encoder is not None:
        raise InputError(
            "the native engine for a model that is no decoder with a language head",
            fix="engine='torch'",
        )
    return decoder_program(transformer)


def decoder_program(transformer: Transformer) -> Program:
    """A decoder with a language head. Its cross-attention reads keys and values that
    `encoder_program` stores."""
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
    """A program without operations, with the buffers that a stack needs."""
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
    longest = max_positions(stack, forms)
    return Program(widths, kv_heads, dims, longest, cross_from=cross_from)


def max_positions(stack: Stack, forms: Sequence[AttentionConfig]) -> int:
    """How long a sequence may be: tables of positions are limited, angles and buckets are not."""
    has_table = isinstance(stack.config.embedding.positions, (Learned, Sinusoidal))
    has_slopes = any(isinstance(form.positions, ALiBi) for form in forms)
    return stack.config.max_positions if has_table or has_slopes else UNLIMITED


def check_forms(forms: Sequence[AttentionConfig]) -> None:
    """Refuse attention that the engine does not support."""
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
        table = embedding.positions.weight[form.offset :][: config.max_positions]
    if isinstance(form, Sinusoidal):
        table = sinusoidal(torch.arange(config.max_positions)[None], config.width, form)[0]
    types = None if embedding.types is None else embedding.types.weight[0]
    operation = Embed(
        matrix=matrix,
        scale=config.embedding.scale,
        positions=program.tensor(table),
        types=program.tensor(types),
        norm=Norm(kind="unit") if config.on_sphere else program.norm(embedding.norm),
    )
    program.add(operation)


def add_block(program: Program, stack: Stack, n: int) -> None:
    block = stack[n]
    if isinstance(block, SphereBlock):
        add_sphere_block(program, stack, n, block)
    elif isinstance(block, ParallelBlock):
        add_parallel_block(program, stack, n, block)
    else:
        add_sequential_block(program, stack, n, block)


def add_sphere_block(program: Program, stack: Stack, n: int, block: SphereBlock) -> None:
    """nGPT: each sublayer's result is blended into the stream on the unit sphere."""
    add_attention(program, stack, n, block.attention, None, output=SIDE)
    step = program.required_tensor(block.attention_step())
    program.add(Blend(input=SIDE, output=STREAM, step=step))
    add_sphere_feed_forward(program, n, block.feed_forward)
    step = program.required_tensor(block.feed_forward_step())
    program.add(Blend(input=SIDE, output=STREAM, step=step))


def add_parallel_block(program: Program, stack: Stack, n: int, block: ParallelBlock) -> None:
    """Both sublayers read the same stream, so attention's result is added last."""
    before_attention = program.norm(block.attention_residual.before)
    add_attention(program, stack, n, block.attention, before_attention, output=SIDE)
    before_feed_forward = program.norm(block.feed_forward_residual.before)
    add_feed_forward(program, n, block, before_feed_forward, output=STREAM, accumulate=True)
    program.add(Add(input=SIDE, output=STREAM))


def add_sequential_block(program: Program, stack: Stack, n: int, block: Block) -> None:
    """Sequential sublayers. One with a norm inside its residual writes to a side buffer first, the
    others add to the stream directly."""
    width = stack.config.width
    for residual, sublayer in (
        (block.attention_residual, "attention"),
        (block.cross_residual, "cross"),
        (block.feed_forward_residual, "feed_forward"),
    ):
        if residual is None:
            continue
        inside = program.norm(residual.inside)
        after = program.norm(residual.after)
        before = program.norm(residual.before)
        output = STREAM if inside is None else SIDE
        accumulate = inside is None
        if sublayer == "attention":
            add_attention(
                program, stack, n, block.attention, before, output=output, accumulate=accumulate
            )
        elif sublayer == "cross":
            add_cross_attention(
                program, n, block.cross_attention, before, output=output, accumulate=accumulate
            )
        else:
            add_feed_forward(program, n, block, before, output=output, accumulate=accumulate)
        if inside is not None:
            program.add(Normalize(input=SIDE, output=SIDE, norm=inside, width=width))
            program.add(Add(input=SIDE, output=STREAM))
        if after is not None:
            program.add(Normalize(input=STREAM, output=STREAM, norm=after, width=width))


def add_attention(
    program: Program,
    stack: Stack,
    n: int,
    layer: Attention,
    norm: Norm | None,
    *,
    output: int,
    accumulate: bool = False,
) -> None:
    form = layer.config
    parts = (layer.query, layer.key, layer.value)
    rows = (form.heads + 2 * form.kv_heads) * form.head_dim
    joined = program.matrix(
        f"{n}.attention.joined",
        (rows, layer.width),
        lambda: torch.cat([part.weight for part in parts]),
    )
    bias = program.tensor(torch.cat([part.bias for part in parts]) if form.bias else None)
    program.add(Linear(input=STREAM, output=JOINED, matrix=joined, norm=norm, bias=bias))
    if form.query_key_norm is not None and not form.query_key_norm.per_head:
        query_width = form.heads * form.head_dim
        key_width = form.kv_heads * form.head_dim
        program.normalize(layer.query_norm, buffer=JOINED, width=query_width)
        program.normalize(layer.key_norm, buffer=JOINED, width=key_width, offset=query_width)
    attend = Attend(
        input=JOINED,
        output=MIXED,
        layer=n,
        heads=form.heads,
        kv_heads=form.kv_heads,
        head_dim=form.head_dim,
        transform=head_transform(program, layer),
        scale=layer.scale,
        softcap=form.softcap or 0.0,
        window=form.window or 0,
        causal=stack.config.causal,
        sinks=program.tensor(layer.sinks),
    )
    program.add(with_distance_bias(attend, program, stack, form))
    add_projection(
        program,
        f"{n}.attention.output",
        layer.output,
        source=MIXED,
        output=output,
        accumulate=accumulate,
    )


def add_projection(
    program: Program, name: str, layer: nn.Linear, *, source: int, output: int, accumulate: bool
) -> None:
    """W x + b, into a buffer or added to it."""
    matrix = program.matrix(name, layer.weight.shape, lambda: layer.weight)
    bias = program.tensor(layer.bias)
    operation = Linear(input=source, output=output, matrix=matrix, bias=bias, accumulate=accumulate)
    program.add(operation)


def add_cross_attention(
    program: Program,
    n: int,
    layer: Attention | None,
    norm: Norm | None,
    *,
    output: int,
    accumulate: bool = False,
) -> None:
    """Queries of the decoder over the keys and values that the encoder stored."""
    assert layer is not None
    form = layer.config
    query = layer.query
    matrix = program.matrix(f"{n}.cross_attention.query", query.weight.shape, lambda: query.weight)
    bias = program.tensor(query.bias)
    program.add(Linear(input=STREAM, output=JOINED, matrix=matrix, norm=norm, bias=bias))
    if form.query_key_norm is not None and not form.query_key_norm.per_head:
        program.normalize(layer.query_norm, buffer=JOINED, width=form.heads * form.head_dim)
    attend = Attend(
        input=JOINED,
        output=MIXED,
        layer=program.cross_from + n,
        heads=form.heads,
        kv_heads=form.kv_heads,
        head_dim=form.head_dim,
        transform=head_transform(program, layer),
        scale=layer.scale,
        softcap=form.softcap or 0.0,
        causal=False,
        cross=True,
        sinks=program.tensor(layer.sinks),
    )
    program.add(attend)
    add_projection(
        program,
        f"{n}.cross_attention.output",
        layer.output,
        source=MIXED,
        output=output,
        accumulate=accumulate,
    )


def with_distance_bias(
    attend: Attend, program: Program, stack: Stack, form: AttentionConfig
) -> Attend:
    """The operation with its bias by distance, key − query from −max_distance to max_distance;
    beyond that the last value holds, as in T5."""
    if isinstance(form.positions, ALiBi):
        reach = stack.config.max_positions
        distance = torch.arange(-reach, reach + 1).abs()
        bias = -torch.tensor(alibi_slopes(form.heads))[:, None] * distance
    elif isinstance(form.positions, RelativeBias) and stack.relative is not None:
        reach = form.positions.max_distance + 1
        table = stack.relative
        buckets = relative_bucket(
            torch.arange(-reach, reach + 1),
            table.weight.shape[0],
            table.max_distance,
            causal=table.causal,
        )
        bias = table.weight[buckets].T
    else:
        return attend
    return replace(attend, distance_bias=program.tensor(bias), max_distance=reach)


def head_transform(program: Program, layer: Attention) -> HeadTransform:
    """The transformation of q and k before their product."""
    form = layer.config
    transform = HeadTransform()
    if isinstance(layer.query_norm, PerHeadNorm) and isinstance(layer.key_norm, PerHeadNorm):
        query_norm = program.norm(layer.query_norm.norm)
        key_norm = program.norm(layer.key_norm.norm)
        transform = replace(transform, query_norm=query_norm, key_norm=key_norm)
    if isinstance(form.positions, Rotary):
        dim = form.positions.dim or form.head_dim
        frequencies, amplitude = rotary_frequencies(form.positions, dim)
        table = program.tensor(frequencies)
        transform = replace(transform, frequencies=table, amplitude=amplitude)
    if isinstance(layer.measure, CosineMeasure):
        scale = program.tensor(layer.measure.scale[:, None].expand(-1, form.head_dim))
        transform = replace(transform, unit=True, query_scale=scale)
    if isinstance(layer, SphereAttention) and isinstance(layer.measure, SphereMeasure):
        scale = layer.measure.scale()
        query_scale = program.tensor(scale.repeat_interleave(layer.measure.group, dim=0))
        key_scale = program.tensor(scale)
        transform = replace(transform, unit=True, query_scale=query_scale, key_scale=key_scale)
    return transform


def add_feed_forward(
    program: Program, n: int, block: Block, norm: Norm | None, *, output: int, accumulate: bool
) -> None:
    layer = block.feed_forward
    up = layer.up
    gate = layer.gate
    if gate is None:
        matrix = program.matrix(f"{n}.feed_forward.up", up.weight.shape, lambda: up.weight)
        bias = up.bias
        gated_width = 0
    else:
        matrix = gated_matrix(program, n, gate, up)
        bias = None if up.bias is None else torch.cat([gate.bias, up.bias])
        gated_width = up.weight.shape[0]
    operation = Linear(
        input=STREAM,
        output=HIDDEN,
        matrix=matrix,
        norm=norm,
        bias=program.tensor(bias),
        activation=layer.activation_name,
        gated_width=gated_width,
    )
    program.add(operation)
    add_projection(
        program,
        f"{n}.feed_forward.down",
        layer.down,
        source=HIDDEN,
        output=output,
        accumulate=accumulate,
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
    operation = Linear(
        input=STREAM,
        output=HIDDEN,
        matrix=gated_matrix(program, n, layer.gate, layer.up),
        activation=layer.activation_name,
        gated_width=layer.up.weight.shape[0],
        gate_scale=program.tensor(scales),
    )
    program.add(operation)
    weight = layer.down.weight
    matrix = program.matrix(f"{n}.feed_forward.down", weight.shape, lambda: weight)
    program.add(Linear(input=HIDDEN, output=SIDE, matrix=matrix))


def add_output(program: Program, stack: Stack, output: LanguageOutput) -> None:
    """Logits of the requested rows. A tied head reads the embedding's matrix."""
    own = output.vocabulary.weight
    config = output.config
    matrix = 0 if own is None else program.matrix("output", own.shape, lambda: own, sensitive=True)
    program.normalize(stack.norm, buffer=STREAM, width=stack.config.width)
    operation = Linear(
        input=STREAM,
        matrix=matrix,
        bias=program.tensor(output.vocabulary.bias),
        column_scale=program.tensor(None if output.logit_scale is None else output.logit_scale()),
        scale=config.scale,
        softcap=config.softcap or 0.0,
        logits=True,
    )
    program.add(operation)
