"""A conversation with a chat model: its messages, and a KV cache, so that each turn computes only
new tokens.

    chat = Conversation(model, system="You are brief.", temperature=0.7)
    for piece in chat.say("Hello"):
        print(piece.text, end="")
    chat.save("talk.json")                     Conversation.read("talk.json") continues it

The longest common prefix of the cached tokens and the new prompt is reused, so an answer is, token
for token, that of a new conversation with the same messages. When the context is full, the oldest
exchanges are left out of the prompt.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_left
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Unpack, cast, get_args
from weakref import ReferenceType, ref

from sightline.checkpoints.defaults import Defaults
from sightline.config import LanguageHead
from sightline.errors import InputError, nearest, short_repr
from sightline.files.atomic import write_text
from sightline.files.strict_json import read_json
from sightline.generation.decode import Request, TokenEvent
from sightline.generation.randomness import whole
from sightline.generation.sampling import Sampling
from sightline.generation.text import Piece, stream
from sightline.loading import load
from sightline.model import Model
from sightline.tasks.request import SAMPLING, Options
from sightline.text.chat import chat_ids, turn_end
from sightline.text.streaming import check_stops
from sightline.text.tokenizer import Tokenizer

Ended = Literal["stop", "length", "cut"]

OPTIONS = frozenset({*SAMPLING, "max_tokens", "stop"} - {"logit_bias"})
MAX_ANSWER = 512  # tokens of an answer, by default
CONTEXT_SHARE = 4  # a quarter of the context is kept free for the answer
TEMPERATURE = (
    0.7  # where the checkpoint recommends nothing: small models that are greedy repeat themselves
)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A message and its answer, which ended with a stop token (`stop`), at the maximum `length`, or
    because the reader stopped (`cut`)."""

    message: str
    answer: str
    ended: Ended = "stop"


@dataclass(slots=True)
class Figures:
    """Statistics of the last answer. `left_out` counts the oldest exchanges that the prompt leaves
    out."""

    context: int
    prompt_tokens: int = 0
    reused_tokens: int = 0
    new_tokens: int = 0
    left_out: int = 0
    cache_bytes: int = 0
    first_seconds: float = 0.0
    seconds: float = 0.0

    @property
    def tokens_per_second(self) -> float:
        return self.new_tokens / self.seconds if self.seconds else 0.0

    @property
    def fullness(self) -> float:
        """The fraction of the context that prompt and answer use."""
        return (self.prompt_tokens + self.new_tokens) / self.context

    def add(self, event: TokenEvent) -> None:
        """Count one more token."""
        self.first_seconds = self.first_seconds or event.step_seconds
        self.seconds = self.seconds + event.step_seconds
        self.new_tokens = self.new_tokens + 1
        self.cache_bytes = event.cache_bytes


