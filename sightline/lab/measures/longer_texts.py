"""Training at one length and testing at longer ones, for each position scheme: as trained, with a
sliding window of the trained length, and with YaRN."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from sightline.lab.measures.position_laws import HEADS, position_form

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.config import ModelConfig
    from sightline.core.model import Transformer
    from sightline.lab.experiment import Tier

WINDOWED = ("rope", "alibi")
TIMES = (1, 2, 4, 8)  # the trained length
CONTEXT = {"quick": 32, "default": 64, "full": 128}
LAYERS = {"quick": 1, "default": 2, "full": 4}
WIDTH = {"quick": 32, "default": 64, "full": 128}
STEPS = {"quick": 60, "default": 400, "full": 3000}
BATCH = 8
WINDOWS = 32
BINS = 16


def size_text(tier: Tier) -> str:
    return (
        f"context-{CONTEXT[tier]}.layers-{LAYERS[tier]}.width-{WIDTH[tier]}.rows-{BATCH}"
        f".steps-{STEPS[tier]}"
    )


def position_scheme_config(
    scheme: str, tier: Tier, vocab_size: int, *, factor: int = 1, window: int | None = None
) -> ModelConfig:
    """A small GPT. With sinusoids, which have unit amplitude, embeddings are scaled by √width as in
    2017. With a window w, a token attends to the last w tokens, itself included."""
    from sightline.architectures import gpt

    context = CONTEXT[tier]
    width = WIDTH[tier]
    config = gpt(
        width=width, layers=LAYERS[tier], heads=HEADS, vocab_size=vocab_size,
        max_positions=TIMES[-1] * context, window=window,
        positions=position_form(scheme, context, factor=factor),
    )  # fmt: skip
    if scheme != "sinusoidal":
        return config
    assert config.decoder is not None
    embedding = replace(config.decoder.embedding, scale=math.sqrt(width))
    return replace(config, decoder=replace(config.decoder, embedding=embedding))


def train_scheme(
    scheme: str, seed: int, *, tier: Tier, rate: float
) -> tuple[Transformer, Tensor, int]:
    """A model trained at one length, the long held-out windows, and the vocabulary size."""
    from sightline.lab.learning import shakespeare, train_model

    context = CONTEXT[tier]
    text, vocab_size = shakespeare(context, BATCH, seed)
    config = position_scheme_config(scheme, tier, vocab_size)
    model = train_model(config, text, steps=STEPS[tier], lr=rate, seed=seed).transformer.eval()
    assert text.held_out is not None
    return model, evenly_spread_windows(text.held_out.ids, TIMES[-1] * context), vocab_size


def pilot_score(scheme: str, rate: float, seed: int, *, tier: Tier) -> dict[str, float]:
    """Held-out loss at the trained length; a run that diverges has none."""
    from sightline.training.loop import NotFiniteError

    try:
        model, rows, _ = train_scheme(scheme, seed, tier=tier, rate=rate)
    except NotFiniteError:
        return {"score": math.inf}
    return {"score": losses_by_length({1: model}, rows, CONTEXT[tier])["by_length"][0]}


def train_and_test_longer(scheme: str, seed: int, *, tier: Tier, rate: float) -> dict[str, Any]:
    """Train at one length; measure the loss on the same held-out characters in windows of 1, 2, 4
    and 8 times that length: as trained, and for some schemes with attention limited to the trained
    length or with YaRN."""
    from sightline.core.model import build

    context = CONTEXT[tier]
    model, rows, vocab_size = train_scheme(scheme, seed, tier=tier, rate=rate)

    def variant(*, factor: int = 1, window: int | None = None) -> Transformer:
        """The trained weights in another configuration."""
        other = build(
            position_scheme_config(scheme, tier, vocab_size, factor=factor, window=window)
        )
        other.load_state_dict(model.state_dict())
        return other.eval()

    losses: dict[str, Any] = {
        "context": context,
        scheme: losses_by_length(dict.fromkeys(TIMES, model), rows, context),
    }
    if scheme in WINDOWED:
        limited = variant(window=context)
        losses[f"{scheme}-window"] = losses_by_length(dict.fromkeys(TIMES, limited), rows, context)
    if scheme == "rope":
        stretched = {times: variant(factor=times) for times in TIMES}
        losses["yarn"] = losses_by_length(stretched, rows, context)
    return losses


def evenly_spread_windows(ids: Any, long: int) -> Tensor:
    """Windows of `long` + 1 characters, evenly spread over the held-out plays."""
    import numpy as np
    import torch

    starts = [(len(ids) - long - 1) * n // WINDOWS for n in range(WINDOWS)]
    return torch.from_numpy(
        np.stack([np.asarray(ids[at : at + long + 1], dtype=np.int64) for at in starts])
    )


def losses_by_length(
    models: Mapping[int, Transformer], rows: Tensor, context: int
) -> dict[str, list[float]]:
    """Nats per character at each length, and binned by position in the longest windows."""
    import torch
    from torch.nn.functional import cross_entropy

    by_length: list[float] = []
    along = torch.zeros(0)
    for times, model in models.items():
        tokens, targets = (x.reshape(-1, times * context) for x in (rows[:, :-1], rows[:, 1:]))
        with torch.inference_mode():
            along = (
                cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none")
                .double()
                .mean(0)
            )
        by_length.append(float(along.mean()))
    return {"by_length": by_length, "along": along.reshape(BINS, -1).mean(1).tolist()}
