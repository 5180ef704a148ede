"""What position schemes do exactly, before any training: to the order of words, to sines that are
shifted, to scores of one distance."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

    from sightline.config import Position

SCHEMES = ("none", "sinusoidal", "learned", "rope", "alibi", "t5")
RELATIVE = ("rope", "alibi", "t5")
HEADS = 4


def form(scheme: str, context: int, *, factor: int = 1) -> Position:
    """A scheme as a model is told it. T5's last bucket begins within the trained length, so that
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


def sinusoids() -> dict[str, Any]:
    """PE(1) of width 8, and how far PE(p + k) is from M(k) PE(p) over positions and shifts, M(k)
    made of 2 × 2 rotations by kω_i."""
    import torch

    from sightline.config import Sinusoidal
    from sightline.core.positions import sinusoidal

    width = 64
    places = torch.arange(512)
    rates = 10000.0 ** (-torch.arange(0, width, 2, dtype=torch.float64) / width)
    encoded = sinusoidal(places, width, Sinusoidal()).double()
    off = 0.0
    bent = 0.0
    for shift in (1, 7, 64, 500):
        cosine = (shift * rates).cos()
        sine = (shift * rates).sin()
        turns = torch.stack((torch.stack((cosine, sine), -1), torch.stack((-sine, cosine), -1)), -2)
        matrix = torch.block_diag(*turns)
        moved = sinusoidal(places + shift, width, Sinusoidal()).double()
        off = max(off, float((encoded @ matrix.T - moved).abs().max()))
        bent = max(
            bent, float((matrix.T @ matrix - torch.eye(width, dtype=torch.float64)).abs().max())
        )
    return {"first": sinusoidal(torch.tensor(1), 8, Sinusoidal()), "off": off, "bent": bent}


def order(scheme: str, seed: int) -> dict[str, float]:
    """An encoder, and the same with its words shuffled: how far f(x P) is from f(x) P, and from
    f(x), over the size of f(x)."""
    import torch

    from sightline.architectures import bert, gpt
    from sightline.lab.learning import made, random_of

    sizes: dict[str, Any] = {
        "width": 32,
        "layers": 2,
        "heads": HEADS,
        "vocab_size": 40,
        "max_positions": 48,
        "positions": form(scheme, 48),
    }
    random = random_of(seed, 1)
    tokens = torch.randperm(40, generator=random)[None, :24]
    shuffle = torch.randperm(24, generator=random)
    found: dict[str, float] = {}
    for name, config in (("encoder", bert(**sizes, head="none")), ("causal", gpt(**sizes))):
        model = made(config, seed).double().eval()
        with torch.inference_mode():
            plain, moved = (
                model.hidden(x, kernel="equation")[0] for x in (tokens, tokens[:, shuffle])
            )
        size = float(plain.abs().max())
        found[name] = float((moved - plain[shuffle]).abs().max()) / size
        found[f"{name} unmoved"] = float((moved - plain).abs().max()) / size
    return found


def distance(scheme: str, seed: int) -> dict[str, Any]:
    """One word repeated: how much the first layer's scores differ within one distance, over how
    much they differ at all."""
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
    """Scores [heads, query, key] of layer 0 of a fresh encoder, for one word 96 times."""
    import torch

    from sightline.architectures import bert
    from sightline.core.attention import Scoring, attention_scores
    from sightline.lab.learning import made
    from sightline.record import Recorder

    config = bert(
        width=32,
        layers=1,
        heads=HEADS,
        vocab_size=40,
        max_positions=96,
        positions=form(scheme, 96),
        head="none",
    )
    model = made(config, seed).eval()
    record = Recorder({"query", "key", "mask", "bias"})
    with torch.inference_mode():
        model.hidden(torch.full((1, 96), 7), record=record)
        query, key, mask, bias = (
            record["encoder", 0, name] for name in ("query", "key", "mask", "bias")
        )
        return attention_scores(query, key, Scoring(mask, 1 / math.sqrt(query.shape[-1]), bias))[
            0
        ].double()
