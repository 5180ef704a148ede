"""Conversations for fine-tuning: the model's chat template, with a loss on the assistant's tokens.

    {"messages": [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi!"}]}

with one conversation per line.

The targets are the tokens that the assistant generates: those after the generation prompt, up to
and including the token that ends the turn.
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
from sightline.training.data.batch import IGNORED, Batch, pad_rows
from sightline.training.data.bucketed import Buckets, batches_by_length

SHAPE = '{"messages": [{"role": "user", "content": …}, {"role": "assistant", "content": …}]}'
# Some templates insert the date. A fixed date gives the same tokens on any day.
TEMPLATE_DATE = datetime(2025, 1, 1)
VALIDATION_ROWS = 16  # rows per validation batch


@dataclass(frozen=True, slots=True)
class Conversation:
    """Token ids, and for each token whether the assistant wrote it."""

    ids: list[int]
    answers: list[bool]

    def cut(self, longest: int) -> Conversation:
        return Conversation(self.ids[:longest], self.answers[:longest])

    @property
    def target_count(self) -> int:
        """Targets: the assistant's tokens, except at position 0, which nothing predicts."""
        return sum(self.answers[1:])


def read_chats(path: Path, tokenizer: Tokenizer) -> list[Conversation]:
    """Read a .jsonl file of conversations. Errors name the line of an invalid one."""
    ends = turn_end(tokenizer)
    conversations: list[Conversation] = []
    for line, row in read_rows(path, shape=SHAPE):
        try:
            conversations += encode_conversation(tokenizer, row.get("messages"), ends)
        except InputError as error:
            raise InputError(
                f"{path}, line {line}: {error.seen}",
                expected=error.expected or SHAPE,
                fix=error.fix,
            ) from None
    return conversations


def encode_conversation(
    tokenizer: Tokenizer, messages: Any, ends: tuple[int, ...]
) -> list[Conversation]:
    """Encode a conversation as one row, or as one row per answer if the template rewrites earlier
    turns (some templates drop the reasoning of earlier answers)."""
    turns = assistant_turns(messages)
    whole = _ids(tokenizer, messages, prompt=False)
    spans = [
        (
            _ids(tokenizer, messages[:n], prompt=True),
            _ids(tokenizer, messages[: n + 1], prompt=False),
        )
        for n in turns
    ]
    if all(has_prefix(whole, after) and has_prefix(after, before) for before, after in spans):
        answers = [False] * len(whole)
        for before, after in spans:
            mark_answer(answers, after, len(before), ends)
        return [Conversation(whole, answers)]
    return [single_answer(before, after, ends) for before, after in spans]


def assistant_turns(messages: Any) -> list[int]:
    """The indices of the assistant's messages."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise InputError("no list of messages", expected=SHAPE, fix="correct the line")
    turns = [n for n, message in enumerate(messages) if message.get("role") == "assistant"]
    if not turns or turns[0] == 0:
        raise InputError(
            "no assistant message after a user message", expected=SHAPE, fix="remove the line"
        )
    return turns


def _ids(tokenizer: Tokenizer, messages: Sequence[Message], *, prompt: bool) -> list[int]:
    return chat_ids(tokenizer, messages, add_generation_prompt=prompt, now=TEMPLATE_DATE)


def has_prefix(ids: list[int], prefix: list[int]) -> bool:
    return ids[: len(prefix)] == prefix


def single_answer(before: list[int], after: list[int], ends: tuple[int, ...]) -> Conversation:
    """A row with one answer and its context."""
    if not has_prefix(after, before):
        raise InputError(
            "the chat template does not continue from its generation prompt",
            expected="a template whose generation prompt is a prefix of the answered conversation",
        )
    answers = [False] * len(after)
    mark_answer(answers, after, len(before), ends)
    return Conversation(after, answers)


def mark_answer(answers: list[bool], ids: list[int], begin: int, ends: tuple[int, ...]) -> None:
    """Mark the tokens from `begin` through the token that ends the turn. The newline that many
    templates add after it is not part of the answer."""
    end = next((n + 1 for n in range(begin, len(ids)) if ids[n] in ends), len(ids))
    answers[begin:end] = [True] * (end - begin)


@dataclass(slots=True)
class Chats:
    """Conversations in batches bucketed by length. `tokens` is the batch size in tokens; rows are
    truncated to `longest` tokens."""

    conversations: Sequence[Conversation]
    pad: int
    tokens: int
    seed: int
    held_out: Sequence[Conversation] = ()
    longest: int = 1024
    _buckets: Buckets = field(init=False)

    def __post_init__(self) -> None:
        cut = [conversation.cut(self.longest + 1) for conversation in self.conversations]
        sizes = np.array([max(0, len(row.ids) - 1) for row in cut], dtype=np.int64)
        usable = np.flatnonzero(np.array([row.target_count > 0 for row in cut], dtype=np.bool_))
        if not len(usable):
            raise InputError(
                f"no answer within {self.longest} tokens",
                expected="conversations with an answer inside the context",
                fix="use a larger context",
            )
        self.conversations = cut
        self.held_out = [
            short for row in self.held_out if (short := row.cut(self.longest + 1)).target_count
        ]
        self._buckets = Buckets(sizes, usable, self.tokens, self.seed)

    @property
    def left_out(self) -> int:
        """The number of conversations without an answer inside the context."""
        return len(self.conversations) - len(self._buckets.kept)

    @property
    def fingerprint(self) -> str:
        digest = hashlib.sha256(
            f"chats {self.tokens} {self.seed} {self.pad} {self.longest}".encode()
        )
        for row in self.conversations:
            digest.update(
                np.array([len(row.ids), *row.ids, *row.answers], dtype=np.int32).tobytes()
            )
        return digest.hexdigest()

    @property
    def epoch_batches(self) -> int:
        return self._buckets.epoch_batches

    def batch(self, step: int) -> Batch:
        return self._batch(self.conversations, self._buckets.batch(step))

    def validation(self) -> Iterator[Batch]:
        sizes = np.array([len(row.ids) for row in self.held_out], dtype=np.int64)
        for indices in batches_by_length(sizes, VALIDATION_ROWS):
            yield self._batch(self.held_out, indices)

    def _batch(self, conversations: Sequence[Conversation], indices: NDArray[np.int64]) -> Batch:
        """Inputs t₁ t₂ …, targets t₂ t₃ … where the assistant wrote the target, else ignored."""
        rows = [conversations[n] for n in indices]
        tokens, padding = pad_rows([row.ids[:-1] for row in rows], self.pad)
        target_rows = [
            [
                id if is_answer else IGNORED
                for id, is_answer in zip(row.ids[1:], row.answers[1:], strict=True)
            ]
            for row in rows
        ]
        targets, _ = pad_rows(target_rows, IGNORED)
        count = sum(row.target_count for row in rows)
        return Batch(tokens=tokens, targets=targets, count=count, padding=padding)
