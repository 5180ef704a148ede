"""Small Marian npz archives and the BART model they come from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

META: dict[str, Any] = {
    "grapheme_chars": "____abc",
    "phoneme_chars": "____xyzw",
    "d_model": 16,
    "ffn_dim": 24,
    "num_heads": 2,
    "max_position_embeddings": 12,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
    "layer_norm_eps": 1e-05,
    "position_offset": 2,
}


def bart() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    config = transformers.BartConfig(
        d_model=16, vocab_size=9, encoder_layers=1, decoder_layers=2, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=24, decoder_ffn_dim=24, max_position_embeddings=12,
    )  # fmt: skip
    weights = transformers.BartForConditionalGeneration(config).state_dict()
    return {
        name: x
        for name, x in weights.items()
        if "embed_tokens" not in name and name != "lm_head.weight"
    }


def archive(path: Path, weights: dict[str, torch.Tensor], meta: dict[str, Any]) -> Path:
    np.savez_compressed(
        path,
        meta_json=np.array(json.dumps(meta)),
        **{name: x.numpy() for name, x in weights.items()},
    )
    return path
