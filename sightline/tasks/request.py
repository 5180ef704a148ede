"""A user's prompt and options as a `Request`: the prompt as tokens, truncated if that is allowed,
and the sampling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, Literal, TypedDict

from sightline.checkpoints.defaults import Defaults
from sightline.config import ModelConfig
from sightline.errors import InputError, nearest, short_repr
from sightline.generation.constrained import Constraint, bind
from sightline.generation.decode import Request
from sightline.generation.randomness import whole
from sightline.generation.sampling import Sampling
from sightline.tasks.translate import changes_of, start_of
from sightline.text.tokenizer import Tokenizer

SAMPLING = frozenset(field.name for field in fields(Sampling))
MAX_TOKENS = 128  # the default
SYNONYMS = {  # names in other libraries, and the equivalent here
    **dict.fromkeys(("max_new_tokens", "max_length", "n_predict"), "max_tokens=…"),
    "num_beams": "beams=…",
    "no_repeat_ngram_size": "no_repeat_ngram=…",
    "typical_p": "typical=…",
    "stop_strings": "stop=[…]",
    "do_sample": "temperature=1.0 samples, temperature=0 (the default) is greedy",
    "num_return_sequences": "model.generate_many([prompt] * n, …) with a seed each",
    "edits": "sl.lens.logits_with(model, text, edits), or trace_of(model, ids, edits=edits)",
}


class Options(TypedDict, total=False):
    """How to continue a prompt.

    `sampling` or its fields one by one (see `Sampling`); `stop` ends before a string;
    `truncate="left"` cuts a prompt that is too long; `trace` records the attention of every new
    token; `beams` searches instead of sampling; `constraint` restricts the output."""

    max_tokens: int | None
    sampling: Sampling
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


def make_request(
    config: ModelConfig,
    tokenizer: Tokenizer | None,
    defaults: Defaults,
    prompt: str | Sequence[int],
    options: Options,
    *,
    also_end: tuple[int, ...] = (),
) -> Request:
    """The request. An encoder–decoder reads the prompt as its source; `also_end` are tokens that
    end this text besides the checkpoint's."""
    sampling = check_options(options)
    ids = encode_prompt(tokenizer, prompt)
    source = None
    if config.encoder is not None and config.decoder is not None:
        source = ids
        ids = [start_of(defaults, tokenizer)]
    prompt_ids, max_tokens = fit_context(ids, config.last.max_positions, options)
    usual_end = defaults.end
    if not usual_end and tokenizer is not None and tokenizer.eos is not None:
        usual_end = (tokenizer.eos,)
    end = () if options.get("ignore_eos") else tuple(dict.fromkeys((*usual_end, *also_end)))
    changes = ()
    if source is not None:
        changes = changes_of(defaults, end=usual_end, max_tokens=max_tokens)
    constraint = options.get("constraint")
    bound = None
    if constraint is not None:
        bound = bind(
            constraint,
            require_tokenizer(tokenizer),
            prompt_length=len(prompt_ids),
            end=end,
            vocab_size=config.last.embedding.vocab_size,
        )
        changes = (*changes, bound)
    return Request(
        prompt=prompt_ids,
        max_tokens=max_tokens,
        sampling=sampling,
        end=end,
        source=source,
        alternatives=options.get("alternatives", 0),
        changes=changes,
        finished=None if bound is None else bound.finished,
        stop=options.get("stop") or (),
        truncated=len(ids) - len(prompt_ids),
    )


def check_options(options: Mapping[str, Any]) -> Sampling:
    """Refuse unknown names and values that no later step would notice. Returns the sampling."""
    for name in options:
        if name in SYNONYMS:
            raise InputError(f"no option is called {name}", fix=SYNONYMS[name])
        if name not in Options.__annotations__:
            raise InputError(
                f"no option is called {short_repr(name)}",
                fix=nearest(name[:40], Options.__annotations__),
            )
    if options.get("truncate") not in (None, "left"):
        raise InputError(
            f"truncate is {short_repr(options['truncate'])}",
            expected="left, or nothing",
            fix='truncate="left"',
        )
    if not isinstance(options.get("constraint"), Constraint | None):
        raise InputError(
            f"the constraint is {short_repr(options['constraint'])}",
            expected="a Constraint",
            fix='constrained.regex("[0-9]+")',
        )
    max_tokens = options.get("max_tokens")
    whole("max_tokens", MAX_TOKENS if max_tokens is None else max_tokens, least=1)
    beams = options.get("beams", 1)
    if beams != 1 and (options.get("stop") or options.get("alternatives")):
        raise InputError(
            f"{short_repr(beams)} beams with stop strings or alternatives",
            expected="one of them",
            fix="leave beams out",
        )
    return sampling_of(options)


def refuse_beams(options: Options) -> None:
    """Refuse beam search for a streamed text."""
    if options.get("beams", 1) != 1:
        raise InputError(
            "a beam search, which is not known before its end",
            expected="generate",
            fix="model.generate(…, beams=4)",
        )


def check_prompt(prompt: object) -> None:
    """A list of texts is the most common mistake."""
    if isinstance(prompt, list | tuple) and any(isinstance(item, str) for item in prompt):
        raise InputError(
            "a list of texts", expected="one text", fix="model.generate_many([…]) for several"
        )


def sampling_of(options: Mapping[str, Any]) -> Sampling:
    """The `sampling` option, or one made of the single options."""
    single = {
        name: value for name, value in options.items() if name in SAMPLING and value is not None
    }
    if "sampling" not in options:
        return Sampling(**single)
    if single:
        raise InputError(
            f"sampling and {next(iter(single))} together",
            expected="one of them",
            fix=f"Sampling({next(iter(single))}=…)",
        )
    if not isinstance(options["sampling"], Sampling):
        raise InputError(
            f"sampling is {short_repr(options['sampling'])}",
            expected="a Sampling",
            fix="Sampling(temperature=0.8)",
        )
    return options["sampling"]


def fit_context(ids: list[int], context: int, options: Options) -> tuple[list[int], int]:
    """The prompt, truncated on the left if that is allowed, and the maximum number of new
    tokens."""
    max_tokens = options.get("max_tokens")
    truncates = options.get("truncate") == "left"
    if max_tokens is None:
        room = context - (1 if truncates else len(ids))
        max_tokens = min(MAX_TOKENS, max(1, room))
    if truncates and len(ids) + max_tokens > context:
        ids = ids[-max(1, context - max_tokens) :]
    return ids, max_tokens


def encode_prompt(tokenizer: Tokenizer | None, prompt: str | Sequence[int]) -> list[int]:
    """A text as tokens, with the special tokens that the model expects; token ids as they are."""
    if isinstance(prompt, str):
        return require_tokenizer(tokenizer).encode(prompt, special=True)
    return list(prompt)


def require_tokenizer(tokenizer: Tokenizer | None) -> Tokenizer:
    """The tokenizer, where text cannot be handled without one."""
    if tokenizer is None:
        raise InputError(
            "a text for a model without tokenizer",
            expected="a tokenizer, or token ids",
            fix="put the tokenizer's files into the folder, or give token ids:"
            " model.generate([5, 6, 7]).tokens",
        )
    return tokenizer
