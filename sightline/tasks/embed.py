"""One vector per text: the token vectors of the last layer, pooled.

    mean     Σₜ hₜ / time          first    h₀          last    h of the last token
    normalised, x / |x|: then x · y is the cosine of the angle between two texts

A text's vector does not depend on the other texts of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from sightline.checkpoints.pooling import Pooling, PoolingMode
from sightline.core.norms import unit
from sightline.core.output import pool
from sightline.core.runner import Runner
from sightline.tasks.batches import as_list, batches, encode_rows, hidden_states, max_row_length
from sightline.text.tokenizer import Tokenizer


def embed(
    runner: Runner,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    pooling: Pooling,
    progress: Callable[[int], None] | None = None,
) -> Float[Tensor, "texts width"]:
    """The vectors, in the order of the texts. `progress(n)` is called after every batch of n
    texts.

    A text with more tokens than the model accepts is truncated, with a warning. One without tokens
    has the zero vector.
    """
    stack = runner.config.encoder or runner.config.last
    prepared = [prepare(text, pooling) for text in as_list(texts)]
    rows = encode_rows(tokenizer, prepared, most=max_row_length(stack, pooling.max_length))
    vectors = torch.zeros(
        len(rows),
        stack.width,
        dtype=runner.dtype,
        device=runner.device,
    )
    report = progress or (lambda done: None)
    report(sum(not row for row in rows))
    with torch.inference_mode():
        for batch in batches(rows, runner.device):
            vectors[batch.places] = pool_rows(
                hidden_states(runner, batch), pooling.how, batch.padding
            )
            report(len(batch.places))
    return unit(vectors) if pooling.normalize else vectors


def prepare(text: str, pooling: Pooling) -> str:
    """The text after the prompt, lower-cased letter by letter (so that Σ at the end of a word
    becomes σ, as in tokenizers)."""
    text = pooling.prompt + text
    return "".join(map(str.lower, text)) if pooling.lowercase else text


def pool_rows(
    hidden: Float[Tensor, "batch time width"],
    how: PoolingMode,
    padding: Bool[Tensor, "batch time"] | None,
) -> Float[Tensor, "batch width"]:
    """One vector per row; without padding, without a copy."""
    if padding is not None:
        return pool(hidden, how, padding)
    return hidden.mean(1) if how == "mean" else hidden[:, 0 if how == "first" else -1]
