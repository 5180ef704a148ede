"""NumPy archives. The reference is NumPy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sightline.checkpoints.formats import npz
from tools.fuzz.formats.tensors import read_all, reference_of, require_same

META = {
    "grapheme_chars": "____abc", "phoneme_chars": "____xyzw", "d_model": 16, "ffn_dim": 24,
    "num_heads": 2, "max_position_embeddings": 12,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1,
    "layer_norm_eps": 1e-05, "position_offset": 2,
}  # fmt: skip
SIZES: dict[str, Any] = {
    "d_model": 16, "vocab_size": 9, "encoder_layers": 1, "decoder_layers": 1,
    "encoder_attention_heads": 2, "decoder_attention_heads": 2,
    "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, "max_position_embeddings": 12,
}  # fmt: skip


def make(place: Path) -> None:
    import transformers

    torch.manual_seed(0)
    weights = transformers.BartForConditionalGeneration(
        transformers.BartConfig(**SIZES)
    ).state_dict()
    arrays = {
        name: x.numpy()
        for name, x in weights.items()
        if "embed_tokens" not in name and name != "lm_head.weight"
    }
    for name, save in (("packed", np.savez_compressed), ("stored", np.savez)):
        (place / name).mkdir()
        save(place / name / "model.npz", meta_json=np.array(json.dumps(META)), **arrays)


def check(case: Path, sample: Path) -> None:
    ours = read_all(npz.read_npz(case / "model.npz").tensors)
    require_same(ours, reference_of(lambda: reference(case / "model.npz")))


def reference(path: Path) -> dict[str, Tensor]:
    with np.load(path, allow_pickle=False) as archive:
        return {
            name: torch.from_numpy(np.ascontiguousarray(archive[name]))
            for name in archive.files
            if name != "meta_json"
        }
