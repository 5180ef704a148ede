"""The quality cost of a precision: the engine against the core in float32, on the same text.

    perplexity  =  exp(−mean log q(y))      of the actual next tokens y, for float32's p and the
                                            precision's q
    divergence  =  mean Σ p log(p / q)      KL(p ‖ q) per token, in nats
    agreement   =  how often both have the same most likely token
    matrix      :  ‖W − Ŵ‖ / ‖W‖            of each packed matrix
    block       :  mean ‖h − ĥ‖ / ‖h‖       of the hidden states after each block, over tokens

quality = report(model, text, precisions=["int8", "int4"])
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.core.cache.kv_cache import Cache
from sightline.core.model import Transformer
from sightline.core.output import LanguageOutput
from sightline.core.runner import in_eval_mode
from sightline.engine.engine import NativeEngine, Rows, precision_of
from sightline.engine.lowering import program_of
from sightline.engine.matrices import LINE, Precision, check_precision, rounded, sizes
from sightline.engine.operations import Embed, Linear
from sightline.engine.program import Matrix
from sightline.errors import InputError
from sightline.record import Recorder
from sightline.text.tokenizer import Tokenizer

SMALLER: tuple[Precision, ...] = ("float16", "int8", "int8_groups", "int4", "int4_min")
LIMIT = 4096  # tokens of the text that are evaluated
CHUNK = 64  # tokens whose logits are in memory at once, twice
LOOKED_AT = 128  # tokens whose hidden states are compared after each block
UNPACKED = 1024  # rows

Progress = Callable[[str, int, int], None]


class Measured(Protocol):
    """A `Model`, or anything that has these."""

    @property
    def transformer(self) -> Transformer: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...


@dataclass(frozen=True, slots=True)
class MatrixError:
    """‖W − Ŵ‖ / ‖W‖ of one of the engine's matrices: `0.attention.joined` is q, k and v,
    `0.feed_forward.joined` gate and up."""

    name: str
    error: float


@dataclass(frozen=True, slots=True)
class Quality:
    """One precision: bytes of the packed weights, and how far it is from float32. `blocks` has one
    error per block, the last after the final norm; `looked_at` is the number of tokens compared."""

    precision: Precision
    bytes: int
    tokens: int
    perplexity: float
    float32_perplexity: float
    divergence: float
    agreement: float
    largest: float
    matrices: tuple[MatrixError, ...]
    blocks: tuple[float, ...]
    looked_at: int


@dataclass(frozen=True, slots=True)
class Truth:
    """The reference from core: for each window its tokens, the next tokens, and the last hidden
    states."""

    transformer: Transformer
    windows: list[list[int]]
    coming: list[list[int]]
    hidden: list[Float[Tensor, "time width"]]
    blocks: list[Float[Tensor, "looked_at width"]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.coming))


def report(
    model: Measured,
    text: str | Sequence[int],
    *,
    precisions: Sequence[str] = SMALLER,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> list[Quality]:
    """Measure precisions on a text (or token ids), in full windows of the context, at most `limit`
    tokens.

    `progress(what, done, total)` is called at every step.
    """
    return list(reports(model, text, precisions=precisions, limit=limit, progress=progress))


def reports(
    model: Measured,
    text: str | Sequence[int],
    *,
    precisions: Sequence[str] = SMALLER,
    limit: int = LIMIT,
    progress: Progress | None = None,
) -> Iterator[Quality]:
    """The same as an iterator, one precision at a time as it is measured."""
    requested: list[Precision] = [check_precision(name) for name in precisions]
    tell = progress or nothing
    transformer = checked(in_eval_mode(model.transformer))
    windows, coming = windows_of(transformer, encode(model, text), limit=limit)
    truth = truth_of(transformer, windows, coming, tell)
    for precision in requested:
        yield quality(truth, precision, tell)


def nothing(what: str, done: int, total: int) -> None:
    pass


def checked(transformer: Transformer) -> Transformer:
    """A decoder whose weights are float32."""
    if (
        transformer.decoder is None
        or transformer.encoder is not None
        or not isinstance(transformer.output, LanguageOutput)
    ):
        raise InputError(
            "a model that is not a decoder",
            expected="a decoder with a language head",
            fix="use another model",
        )
    kind = next(transformer.parameters()).dtype
    if kind != torch.float32:
        raise InputError(
            f"a model in {kind}", expected="float32, to compare with", fix="load it without dtype"
        )
    return transformer


# --------------------------------------------------------------------------------------- the text


def encode(model: Measured, text: str | Sequence[int]) -> list[int]:
    """The text's ids, after the begin token if the tokenizer adds one."""
    if not isinstance(text, str):
        return list(text)
    if model.tokenizer is None:
        raise InputError(
            "a model without tokenizer", expected="token ids", fix="report(model, [1, 2, 3, …])"
        )
    return [*model.tokenizer.engine.around[0], *model.tokenizer.encode(text)]


