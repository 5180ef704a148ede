"""A small GPT that writes Shakespeare, character by character."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sightline.architectures import llama
from sightline.config import HeadNorm, RMSNorm
from sightline.core.model import build
from sightline.recipes.corpora import prepared_characters
from sightline.recipes.settings import MuonRecipe
from sightline.training.data.packed import PackedText
from sightline.training.run import Job
from sightline.training.state.export import Export


@dataclass(frozen=True, kw_only=True)
class Shakespeare(MuonRecipe):
    """`text` may be any text file; without one, the plays of Shakespeare are fetched, and some of
    them are held out."""

    text: Path | None = None
    width: int = 192
    layers: int = 4
    heads: int = 6
    context: int = 256
    batch: int = 12
    steps: int = 2000
    adam_lr: float = 3e-3
    second_beta: ClassVar[float] = 0.99
    warmup: int = 40

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
        task = PackedText(
            data.train, data.validation, self.context, self.batch, self.seed, end=data.end
        )
        export = Export(
            files=data.tokenizer_files,
            defaults={} if data.end is None else {"eos_token_id": data.end},
        )
        return Job(
            name="shakespeare",
            make=lambda: build(config),
            task=task,
            config=self.training(),
            export=export,
            settings=self.settings,
        )
