"""A model that exists, trained further: on a text, on conversations, on pairs, or for labels; all
of it, or adapters beside it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from sightline.checkpoints.defaults import read_defaults
from sightline.config import LanguageHead, MaskedHead
from sightline.core.model import Transformer
from sightline.errors import ConfigError, InputError
from sightline.recipes.corpora import Prepared, prepared_folder, read_pairs
from sightline.recipes.models import Base, open_base, pad_of, surrounded, with_labels
from sightline.recipes.settings import Recipe
from sightline.terminal.progress import reporting
from sightline.text.engines.marian import MarianEngine
from sightline.text.tokenizer import Tokenizer
from sightline.training.config import AdamW, Optimizer, number
from sightline.training.data.batch import Task
from sightline.training.data.chats import Chats, read_chats
from sightline.training.data.chunk_encoders import model_encoder
from sightline.training.data.labelled import Examples, Labelled, read_labelled
from sightline.training.data.masked import MaskedText, word_beginnings
from sightline.training.data.packed import PackedText
from sightline.training.data.pairs import Pairs
from sightline.training.data.prepare import Plan, cached, sources
from sightline.training.lora import Matrices, add_adapters
from sightline.training.run import Job

Row = TypeVar("Row")
KINDS = ("text", "chats", "pairs", "labels")
WHOLE = 5e-5  # usual learning rates
ADAPTED = 2e-4
USUAL_CONTEXT = 512
HELD_ROWS = 10  # every so-many-th is held out, where there are enough
LEAST_ROWS = 20


@dataclass(frozen=True, kw_only=True)
class Finetune(Recipe):
    """`model` is whatever `sightline generate` takes. One of `text`, `chats` (.jsonl), `pairs`
    (.tsv) and `labels` (.csv, .jsonl) says what is learned; `validation` is a file of the same
    kind, without which some of the data is held out.

    `lora` is the adapters' rank, 0 trains every weight; `batch` is in tokens. lr=0 is the usual:
    2e-4 with adapters, 5e-5 without. context=0 is the model's own, up to 512."""

    model: str = ""
    text: Path | None = None
    chats: Path | None = None
    pairs: Path | None = None
    labels: Path | None = None
    validation: Path | None = None
    lora: int = 8
    alpha: float | None = None
    matrices: Matrices = "query_value"
    context: int = 0
    batch: int = 2048
    steps: int = 500
    lr: float = 0.0
    warmup: int = 20
    weight_decay: float = 0.0
    save_every: int = 100
    eval_every: int = 100

    def __post_init__(self) -> None:
        number("lora", self.lora, low=0, high=4096, whole=True)
        number("context", self.context, low=0, high=1e7, whole=True)
        number("batch", self.batch, low=1, high=1e9, whole=True)
        if self.dropout:
            raise ConfigError(
                f"dropout is {self.dropout}",
                expected="0: the model's config.json says it",
                fix="leave dropout out",
            )
        Recipe.__post_init__(self)

    def optimizer(self) -> Optimizer:
        return AdamW(
            lr=self.lr or (ADAPTED if self.lora else WHOLE),
            betas=(0.9, 0.999),
            weight_decay=self.weight_decay,
        )

    def job(self) -> Job:
        path, make = self.chosen()
        if not self.model:
            raise ConfigError(
                "no model to begin with",
                expected="a folder, a .gguf file, a name or a hub id",
                fix="--set model=…",
            )
        base, task = make(self, open_base(self.model), path)
        return Job(
            name="finetune",
            make=lambda: self.learner(base),
            task=task,
            config=self.training(),
            export=base.export(),
            settings=self.settings,
        )

    def chosen(self) -> tuple[Path, Maker]:
        """The one kind of data that was given, and what makes a task of it."""
        given = [name for name in KINDS if getattr(self, name) is not None]
        if len(given) != 1:
            seen = " and ".join(given) if given else "nothing to learn from"
            raise ConfigError(
                seen, expected="one of text, chats, pairs, labels", fix="--set text=FILE.txt"
            )
        return getattr(self, given[0]), MAKERS[given[0]]

    def learner(self, base: Base) -> Transformer:
        """The model before the first step. A new head is trained whole, whatever becomes of the
        rest."""
        transformer = base.transformer()
        if self.lora:
            add_adapters(transformer, rank=self.lora, alpha=self.alpha, matrices=self.matrices)
            if base.fresh and transformer.output is not None:
                transformer.output.requires_grad_()
        return transformer

    def longest(self, base: Base) -> int:
        """How many tokens a row may have."""
        most = base.config.last.max_positions
        if self.context > most:
            raise ConfigError(
                f"context is {self.context}",
                expected=f"at most {most}, which this model was made for",
                fix=f"context={most}",
            )
        return self.context or min(most, USUAL_CONTEXT)


