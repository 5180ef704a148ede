"""A task whose answer is in two positions, found by two relations, and one block that learns it.

    k₃v₁  k₀v₄  k₁v₁  k₄v₂  k₂v₀   ask(k₀, place 3)   →   (v₄, v₂)

    v₄ by content: the token whose key is k₀;   v₂ by position: the fourth token

The answer is an ordered pair, so the model must know which value came from which relation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.config import ModelConfig
    from sightline.core.model import Transformer
    from sightline.record import Record
    from sightline.training.data.batch import Batch

SIZE = 5  # keys, values and positions
PAIRS = SIZE * SIZE  # ids 0 … 24 are (key, value); then 25 questions
VOCABULARY = 2 * PAIRS
WIDTH = 32
ROWS = 128
WARMUP = 20
ASKED = 1000  # held-out questions
EVERY = 5  # steps between two measurements
# What counts as learned. Knowing one half only is right in 1 of 5, finding both values but not
# their order in at most 3 of 5 (½ + ½ · 1/5).
LEARNED = 0.95
ZERO = 1e-10  # of the largest singular value; float64 leaves about 1e-16 where there is none


def questions(rows: int, seed: int, step: int) -> tuple[Batch, Tensor, Tensor]:
    """Rows of five (key, value) tokens and a question, and the positions of the two answers, by
    content and by position, which never coincide."""
    import torch

    from sightline.lab.learning import labelled_batch, seeded_generator
    from sightline.training.data.batch import IGNORED

    random = seeded_generator(seed, 0, step)
    row = torch.arange(rows)
    keys = torch.rand(rows, SIZE, generator=random).argsort(1)
    values = torch.randint(SIZE, (rows, SIZE), generator=random)
    content = torch.randint(SIZE, (rows,), generator=random)
    place = (content + torch.randint(1, SIZE, (rows,), generator=random)) % SIZE
    question = PAIRS + keys[row, content] * SIZE + place
    tokens = torch.cat((keys * SIZE + values, question[:, None]), dim=1)
    targets = torch.full_like(tokens, IGNORED)
    targets[:, -1] = values[row, content] * SIZE + values[row, place]
    return labelled_batch(tokens, targets), content, place


def one_block_config(heads: int) -> ModelConfig:
    """One block. The heads share the width: head_dim = width / heads."""
    from sightline.architectures import gpt

    return gpt(width=WIDTH, layers=1, heads=heads, vocab_size=VOCABULARY, max_positions=SIZE + 1)


def train_until_learned(heads: int, rate: float, seed: int, *, limit: int) -> dict[str, Any]:
    """Train at a constant rate after a short warm-up until the task is learned, for at most `limit`
    steps: the accuracy every five steps, and the model's heads at the end. A run with a non-finite
    loss ends there."""
    from contextlib import suppress

    from sightline.lab.learning import GeneratedTask, build_seeded, training_steps
    from sightline.training.config import Schedule
    from sightline.training.loop import NotFiniteError

    batch, content, place = questions(ASKED, seed, 10**9)
    targets = batch.targets[:, -1]
    model = build_seeded(one_block_config(heads), seed)
    course = list[float]()
    training = training_steps(
        model,
        GeneratedTask(lambda step: questions(ROWS, seed, step)[0]),
        steps=limit,
        lr=rate,
        seed=seed,
        shape=Schedule(shape="constant", warmup=WARMUP),
    )
    with suppress(NotFiniteError):
        for _, event in training:
            if event.step % EVERY == 0:
                answers = predict_answers(model, batch.tokens)
                course.append(float((answers == targets).double().mean()))
                if course[-1] > LEARNED:
                    break
    return {
        "heads": heads, "rate": rate, "seed": seed, "limit": limit, "course": course,
        **head_targets(model, batch, content, place), **parameter_counts(model),
        **head_ranks(model),
    }  # fmt: skip


def predict_answers(
    transformer: Transformer, tokens: Tensor, record: Record | None = None
) -> Tensor:
    """The most likely pair for each row."""
    import torch

    from sightline.record import NOTHING

    with torch.no_grad():
        return transformer(tokens, record=record or NOTHING)[:, -1, :PAIRS].argmax(-1)


def has_learned(row: Mapping[str, Any]) -> bool:
    return bool(row["course"]) and row["course"][-1] > LEARNED


def steps_to_learn(row: Mapping[str, Any]) -> float:
    """Steps until the task is learned; the limit (a lower bound) where it is not."""
    return float(EVERY * len(row["course"]) if has_learned(row) else row["limit"])


# ------------------------------------------------------------------------------ inside the model


def head_targets(
    model: Transformer, batch: Batch, content: Tensor, place: Tensor
) -> dict[str, Tensor]:
    """The mean weight of each head, at the question, on the two positions."""
    import torch

    from sightline.record import Recorder

    record = Recorder({"weights"})
    predict_answers(model, batch.tokens, record)
    looks = record["decoder", 0, "weights"][:, :, -1]
    row = torch.arange(len(content))
    return {
        "to content": looks[row, :, content].mean(0),
        "to place": looks[row, :, place].mean(0),
    }


def division_of_work(content: Sequence[float], place: Sequence[float]) -> float:
    """The maximum over two different heads i and j of min(weight of head i on the content position,
    weight of head j on the other); 0 with one head."""
    return max(
        (min(a, b) for i, a in enumerate(content) for j, b in enumerate(place) if i != j),
        default=0.0,
    )


def parameter_counts(model: Transformer) -> dict[str, int]:
    """The weights of the attention matrices, and of the whole model."""
    matrices = [
        parameter
        for name, parameter in model.named_parameters()
        if ".attention." in name and parameter.ndim == 2
    ]
    return {
        "attention parameters": sum(parameter.numel() for parameter in matrices),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
    }


def head_ranks(model: Transformer) -> dict[str, list[int]]:
    """The rank of each head's W_Q W_Kᵀ, and how many of its singular values hold 90% of the sum of
    their squares."""
    import torch

    attention = model.last_stack[0].attention
    query, key = (
        layer.weight.detach().double().unflatten(0, (attention.config.heads, -1))
        for layer in (attention.query, attention.key)
    )
    values = torch.linalg.svdvals(query.transpose(1, 2) @ key)
    shares = values.square().cumsum(1) / values.square().sum(1, keepdim=True)
    return {
        "rank": (values > ZERO * values[:, :1]).sum(1).tolist(),
        "rank of 90%": (1 + (shares < 0.9).sum(1)).tolist(),
    }
