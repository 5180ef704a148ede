"""Tiny encoder-decoder models with tokenizer and generation defaults."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

import sightline as sl
from sightline.checkpoints.defaults import Defaults
from tests.families.oracle import ours, reference
from tests.support.encoder_decoder_configs import BART, MARIAN, T5, UNEVEN
from tests.support.letter_tokenizer import tokenizer

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bart": ("BartForConditionalGeneration", BART | {"decoder_start_token_id": 2}),
    "bart, one layer": (
        "BartForConditionalGeneration",
        BART | {"decoder_layers": 1, "decoder_start_token_id": 2},
    ),
    "bart, uneven": ("BartForConditionalGeneration", BART | UNEVEN | {"decoder_start_token_id": 2}),
    "marian": ("MarianMTModel", MARIAN),
    "t5": ("T5ForConditionalGeneration", T5 | {"n_positions": 48, "decoder_start_token_id": 0}),
}

WORDS = tokenizer(after=(2,))


@cache
def pair(name: str, seed: int = 0) -> tuple[Any, sl.Transformer]:
    model = reference(*MODELS[name], seed=seed)
    with torch.no_grad():
        for part in model.modules():
            if hasattr(
                part, "create_weight"
            ):  # Marian's sines, to which the noise was added as well
                part.weight.copy_(part.create_weight())
        model.get_output_embeddings().weight[2] *= 1.5  # so that some texts end
    return model, ours(model).transformer


def defaults_of(name: str, **settings: Any) -> Defaults:
    return Defaults(
        decoder_start=MODELS[name][1]["decoder_start_token_id"], end=(2,), pad=0, **settings
    )