Maker = Callable[[Finetune, Base, Path], tuple[Base, Task]]


def from_text(recipe: Finetune, base: Base, path: Path) -> tuple[Base, Task]:
    """The next token of a decoder, hidden tokens of an encoder."""
    context = recipe.longest(base)
    vocab_size = base.config.last.embedding.vocab_size
    decodes = isinstance(base.config.head, LanguageHead) and base.config.encoder is None
    if not decodes and not isinstance(base.config.head, MaskedHead):
        raise InputError(
            f"{base.name}: no model of texts",
            expected="one that continues texts, or fills in masks",
            fix="pairs=…, or labels=…",
        )
    data = prepared(recipe, base, path)
    rows = max(1, recipe.batch // context)
    if data.vocab_size > vocab_size:
        raise InputError(
            f"{base.name}: a tokenizer of {data.vocab_size} tokens",
            expected=f"at most {vocab_size}, the model's vocabulary",
        )
    if decodes:
        return base, PackedText(
            data.train, data.validation, context, rows, recipe.seed, end=data.end
        )
    if base.tokenizer.mask is None:
        raise InputError(
            f"{base.name}: a tokenizer without mask token",
            expected="one that has it",
            fix="add it to tokenizer_config.json",
        )
    text = PackedText(data.train, data.validation, context, rows, recipe.seed, end=data.end)
    begins = word_beginnings(base.tokenizer, vocab_size)
    return base, MaskedText(
        text,
        base.tokenizer.mask,
        vocab_size,
        special=base.tokenizer.special_ids,
        unit="word",
        begins=begins,
    )


def prepared(recipe: Finetune, base: Base, path: Path) -> Prepared:
    """A text file in the model's own tokens; the last 5 % are held out where no other file is."""
    encoder = model_encoder(str(base.source.where))
    plan = Plan(
        files=sources([path]),
        held_out=sources([] if recipe.validation is None else [recipe.validation]),
    )
    with reporting(None) as report:
        return prepared_folder(cached(plan, f"given {encoder.sha256}", lambda: encoder, report))


def from_chats(recipe: Finetune, base: Base, path: Path) -> tuple[Base, Task]:
    """What the assistant says."""
    if not isinstance(base.config.head, LanguageHead) or base.config.encoder is not None:
        raise InputError(
            f"{base.name}: no model that chats",
            expected="one that continues texts",
            fix="use another model",
        )
    found = read_chats(path, base.tokenizer)
    held = [] if recipe.validation is None else read_chats(recipe.validation, base.tokenizer)
    if recipe.validation is None and len(found) >= LEAST_ROWS:
        found, held = every_other(found)
    context = recipe.longest(base)
    task = Chats(
        found,
        pad_of(base.tokenizer),
        max(recipe.batch, context),
        recipe.seed,
        held_out=held,
        longest=context,
    )
    return base, task


def every_other(rows: list[Row]) -> tuple[list[Row], list[Row]]:
    """Those that are learned, and every tenth, which is held out."""
    held = rows[HELD_ROWS - 1 :: HELD_ROWS]
    return [row for n, row in enumerate(rows) if n % HELD_ROWS != HELD_ROWS - 1], held


def from_pairs(recipe: Finetune, base: Base, path: Path) -> tuple[Base, Task]:
    """Source to target."""
    config = base.config
    tokenizer = base.tokenizer
    if config.encoder is None or config.decoder is None:
        raise InputError(
            f"{base.name}: no encoder–decoder",
            expected="a model that translates",
            fix="chats=… with questions and answers",
        )
    defaults = read_defaults(base.source, config.last.embedding.vocab_size)
    start = defaults.decoder_start
    end = tokenizer.eos
    if start is None or end is None:
        raise InputError(
            f"{base.name}: no token that starts or ends a translation",
            expected="decoder_start_token_id in config.json",
        )
    sides = pair_ids(tokenizer, *read_pairs(path, None, None), end=end)
    held = (
        ([], [])
        if recipe.validation is None
        else pair_ids(tokenizer, *read_pairs(recipe.validation, None, None), end=end)
    )
    if recipe.validation is None and len(sides[0]) >= LEAST_ROWS:
        (sources, held_sources), (targets, held_targets) = (every_other(side) for side in sides)
        sides = (sources, targets)
        held = (held_sources, held_targets)
    context = recipe.longest(base)
    tokens = max(recipe.batch, context)
    pad = pad_of(tokenizer)
    task = Pairs(
        *sides,
        start=start,
        end=end,
        pad=pad,
        tokens=tokens,
        seed=recipe.seed,
        held_out=held,
        longest=context,
    )
    return base, task


def pair_ids(
    tokenizer: Tokenizer, sources: list[str], targets: list[str], *, end: int
) -> tuple[list[list[int]], list[list[int]]]:
    """Both sides as the model reads and writes them, without the token that ends them."""
    before = list(tokenizer.engine.around[0])
    engine = tokenizer.engine
    write = engine.target_ids if isinstance(engine, MarianEngine) else tokenizer.encode
    return [[*before, *tokenizer.encode(text)] for text in sources], [
        [*before, *write(text)] for text in targets
    ]


def from_labels(recipe: Finetune, base: Base, path: Path) -> tuple[Base, Task]:
    """One label for each text."""
    found = read_labelled(path)
    held = None if recipe.validation is None else read_labelled(recipe.validation)
    base = with_labels(base, found.names)
    context = recipe.longest(base)
    tokens = max(recipe.batch, context)
    return base, labelled_task(
        found, held, base.tokenizer, context=context, tokens=tokens, seed=recipe.seed
    )


def labelled_task(
    found: Examples,
    held: Examples | None,
    tokenizer: Tokenizer,
    *,
    context: int,
    tokens: int,
    seed: int,
) -> Labelled:
    """Texts as tokens, labels as numbers; every tenth is held out where nothing else is."""
    numbers = {name: n for n, name in enumerate(found.names)}
    strange = [name for name in (held.names if held is not None else []) if name not in numbers]
    if strange:
        raise InputError(
            f"held-out rows of label {strange[0]!r}, which the others never have",
            expected="the same labels in both",
        )
    if held is None:
        found, held = (
            found.parted(HELD_ROWS) if len(found) >= LEAST_ROWS else (found, Examples([], []))
        )
    rows, held_rows = (
        [surrounded(tokenizer, text, context) for text in side.texts] for side in (found, held)
    )
    labels, held_labels = ([numbers[name] for name in side.labels] for side in (found, held))
    return Labelled(
        rows,
        labels,
        pad_of(tokenizer),
        tokens,
        seed,
        held_out=(held_rows, held_labels),
        longest=context,
    )


MAKERS: dict[str, Maker] = {
    "text": from_text,
    "chats": from_chats,
    "pairs": from_pairs,
    "labels": from_labels,
}
