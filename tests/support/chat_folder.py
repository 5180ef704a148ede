"""A model folder with a chat template."""

from __future__ import annotations

from pathlib import Path

import torch

import sightline as sl
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import save_tokenizer, train_tokenizer

TEXT = (
    "the cat sat on the mat and the dog sat on the log; 猫がマットの上に座った。🙂 user assistant system "
    * 40
)

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def make_folder(place: Path, *, template: str | None = TEMPLATE, context: int = 256) -> Path:
    """A tiny model with a trained byte-level tokenizer and a chat template, saved."""
    (place / "text.txt").write_text(TEXT, encoding="utf-8")
    tokens = save_tokenizer(
        train_tokenizer([place / "text.txt"], vocab_size=320), place / "tokenizer"
    )
    tokenizer = Tokenizer.from_folder(tokens)
    tokenizer.chat_template = template
    torch.manual_seed(3)
    transformer = sl.build(
        sl.gpt(
            width=32, layers=2, heads=4, vocab_size=320, max_positions=context, positions="rotary"
        )
    ).eval()
    with torch.no_grad():
        for parameter in transformer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return sl.Model(transformer, tokenizer).save(place / "model")