class Conversation:
    """Messages to and from one model. `reference` is the model's name or path; `system` may be
    changed at any time."""

    def __init__(
        self, model: Model | str, *, system: str | None = None, **options: Unpack[Options]
    ) -> None:
        self.model = load(model) if isinstance(model, str) else model
        self.reference = (
            model if isinstance(model, str) else str(model.source.where) if model.source else ""
        )
        self.tokenizer = chat_tokenizer(self.model)
        self.system = system
        self.exchanges = list[Exchange]()
        self.options: Options = {}
        self.set(**options)
        self._end = turn_end(self.tokenizer)
        self._answer: ReferenceType[Generator[Piece]] | None = None
        self.reset()

    @property
    def messages(self) -> list[dict[str, str]]:
        """All messages, the system message first."""
        return self._messages(0)

    @property
    def context(self) -> int:
        return self.model.config.last.max_positions

    def set(self, **options: Unpack[Options]) -> None:
        """Change the options of later answers. None resets an option."""
        changed = {
            name: value for name, value in {**self.options, **options}.items() if value is not None
        }
        check_chat_options(changed)
        self.options = cast(Options, changed)

    def say(self, text: str) -> Generator[Piece]:
        """Stream the answer. When it ends it is added to the messages, or as much as was read if
        the caller stops early."""
        self._finish()
        if not text.strip():
            raise InputError("an empty message", expected="some text", fix='say("Hello")')
        prompt, left_out = self._fit(text)
        answer = self._stream(text, prompt, left_out)
        self._answer = ref(
            answer
        )  # a weak reference: leaving the loop early ends the answer at once
        return answer

    def undo(self) -> str:
        """Remove the last exchange and return its message."""
        self._finish()
        if not self.exchanges:
            raise InputError(
                "there is nothing to undo", expected="an exchange", fix="say something first"
            )
        return self.exchanges.pop().message

    def reset(self) -> None:
        """Remove all exchanges; the system message and the options stay."""
        self._finish()
        self.exchanges, self.figures = [], Figures(self.context)
        self._cache = self.model.runner.new_cache()
        self._cached = list[int]()

    def save(self, path: str | Path, *, overwrite: bool = False) -> Path:
        """Write the conversation as JSON, atomically."""
        self._finish()
        messages = self.messages
        for answer, exchange in zip(messages[::-2], reversed(self.exchanges), strict=False):
            if exchange.ended != "stop":
                answer["ended"] = exchange.ended
        data = {"model": self.reference, "options": self.options, "messages": messages}
        return write_new(
            Path(path), json.dumps(data, indent=2, ensure_ascii=False) + "\n", overwrite=overwrite
        )

    @classmethod
    def read(cls, path: str | Path, *, model: Model | None = None) -> Conversation:
        """A saved conversation, with its model or with another one."""
        data = read_json(Path(path))
        if set(data) != {"model", "options", "messages"} or not isinstance(data["options"], dict):
            raise InputError(
                f"{path} is not a saved conversation",
                expected="model, options and messages",
                fix="see Conversation.save",
            )
        system, exchanges = parse_messages(data["messages"], str(path))
        check_chat_options(data["options"])
        conversation = cls(model or str(data["model"]), system=system)
        conversation.set(**data["options"])
        conversation.exchanges = exchanges
        return conversation

    def _finish(self) -> None:
        """End an answer that is still being generated."""
        answer = self._answer and self._answer()
        if answer is not None:
            answer.close()

    def _stream(self, text: str, prompt: list[int], left_out: int) -> Generator[Piece]:
        """Stream the answer to a prompt; `_cached` tracks the tokens in the cache, so that an
        interrupt at any point is safe."""
        answer = ""
        ended: Ended = "cut"
        figures = self.figures = Figures(
            self.context, len(prompt), self._rewind(prompt), left_out=left_out
        )
        try:
            for piece in stream(
                self.model.runner,
                self.tokenizer,
                self._request(prompt),
                cache=self._cache,
            ):
                if piece.event is not None:
                    self._cached.append(piece.event.token)
                    figures.add(piece.event)
                answer = answer + piece.text
                ended = piece.finish or "cut"
                yield piece
        finally:
            if answer or ended != "cut":
                self.exchanges.append(Exchange(text, answer, ended))

    def _rewind(self, prompt: list[int]) -> int:
        """Truncate the cache to the prefix that it shares with the prompt, whose last token is
        computed again for its logits."""
        known = self._cached[: self._cache.length]
        shared = next(
            (
                place
                for place, (old, new) in enumerate(zip(known, prompt, strict=False))
                if old != new
            ),
            len(known),
        )
        reused = min(shared, len(prompt) - 1)
        self._cached = known[
            :reused
        ]  # first: a cache whose truncation is interrupted still holds these
        self._cache.truncate(reused)
        self._cached = list(prompt)
        return reused

    def _request(self, prompt: list[int]) -> Request:
        """A request with the maximum length that the options and the context allow."""
        longest = min(self.options.get("max_tokens") or MAX_ANSWER, self.context - len(prompt))
        return self.model.request(
            prompt, {**self.options, "max_tokens": longest}, also_end=self._end
        )

    def _fit(self, text: str) -> tuple[list[int], int]:
        """The prompt, and the number of oldest exchanges that it leaves out to have room for an
        answer."""
        room = max(
            1, min(self.options.get("max_tokens") or MAX_ANSWER, self.context // CONTEXT_SHARE)
        )
        prompt = self._prompt(text, 0)
        left_out = 0
        if len(prompt) + room > self.context:
            sizes = range(len(self.exchanges))
            left_out = bisect_left(
                sizes, True, key=lambda n: len(self._prompt(text, n)) + room <= self.context
            )
            prompt = self._prompt(text, left_out)
        if len(prompt) >= self.context:
            seen = (
                f"a message that makes a prompt of {len(prompt):,} tokens for a context of"
                f" {self.context:,}"
            )
            raise InputError(
                seen,
                expected=f"at most {self.context - 1:,}",
                fix="shorten the message or the system message",
            )
        return prompt, left_out

    def _prompt(self, text: str, left_out: int) -> list[int]:
        return chat_ids(
            self.tokenizer, [*self._messages(left_out), {"role": "user", "content": text}]
        )

    def _messages(self, left_out: int) -> list[dict[str, str]]:
        """The messages, without the oldest exchanges."""
        turns = [] if self.system is None else [("system", self.system)]
        for exchange in self.exchanges[left_out:]:
            turns += [("user", exchange.message), ("assistant", exchange.answer)]
        return [{"role": role, "content": content} for role, content in turns]


def chat_tokenizer(model: Model) -> Tokenizer:
    """The tokenizer of a chat model; an InputError for other models."""
    tokenizer = model.tokenizer
    chats = "a model for chats"
    if model.config.encoder is not None or not isinstance(model.config.head, LanguageHead):
        raise InputError(
            "this model does not continue a text",
            expected=chats,
            fix="see `sightline info` for what it does",
        )
    if tokenizer is None or not tokenizer.chat_template:
        what = "tokenizer" if tokenizer is None else "chat template"
        raise InputError(
            f"this model has no {what}", expected=chats, fix="use generate, which continues a text"
        )
    return tokenizer


def recommended_options(defaults: Defaults) -> Options:
    """The sampling options that a checkpoint recommends; temperature 0.7 if there are none."""
    options: Options = {"temperature": TEMPERATURE}
    if defaults.sample:
        options["temperature"] = 1.0 if defaults.temperature is None else defaults.temperature
        options["top_k"], options["top_p"] = defaults.top_k or None, defaults.top_p
    options["repetition_penalty"] = defaults.repetition_penalty
    return options


def check_chat_options(options: Mapping[str, Any]) -> None:
    """Check the names and values of options."""
    for name in options:
        if name not in OPTIONS:
            raise InputError(
                f"a conversation has no option {name[:40]!r}", fix=nearest(name[:40], OPTIONS)
            )
    whole("max_tokens", options.get("max_tokens", MAX_ANSWER), least=1)
    check_stops(options.get("stop", ()))
    Sampling(**{name: value for name, value in options.items() if name in SAMPLING})


def parse_messages(messages: Any, where: str) -> tuple[str | None, list[Exchange]]:
    """The system message and the exchanges of a saved conversation."""
    is_valid = isinstance(messages, list) and all(map(is_message, messages))
    turns = list[dict[str, Any]](messages if is_valid else ())
    system = turns.pop(0)["content"] if turns and turns[0]["role"] == "system" else None
    if not is_valid or [message["role"] for message in turns] != ["user", "assistant"] * (
        len(turns) // 2
    ):
        expected = (
            "an optional system message, then user and assistant alternating, each with a text as"
            " content"
        )
        raise InputError(
            f"the messages in {where} are not a conversation",
            expected=expected,
            fix="correct the file",
        )
    return system, [
        Exchange(a["content"], b["content"], b.get("ended", "stop"))
        for a, b in zip(turns[::2], turns[1::2], strict=True)
    ]


def is_message(value: Any) -> bool:
    """Whether a value has a role, a text, and optionally how it ended."""
    has_fields = (
        isinstance(value, dict)
        and set(value) <= {"role", "content", "ended"}
        and value.get("ended", "stop") in get_args(Ended)
    )
    return (
        has_fields and isinstance(value.get("role"), str) and isinstance(value.get("content"), str)
    )


def write_new(path: Path, text: str, *, overwrite: bool) -> Path:
    """Write a text to a new file, or over an existing one if allowed, atomically."""
    if not overwrite and os.path.lexists(path):
        raise InputError(
            f"{short_repr(str(path))} exists",
            expected="a new name",
            fix="choose another, or pass overwrite=True",
        )
    try:
        write_text(path, text, errors="replace")
    except OSError as error:
        raise InputError(
            f"{short_repr(str(path))} cannot be written: {error.strerror}", fix="give another path"
        ) from None
    return path
