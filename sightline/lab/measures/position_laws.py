"""Exact properties of position schemes before training: permutations, shifted sinusoids, scores at
one distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.config import Position

SCHEMES = ("none", "sinusoidal", "learned", "rope", "alibi", "t5")
RELATIVE = ("rope", "alibi", "t5")
HEADS = 4


def position_form(scheme: str, context: int, *, factor: int = 1) -> Position:
    """The configuration of a scheme. T5's last bucket starts within the training length, so that
    every bucket is trained."""
    from sightline.config import (
        ALiBi,
        Learned,
        NoPosition,
        RelativeBias,
        Rotary,
        Sinusoidal,
        YaRNScaling,
    )

    stretched = YaRNScaling(factor=factor, original_positions=context) if factor > 1 else None
    forms: dict[str, Position] = {
        "none": NoPosition(),
        "sinusoidal": Sinusoidal(),
        "learned": Learned(),
        "rope": Rotary(scaling=stretched),
        "alibi": ALiBi(),
        "t5": RelativeBias(buckets=16, max_distance=context // 2),
    }
    return forms[scheme]


def measure_sinusoids() -> dict[str, Any]:
    """PE(1) of width 8, and the largest |PE(p + k) − M(k) PE(p)| over positions and shifts, with
    M(k) a block diagonal of rotations by kω_i."""
    import torch

    from sightline.config import Sinusoidal
    from sightline.core.positions import sinusoidal

    width = 64
    places = torch.arange(512)
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    encoded = sinusoidal(places, width, Sinusoidal()).double()
    shift_error = 0.0
    rotation_error = 0.0
    for shift in (1, 7, 64, 500):
        cosine = (shift * rates).cos()
        sine = (shift * rates).sin()
        turns = torch.stack((torch.stack((cosine, sine), -1), torch.stack((-sine, cosine), -1)), -2)
        matrix = torch.block_diag(*turns)
        moved = sinusoidal(places + shift, width, Sinusoidal()).double()
        shift_error = max(shift_error, float((encoded @ matrix.T - moved).abs().max()))
        rotation_error = max(
            rotation_error,
            float((matrix.T @ matrix - torch.eye(width, dtype=torch.float64)).abs().max()),
        )
    return {
        "first": sinusoidal(torch.tensor(1), 8, Sinusoidal()),
        "off": shift_error,
        "bent": rotation_error,
    }


def measure_order(scheme: str, seed: int) -> dict[str, float]:
    """|f(xP) − f(x)P| and |f(xP) − f(x)| relative to |f(x)|, for an encoder and a causal
    decoder."""
    import torch

    from sightline.architectures import bert, gpt
    from sightline.lab.learning import build_seeded, seeded_generator

    sizes: dict[str, Any] = {
        "width": 32,
        "layers": 2,
        "heads": HEADS,
        "vocab_size": 40,
        "max_positions": 48,
        "positions": position_form(scheme, 48),
    }
    random = seeded_generator(seed, 1)
    tokens = torch.randperm(40, generator=random)[None, :24]
    shuffle = torch.randperm(24, generator=random)
    differences: dict[str, float] = {}
    for name, config in (("encoder", bert(**sizes, head="none")), ("causal", gpt(**sizes))):
        model = build_seeded(config, seed).double().eval()
        with torch.inference_mode():
            ordered, shuffled = (
                model.hidden(x, kernel="equation")[0] for x in (tokens, tokens[:, shuffle])
            )
        size = float(ordered.abs().max())
        differences[name] = float((shuffled - ordered[shuffle]).abs().max()) / size
        differences[f"{name} unmoved"] = float((shuffled - ordered).abs().max()) / size
    return differences


def measure_distance(scheme: str, seed: int) -> dict[str, Any]:
    """One repeated token: the range of the first layer's scores within one distance, relative to
    their whole range."""
    scores = first_scores(scheme, seed)
    time = scores.shape[-1]
    within = max(
        float((line := scores.diagonal(shift, dim1=-2, dim2=-1)).amax(-1).sub(line.amin(-1)).max())
        for shift in range(1 - time, time)
    )
    return {
        "within": within / float(scores.amax() - scores.amin()),
        "scores": scores[0, :32, :32].float(),
    }


def first_scores(scheme: str, seed: int) -> Tensor:
    """Scores [heads, query, key] of layer 0 of an untrained encoder, for one token repeated 96
    times."""
    import torch

    from sightline.architectures import bert
    from sightline.core.attention import Scoring, attention_scores
    from sightline.lab.learning import build_seeded
    from sightline.record import Recorder

    config = bert(
        width=32,
        layers=1,
        heads=HEADS,
        vocab_size=40,
        max_positions=96,
        positions=position_form(scheme, 96),
        head="none",
    )
    model = build_seeded(config, seed).eval()
    record = Recorder({"query", "key", "mask", "bias"})
    with torch.inference_mode():
        model.hidden(torch.full((1, 96), 7), record=record)
        query, key, mask, bias = (
            record["encoder", 0, name] for name in ("query", "key", "mask", "bias")
        )
        return attention_scores(query, key, Scoring(mask, 1 / math.sqrt(query.shape[-1]), bias))[
            0
        ].double()