def windows_of(
    transformer: Transformer, ids: list[int], *, limit: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Full windows of the context, or one shorter window, and the next token of each of their
    tokens."""
    if len(ids) < 2:
        raise InputError(
            f"a text of {len(ids)} tokens", expected="two or more", fix="give a longer text"
        )
    if limit < 1:
        raise InputError(f"a limit of {limit} tokens", expected="1 or more", fix=f"limit={LIMIT}")
    context = transformer.config.last.max_positions
    read = min(limit, len(ids) - 1)
    size = min(context, read)
    starts = range(0, read - size + 1, size)
    return [ids[start : start + size] for start in starts], [
        ids[start + 1 : start + size + 1] for start in starts
    ]


@torch.inference_mode()
def truth_of(
    transformer: Transformer, windows: list[list[int]], coming: list[list[int]], tell: Progress
) -> Truth:
    """Core's hidden states. Logits are computed from them when they are compared: all at once, they
    would be too large."""
    total = sum(map(len, windows))
    done = 0
    hidden = list[Tensor]()
    for window in windows:
        cache = Cache.growing(transformer.config)
        states = list[Tensor]()
        for part in torch.tensor([window], device=transformer.device).split(CHUNK * 8, dim=1):
            states.append(transformer.hidden(part, cache=cache)[0])
            done += part.shape[1]
            tell("float32", done, total)
        hidden.append(torch.cat(states))
    record = Recorder({"residual", "output"})
    transformer.hidden(
        torch.tensor([windows[0][:LOOKED_AT]], device=transformer.device), record=record
    )
    blocks = [record["decoder", n, "residual"][0] for n in range(1, transformer.config.last.layers)]
    return Truth(
        transformer, windows, coming, hidden, [*blocks, record["decoder", None, "output"][0]]
    )


# ---------------------------------------------------------------------------------- one precision


def packed_bytes(transformer: Transformer, precision: Precision) -> int:
    """The size of the engine's weights, without packing them."""
    matrices = program_of(transformer).matrices
    return sum(
        rounded(size, LINE)
        for matrix in matrices
        for size in sizes(precision_of(matrix, precision), matrix.rows, matrix.inputs)
    )


@torch.inference_mode()
def quality(truth: Truth, precision: Precision, tell: Progress) -> Quality:
    tell(f"{precision}: packing", 0, 1)
    engine = NativeEngine.of(truth.transformer, precision)
    matrices = tuple(
        matrix_errors(engine, lambda done, total: tell(f"{precision}: matrices", done, total))
    )
    statistics = torch.stack(
        list(compared(truth, engine, lambda done: tell(f"{precision}: logits", done, truth.tokens)))
    )
    blocks = tuple(
        block_errors(
            truth, engine, lambda done: tell(f"{precision}: blocks", done, len(truth.blocks))
        )
    )
    ours, theirs, divergence, agreed = (statistics[:, :4].sum(0) / truth.tokens).tolist()
    return Quality(
        precision=precision,
        bytes=engine.bytes,
        tokens=truth.tokens,
        perplexity=math.exp(ours),
        float32_perplexity=math.exp(theirs),
        divergence=max(0.0, divergence),
        agreement=agreed,
        largest=float(statistics[:, 4].max()),
        matrices=matrices,
        blocks=blocks,
        looked_at=len(truth.blocks[0]),
    )


def compared(
    truth: Truth, engine: NativeEngine, tell: Callable[[int], None]
) -> Iterator[Float[Tensor, " five"]]:
    """Per chunk of tokens: Σ −log q, Σ −log p, Σ KL(p ‖ q), the number of agreements, and the
    largest difference of two logits."""
    done = 0
    for window, coming, hidden in zip(truth.windows, truth.coming, truth.hidden, strict=True):
        sequence = engine.begin()
        for start in range(0, len(window), CHUNK):
            part = window[start : start + CHUNK]
            ours = engine.run([Rows(sequence, part, len(part))])
            theirs = truth.transformer.head(hidden[None, start : start + CHUNK])[0].cpu()
            yield differences(theirs, ours, torch.tensor(coming[start : start + CHUNK]))
            done += len(part)
            tell(done)
        engine.forget(sequence)


def differences(
    theirs: Float[Tensor, "time vocabulary"], ours: Float[Tensor, "time vocabulary"], coming: Tensor
) -> Tensor:
    p = theirs.log_softmax(-1)
    q = ours.log_softmax(-1)
    divergence = (p.exp() * (p - q)).sum()
    agreed = (theirs.argmax(-1) == ours.argmax(-1)).sum()
    losses = [-logs.gather(-1, coming[:, None]).sum() for logs in (q, p)]
    return torch.stack([*losses, divergence, agreed, (theirs - ours).abs().max()]).double()


def matrix_errors(engine: NativeEngine, tell: Callable[[int, int], None]) -> Iterator[MatrixError]:
    for number, matrix in enumerate(engine.program.matrices):
        tell(number, len(engine.program.matrices))
        yield MatrixError(matrix.name, matrix_error(engine, number, matrix))


def matrix_error(engine: NativeEngine, number: int, matrix: Matrix) -> float:
    """A packed matrix against its original."""
    off = size = 0.0
    for first, rows in enumerate(matrix.make().float().split(UNPACKED)):
        unpacked = torch.empty(rows.shape)
        engine.engine.unpack(number, first * UNPACKED, unpacked)
        off = off + float((rows - unpacked).square().sum())
        size = size + float(rows.square().sum())
    return math.sqrt(off / size) if size else 0.0


def block_errors(
    truth: Truth, engine: NativeEngine, tell: Callable[[int], None]
) -> Iterator[float]:
    for n, (reference, ours) in enumerate(
        zip(truth.blocks, states(engine, truth.windows[0][:LOOKED_AT]), strict=True)
    ):
        yield float(
            ((reference - ours).norm(dim=-1) / reference.norm(dim=-1).clamp_min(1e-30)).mean()
        )
        tell(n + 1)


def states(engine: NativeEngine, tokens: list[int]) -> Iterator[Float[Tensor, "time width"]]:
    """Hidden states after each block: a program for one block, with the same matrices, continues
    from the previous states."""
    program = engine.program  # before the embedding there is none
    stream = None
    names = [
        program.matrices[operation.matrix].name if isinstance(operation, (Embed, Linear)) else ""
        for operation in program.operations
    ]
    starts = [n for n, name in enumerate(names) if name.endswith(".attention.joined")]
    for first, end in pairwise([0, *starts[1:], len(names) - 1]):
        operations = [*program.operations[:end], program.operations[-1]]
        block = NativeEngine(
            replace(program, operations=operations), engine.packed, half_cache=engine.half_cache
        )
        stream = block.hidden([block.begin()], torch.tensor([tokens]), start=stream, first=first)
        yield stream[0]
