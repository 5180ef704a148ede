"""A Transformer with its tokenizer, its generation defaults and the engine that runs it.

model = sl.load("smollm2-135m-instruct") a folder, a .gguf file, a hub id, or a catalogue name
model.config, model.transformer, model.tokenizer, model.family
model.generate(…), model.stream(…), model.chat(…), model.translate(…)
model.fill(…), model.classify(…), model.embed(…), model.score(…)
model.trace(…)                           every attention map of one pass, rebuilt exactly on request
model.save("folder")                     a folder that Hugging Face's transformers loads
model.save("model.gguf")                 a file that llama.cpp loads
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Unpack

import torch
from torch import Tensor

from sightline.checkpoints.defaults import Defaults
from sightline.checkpoints.engine_choice import dtype_named
from sightline.checkpoints.pooling import Pooling
from sightline.checkpoints.save import save_gguf, save_model_folder, tensors_of
from sightline.checkpoints.source import Source
from sightline.checkpoints.tokenizer_files import tokenizer_files
from sightline.config import Classifier, ModelConfig
from sightline.core.cache.kv_cache import Cache
from sightline.core.lazy import LazyTransformer
from sightline.core.model import Transformer
from sightline.core.packed_weights import can_pack
from sightline.core.runner import PackedRunner, TorchRunner
from sightline.engine.cache import NativeCache
from sightline.engine.encoder_runners import AnyNativeRunner, runner_for
from sightline.engine.engine import NativeEngine
from sightline.engine.matrices import Precision
from sightline.engine.runner import NativeRunner
from sightline.errors import InputError
from sightline.families import FAMILIES
from sightline.families.own import own_keys
from sightline.generation.beam_text import best_of_beams
from sightline.generation.decode import Request
from sightline.generation.text import Generation, Piece, gather, stream, stream_many
from sightline.record import ATTENTION, record_nothing
from sightline.tasks.classify import Classification, classify
from sightline.tasks.embed import embed
from sightline.tasks.fill import Filling, fill
from sightline.tasks.request import (
    Options,
    check_prompt,
    encode_prompt,
    make_request,
    refuse_beams,
    require_tokenizer,
)
from sightline.tasks.score import Score, score
from sightline.tasks.translate import Translation, translate
from sightline.text.chat import Message, chat_ids, turn_end
from sightline.text.tokenizer import Tokenizer

if TYPE_CHECKING:  # `generate` runs without importing sightline.lens
    from sightline.lens.trace.trace import Trace
    from sightline.lens.trace.watch import Watch

AnyRunner = TorchRunner | AnyNativeRunner
Prompt = str | Sequence[int] | Request


class Model:
    """A transformer with its tokenizer.

    `family` is Hugging Face's `model_type` (or "sightline"), `head` the checkpoint's head, `keys`
    its config.json, `defaults` its recommended generation settings, `pooling` how a
    sentence-transformers folder pools token vectors, `name` the name it was loaded by, `precision`
    that of the native engine, or None where torch runs the model."""

    def __init__(
        self,
        transformer: Transformer | LazyTransformer,
        tokenizer: Tokenizer | None = None,
        family: str = "sightline",
        head: str = "any",
        keys: dict[str, Any] | None = None,
        source: Source | None = None,
        defaults: Defaults | None = None,
        pooling: Pooling | None = None,
        name: str = "",
        precision: Precision | None = None,
    ) -> None:
        self._weights = LazyTransformer.of(transformer)
        self.tokenizer = tokenizer
        self.family = family
        self.head = head
        self.keys = {} if keys is None else keys
        self.source = source
        self.defaults = Defaults() if defaults is None else defaults
        self.pooling = pooling
        self.name = name
        self.precision: Precision | None = precision
        self._torch: tuple[object, TorchRunner] | None = None
        self._native: tuple[object, AnyNativeRunner] | None = None

    def __repr__(self) -> str:
        stacks = ", ".join(
            f"{name} of {stack.layers} layers, width {stack.width}"
            for name, stack in self.config.stacks.items()
        )
        return f"Model({self.name or self.family!r}: {stacks}, vocabulary of {self.vocab_size})"

    @property
    def transformer(self) -> Transformer:
        """The torch module. Its weights are read on first use."""
        return self._weights.get()

    @transformer.setter
    def transformer(self, transformer: Transformer) -> None:
        self._weights = LazyTransformer.of(transformer)

    @property
    def config(self) -> ModelConfig:
        return self._weights.config

    @property
    def vocab_size(self) -> int:
        return self.config.last.embedding.vocab_size

    @property
    def runner(self) -> AnyRunner:
        """What runs the model: the native engine in `precision`, or torch where that is None. It is
        rebuilt when a weight changes (changes through `.data` are not noticed: torch does not count
        them)."""
        return self._torch_runner if self.precision is None else self._native_runner(self.precision)

    @property
    def _torch_runner(self) -> TorchRunner:
        """Torch, with packed matrices where that is faster."""
        version = self._weights.version, self.transformer.training
        if self._torch is None or self._torch[0] != version:
            packs = self.config.decoder is not None and can_pack(self.transformer)
            kind = PackedRunner if packs else TorchRunner
            self._torch = version, kind(self.transformer)
        return self._torch[1]

    def _native_runner(self, precision: Precision) -> AnyNativeRunner:
        version = self._weights.version, precision
        if self._native is None or self._native[0] != version:
            self._native = version, runner_for(self._weights, precision)
            if self.source is not None:
                known = self.source.notes
                known += [note for note in self._native[1].notes if note not in known]
        return self._native[1]

    def with_engine(self, engine: NativeEngine) -> Model:
        """A model for an engine that has these weights already."""
        version = self._weights.version, self.precision
        self._native = version, NativeRunner(self._weights, engine)
        return self

    @property
    def device(self) -> torch.device:
        """Where the model runs."""
        return self.runner.device

    def to(self, device: str | torch.device) -> Model:
        """Move the weights to a device and return this model. Only the CPU has the native engine;
        elsewhere torch runs the model."""
        target = torch_device(device)
        if target.type != "cpu":
            if self.precision not in (None, "float32"):
                raise InputError(
                    f"{self.precision} on {target}",
                    expected="float32, float16 or bfloat16 there",
                    fix="load the model with another dtype",
                )
            self.precision = None
        self.transformer.to(target)
        return self

    @property
    def notes(self) -> list[str]:
        """Notes for the user: weights that were cast, files that were ignored, NaN in the
        weights."""
        return [] if self.source is None else self.source.notes

    def __call__(self, text: str | Sequence[int], **options: Unpack[Options]) -> Generation:
        """The same as `generate`. For logits: `model.transformer(tokens)`."""
        if isinstance(text, Tensor):
            raise InputError(
                "a tensor",
                expected="a text or a list of token ids",
                fix="model.transformer(tokens)",
            )
        return self.generate(text, **options)

    def generate(self, prompt: Prompt, **options: Unpack[Options]) -> Generation:
        """Continue a text or token ids (an encoder–decoder takes the source). The options are those
        of `stream`, and `beams`.

        A model without tokenizer takes and returns ids: `model.generate([5, 6, 7]).tokens`.
        """
        request = self._as_request(prompt, options)
        beams = options.get("beams", 1)
        runs_again = beams != 1 or not self._can_record
        watch = None if runs_again else self._watch(options, None)
        if beams != 1:
            generation = best_of_beams(
                self.runner,
                self.tokenizer,
                request,
                beams=beams,
                penalty=options.get("length_penalty", 1.0),
            )
        else:
            pieces = self._stream(request, watch=watch)
            generation = gather(pieces, prompt_tokens=request.prompt_tokens)
        if options.get("trace"):
            read = [*request.prompt, *generation.tokens[:-1]]
            source_text = ""
            if isinstance(prompt, str) and request.source is not None:
                source_text = prompt
            trace = self._trace_again if watch is None else watch.trace
            generation.trace = trace(read, source=request.source, source_text=source_text)
        return generation

    def generate_many(
        self, prompts: Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Generation]:
        """Continue many prompts in one batch, which takes less time. Each text is the same as
        without batching."""
        refuse_beams(options)
        if options.get("trace"):
            raise InputError(
                "a trace of many texts at once",
                expected="one text",
                fix="model.generate(prompt, trace=True) for each",
            )
        requests = [self._as_request(prompt, options) for prompt in prompts]
        generations = [Generation(prompt_tokens=request.prompt_tokens) for request in requests]
        # the scheduler joins rows of caches, which encoder–decoder caches do not support
        runner = self.runner if self.config.encoder is None else self._torch_runner
        for number, piece in stream_many(runner, self.tokenizer, requests):
            generations[number].add(piece)
        return generations

    def stream(
        self, prompt: Prompt, *, cache: Cache | None = None, **options: Unpack[Options]
    ) -> Iterator[Piece]:
        """The same, streamed piece by piece: `for piece in model.stream("Once upon a time"):
        print(piece.text, end="")`.

        A cache of an earlier call can be passed if it holds only a prefix of this prompt.
        """
        refuse_beams(options)
        return self._stream(
            self._as_request(prompt, options), cache, watch=self._watch(options, cache)
        )

    def _stream(
        self, request: Request, cache: Cache | None = None, *, watch: Watch | None = None
    ) -> Iterator[Piece]:
        pieces = stream(
            self.runner if watch is None else watch.runner,
            self.tokenizer,
            request,
            cache=cache,
            watch=watch or record_nothing,
        )
        if watch is None:
            return pieces
        from sightline.lens.trace.watch import with_traces

        return with_traces(pieces, watch, request)

    def _watch(self, options: Options, cache: Cache | None) -> Watch | None:
        """The watcher that `trace=True` needs. The native engine can be recorded with its own cache
        only; otherwise torch runs the model."""
        if not options.get("trace"):
            return None
        from sightline.lens.trace.native import BY_TORCH, NativeWatch
        from sightline.lens.trace.watch import Watch

        native = self._native_decoder
        if native is not None and (cache is None or isinstance(cache, NativeCache)):
            return NativeWatch(native, self.tokenizer, self.name)
        return Watch(
            self._torch_runner,
            self.tokenizer,
            self.name,
            notes=() if self.precision is None else (BY_TORCH,),
        )

    @property
    def _can_record(self) -> bool:
        """Whether a pass that generates can be recorded: by torch, or by the engine's decoders."""
        return self.precision is None or self._native_decoder is not None

    @property
    def _native_decoder(self) -> NativeRunner | None:
        """The native engine, if it generates the text and can be recorded."""
        runner = None if self.precision is None else self.runner
        return runner if isinstance(runner, NativeRunner) else None

    def _trace_again(
        self, ids: Sequence[int], *, source: Sequence[int] | None, source_text: str
    ) -> Trace:
        """A trace of tokens that were already generated: one more pass."""
        from sightline.lens.trace.native import native_trace
        from sightline.lens.trace.trace import trace_of

        native = self._native_decoder
        if native is not None:
            return native_trace(native, self, ids)
        return self._noted(trace_of(self, ids, source=source, source_text=source_text))

    def _noted(self, trace: Trace) -> Trace:
        """The trace, with a note if torch computed it although the native engine generates."""
        from sightline.lens.trace.native import BY_TORCH

        if self.precision is None or trace.notes:
            return trace
        return replace(trace, notes=(BY_TORCH,))

    def trace(
        self,
        text: str | Sequence[int],
        *,
        source: str | Sequence[int] | None = None,
        layers: Iterable[int] | None = None,
        what: Iterable[str] = ATTENTION,
    ) -> Trace:
        """One ordinary pass, from which every attention map can be rebuilt: `model.trace("The cat
        sat").weights(layer=5, head=1)`.

        An encoder–decoder reads `source` and is traced on the target `text`; with only one text, it
        translates that first, as `translate` does. `what` may name more of `sl.QUANTITIES` to
        record, and `layers` selects some of the layers.
        """
        from sightline.tasks.tracing import trace

        return self._noted(
            trace(
                self,
                self.defaults,
                text,
                source,
                layers=layers,
                what=what,
                translate=self.translate,
                native=self._native_decoder,
            )
        )

    def chat(self, messages: str | Sequence[Message], **options: Unpack[Options]) -> Generation:
        """The answer to a conversation, or to one message: `model.chat("Hello").text`, or
        `model.chat([{"role": "user", "content": "Hello"}]).text`."""
        refuse_beams(options)
        request = self._chat_request(messages, options)
        watch = self._watch(options, None)
        pieces = self._stream(request, watch=watch)
        generation = gather(pieces, prompt_tokens=request.prompt_tokens)
        if watch is not None:
            generation.trace = watch.trace([*request.prompt, *generation.tokens[:-1]])
        return generation

    def stream_chat(
        self,
        messages: str | Sequence[Message],
        *,
        cache: Cache | None = None,
        **options: Unpack[Options],
    ) -> Iterator[Piece]:
        """The same, piece by piece."""
        refuse_beams(options)
        return self._stream(
            self._chat_request(messages, options), cache, watch=self._watch(options, cache)
        )

    def _chat_request(self, messages: str | Sequence[Message], options: Options) -> Request:
        tokenizer = self._tokenizer()
        if isinstance(messages, str):
            messages = [{"role": "user", "content": messages}]
        return self.request(chat_ids(tokenizer, messages), options, also_end=turn_end(tokenizer))

    def translate(
        self,
        text: str,
        *,
        beams: int | None = None,
        max_tokens: int | None = None,
        length_penalty: float | None = None,
    ) -> Translation:
        """The translation, and the source token that each of its tokens attended to. `beams`
        defaults to the checkpoint's value, or 4."""
        return translate(
            self.runner,
            self._tokenizer(),
            self.defaults,
            text,
            beams=beams,
            max_tokens=max_tokens,
            length_penalty=length_penalty,
        )

    def fill(self, text: str, *, top_k: int = 5) -> list[Filling]:
        """The most likely tokens for each mask in the text (`[MASK]`, or the tokenizer's own mask
        token)."""
        return fill(self.runner, self._tokenizer(), text, top_k=top_k)

    def classify(self, texts: Sequence[str]) -> list[Classification]:
        """The probability of each label, for each text."""
        if self.head == "answers":
            raise InputError(
                "a model that finds answers in a text",
                expected="one that labels texts or tokens",
                fix="use another model",
            )
        problem = self.keys.get("problem_type")
        start = self.defaults.decoder_start
        return classify(
            self.runner, self._tokenizer(), texts, labels=self.labels, problem=problem, start=start
        )

    def embed(
        self, texts: Sequence[str], *, progress: Callable[[int], None] | None = None
    ) -> Tensor:
        """One vector per text, `[texts, width]`, pooled as configured in the checkpoint (by
        default: the mean)."""
        return embed(
            self.runner,
            self._tokenizer(),
            texts,
            pooling=self.pooling or Pooling(how="mean", normalize=False),
            progress=progress,
        )

    def score(
        self,
        text: str | Sequence[int],
        *,
        stride: int | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> Score:
        """The log-likelihood of a text: log p of each token, perplexity. A text longer than the
        context is scored in windows, `stride` apart."""
        return score(self.runner, self._tokenizer(), text, stride=stride, progress=progress)

    @property
    def labels(self) -> list[str]:
        """The names of a classifier's labels from its config.json; ignored if their number is not
        that of the labels."""
        count = self.config.head.labels if isinstance(self.config.head, Classifier) else 0
        id2label = self.keys.get("id2label")
        names = id2label if isinstance(id2label, dict) and len(id2label) == count else {}
        return [str(names.get(str(n), f"LABEL_{n}")) for n in range(count)]

    def ids(self, text: str) -> list[int]:
        """The tokens of a text, with the special tokens that the model expects."""
        return encode_prompt(self.tokenizer, text)

    def request(
        self, prompt: str | Sequence[int], options: Options, *, also_end: tuple[int, ...] = ()
    ) -> Request:
        """The prompt as tokens with all options resolved. `generate`, `stream` and `generate_many`
        take it instead of a prompt, so that a text is encoded once."""
        return make_request(
            self.config, self.tokenizer, self.defaults, prompt, options, also_end=also_end
        )

    def _as_request(self, prompt: Prompt, options: Options) -> Request:
        if isinstance(prompt, Request):
            return prompt
        check_prompt(prompt)
        return self.request(prompt, options)

    def _tokenizer(self) -> Tokenizer:
        return require_tokenizer(self.tokenizer)

    def save(
        self,
        path: str | Path,
        *,
        dtype: str | None = None,
        format: Literal["hf", "gguf"] | None = None,
        overwrite: bool = False,
    ) -> Path:
        """Write a folder that Hugging Face loads, or a GGUF file if `path` ends in `.gguf` (or with
        `format="gguf"`). Returns the path.

        A folder keeps the weights' dtype by default; a GGUF file is float16. What GGUF has no
        place for is added to `notes`. A model without a Hugging Face family is written as a folder
        that only Sightline loads.
        """
        path = Path(path)
        family = FAMILIES[self.family]
        if (format or ("gguf" if path.suffix == ".gguf" else "hf")) == "gguf":
            self.notes.extend(
                save_gguf(
                    path,
                    tensors_of(self.transformer, family, self.head),
                    keys=self.keys,
                    tokenizer=self.tokenizer,
                    dtype=dtype or "float16",
                    overwrite=overwrite,
                )
            )
            return path
        save_model_folder(
            path,
            self.transformer,
            family=family,
            head=self.head,
            keys=self.keys or own_keys(self.config),
            files=tokenizer_files(self.source, self.tokenizer),
            dtype=dtype_named(dtype) if dtype else None,
            overwrite=overwrite,
        )
        return path


def torch_device(device: str | torch.device) -> torch.device:
    """A device that this machine has."""
    try:
        target = torch.device(device)
        torch.empty(1, device=target)
    except (RuntimeError, AssertionError, TypeError, NotImplementedError) as error:
        raise InputError(
            f"the device {str(device)[:40]!r}: {str(error).splitlines()[0][:100]}",
            expected="a device that this machine has",
            fix='model.to("cpu")',
        ) from None
    return target
