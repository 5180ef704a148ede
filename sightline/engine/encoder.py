"""An encoder on the engine: rows of many sentences side by side, without padding.

encoder = NativeEncoder.of(transformer, "int8")
hidden = encoder.run(embedded, lengths)              # [tokens, width], sentence after sentence
hidden, sources = encoder.keep(embedded, lengths)    # also stores keys and values for a decoder's
                                                     # cross-attention, until they are freed
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.core.block import Block
from sightline.core.model import Transformer
from sightline.core.multi_head import Attention, CosineMeasure
from sightline.core.norms import PerHeadNorm
from sightline.engine import matrices
from sightline.engine.engine import NativeEngine
from sightline.engine.lowering import add_block, check_forms, empty_program
from sightline.engine.matrices import Precision
from sightline.engine.operations import JOINED, STREAM, HeadTransform, Linear, StoreKeyValue
from sightline.engine.program import Program
from sightline.errors import InputError
from sightline.kernels import library as kernels

MOST_ROWS = 2048  # tokens of one call: scratch memory grows with them


def encoder_program(transformer: Transformer) -> Program:
    """The encoder's blocks, starting from embedded tokens; then keys and values for each block of a
    decoder."""
    stack = transformer.encoder
    decoder = transformer.decoder
    if stack is None:
        raise InputError(
            "an encoder's engine for a model without an encoder", fix="NativeEngine.of(transformer)"
        )
    program = empty_program(stack)
    for n in range(stack.config.layers):
        add_block(program, stack, n)
    program.normalize(stack.norm, buffer=STREAM, width=stack.config.width)
    for block in [] if decoder is None else [decoder[n] for n in range(decoder.config.layers)]:
        if isinstance(block, Block) and block.cross_attention is not None:
            add_memory(program, block.cross_attention)
    return program


def add_memory(program: Program, layer: Attention) -> None:
    """Keys and values of the source for one block of the decoder."""
    form = layer.config
    parts = (layer.key, layer.value)
    number = len(program.dims)
    check_forms([form])
    narrow = form.kv_heads * form.head_dim
    name = f"{number}.memory.joined"
    matrix = program.matrix(
        name, (2 * narrow, layer.context_width), lambda: torch.cat([part.weight for part in parts])
    )
    bias = program.tensor(torch.cat([part.bias for part in parts]) if form.bias else None)
    program.add(Linear(input=STREAM, output=JOINED, matrix=matrix, bias=bias))
    key_norm = None
    if isinstance(layer.key_norm, PerHeadNorm):
        key_norm = program.norm(layer.key_norm.norm)
    elif form.query_key_norm is not None:
        program.normalize(layer.key_norm, buffer=JOINED, width=narrow)
    transform = HeadTransform(key_norm=key_norm, unit=isinstance(layer.measure, CosineMeasure))
    operation = StoreKeyValue(
        input=JOINED,
        layer=number,
        kv_heads=form.kv_heads,
        head_dim=form.head_dim,
        transform=transform,
    )
    program.add(operation)
    program.widths[JOINED] = max(program.widths[JOINED], 2 * narrow)
    program.kv_heads.append(form.kv_heads)
    program.dims.append(form.head_dim)


class NativeEncoder:
    """An encoder, packed."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine = engine

    @classmethod
    def of(
        cls,
        transformer: Transformer,
        precision: Precision = "float32",
        *,
        half_cache: bool | None = None,
    ) -> NativeEncoder:
        """Pack the encoder's weights."""
        if not kernels.available():
            raise InputError(f"the native engine: {kernels.missing}", fix="engine='torch'")
        matrices.check_precision(precision)
        return cls(
            NativeEngine.packing(encoder_program(transformer), precision, half_cache=half_cache)
        )

    def run(
        self, x: Float[Tensor, "tokens width"], lengths: Sequence[int]
    ) -> Float[Tensor, "tokens width"]:
        """The last hidden states of concatenated sentences."""
        outputs = list[Tensor]()
        start = 0
        for group in groups(lengths):
            hidden, sequences = self.keep(x[start : start + sum(group)], group)
            self.forget(sequences)
            outputs.append(hidden)
            start += sum(group)
        return torch.cat(outputs)

    def keep(
        self, x: Float[Tensor, "tokens width"], lengths: Sequence[int]
    ) -> tuple[Float[Tensor, "tokens width"], list[int]]:
        """The same in one call, and a sequence per sentence with its keys and values."""
        sequences = [self.engine.begin() for _ in lengths]
        try:
            of = torch.tensor(sequences, dtype=torch.int64).repeat_interleave(torch.tensor(lengths))
            at = torch.cat([torch.arange(length, dtype=torch.int32) for length in lengths])
            hidden = torch.empty(x.shape)
            self.engine.call(
                sequences=of, positions=at, hidden=hidden, start=x.float().contiguous()
            )
        except BaseException:
            self.forget(sequences)
            raise
        return hidden, sequences

    def forget(self, sequences: Sequence[int]) -> None:
        """Free the memory."""
        for sequence in sequences:
            self.engine.leave(sequence)


def groups(lengths: Sequence[int]) -> list[list[int]]:
    """Split the sentences into calls: as many as fit, at least one per call."""
    batches = list[list[int]]()
    for length in lengths:
        if not batches or sum(batches[-1]) + length > MOST_ROWS:
            batches.append([])
        batches[-1].append(length)
    return batches
