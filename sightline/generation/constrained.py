"""Constrained decoding: JSON of a schema, a regular expression, a grammar, or one of several
choices.

    allowed(y)  =  tokens z such that text(y z) is a prefix of a valid text; the end token, if
                   text(y) itself is valid
    p′(z | y)   ∝  p(z | y)  where z is allowed, 0 elsewhere

    constraint = json_schema({"type": "object", "properties": {"age": {"type": "integer"}}})
    change = bind(constraint, tokenizer, prompt_length=len(prompt), end=(2,), vocab_size=32000)

A `Constraint` is a value without a tokenizer. Bound to one it is a `Change`, a pure function of the
tokens: internally it keeps an llguidance matcher in the state of the last call, and advances it or
rolls it back. The constraint applies to `tokenizer.decode(new tokens)`. A vocabulary that cannot
write every character may reach a text that it cannot complete: then every token is impossible.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

import llguidance
import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from sightline.errors import InputError, short_repr
from sightline.generation import grammar_trial
from sightline.generation.grammar_tokens import GrammarTokens, Mask, grammar_tokens
from sightline.generation.grammar_trial import limits
from sightline.sandbox import Sandbox
from sightline.text.tokenizer import Tokenizer

LONGEST = 100_000  # characters of a schema, pattern or grammar
# White space in JSON: enough for indentation, and a limit for a model that writes only spaces.
SPACES = r"[ \n\r\t]{1,32}"
MOST_SECONDS = 10.0  # CPU seconds to follow one text; a token usually takes 0.0001
DEAD_END = "NoExtension"
OWN_TOKENS = (  # the model may choose any tokenization of a text; the last such line counts
    '%llguidance {"no_forcing": true}'
)

Kind = Literal["JSON schema", "regex", "grammar", "choice"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A constraint as a grammar in llguidance's dialect of Lark; `kind` is its source: a JSON
    schema, a pattern and so on."""

    kind: Kind
    grammar: str


def json_schema(schema: dict[str, Any] | str) -> Constraint:
    """JSON that validates against a schema. `x-guidance` in the schema sets llguidance's options
    for white space."""
    read = _json(schema) if isinstance(schema, str) else schema
    if not isinstance(read, dict):
        raise InputError(
            f"the JSON schema is {short_repr(read)}",
            expected="a JSON object",
            fix='{"type": "object"}',
        )
    own: Any = read.get("x-guidance", {})
    if not isinstance(own, dict):
        raise InputError(
            f"x-guidance is {short_repr(own)}",
            expected="a JSON object of llguidance's options",
            fix="leave it out",
        )
    spaces = {} if "whitespace_flexible" in own else {"whitespace_pattern": SPACES}
    try:
        text = json.dumps(read | {"x-guidance": spaces | own}, allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"the JSON schema is not JSON ({_line(error)})",
            expected="texts, numbers, lists and objects",
        ) from None
    return _constraint("JSON schema", f"start: %json {text}", size=len(text))


def json_object() -> Constraint:
    """Any JSON object."""
    return json_schema({"type": "object"})


def regex(pattern: str) -> Constraint:
    """A text that the pattern matches entirely. \\d is 0 to 9; there is no look-around and no
    back-reference."""
    pattern_text = _text("pattern", pattern)
    if not pattern_text:
        raise InputError("an empty pattern", expected="a regular expression", fix='regex("[0-9]+")')
    if (len(pattern_text) - len(pattern_text.rstrip("\\"))) % 2:
        raise InputError(
            f"the pattern {short_repr(pattern_text)} ends in a single backslash",
            expected="a complete escape sequence",
            fix=r"\\",
        )
    return _constraint("regex", f"start: {_lark(pattern_text)}", size=len(pattern_text))


def grammar(lark: str) -> Constraint:
    """A text of a context-free grammar in Lark syntax; `start` is the start symbol. `<|name|>` is
    the control token of that name."""
    return _constraint("grammar", _text("grammar", lark), size=len(lark))


def choice(choices: Sequence[str]) -> Constraint:
    """One of these texts."""
    if (
        isinstance(choices, str)
        or not choices
        or not all(isinstance(text, str) and text for text in choices)
    ):
        raise InputError(
            f"the choices are {short_repr(choices)}",
            expected="a list of texts, none of them empty",
            fix='["yes", "no"]',
        )
    pattern = "|".join(
        re.sub(r"[.^$*+?{}\[\]\\|()]", r"\\\g<0>", _text("choice", text))
        for text in dict.fromkeys(choices)
    )
    return _constraint("choice", f"start: {_lark(pattern)}", size=len(pattern))


