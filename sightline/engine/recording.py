"""Recording a forward pass of the native engine: the queries are copied out of the step, keys and
values stay in the engine's KV cache.

    record = Pass(layers=None)
    runner.hidden(tokens, cache=cache, record=record)
    record.queries, record.held.read(layer, record.stop)

Recording costs one copy of the queries. Everything between q·k and the softmax (scale, bias, mask)
is read from the engine's own program.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import ALiBi, AttentionConfig, RelativeBias
from sightline.core.attention import Scoring
from sightline.core.masks import Mask
from sightline.core.multi_head import split_heads
from sightline.core.positions import ALiBiBias, Bias, TableBias, alibi_slopes, relative_bucket
from sightline.engine.engine import NativeEngine
from sightline.engine.operations import Attend
from sightline.engine.program import Program
from sightline.errors import InputError
from sightline.record import ATTENTION, NOTHING, QUANTITIES, Record, Recorder, Site

if TYPE_CHECKING:
    from sightline.engine.runner import NativeRunner

RECORDABLE = (*ATTENTION, "mask", "bias", "output", "logits")


# -------------------------------------------------------------------- keys that stay in the cache


class Held:
    """A sequence of the engine whose keys and values will be read later. It belongs to its cache as
    long as the cache only appends; a cache that truncates it gives it up and continues with a
    copy."""

    def __init__(self, engine: NativeEngine, sequence: int) -> None:
        self.engine = engine
        self.sequence = sequence
        self.owned = False

    def read(
        self, layer: int, length: int
    ) -> tuple[Float[Tensor, "kv_heads key dim"], Float[Tensor, "kv_heads key dim"]]:
        """Keys and values of the first tokens."""
        return self.engine.read_cache(self.sequence, layer, length=length)

    def __del__(self) -> None:
        if self.owned:
            self.engine.leave(self.sequence)


# -------------------------------------------------------------------- between q·k and the softmax


@dataclass(frozen=True, slots=True)
class Form:
    """One attention layer of a program: how many heads, and its scoring without a mask."""

    heads: int
    kv_heads: int
    dim: int
    scale: float
    softcap: float | None
    window: int | None
    causal: bool
    bias: Bias | None
    sinks: Float[Tensor, " heads"] | None

    def scoring(self, start: int, stop: int) -> Scoring:
        """For queries from `start` to `stop`, the last tokens of the sequence."""
        at = torch.arange(stop)[None]
        return Scoring(
            Mask(at[:, start:], at, self.causal, self.window, start),
            self.scale,
            self.bias,
            self.softcap,
            self.sinks,
        )


def forms_of(runner: NativeRunner) -> dict[Site, Form]:
    """The attention layers, as the engine computes them."""
    program = runner.engine.program
    stack = runner.config.decoder
    assert stack is not None
    attends = [operation for operation in program.operations if isinstance(operation, Attend)]
    return {
        ("decoder", n, False): form_of(program, attend, stack.block(n).attention)
        for n, attend in enumerate(attends)
    }


def form_of(program: Program, attend: Attend, config: AttentionConfig) -> Form:
    return Form(
        attend.heads,
        attend.kv_heads,
        attend.head_dim,
        attend.scale,
        attend.softcap or None,
        attend.window or None,
        attend.causal,
        bias_of(program, attend, config),
        None if attend.sinks is None else program.tensors[attend.sinks.number],
    )


def bias_of(program: Program, attend: Attend, config: AttentionConfig) -> Bias | None:
    """ALiBi's bias, or T5's: its table, recovered from the engine's bias for each distance."""
    form = config.positions
    if isinstance(form, ALiBi):
        return ALiBiBias(tuple(alibi_slopes(config.heads)))
    if not isinstance(form, RelativeBias) or attend.distance_bias is None:
        return None
    by_distance = program.tensors[attend.distance_bias.number]
    causal = attend.causal
    distances = torch.arange(-attend.max_distance, attend.max_distance + 1)
    table = torch.zeros(form.buckets, config.heads)
    table[relative_bucket(distances, form.buckets, form.max_distance, causal=causal)] = (
        by_distance.T
    )
    return TableBias(table, form.max_distance, causal)


# --------------------------------------------------------------------------------------- one pass


class Pass(Recorder):
    """One forward pass of the engine: its positions, its queries, and the sequence that holds its
    keys."""

    def __init__(self, layers: Iterable[int] | None) -> None:
        super().__init__({"query"}, layers=layers)
        self.start = 0
        self.stop = 0
        self.queries: Sequence[Tensor | None] = ()
        self.held: Held | None = None

    def take(self, held: Held, start: int, queries: Sequence[Tensor | None]) -> None:
        self.held = held
        self.queries = queries
        self.start = start
        self.stop = start + next(len(one) for one in queries if one is not None)


def check_record(record: Record) -> None:
    """Refuse quantities that the engine cannot record, and edits, before the pass runs."""
    if record is NOTHING:
        return
    requested = (
        record.names
        if isinstance(record, Recorder)
        else frozenset(name for name in QUANTITIES if record.wants(name))
    )
    missing = sorted(requested - set(RECORDABLE))
    if missing or (isinstance(record, Recorder) and record.edits):
        seen = (
            f"{missing[0]} of a pass of the native engine"
            if missing
            else "an edit in a pass of the native engine"
        )
        raise InputError(
            seen,
            expected=f"a record of {', '.join(RECORDABLE)}",
            fix="use Cache.growing(model.config), which runs on torch",
        )


def query_buffers(record: Record, engine: NativeEngine, rows: int) -> list[Tensor | None]:
    """Buffers for the queries of a pass, in the layers whose queries are recorded."""
    if record is NOTHING:
        return []
    return [
        torch.empty(rows, width) if record.at("decoder", n).wants("query") else None
        for n, width in enumerate(engine.query_widths)
    ]


def record_pass(
    record: Record,
    runner: NativeRunner,
    sequences: Sequence[int],
    queries: Sequence[Tensor | None],
    hidden: Tensor,
) -> None:
    """Give a recorder q, k, v, mask and bias of a finished pass, as the core would have."""
    time = hidden.shape[1]
    forms = forms_of(runner)
    for (stack, layer, _), form in forms.items():
        scope = record.at(stack, layer)
        query = queries[layer]
        if query is not None:
            scope("query", split_heads(query.unflatten(0, (-1, time)), form.heads))
        if scope.wants("key") or scope.wants("value"):
            both = [runner.engine.read_cache(sequence, layer) for sequence in sequences]
            scope("key", torch.stack([pair[0] for pair in both]))
            scope("value", torch.stack([pair[1] for pair in both]))
        if scope.wants("mask") or scope.wants("bias"):
            stop = runner.engine.length(sequences[0])
            scoring = form.scoring(stop - time, stop)
            scope("mask", scoring.mask)
            scope("bias", scoring.bias)
    record.at("decoder")("output", hidden)


def describe_precision(engine: NativeEngine) -> str:
    """The note of a trace that the engine computed."""
    weights = " and ".join(sorted({matrix.precision for matrix in engine.packed}))
    cache = "float16" if engine.half_cache else "float32"
    return (
        f"queries, keys, values and logits are the native engine's: {weights} weights, a {cache}"
        " cache"
    )
