"""Small models that attend with and without division by √d_k, from the same start or another."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sightline.core.model import Transformer
    from sightline.training.data.batch import Batch

HEAD_DIM = 256  # d_k
MODEL_WIDTH = 64
LAYERS = 2
CONTEXT = 64
ROWS = 8
WINDOWS = 128  # of the held-out plays

# the factor on q·k (None: 1/√d_k), and the power of d_k that W_Q and W_K each start with
WAYS: dict[str, tuple[float | None, float]] = {
    "scaled": (None, 0.0),
    "raw": (1.0, 0.0),
    "raw-same-start": (1.0, -0.25),
    "scaled-saturated": (None, 0.25),
}


def train_with_scale(way: str, steps: int, rate: float, seed: int) -> dict[str, Any]:
    """Attention statistics before and after training, and the held-out loss."""
    from sightline.lab.learning import held_out_loss, shakespeare, training_steps

    text, vocabulary = shakespeare(CONTEXT, ROWS, seed)
    text.evaluated = WINDOWS
    model = start_model(way, vocabulary, seed)
    look = next(iter(text.validation()))
    start = attention_statistics(model, look)
    learner = [
        learner for learner, _ in training_steps(model, text, steps=steps, lr=rate, seed=seed)
    ][-1]
    return {
        "start": start,
        "end": attention_statistics(model, look),
        "loss": held_out_loss(learner, text),
    }


def start_model(way: str, vocabulary: int, seed: int) -> Transformer:
    """One head of 256 per layer; the same seed gives the same weights up to the factor."""
    import torch

    from sightline.architectures import gpt
    from sightline.config import Dot
    from sightline.lab.learning import build_seeded

    factor, power = WAYS[way]
    config = gpt(
        width=MODEL_WIDTH, layers=LAYERS, heads=1, head_dim=HEAD_DIM, vocab_size=vocabulary,
        max_positions=CONTEXT, attention=Dot(scale=factor),
    )  # fmt: skip
    model = build_seeded(config, seed)
    with torch.no_grad():
        for layer in range(LAYERS):
            attention = model.last_stack[layer].attention
            for parameter in (*attention.query.parameters(), *attention.key.parameters()):
                parameter.mul_(HEAD_DIM**power)
    return model


def attention_statistics(model: Transformer, batch: Batch) -> dict[str, float]:
    """Mean largest weight and entropy over layers, heads and queries in the second half of the
    context."""
    import torch

    from sightline.record import Recorder

    record = Recorder({"weights"})
    with torch.no_grad():
        model.hidden(batch.tokens, record=record)
    weights = torch.stack(
        [record["decoder", layer, "weights"][:, :, CONTEXT // 2 :] for layer in range(LAYERS)]
    )
    return {
        "largest": float(weights.max(-1).values.mean()),
        "entropy": float(-torch.xlogy(weights, weights).sum(-1).mean()),
    }
