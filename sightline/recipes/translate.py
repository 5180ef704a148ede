"""An encoder–decoder that translates, from pairs of sentences."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sightline.architectures import encoder_decoder
from sightline.core.model import build
from sightline.errors import ConfigError
from sightline.recipes.corpora import read_pairs, tokenizer_config
from sightline.recipes.settings import MuonRecipe
from sightline.text.training.words import BEGIN, END, PAD, chain_columns, train_bilingual
from sightline.training.data.pairs import Pairs
from sightline.training.run import Job
from sightline.training.state.export import Export

Columns = tuple[list[str], list[str]]


@dataclass(frozen=True, kw_only=True)
class Translate(MuonRecipe):
    """Pairs are two files with one sentence per line (`source`, `target`) or a .tsv (`pairs`).
    Without held-out pairs, every 100th is one.

    `batch` is in tokens. With `join`, words of the target are written without spaces between them,
    as Japanese is."""

    pairs: Path | None = None
    source: Path | None = None
    target: Path | None = None
    validation_pairs: Path | None = None
    validation_source: Path | None = None
    validation_target: Path | None = None
    join: bool = False
    lower: bool = True
    vocab: int = 8000
    width: int = 256
    layers: int = 3
    heads: int = 4
    hidden: int = 1024
    context: int = 256
    batch: int = 2048
    steps: int = 3800
    warmup: int = 60
    dropout: float = 0.15
    label_smoothing: float = 0.1
    ema: float = 0.998

    def sentences(self) -> tuple[Columns, Columns]:
        """The training pairs and the held-out ones."""
        if self.pairs is None and (self.source is None or self.target is None):
            raise ConfigError(
                "no pairs to learn from",
                expected="a .tsv, or two files",
                fix="--set pairs=FILE.tsv, or source=… target=…",
            )
        sources, targets = read_pairs(self.pairs, self.source, self.target)
        if self.validation_pairs is not None or self.validation_source is not None:
            return (sources, targets), read_pairs(
                self.validation_pairs, self.validation_source, self.validation_target
            )
        learned = [n for n in range(len(sources)) if n % 100]
        return ([sources[n] for n in learned], [targets[n] for n in learned]), (
            sources[::100],
            targets[::100],
        )

    def job(self) -> Job:
        (sources, targets), validation = self.sentences()
        tokenizer = train_bilingual(
            chain_columns(sources, targets), vocab_size=self.vocab, lower=self.lower, join=self.join
        )
        ids = [
            [e.ids for e in tokenizer.encode_batch(side, add_special_tokens=False)]
            for side in (sources, targets, *validation)
        ]
        vocabulary = tokenizer.get_vocab()
        pad, start, end = (vocabulary[piece] for piece in (PAD, BEGIN, END))
        task = Pairs(
            ids[0],
            ids[1],
            start=start,
            end=end,
            pad=pad,
            tokens=self.batch,
            seed=self.seed,
            held_out=(ids[2], ids[3]),
            longest=self.context,
        )
        config = encoder_decoder(
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            hidden=self.hidden,
            vocab_size=tokenizer.get_vocab_size(),
            max_positions=self.context,
            positions="rotary",
            norm="rms",
            placement="pre",
            bias=False,
            dropout=self.dropout,
        )
        files = {
            "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
            "tokenizer_config.json": tokenizer_config(BEGIN, END, PAD),
        }
        defaults = {
            "decoder_start_token_id": start,
            "eos_token_id": end,
            "pad_token_id": pad,
            "num_beams": 4,
            "length_penalty": 1.0,
        }
        export = Export(files=files, defaults=defaults)
        return Job(
            name="translate",
            make=lambda: build(config),
            task=task,
            config=self.training(),
            export=export,
            settings=self.settings,
        )
