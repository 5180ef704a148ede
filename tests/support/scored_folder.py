"""A model folder with a tokenizer that was trained on one short text."""

from __future__ import annotations

import json
from pathlib import Path

import torch

import sightline as sl
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import save_tokenizer, train_tokenizer

TEXT = "the cat sat on the mat and the dog sat on the log; 猫がマットの上に座った。🙂 "

SIZE = {"width": 24, "layers": 2, "heads": 4, "vocab_size": 300, "max_positions": 64}


def saved(at: Path, config: sl.ModelConfig, **generation_config: object) -> Path:
    """A tiny model with a trained tokenizer, as a folder."""
    (at / "text.txt").write_text(TEXT * 40, encoding="utf-8")
    tokens = save_tokenizer(train_tokenizer([at / "text.txt"], vocab_size=300), at / "tokenizer")
    torch.manual_seed(3)
    transformer = sl.build(config).eval()
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    folder = sl.Model(transformer, Tokenizer.from_folder(tokens)).save(at / "model")
    if generation_config:
        (folder / "generation_config.json").write_text(json.dumps(generation_config))
    return folder
