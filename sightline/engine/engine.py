"""The native engine: a packed model that runs tokens of any number of sequences in one call.

engine = NativeEngine.of(transformer, "int8")
sequence = engine.begin()
logits = engine.run([Rows(sequence, prompt)])    # [1, vocabulary]: after the last token of each
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.core.model import Transformer
from sightline.engine import gguf, matrices
from sightline.engine.forks import new_lock
from sightline.engine.lowering import program_of
from sightline.engine.matrices import Packed, Precision, check_fits
from sightline.engine.operations import Attend, Linear, to_native
from sightline.engine.program import Matrix, Program
from sightline.errors import InputError
from sightline.kernels import library as kernels


@dataclass(frozen=True, slots=True)
class Rows:
    """New tokens of one sequence. `logits`: after how many of its last tokens logits are
    computed."""

    sequence: int
    tokens: Sequence[int]
    logits: int = 1

    def check(self) -> None:
        if not self.tokens:
            raise InputError("a row without tokens", expected="ids from 0 on, at least one")
        if not 0 <= self.logits <= len(self.tokens):
            raise InputError(
                f"logits after {self.logits} of {len(self.tokens)} tokens",
                expected="at most one per token",
            )


def precision_of(matrix: Matrix, requested: Precision) -> Precision:
    """The precision that a matrix is packed in: with four bits, sensitive ones stay at eight."""
    has_four_bits = requested in ("int4", "int4_min")
    return "int8_groups" if has_four_bits and matrix.sensitive else requested


def check_id_range(smallest: int, largest: int, most: int) -> None:
    """Token ids must be in the vocabulary; checked before they are converted to 32 bits."""
    if smallest < 0 or largest >= most:
        raise InputError(
            f"tokens hold {smallest} to {largest}", expected=f"ids from 0 to {most - 1}"
        )


def repeat_per_token(sequences: Sequence[int], time: int) -> Int[Tensor, " rows"]:
    """Each sequence repeated for its `time` tokens."""
    return torch.tensor(sequences, dtype=torch.int64).repeat_interleave(time)


class NativeEngine:
    """A packed decoder. `notes`: warnings about rows of weights that packing destroyed.

    A sequence is identified by a handle that is never reused: the handle of a freed sequence is
    refused with an InputError, like any other invalid reference in a step."""

    def __init__(self, program: Program, packed: Sequence[Packed], *, half_cache: bool) -> None:
        self.program = program
        self.packed = list(packed)
        self.half_cache = half_cache
        self.notes = list[str]()
        native = kernels.ready()
        self.engine = native.Engine(
            widths=program.widths,
            kv_heads=program.kv_heads,
            head_dims=program.dims,
            half_cache=half_cache,
            max_positions=program.max_positions,
        )
        for matrix in packed:
            matrices.add(self.engine, matrix)
        for operation in program.operations:
            self.engine.add_operation(to_native(operation, program.tensors))
        last = program.operations[-1]
        self.vocabulary = 0
        if isinstance(last, Linear) and last.logits:
            self.vocabulary = packed[last.matrix].rows
        self.query_widths = [
            operation.heads * operation.head_dim
            for operation in program.operations
            if isinstance(operation, Attend)
        ]
        self.queries: list[Tensor] = []
        self.lock = new_lock()  # reentrant: garbage collection may free sequences at any time
        self.abandoned = deque[int]()  # sequences that are freed by the next holder of the lock

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        transformer: Transformer,
        precision: Precision = "float32",
        *,
        half_cache: bool | None = None,
    ) -> NativeEngine:
        """Pack a model's weights. With int4, sensitive matrices stay at int8."""
        if not kernels.available():
            raise InputError(f"the native engine: {kernels.missing}", fix="engine='torch'")
        matrices.check_precision(precision)
        return cls.packing(program_of(transformer), precision, half_cache=half_cache)

    @classmethod
    @torch.no_grad()
    def packing(
        cls, program: Program, precision: Precision, *, half_cache: bool | None = None
    ) -> NativeEngine:
        """Pack the weights of a program."""
        packed = matrices.room(
            [
                (precision_of(matrix, precision), matrix.rows, matrix.inputs)
                for matrix in program.matrices
            ]
        )
        engine = cls(
            program, packed, half_cache=precision != "float32" if half_cache is None else half_cache
        )
        for number, matrix in enumerate(program.matrices):
            weight = matrix.make().detach().float().contiguous()
            check_fits(matrix.name, weight, packed[number].precision)
            damage = gguf.pack(engine.engine, number, weight, packed[number])
            engine.notes += matrices.damage_notes(matrix.name, packed[number], *damage)
        return engine

    def set_encoder(self, encoder: NativeEngine) -> None:
        """Let cross-attention read the encoder's cache. Both engines then share one lock."""
        self.engine.set_encoder(encoder.engine)
        self.lock = encoder.lock

    @property
    def bytes(self) -> int:
        """Size of the packed weights."""
        return sum(matrix.bytes for matrix in self.packed)

    @property
    def cache_bytes(self) -> int:
        with self.lock:
            self._free_abandoned()
            return int(self.engine.cache_bytes())

    def begin(self) -> int:
        """Start a new sequence; returns its handle."""
        with self.lock:
            self._free_abandoned()
            return int(self.engine.new_sequence())

    def copy(self, sequence: int) -> int:
        """A new sequence with the same tokens; the common blocks of the cache are shared."""
        with self.lock:
            return int(self.engine.copy_sequence(sequence))

    def forget(self, sequence: int) -> None:
        with self.lock:
            self.engine.free_sequence(sequence)

    def leave(self, sequence: int) -> None:
        """Free a sequence without blocking: now, or before the next one begins. For `__del__`,
        which runs in any thread at any time."""
        self.abandoned.append(sequence)
        if self.lock.acquire(blocking=False):
            try:
                self._free_abandoned()
            finally:
                self.lock.release()

    def _free_abandoned(self) -> None:
        while self.abandoned:
            self.engine.free_sequence(self.abandoned.popleft())

    def truncate(self, sequence: int, length: int) -> None:
        with self.lock:
            self.engine.truncate_sequence(sequence, length)

    def length(self, sequence: int) -> int:
        with self.lock:
            return int(self.engine.length(sequence))

    def run(
        self, rows: Sequence[Rows], *, queries: bool = False, into: Sequence[Tensor | None] = ()
    ) -> Tensor:
        """Logits after the last tokens of each sequence, stacked. With `queries`, `self.queries`
        holds every layer's rotated q; with `into` they are written into these tensors: [rows, heads
        · head_dim] per layer, or None."""
        if (
            len(rows) == 1
            and len(rows[0].tokens) == rows[0].logits == 1
            and not queries
            and not into
        ):
            self.queries = []
            return self.next(rows[0].sequence, rows[0].tokens[0])
        tokens = list[int]()
        sequences = list[int]()
        positions = list[int]()
        logit_rows = list[int]()
        for row in rows:
            row.check()
            start = self.length(row.sequence)
            first = len(tokens)
            tokens += row.tokens
            sequences += [row.sequence] * len(row.tokens)
            positions += range(start, start + len(row.tokens))
            logit_rows += range(first + len(row.tokens) - row.logits, first + len(row.tokens))
        check_id_range(min(tokens, default=0), max(tokens, default=0), self.packed[0].rows)
        logits = torch.empty(len(logit_rows), self.vocabulary)
        self.queries = (
            [torch.empty(len(tokens), width) for width in self.query_widths] if queries else []
        )
        self.call(
            tokens=torch.tensor(tokens, dtype=torch.int32),
            sequences=torch.tensor(sequences, dtype=torch.int64),
            positions=torch.tensor(positions, dtype=torch.int32),
            logit_rows=torch.tensor(logit_rows, dtype=torch.int32),
            logits=logits,
            queries=into or self.queries,
        )
        return logits

    def next(self, sequence: int, token: int) -> Float[Tensor, "1 vocabulary"]:
        """Logits after one more token of one sequence: `run` with the least overhead."""
        check_id_range(token, token, self.packed[0].rows)
        logits = torch.empty(1, self.vocabulary)
        with self.lock:
            kernels.ready()
            self.engine.next(sequence, token, logits)
        return logits

    def hidden(
        self,
        sequences: Sequence[int],
        tokens: Int[Tensor, "batch time"],
        *,
        sources: Sequence[int] = (),
        queries: Sequence[Tensor | None] = (),
        start: Float[Tensor, "batch time width"] | None = None,
        first: int = 0,
    ) -> Float[Tensor, "batch time width"]:
        """The last hidden states of one row of tokens per sequence, before the head. `sources`: the
        encoder's sequences that they attend to; `queries`: as `into` of `run`; `start` and `first`:
        the residual stream and the operation to start with."""
        batch, time = tokens.shape
        if len(sequences) != batch or len(sources) not in (0, batch):
            raise InputError(
                f"{len(sequences)} sequences and {len(sources)} sources for {batch} rows of tokens",
                expected="one per row",
            )
        if tokens.numel():
            check_id_range(int(tokens.min()), int(tokens.max()), self.packed[0].rows)
        starts = torch.tensor([self.length(sequence) for sequence in sequences], dtype=torch.int32)
        hidden = torch.empty(batch, time, self.program.widths[0])
        self.call(
            tokens=tokens.flatten().int(),
            sequences=repeat_per_token(sequences, time),
            positions=(starts[:, None] + torch.arange(time, dtype=torch.int32)).flatten(),
            hidden=hidden.flatten(0, 1),
            queries=queries,
            start=None if start is None else start.flatten(0, 1),
            first=first,
            sources=repeat_per_token(sources, time) if sources else None,
        )
        return hidden

    def head(self, hidden: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocabulary"]:
        """Logits of hidden states."""
        hidden = hidden.float().contiguous()
        rows = torch.arange(len(hidden), dtype=torch.int32)
        logits = torch.empty(len(hidden), self.vocabulary)
        self.call(
            positions=rows,
            logit_rows=rows,
            logits=logits,
            start=hidden,
            first=len(self.program.operations) - 1,
        )
        return logits

    def call(
        self,
        *,
        positions: Tensor,
        tokens: Tensor | None = None,
        sequences: Tensor | None = None,
        logit_rows: Tensor | None = None,
        logits: Tensor | None = None,
        hidden: Tensor | None = None,
        start: Tensor | None = None,
        first: int = 0,
        sources: Tensor | None = None,
        queries: Sequence[Tensor | None] = (),
    ) -> None:
        """One step under the lock: scratch memory belongs to the engine. `start` is the residual
        stream to start from, instead of tokens; `first` the operation to start with."""
        with self.lock:
            kernels.ready()  # as many threads as torch has now
            self.engine.run(
                positions=positions,
                tokens=tokens,
                sequences=sequences,
                sources=sources,
                logit_rows=logit_rows,
                logits=logits,
                queries=queries,
                hidden=hidden,
                start=start,
                first=first,
            )

    def read_cache(
        self, sequence: int, layer: int, *, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [kv_heads, positions, head_dim], from the cache: of the
        first `length` positions, or all."""
        with self.lock:
            there = self.length(sequence)
            length = there if length is None else min(there, length)
            shape = (self.program.kv_heads[layer], length, self.program.dims[layer])
            keys = torch.empty(shape)
            values = torch.empty(shape)
            self.engine.read_cache(sequence, layer, keys, values)
        return keys, values
