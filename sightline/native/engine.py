"""The engine: a packed model that runs tokens of any number of sequences, one call for all of them.

engine = NativeEngine.of(transformer, "int8")
sequence = engine.begin()
logits = engine.run([Rows(sequence, prompt)])            # [1, vocabulary]: after the last token of each
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from sightline import kernels
from sightline.core.model import Transformer
from sightline.errors import InputError
from sightline.native import gguf, matrices
from sightline.native.matrices import Packed, Precision
from sightline.native.program import KINDS, Matrix, Program, program_of

ATTEND = KINDS.index("attend")


@dataclass(frozen=True, slots=True)
class Rows:
    """New tokens of one sequence, and how many logits are wanted: those after its last tokens."""

    sequence: int
    tokens: Sequence[int]
    logits: int = 1


def kept_at(matrix: Matrix, wanted: Precision) -> Precision:
    """With four bits, what is sensitive stays at eight."""
    return "int8_groups" if wanted in ("int4", "int4_min") and matrix.sensitive else wanted


def check_ids(name: str, ids: Sequence[int], most: int) -> None:
    """The engine reads memory by these numbers, so none may be wrong."""
    if not ids or min(ids) < 0 or max(ids) >= most:
        raise InputError(
            f"{name} hold {min(ids, default='nothing')} to {max(ids, default='nothing')}", expected=f"ids from 0 to {most - 1}"
        )


class NativeEngine:
    """A decoder, packed."""

    def __init__(self, program: Program, packed: Sequence[Packed], *, half_cache: bool) -> None:
        self.program, self.packed, self.half_cache = program, list(packed), half_cache
        native = kernels.ready()
        self.engine: Any = native.Engine(program.widths, program.kv_heads, program.dims, half_cache)
        numbers = [matrices.add(self.engine, one) for one in packed]
        for said in program.operations:
            self.engine.operation(program.addressed(said) | ({"matrix": numbers[said["matrix"]]} if "matrix" in said else {}))
        last = program.operations[-1]
        self.vocabulary = packed[last["matrix"]].rows if last.get("last") else 0
        self.query_widths = [said["heads"] * said["dim"] for said in program.operations if said["kind"] == ATTEND]
        self.queries: list[Tensor] = []
        self.alone = threading.RLock()  # again by the same thread: memory may be given back at any time

    @classmethod
    @torch.no_grad()
    def of(cls, transformer: Transformer, precision: Precision = "float32", *, half_cache: bool | None = None) -> NativeEngine:
        """A model's weights, packed now. With int4, sensitive matrices stay at int8."""
        if not kernels.available():
            raise InputError(f"the native engine: {kernels.missing}", fix="engine='torch'")
        matrices.check_precision(precision)
        return cls.packing(program_of(transformer), precision, half_cache=half_cache)

    @classmethod
    @torch.no_grad()
    def packing(cls, program: Program, precision: Precision, *, half_cache: bool | None = None) -> NativeEngine:
        """A program with its weights, packed now."""
        packed = matrices.room([(kept_at(one, precision), one.rows, one.inputs) for one in program.matrices])
        made = cls(program, packed, half_cache=precision != "float32" if half_cache is None else half_cache)
        for number, one in enumerate(program.matrices):
            weight = one.make().detach().float().contiguous()
            gguf.pack(made.engine, number, weight, packed[number])
        return made

    @property
    def bytes(self) -> int:
        """Packed weights."""
        return sum(one.bytes for one in self.packed)

    @property
    def cache_bytes(self) -> int:
        return int(self.engine.cache_bytes())

    def begin(self) -> int:
        """A new sequence."""
        with self.alone:
            return int(self.engine.new_sequence())

    def copy(self, sequence: int) -> int:
        """Another that begins like this one; what both have is kept once."""
        with self.alone:
            return int(self.engine.copy_sequence(sequence))

    def forget(self, sequence: int) -> None:
        with self.alone:
            self.engine.forget_sequence(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        with self.alone:
            self.engine.truncate_sequence(sequence, length)

    def length(self, sequence: int) -> int:
        return int(self.engine.length(sequence))

    def run(self, rows: Sequence[Rows], *, queries: bool = False, into: Sequence[Tensor | None] = ()) -> Tensor:
        """Logits after the last tokens of each, one below the other. With `queries`, `self.queries` keeps every layer's rotated q;
        they may go `into` room that is given instead: [rows, heads · head_dim] for each layer, or None."""
        if len(rows) == 1 and len(rows[0].tokens) == rows[0].logits == 1 and not queries and not into:
            self.queries = []
            return self.next(rows[0].sequence, rows[0].tokens[0])
        tokens, sequences, positions, wanted = list[int](), list[int](), list[int](), list[int]()
        for one in rows:
            start, first = self.length(one.sequence), len(tokens)
            tokens += one.tokens
            sequences += [one.sequence] * len(one.tokens)
            positions += range(start, start + len(one.tokens))
            wanted += range(first + len(one.tokens) - one.logits, first + len(one.tokens))
        check_ids("tokens", tokens, self.packed[0].rows)
        given = [torch.tensor(numbers, dtype=torch.int32) for numbers in (tokens, sequences, positions)]
        logits = torch.empty(len(wanted), self.vocabulary)
        self.queries = [torch.empty(len(tokens), width) for width in self.query_widths] if queries else []
        self.call(given, wanted=torch.tensor(wanted, dtype=torch.int32), logits=logits, queries=into or self.queries)
        return logits

    def next(self, sequence: int, token: int) -> Float[Tensor, "1 vocabulary"]:
        """Logits after one more token: `run` as it mostly is, with as little around it as may be."""
        check_ids("tokens", (token,), self.packed[0].rows)
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
        """The last hidden states of one row of tokens for each sequence, before the head. `sources`: the encoder's sequences that
        they look at; `queries`: as `into` of `run`; `start` and `first`: the residual stream and the operation to begin with."""
        batch, time = tokens.shape
        of = torch.tensor(sequences, dtype=torch.int32).repeat_interleave(time)
        starts = torch.tensor([self.length(sequence) for sequence in sequences], dtype=torch.int32)
        at = (starts[:, None] + torch.arange(time, dtype=torch.int32)).flatten()
        found = torch.empty(batch, time, self.program.widths[0])
        looked = torch.tensor(sources, dtype=torch.int32).repeat_interleave(time) if sources else None
        self.call([tokens.flatten().int(), of, at], hidden=found, queries=queries, start=start, first=first, sources=looked)
        return found

    def head(self, hidden: Float[Tensor, "rows width"]) -> Float[Tensor, "rows vocabulary"]:
        """Logits of hidden states."""
        hidden = hidden.float().contiguous()
        rows = torch.arange(len(hidden), dtype=torch.int32)
        logits = torch.empty(len(hidden), self.vocabulary)
        self.call([rows, rows, rows], wanted=rows, logits=logits, start=hidden, first=len(self.program.operations) - 1)
        return logits

    def call(
        self,
        given: list[Tensor],
        *,
        wanted: Tensor | None = None,
        logits: Tensor | None = None,
        hidden: Tensor | None = None,
        start: Tensor | None = None,
        first: int = 0,
        sources: Tensor | None = None,
        queries: Sequence[Tensor | None] = (),
    ) -> None:
        """One step, alone: scratch memory belongs to the engine. `start` is the residual stream where it is given, `first` the operation
        to begin with."""
        address, count = kernels.address, 0 if wanted is None else len(wanted)
        with self.alone:
            kernels.ready()  # as many threads as torch has now
            kept = [address(one) for one in queries]
            asked = (count, address(wanted), address(logits), kept, address(hidden))
            self.engine.run(len(given[0]), *map(address, given), address(sources), *asked, address(start), first)

    def remembered(self, sequence: int, layer: int, *, length: int | None = None) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [kv_heads, positions, head_dim], as the cache has them; of the first `length` positions."""
        with self.alone:
            there = self.length(sequence)
            heads, dim, length = self.program.kv_heads[layer], self.program.dims[layer], min(there, there if length is None else length)
            keys, values = torch.empty(heads, length, dim), torch.empty(heads, length, dim)
            for head in range(heads):
                self.engine.read_cache(sequence, layer, head, length, keys[head].data_ptr(), values[head].data_ptr())
        return keys, values
