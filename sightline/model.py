"""A Transformer with its tokenizer and what is known of where it came from: the one meeting place.

model = load("smollm2-135m-instruct")      a folder, a .gguf file, a hub id, or a name of the catalogue
model.config, model.transformer, model.tokenizer, model.family
model.save("folder")                       a folder that Hugging Face's transformers loads
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

import torch

from sightline.checkpoints.defaults import Defaults, read_defaults
from sightline.checkpoints.load import Progress
from sightline.checkpoints.load import load as load_source
from sightline.checkpoints.opening import open_source
from sightline.checkpoints.pooling import Pooling, read_pooling
from sightline.checkpoints.reference import resolve
from sightline.checkpoints.save import keys_for, tensors_of
from sightline.checkpoints.source import Source
from sightline.checkpoints.tokenizing import tokenizer_files, tokenizer_of
from sightline.checkpoints.write import save_folder
from sightline.config import ModelConfig
from sightline.core.model import Transformer
from sightline.errors import InputError, nearest
from sightline.families import FAMILIES
from sightline.families.own import keys_of
from sightline.generation.decode import Request
from sightline.generation.sampling import Sampling
from sightline.generation.text import Generation, Piece, gather, stream
from sightline.text.tokenizer import Tokenizer

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


SAMPLING = frozenset(field.name for field in fields(Sampling))


class Options(TypedDict, total=False):
    """How to continue: see `Sampling` for the numbers. `stop` ends before a string, `truncate="left"` cuts a prompt that is too long."""

    max_tokens: int | None
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical: float | None
    repetition_penalty: float | None
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    no_repeat_ngram: int | None
    seed: int
    stop: Sequence[str]
    ignore_eos: bool
    truncate: Literal["left"] | None
    alternatives: int


@dataclass(slots=True)
class Model:
    """`family` is Hugging Face's `model_type` (or "sightline"), `head` what the checkpoint carries, `keys` its config.json, `defaults`
    how its makers want it run, `pooling` how a sentence-transformers folder makes one vector of a text."""

    transformer: Transformer
    tokenizer: Tokenizer | None = None
    family: str = "sightline"
    head: str = "any"
    keys: dict[str, Any] = field(default_factory=dict)
    source: Source | None = None
    defaults: Defaults = field(default_factory=Defaults)
    pooling: Pooling | None = None

    @property
    def config(self) -> ModelConfig:
        return self.transformer.config

    @property
    def notes(self) -> list[str]:
        """What a reader should know: weights that were cast, files that were ignored, NaN that was found."""
        return [] if self.source is None else self.source.notes

    def generate(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Generation:
        """Continue a text or token ids (an encoder–decoder takes the source). The options are those of `stream`."""
        return gather(self.stream(prompt, **options))

    def stream(self, prompt: str | Sequence[int], **options: Unpack[Options]) -> Iterator[Piece]:
        """The same, piece by piece as it is made: `for piece in model.stream("Once upon a time"): print(piece.text, end="")`."""
        request = self.request(prompt, options)
        return stream(self.transformer, self._tokenizer(), request, stop=tuple(options.get("stop", ())))

    def request(self, prompt: str | Sequence[int], options: Options) -> Request:
        """What `decode` is asked: the prompt as tokens, cut to the context if that was allowed, and how to choose."""
        chosen: dict[str, Any] = {name: value for name, value in options.items() if name in SAMPLING and value is not None}
        ids = self._tokenizer().encode(prompt, special=True) if isinstance(prompt, str) else list(prompt)
        context = self.config.last.max_positions
        source: list[int] | None = None
        if self.config.encoder is not None and self.config.decoder is not None:
            start = self.defaults.decoder_start if self.defaults.decoder_start is not None else self.defaults.begin
            source, ids = ids, [0 if start is None else start]
        wanted = options.get("max_tokens")
        most = min(128, max(1, context - len(ids))) if wanted is None else wanted
        if options.get("truncate") == "left" and len(ids) + most > context:
            ids = ids[-max(1, context - most) :]
        end = () if options.get("ignore_eos") else self.defaults.end
        return Request(
            prompt=ids, max_tokens=most, sampling=Sampling(**chosen), end=end, source=source, alternatives=options.get("alternatives", 0)
        )

    def _tokenizer(self) -> Tokenizer:
        if self.tokenizer is None:
            raise InputError("a model without tokenizer", expected="token ids", fix="use decode(model.transformer, Request(prompt=ids, …))")
        return self.tokenizer

    def save(self, folder: str | Path, *, dtype: str | None = None, overwrite: bool = False) -> Path:
        """Write a folder that Hugging Face loads (or `load` alone, where a model has no family there). Returns the folder."""
        kind = dtype_named(dtype) if dtype else next(self.transformer.parameters()).dtype
        keys = keys_for(self.keys or keys_of(self.config), kind)
        tensors = dict(tensors_of(self.transformer, FAMILIES[self.family], self.head, dtype=kind))
        save_folder(folder, tensors, keys=keys, files=tokenizer_files(self.source, self.tokenizer), overwrite=overwrite)
        return Path(folder)


def dtype_named(name: str) -> torch.dtype:
    """A dtype by its name."""
    if name not in DTYPES:
        raise InputError(f"dtype {name!r}", fix=nearest(name, DTYPES))
    return DTYPES[name]


def load(
    reference: str | Path,
    *,
    dtype: str = "float32",
    strict: bool = False,
    verify: bool = False,
    from_pickle: bool = False,
    progress: Progress | None = None,
) -> Model:
    """Find, open, understand and fill a model.

    `strict` refuses NaN weights, `verify` checks the folder's checksums, `from_pickle` allows an old `pytorch_model.bin`, which is
    then converted in a limited process of its own. `progress(name, numbers)` is told of every tensor that was filled.
    """
    source = open_source(resolve(reference), verify=verify, allow_pickle_weights=from_pickle)
    return load_opened(source, dtype=dtype, strict=strict, progress=progress)


def load_opened(source: Source, *, dtype: str = "float32", strict: bool = False, progress: Progress | None = None) -> Model:
    """A source that is open already."""
    loaded = load_source(source, dtype=dtype_named(dtype), strict=strict, progress=progress)
    defaults = read_defaults(source, loaded.transformer.config.last.embedding.vocab_size)
    pooling = read_pooling(source.where) if source.where.is_dir() else None
    return Model(loaded.transformer, tokenizer_of(source), loaded.family.name, loaded.head, source.keys, source, defaults, pooling)
