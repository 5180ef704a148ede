"""Conversations, for fine-tuning: the model's own chat template, and a loss on what the assistant
says.

    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]}

with one conversation per line.

Asked for are the tokens that the assistant would have to write: behind the generation prompt, up to
and with the token that ends a turn.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sightline.errors import InputError
from sightline.text.chat import Message, chat_ids, turn_end
from sightline.text.rows import read_rows
from sightline.text.tokenizer import Tokenizer
from sightline.training.data.batch import IGNORED, Batch, padded
from sightline.training.data.bucketed import Buckets, by_length

SHAPE = '{"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}]}'
MOMENT = datetime(
    2025, 1, 1
)  # a template may write the date; the same data must give the same tokens tomorrow
TOGETHER = 16  # rows of a validation batch


@dataclass(frozen=True, slots=True)
class Conversation:
    """Token ids, and for each whether the assistant wrote it."""

    ids: list[int]
    answers: list[bool]

    def cut(self, longest: int) -> Conversation:
        return Conversation(self.ids[:longest], self.answers[:longest])

    @property
    def asked(self) -> int:
        """Tokens that are asked for: all that the assistant wrote, except a first one, before which
        there is nothing."""
        return sum(self.answers[1:])


def read_chats(path: Path, tokenizer: Tokenizer) -> list[Conversation]:
    """A .jsonl file of conversations. One that cannot be used is named by its line."""
    ends = turn_end(tokenizer)
    found: list[Conversation] = []
    for line, row in read_rows(path, shape=SHAPE):
        try:
            found += conversations(tokenizer, row.get("messages"), ends)
        except InputError as error:
            raise InputError(
                f"{path}, line {line}: {error.seen}",
                expected=error.expected or SHAPE,
                fix=error.fix,
            ) from None
    return found


def conversations(tokenizer: Tokenizer, messages: Any, ends: tuple[int, ...]) -> list[Conversation]:
    """The conversation as one row. Where the template rewrites earlier turns (some take the
    thoughts out), a row for each answer."""
    turns = check(messages)
    whole = _ids(tokenizer, messages, prompt=False)
    spans = [
        (
            _ids(tokenizer, messages[:n], prompt=True),
            _ids(tokenizer, messages[: n + 1], prompt=False),
        )
        for n in turns
    ]
    if all(starts(whole, after) and starts(after, before) for before, after in spans):
        answers = [False] * len(whole)
        for before, after in spans:
            mark(answers, after, len(before), ends)
        return [Conversation(whole, answers)]
    return [alone(before, after, ends) for before, after in spans]


def check(messages: Any) -> list[int]:
    """Which of the messages are the assistant's."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InputError("no list of messages", expected=SHAPE, fix="correct the line")
    turns = [n for n, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns or turns[0] == 0:
        raise InputError(
            "nothing that the assistant answers", expected=SHAPE, fix="leave the line out"
        )
    return turns


def _ids(tokenizer: Tokenizer, messages: Sequence[Message], *, prompt: bool) -> list[int]:
    return chat_ids(tokenizer, messages, add_generation_prompt=prompt, now=MOMENT)


def starts(ids: list[int], beginning: list[int]) -> bool:
    return ids[: len(beginning)] == beginning


def alone(before: list[int], after: list[int], ends: tuple[int, ...]) -> Conversation:
    """One answer and what came before it."""
    if not starts(after, before):
        raise InputError(
            "the chat template does not go on where its generation prompt ends",
            expected="a template that does",
        )
    answers = [False] * len(after)
    mark(answers, after, len(before), ends)
    return Conversation(after, answers)


def mark(answers: list[bool], ids: list[int], begin: int, ends: tuple[int, ...]) -> None:
    """From `begin` to the token that ends the turn; the line's end that many templates write behind
    it is not the assistant's."""
    end = next((n + 1 for n in range(begin, len(ids)) if ids[n] in ends), len(ids))
    answers[begin:end] = [True] * (end - begin)


@dataclass(slots=True)
class Chats:
    """Conversations in batches bucketed by length; `tokens` is the size of a batch, what is longer
    than `longest` is cut behind."""

    conversations: Sequence[Conversation]
    pad: int
    tokens: int
    seed: int
    held_out: Sequence[Conversation] = ()
    longest: int = 1024
    _buckets: Buckets = field(init=False)

    def __post_init__(self) -> None:
        cut = [conversation.cut(self.longest + 1) for conversation in self.conversations]
        sizes = np.array([max(0, len(one.ids) - 1) for one in cut], dtype=np.int64)
        kept = np.flatnonzero(np.array([one.asked > 0 for one in cut], dtype=np.bool_))
        if not len(kept):
            raise InputError(
                f"no answer within {self.longest} tokens",
                expected="conversations in which the assistant speaks",
                fix="a larger context",
            )
        self.conversations = cut
        self.held_out = [
            short for one in self.held_out if (short := one.cut(self.longest + 1)).asked
        ]
        self._buckets = Buckets(sizes, kept, self.tokens, self.seed)

    @property
    def left_out(self) -> int:
        """Conversations of which no answer is within the context."""
        return len(self.conversations) - len(self._buckets.kept)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(
            f"chats {self.tokens} {self.seed} {self.pad} {self.longest}".encode()
        )
        for one in self.conversations:
            digest.update(
                np.array([len(one.ids), *one.ids, *one.answers], dtype=np.int32).tobytes()
            )
        return digest.hexdigest()

    @property
    def epoch_batches(self) -> int:
        return self._buckets.epoch_batches

    def batch(self, step: int) -> Batch:
        return self._batch(self.conversations, self._buckets.batch(step))

    def validation(self) -> Iterator[Batch]:
        for which in by_length(
            np.array([len(one.ids) for one in self.held_out], dtype=np.int64), TOGETHER
        ):
            yield self._batch(self.held_out, which)

    def _batch(self, conversations: Sequence[Conversation], which: NDArray[np.int64]) -> Batch:
        """t₁ t₂ … → t₂ t₃ …, where the assistant wrote the latter."""
        rows = [conversations[n] for n in which]
        tokens, padding = padded([one.ids[:-1] for one in rows], self.pad)
        wanted = [
            [
                id if asked else IGNORED
                for id, asked in zip(one.ids[1:], one.answers[1:], strict=True)
            ]
            for one in rows
        ]
        targets, _ = padded(wanted, IGNORED)
        return Batch(
            tokens=tokens, targets=targets, count=sum(one.asked for one in rows), padding=padding
        )
