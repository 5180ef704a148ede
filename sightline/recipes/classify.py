"""A text classifier: a small BERT from scratch, or an existing model with a new head."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, processors, trainers

from sightline.core.model import Transformer, build
from sightline.errors import ConfigError
from sightline.recipes.finetune import labelled_task
from sightline.recipes.models import encoder_config, encoder_keys, open_base, pad_of, with_labels
from sightline.recipes.settings import Recipe
from sightline.text.engines.rust import RustEngine
from sightline.text.tokenizer import Tokenizer
from sightline.training.config import AdamW, Optimizer
from sightline.training.data.labelled import Examples, read_labelled
from sightline.training.run import Job
from sightline.training.state.export import Export

PAD = "[PAD]"
FIRST = "[CLS]"
LAST = "[SEP]"
SCRATCH = 1e-3  # usual learning rates
TUNED = 5e-5


@dataclass(frozen=True, kw_only=True)
class Classify(Recipe):
    """`labels` is a .csv or .jsonl file with text and label; `validation` is another one; without
    it every tenth row is held out.

    With `model`, that model is trained further under a new head, and vocab, width, layers, heads
    and dropout are those of the model. `batch` is in tokens. lr=0 selects the default: 1e-3 from
    scratch, 5e-5 for a model."""

    labels: Path | None = None
    validation: Path | None = None
    model: str = ""
    vocab: int = 4000
    width: int = 128
    layers: int = 2
    heads: int = 4
    context: int = 128
    batch: int = 2048
    steps: int = 600
    lr: float = 0.0
    warmup: int = 40
    weight_decay: float = 0.01
    dropout: float = 0.1
    eval_every: int = 50
    save_every: int = 100

    def optimizer(self) -> Optimizer:
        return AdamW(
            lr=self.lr or (TUNED if self.model else SCRATCH),
            betas=(0.9, 0.999),
            weight_decay=self.weight_decay,
        )

    def job(self) -> Job:
        if self.labels is None:
            raise ConfigError(
                "no texts to learn from",
                expected="a .csv or .jsonl file with text and label",
                fix="--set labels=FILE.csv",
            )
        examples = read_labelled(self.labels)
        validation = None if self.validation is None else read_labelled(self.validation)
        return (
            self.finetuning_job(examples, validation)
            if self.model
            else self.scratch_job(examples, validation)
        )

    def finetuning_job(self, examples: Examples, validation: Examples | None) -> Job:
        """An existing model with a new head."""
        base = with_labels(open_base(self.model), examples.names)
        context = min(self.context, base.config.last.max_positions)
        tokens = max(self.batch, context)
        task = labelled_task(
            examples, validation, base.tokenizer, context=context, tokens=tokens, seed=self.seed
        )
        return Job(
            name="classify",
            make=base.transformer,
            task=task,
            config=self.training(),
            export=base.export(),
            settings=self.settings,
        )

    def scratch_job(self, examples: Examples, validation: Examples | None) -> Job:
        """A small BERT."""
        tokenizer, files = pieces(examples.texts, self.vocab)
        names = examples.names
        keys = encoder_keys(
            "ModernBertForSequenceClassification",
            width=self.width,
            layers=self.layers,
            heads=self.heads,
            vocab_size=tokenizer.vocab_size,
            context=self.context,
            dropout=self.dropout,
            pad=pad_of(tokenizer),
        )
        keys |= {
            "id2label": {str(n): name for n, name in enumerate(names)},
            "label2id": {name: n for n, name in enumerate(names)},
        }
        config = encoder_config(keys)
        tokens = max(self.batch, self.context)
        task = labelled_task(
            examples, validation, tokenizer, context=self.context, tokens=tokens, seed=self.seed
        )
        export = Export(family="modernbert", head="sequence", keys=keys, files=files)

        def make() -> Transformer:
            return build(config)

        return Job(
            name="classify",
            make=make,
            task=task,
            config=self.training(),
            export=export,
            settings=self.settings,
        )


def pieces(texts: Iterable[str], vocab_size: int) -> tuple[Tokenizer, dict[str, bytes]]:
    """Byte-level BPE learned from the texts, [CLS] before and [SEP] after each, and its files."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=max(vocab_size, 256 + 3),
        min_frequency=2,
        special_tokens=[PAD, FIRST, LAST],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer=trainer)
    ids = {piece: tokenizer.token_to_id(piece) for piece in (PAD, FIRST, LAST)}
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{FIRST} $A {LAST}",
        pair=f"{FIRST} $A {LAST} $B {LAST}",
        special_tokens=[(FIRST, ids[FIRST]), (LAST, ids[LAST])],
    )
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "pad_token": PAD,
        "cls_token": FIRST,
        "sep_token": LAST,
    }
    files = {
        "tokenizer.json": tokenizer.to_str(pretty=True).encode(),
        "tokenizer_config.json": json.dumps(config, indent=2).encode(),
    }
    return Tokenizer(RustEngine(Path("tokenizer.json"), tokenizer), ids={"pad": ids[PAD]}), files
