"""The engine: a packed model that runs tokens of any number of sequences, one call for all of them.

engine = NativeEngine.of(transformer, "int8")
sequence = engine.begin()
logits = engine.run([Rows(sequence, prompt)])    # [1, vocabulary]: after the last token of each
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline.core.model import Transformer
from sightline.engine import gguf, matrices
from sightline.engine.forks import new_lock
from sightline.engine.matrices import Packed, Precision, check_fits
from sightline.engine.program import KINDS, Matrix, Program, program_of
from sightline.errors import InputError
from sightline.kernels import library as kernels

ATTEND = KINDS.index("attend")


@dataclass(frozen=True, slots=True)
class Rows:
    """New tokens of one sequence, and how many logits are wanted: those after its last tokens."""

    sequence: int
    tokens: Sequence[int]
    logits: int = 1

    def check(self) -> None:
        if not self.tokens:
            raise InputError("a row without tokens", expected="ids from 0 on, at least one")
        if not 0 <= self.logits <= len(self.tokens):
            raise InputError(
                f"logits after {self.logits} of {len(self.tokens)} tokens",
                expected="at most one for each token",
            )


def kept_at(matrix: Matrix, wanted: Precision) -> Precision:
    """With four bits, what is sensitive stays at eight."""
    return "int8_groups" if wanted in ("int4", "int4_min") and matrix.sensitive else wanted


def check_ids(smallest: int, largest: int, most: int) -> None:
    """Before they are made 32 bits wide."""
    if smallest < 0 or largest >= most:
        raise InputError(
            f"tokens hold {smallest} to {largest}", expected=f"ids from 0 to {most - 1}"
        )


def check_room(name: str, x: Tensor, shape: Sequence[int]) -> None:
    """The engine is given an address alone."""
    if tuple(x.shape) != tuple(shape) or x.dtype != torch.float32 or not x.is_contiguous():
        raise InputError(
            f"{name}: {x.dtype} {list(x.shape)}",
            expected=f"torch.float32 {list(shape)}, contiguous",
        )


def each_row(sequences: Sequence[int], time: int) -> Int[Tensor, " rows"]:
    """A sequence for each of its tokens."""
    return torch.tensor(sequences, dtype=torch.int64).repeat_interleave(time)


class NativeEngine:
    """A decoder, packed. `notes`: what packing cost, where it cost too much.

    A sequence is known by a number that is never given twice: one that was forgotten is refused, as
    is whatever else a step names that is not there."""

    def __init__(self, program: Program, packed: Sequence[Packed], *, half_cache: bool) -> None:
        self.program = program
        self.packed = list(packed)
        self.half_cache = half_cache
        self.notes = list[str]()
        native = kernels.ready()
        self.engine: Any = native.Engine(
            program.widths, program.kv_heads, program.dims, half_cache, program.max_positions
        )
        numbers = [matrices.add(self.engine, one) for one in packed]
        for said in program.operations:
            self.engine.operation(
                program.addressed(said)
                | ({"matrix": numbers[said["matrix"]]} if "matrix" in said else {})
            )
        last = program.operations[-1]
        self.vocabulary = packed[last["matrix"]].rows if last.get("last") else 0
        self.query_widths = [
            said["heads"] * said["dim"] for said in program.operations if said["kind"] == ATTEND
        ]
        self.queries: list[Tensor] = []
        self.alone = (
            new_lock()
        )  # taken again by the same thread where memory is given back in the middle of something
        self.left = deque[
            int
        ]()  # sequences that nobody needs, to be forgotten by the next who has the lock

    @classmethod
    @torch.no_grad()
    def of(
        cls,
        transformer: Transformer,
        precision: Precision = "float32",
        *,
        half_cache: bool | None = None,
    ) -> NativeEngine:
        """A model's weights, packed now. With int4, sensitive matrices stay at int8."""
        if not kernels.available():
            raise InputError(f"the native engine: {kernels.missing}", fix="engine='torch'")
        matrices.check_precision(precision)
        return cls.packing(program_of(transformer), precision, half_cache=half_cache)

    @classmethod
    @torch.no_grad()
    def packing(
        cls, program: Program, precision: Precision, *, half_cache: bool | None = None
    ) -> NativeEngine:
        """A program with its weights, packed now."""
        packed = matrices.room(
            [(kept_at(one, precision), one.rows, one.inputs) for one in program.matrices]
        )
        made = cls(
            program, packed, half_cache=precision != "float32" if half_cache is None else half_cache
        )
        for number, one in enumerate(program.matrices):
            weight = one.make().detach().float().contiguous()
            check_fits(one.name, weight, packed[number].precision)
            damage = gguf.pack(made.engine, number, weight, packed[number])
            made.notes += matrices.damage_notes(one.name, packed[number], *damage)
        return made

    def look_at(self, encoder: NativeEngine) -> None:
        """Cross-attention reads the encoder's cache: whoever has the lock of one has the
        other's."""
        self.engine.look_at(encoder.engine)
        self.alone = encoder.alone

    @property
    def bytes(self) -> int:
        """Packed weights."""
        return sum(one.bytes for one in self.packed)

    @property
    def cache_bytes(self) -> int:
        with self.alone:
            self._forget_left()
            return int(self.engine.cache_bytes())

    def begin(self) -> int:
        """A new sequence."""
        with self.alone:
            self._forget_left()
            return int(self.engine.new_sequence())

    def copy(self, sequence: int) -> int:
        """Another that begins like this one; what both have is kept once."""
        with self.alone:
            return int(self.engine.copy_sequence(sequence))

    def forget(self, sequence: int) -> None:
        with self.alone:
            self.engine.forget_sequence(sequence)

    def leave(self, sequence: int) -> None:
        """Forget it without waiting: now, or before the next sequence begins. For `__del__`, which
        runs in any thread at any time."""
        self.left.append(sequence)
        if self.alone.acquire(blocking=False):
            try:
                self._forget_left()
            finally:
                self.alone.release()

    def _forget_left(self) -> None:
        while self.left:
            self.engine.forget_sequence(self.left.popleft())

    def truncate(self, sequence: int, length: int) -> None:
        with self.alone:
            self.engine.truncate_sequence(sequence, length)

    def length(self, sequence: int) -> int:
        with self.alone:
            return int(self.engine.length(sequence))

    def run(
        self, rows: Sequence[Rows], *, queries: bool = False, into: Sequence[Tensor | None] = ()
    ) -> Tensor:
        """Logits after the last tokens of each, one below the other. With `queries`, `self.queries`
        keeps every layer's rotated q; they may go `into` room that is given instead: [rows, heads ·
        head_dim] for each layer, or None."""
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
        wanted = list[int]()
        for one in rows:
            one.check()
            start = self.length(one.sequence)
            first = len(tokens)
            tokens += one.tokens
            sequences += [one.sequence] * len(one.tokens)
            positions += range(start, start + len(one.tokens))
            wanted += range(first + len(one.tokens) - one.logits, first + len(one.tokens))
        check_ids(min(tokens, default=0), max(tokens, default=0), self.packed[0].rows)
        logits = torch.empty(len(wanted), self.vocabulary)
        self.queries = (
            [torch.empty(len(tokens), width) for width in self.query_widths] if queries else []
        )
        self.call(
            len(tokens),
            tokens=torch.tensor(tokens, dtype=torch.int32),
            sequences=torch.tensor(sequences, dtype=torch.int64),
            positions=torch.tensor(positions, dtype=torch.int32),
            wanted=torch.tensor(wanted, dtype=torch.int32),
            logits=logits,
            queries=into or self.queries,
        )
        return logits

    def next(self, sequence: int, token: int) -> Float[Tensor, "1 vocabulary"]:
        """Logits after one more token: `run` as it mostly is, with as little around it as may
        be."""
        check_ids(token, token, self.packed[0].rows)
        logits = torch.empty(1, self.vocabulary)
        with self.alone:
            kernels.ready()
            self.engine.next(sequence, token, logits.data_ptr())
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
        """The last hidden states of one row of tokens for each sequence, before the head.
        `sources`: the encoder's sequences that they look at; `queries`: as `into` of `run`; `start`
        and `first`: the residual stream and the operation to begin with."""
        batch, time = tokens.shape
        if len(sequences) != batch or len(sources) not in (0, batch):
            raise InputError(
                f"{len(sequences)} sequences and {len(sources)} sources for {batch} rows of tokens",
                expected="one for each row",
            )
        if tokens.numel():
            check_ids(int(tokens.min()), int(tokens.max()), self.packed[0].rows)
        starts = torch.tensor([self.length(sequence) for sequence in sequences], dtype=torch.int32)
        found = torch.empty(batch, time, self.program.widths[0])
        self.call(
            tokens.numel(),
            tokens=tokens.flatten().int(),
            sequences=each_row(sequences, time),
            positions=(starts[:, None] + torch.arange(time, dtype=torch.int32)).flatten(),
            hidden=found,
            queries=queries,
            start=start,
            first=first,
            sources=each_row(sources, time) if sources else None,
        )
        return found

    def head(self, hidden: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocabulary"]:
        """Logits of hidden states."""
        hidden = hidden.float().contiguous()
        rows = torch.arange(len(hidden), dtype=torch.int32)
        logits = torch.empty(len(hidden), self.vocabulary)
        self.call(
            len(hidden),
            positions=rows,
            wanted=rows,
            logits=logits,
            start=hidden,
            first=len(self.program.operations) - 1,
        )
        return logits

    def call(
        self,
        rows: int,
        *,
        positions: Tensor,
        tokens: Tensor | None = None,
        sequences: Tensor | None = None,
        wanted: Tensor | None = None,
        logits: Tensor | None = None,
        hidden: Tensor | None = None,
        start: Tensor | None = None,
        first: int = 0,
        sources: Tensor | None = None,
        queries: Sequence[Tensor | None] = (),
    ) -> None:
        """One step, alone: scratch memory belongs to the engine. `start` is the residual stream
        where it is given, `first` the operation to begin with."""
        if start is not None:
            check_room("hidden states", start.flatten(0, -2), (rows, self.program.widths[0]))
        for room, width in zip(queries, self.query_widths, strict=False):
            if room is not None:
                check_room("room for queries", room, (rows, width))
        address = kernels.address
        count = 0 if wanted is None else len(wanted)
        given = [address(one) for one in (tokens, sequences, positions, sources)]
        asked = (
            count,
            address(wanted),
            address(logits),
            [address(one) for one in queries],
            address(hidden),
        )
        with self.alone:
            kernels.ready()  # as many threads as torch has now
            self.engine.run(rows, *given, *asked, address(start), first)

    def remembered(
        self, sequence: int, layer: int, *, length: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [kv_heads, positions, head_dim], as the cache has them; of
        the first `length` positions."""
        with self.alone:
            there = self.length(sequence)
            heads = self.program.kv_heads[layer]
            dim = self.program.dims[layer]
            length = min(there, there if length is None else length)
            keys = torch.empty(heads, length, dim)
            values = torch.empty(heads, length, dim)
            for head in range(heads):
                self.engine.read_cache(
                    sequence, layer, head, length, keys[head].data_ptr(), values[head].data_ptr()
                )
        return keys, values