TRIAL = Sandbox(
    grammar_trial.__file__,
    seconds=grammar_trial.SECONDS,
    memory=grammar_trial.MEMORY,
    first={"grammar": 'start: "a"', "size": 0, "names": {}},
    stack=1 << 20,  # no more than the stack of the parent's thread, on any system
)
TOO_MUCH = (
    f"it is too large or too deep to be prepared in {TRIAL.seconds:g} s and"
    f" {TRIAL.memory // 1024**2} MB"
)


@lru_cache(maxsize=256)
def tried(grammar: str, size: int, names: tuple[tuple[str, int], ...]) -> str:
    """The error of a grammar for a vocabulary of this size with these special tokens, or an empty
    string."""
    reply = TRIAL.ask({"grammar": grammar, "size": size, "names": dict(names)})
    return TOO_MUCH if reply is None else reply


def bind(
    constraint: Constraint,
    tokenizer: Tokenizer,
    *,
    prompt_length: int,
    end: tuple[int, ...],
    vocab_size: int,
) -> Bound:
    """The `Change` that enforces a constraint. A constraint that cannot be enforced is refused
    here, before anything is generated."""
    if any(not 0 <= token < vocab_size for token in end):
        raise InputError(
            f"the end tokens are {end}",
            expected=f"ids below the vocabulary size {vocab_size}",
            fix="end=()",
        )
    tokens = grammar_tokens(tokenizer)
    _refuse(constraint, tried(constraint.grammar, tokens.size, tokens.names))
    bound = Bound(constraint, tokens, prompt_length=prompt_length, end=end, vocab_size=vocab_size)
    if not bound.after(()).possible:
        raise InputError(
            f"no token of this model can start a text of this {constraint.kind}",
            expected="a constraint that its tokens can satisfy",
        )
    return bound


@dataclass(frozen=True, slots=True)
class Next:
    """The tokens that may follow a text: one boolean per token of the tokenizer, and whether the
    text is already valid."""

    follow: Mask
    complete: bool

    @property
    def possible(self) -> bool:
        return self.complete or bool(self.follow.any())


