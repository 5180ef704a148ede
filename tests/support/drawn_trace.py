"""A trace of each kind of model, to be drawn."""

from __future__ import annotations

import sightline as sl
from sightline.lens.trace.trace import Trace
from tests.support.tiny import DECODERS, ENCODER_DECODERS, ENCODERS, make

KINDS = {
    "decoder": DECODERS["grouped"],
    "encoder": ENCODERS["bert"],
    "both": ENCODER_DECODERS["transformer"],
}


def traced(name: str, time: int = 9, **options: object) -> tuple[sl.Model, Trace]:
    from sightline.lens.trace.trace import trace_of

    config = KINDS[name]
    model = sl.Model(make(config), name=name)
    source = list(range(5, 12)) if name == "both" else None
    return model, trace_of(
        model, [(7 * n) % 29 for n in range(time)], source=source, text="some text", **options
    )
