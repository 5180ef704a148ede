"""A small GPT that writes Shakespeare, character by character."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sightline.architectures import llama
from sightline.config import HeadNorm, RMSNorm
from sightline.core.model import build
from sightline.recipes.corpora import prepared_characters
from sightline.recipes.settings import Recipe
from sightline.training.config import AdamW, Muon, Optimizer
from sightline.training.export import Export
from sightline.training.packed import PackedText
from sightline.training.run import Job


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Recipe):
    """`text` may be any text file; without one, the plays of Shakespeare are fetched, and some of them are held out."""

    text: Path | None = None
    width: int = 256
    layers: int = 6
    heads: int = 4
    context: int = 256
    batch: int = 12
    steps: int = 2000
    lr: float = 0.02
    adam_lr: float = 3e-3
    weight_decay: float = 0.0
    warmup: int = 40

    def optimizer(self) -> Optimizer:
        return Muon(lr=self.lr, weight_decay=self.weight_decay, rest=AdamW(lr=self.adam_lr, weight_decay=0.0))

    def job(self) -> Job:
        data = prepared_characters(self.text)
        config = llama(
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            vocab_size=data.vocab_size,
            max_positions=self.context,
            query_key_norm=HeadNorm(norm=RMSNorm()),
            dropout=self.dropout,
        )
        task = PackedText(data.train, data.validation, self.context, self.batch, self.seed, end=data.end)
        export = Export(files=data.tokenizer_files, defaults={} if data.end is None else {"eos_token_id": data.end})
        return Job(name="shakespeare", make=lambda: build(config), task=task, config=self.training(), export=export, told=self.told)
