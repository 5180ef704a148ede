"""What a user asks for, as a `Request`: the prompt as tokens, cut to the context if that was
allowed, and how to choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypedDict

from sightline.checkpoints.defaults import Defaults
from sightline.config import ModelConfig
from sightline.errors import InputError, nearest, short
from sightline.generation.constrained import Constraint, bind
from sightline.generation.decode import Request
from sightline.generation.randomness import whole
from sightline.generation.sampling import Sampling
from sightline.tasks.translate import changes_of, start_of
from sightline.text.tokenizer import Tokenizer

SAMPLING = frozenset(field.name for field in fields(Sampling))
USUAL = 128  # new tokens, where nobody says how many


class Options(TypedDict, total=False):
    """How to continue: see `Sampling` for the numbers. `stop` ends before a string,
    `truncate="left"` cuts a prompt that is too long, `trace` keeps where every new token looked."""

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
    beams: int
    length_penalty: float
    constraint: Constraint | None
    trace: bool


def request_of(
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    defaults: Defaults,
    prompt: str | Sequence[int],
    options: Options,
    *,
    also_end: tuple[int, ...] = (),
) -> Request:
    """The request. An encoder–decoder reads the prompt as its source; `also_end` are tokens that
    end this text besides the usual."""
    check_options(options)
    ids = ids_of(tokenizer, prompt)
    source = None
    if config.encoder is not None and config.decoder is not None:
        source = ids
        ids = [start_of(defaults, tokenizer)]
    ids, most = fitted(ids, config.last.max_positions, options)
    usual = defaults.end or (() if tokenizer is None or tokenizer.eos is None else (tokenizer.eos,))
    end = () if options.get("ignore_eos") else tuple(dict.fromkeys((*usual, *also_end)))
    changes = changes_of(defaults, end=usual, max_tokens=most) if source is not None else ()
    constraint = options.get("constraint")
    bound = None
    if constraint is not None:
        size = config.last.embedding.vocab_size
        bound = bind(
            constraint, needed(tokenizer), prompt_length=len(ids), end=end, vocab_size=size
        )
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    sampling = Sampling(**{name: value for name, value in given.items() if name in SAMPLING})
    return Request(
        prompt=ids,
        max_tokens=most,
        sampling=sampling,
        end=end,
        source=source,
        alternatives=options.get("alternatives", 0),
        changes=changes if bound is None else (*changes, bound),
        finished=None if bound is None else bound.finished,
    )


def check_options(options: Mapping[str, Any]) -> None:
    """Names that there are, and what no later step would notice."""
    for name in options:
        if name not in Options.__annotations__:
            raise InputError(
                f"no option is called {short(name)}",
                fix=nearest(name[:40], Options.__annotations__),
            )
    if options.get("truncate") not in (None, "left"):
        raise InputError(
            f"truncate is {short(options['truncate'])}",
            expected="left, or nothing",
            fix='truncate="left"',
        )
    if not isinstance(options.get("constraint"), Constraint | None):
        raise InputError(
            f"the constraint is {short(options['constraint'])}",
            expected="a Constraint",
            fix='constrained.regex("[0-9]+")',
        )
    Sampling(
        **{name: value for name, value in options.items() if name in SAMPLING and value is not None}
    )
    whole(
        "max_tokens", USUAL if options.get("max_tokens") is None else options["max_tokens"], least=1
    )
    beams = options.get("beams", 1)
    if beams != 1 and (options.get("stop") or options.get("alternatives")):
        raise InputError(
            f"{short(beams)} beams with stop strings or alternatives",
            expected="one of them",
            fix="leave beams out",
        )


def fitted(ids: list[int], context: int, options: Options) -> tuple[list[int], int]:
    """The prompt, and how many tokens may follow it."""
    wanted = options.get("max_tokens")
    cut = options.get("truncate") == "left"
    most = min(USUAL, max(1, context - (1 if cut else len(ids)))) if wanted is None else wanted
    if cut and isinstance(most, int) and len(ids) + most > context:
        ids = ids[-max(1, context - most) :]
    return ids, most


def ids_of(tokenizer: Tokenizer | None, prompt: str | Sequence[int]) -> list[int]:
    """A text as tokens, with what the model expects around it; ids as they are."""
    return (
        needed(tokenizer).encode(prompt, special=True) if isinstance(prompt, str) else list(prompt)
    )


def needed(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, where there is no way without one."""
    if tokenizer is None:
        fix = (
            "put the tokenizer's files into the folder, or give token ids: model.generate([5, 6,"
            " 7]).tokens"
        )
        raise InputError(
            "a text for a model without tokenizer", expected="a tokenizer, or token ids", fix=fix
        )
    return tokenizer