class Bound:
    """A constraint on one text, as a `Change`. `masks` were computed in `seconds` of CPU time, the
    slowest in `slowest`."""

    def __init__(
        self,
        constraint: Constraint,
        tokens: GrammarTokens,
        *,
        prompt_length: int,
        end: tuple[int, ...],
        vocab_size: int,
    ) -> None:
        self._constraint = constraint
        self._tokens = tokens
        self._start = prompt_length
        self._end = end
        self._vocab_size = vocab_size
        self._matcher = self._fresh()
        self._held: list[int] = []  # the tokens consumed by the matcher, as indices into the table
        self._last: tuple[tuple[int, ...], Next] | None = None
        self.masks = 0
        self.seconds = 0.0
        self.slowest = 0.0

    def __call__(
        self, logits: Float[Tensor, " vocab"], tokens: Sequence[int]
    ) -> Float[Tensor, " vocab"]:
        """−inf for tokens that cannot follow. After an end token only an end token can."""
        if len(logits) != self._vocab_size:
            raise InputError(
                f"{len(logits)} logits",
                expected=f"{self._vocab_size}, the vocabulary size that was bound",
            )
        new = tokens[self._start :]
        ended = next((place for place, token in enumerate(new) if token in self._end), len(new))
        following = self.after(new[:ended])
        allowed = torch.zeros(self._vocab_size, dtype=torch.bool)
        if ended == len(new):
            known = torch.from_numpy(following.follow[: self._vocab_size])
            allowed[: len(known)] = known
        allowed[list(self._end)] = following.complete
        return logits.masked_fill(~allowed.to(logits.device), -torch.inf)

    def finished(self, tokens: Sequence[int]) -> bool:
        """Whether the text is valid and only its end can follow: there a model without end token
        must stop."""
        following = self.after(tokens[self._start :])
        return following.complete and not following.follow.any()

    def after(self, new: Sequence[int]) -> Next:
        """The mask after these new tokens; None if they violate the constraint."""
        key = tuple(new)
        if self._last is None or self._last[0] != key:
            started = time.thread_time()
            self._last = (key, self._next(key))
            self._count(time.thread_time() - started)
        return self._last[1]

    def _next(self, new: tuple[int, ...]) -> Next:
        """Move the matcher to these tokens, and compute its mask."""
        places = self._tokens.places(new)
        if places is None or not self._move_to(places):
            return Next(np.zeros(self._tokens.size, dtype=np.bool_), complete=False)
        table = self._mask()
        follow = self._tokens.follow(table, new)
        follow[[token for token in self._end if token < len(follow)]] = False
        return Next(follow, complete=bool(table[self._tokens.end]))

    def _move_to(self, places: list[int]) -> bool:
        """Roll back to the common prefix, then consume the rest; False if the grammar rejects
        it."""
        shared = next(
            (
                n
                for n, (held, place) in enumerate(zip(self._held, places, strict=False))
                if held != place
            ),
            None,
        )
        shared = min(len(self._held), len(places)) if shared is None else shared
        if shared < len(self._held):
            self._matcher.rollback(len(self._held) - shared)
        taken = self._matcher.try_consume_tokens(places[shared:])
        self._held = places[: shared + taken]
        _refuse(self._constraint, self._matcher.get_error())
        return len(self._held) == len(places)

    def _mask(self) -> Mask:
        """The indices of the table that may follow. A matcher without any fails permanently, and is
        replaced by a new one."""
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        table = np.unpackbits(bits, bitorder="little").view(np.bool_)
        error = self._matcher.get_error()
        if error.startswith(DEAD_END):
            self._matcher = self._fresh()
            self._held = []
            return np.zeros_like(table)
        _refuse(self._constraint, error)
        return table

    def _fresh(self) -> llguidance.LLMatcher:
        """A matcher in its initial state."""
        return llguidance.LLMatcher(
            self._tokens.table, self._constraint.grammar, log_level=0, limits=limits()
        )

    def _count(self, seconds: float) -> None:
        """Count one more mask; refuse if their total time is too long."""
        self.masks, self.seconds, self.slowest = (
            self.masks + 1,
            self.seconds + seconds,
            max(self.slowest, seconds),
        )
        if self.seconds > MOST_SECONDS:
            _refuse(
                self._constraint,
                f"following it took more than {MOST_SECONDS:g} s for {self.masks} tokens",
            )


def _constraint(kind: Kind, grammar: str, *, size: int) -> Constraint:
    """A constraint, or an error if it is too long."""
    if size > LONGEST:
        raise InputError(f"a {kind} of {size:,} characters", expected=f"at most {LONGEST:,}")
    return Constraint(kind, f"{grammar}\n{OWN_TOKENS}\n")


def _text(name: str, value: str) -> str:
    """`value`, if it is a text that can be encoded in UTF-8."""
    if not isinstance(value, str) or any("\ud800" <= sign <= "\udfff" for sign in value):
        raise InputError(f"the {name} is {short_repr(value)}", expected="a text")
    return value


def _json(text: str) -> Any:
    """A text as JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"the JSON schema is not JSON ({_line(error)})",
            expected="a JSON object",
            fix='{"type": "object"}',
        ) from None


def _lark(pattern: str) -> str:
    """A regular expression in Lark's syntax."""
    return f"/{llguidance.regex_to_lark(pattern, 'd').replace(chr(0), chr(92) + 'x00')}/"


def _refuse(constraint: Constraint, message: str) -> None:
    """Raise an InputError with llguidance's message in one line, if there is one."""
    if message:
        raise InputError(
            f"this {constraint.kind} cannot be used ({_reason(message)})",
            fix="correct it, or make it simpler",
        )


def _reason(message: str) -> str:
    """The line of llguidance's message with the cause; its quotations and positions refer to a text
    that we wrote."""
    lines = [line.strip() for line in message.splitlines()]
    where = re.match(r"(?:at )?(\d+)\(\d+\): ", lines[0])
    cause = next(
        (line.removeprefix("error: ") for line in lines if line.startswith("error: ")), lines[0]
    )
    for known in (r"(at )?\d+\(\d+\): ", "failed to compile JSON schema: ", "Parser Error: "):
        cause = re.sub(f"^{known}", "", cause)
    cause = "no text satisfies it" if cause.startswith(DEAD_END) else cause
    return _line(f"line {where[1]}: {cause}" if where and int(where[1]) > 1 else cause)


def _line(message: object) -> str:
    """One short line."""
    return " ".join(str(message).split())[:160]
