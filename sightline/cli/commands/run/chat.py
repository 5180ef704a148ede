"""`sightline chat`: talk with a model, on a terminal or with one message from a script."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.cli.ui.answers import costs, settings, shown
from sightline.cli.ui.arguments import Count, Dtype, IgnoreTensors, Strict
from sightline.cli.ui.input import read_text
from sightline.cli.ui.output import remark, write_json
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.checkpoints.engine_choice import Engine
    from sightline.conversation import Conversation
    from sightline.generation.text import Generation


def chat(
    model: str,
    text: str | None = None,
    /,
    *,
    system: str | None = None,
    temperature: float | None = None,
    max_tokens: Count = None,
    seed: Count = None,
    top_p: float | None = None,
    top_k: Count = None,
    min_p: float | None = None,
    repetition_penalty: float | None = None,
    load: Path | None = None,
    file: Path | None = None,
    engine: Literal["auto", "native", "torch"] = "torch",
    dtype: Dtype = "float32",
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    json: bool = False,
) -> None:
    """Talk with a model: on a terminal as long as you like, or with one message as an argument,
    from a file or from standard input.

    Parameters
    ----------
    model
        A folder, a .gguf file, a name of `sightline models`, or OWNER/NAME of the hub.
    text
        One message, one answer; - reads standard input. Without it, a terminal is asked again and
        again.
    system
        The system message.
    temperature
        0 takes the likeliest token each time; by default what the checkpoint recommends, or 0.7.
    max_tokens
        At most so many tokens in an answer; by default 512, or what the context has room for.
    seed
        The same seed gives the same answers; by default 0.
    top_p
        Sample among the likeliest that together have this probability.
    top_k
        Sample among the k likeliest.
    min_p
        Drop what is less likely than this share of the likeliest.
    repetition_penalty
        Above 1, what was said already becomes less likely.
    load
        Go on with a conversation that /save wrote.
    file
        Read the message from a file.
    engine
        native makes tokens with Sightline's own engine: several times faster, in any --dtype; auto
        uses it where it can, and says so.
    json
        Write JSON: message, tokens, finish_reason, prompt_tokens, figures.
    """
    message = read_message(text, file)
    if message is None and json:
        raise InputError(
            "--json without a message",
            expected="one message, one answer",
            fix='sightline chat MODEL "Hello" --json',
        )
    given = {
        "temperature": temperature,
        "max_tokens": max_tokens,
        "seed": seed,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "repetition_penalty": repetition_penalty,
    }
    given = {name: value for name, value in given.items() if value is not None}
    conversation = opened(
        model,
        load,
        system,
        given,
        engine=engine,
        dtype=dtype,
        strict=strict,
        ignore_tensors=ignore_tensors,
    )
    if message is None:
        from sightline.cli.ui.chat_session import Talk

        Talk(conversation).run()
    else:
        answer_once(conversation, message, json=json)


def read_message(text: str | None, file: Path | None) -> str | None:
    """The one message, from wherever it comes; None means that there is a terminal to ask."""
    if text is not None and file is not None:
        raise InputError(
            "a message and a file", expected="one of them", fix='sightline chat MODEL "Hello"'
        )
    if text is None and file is None and sys.stdin.isatty():
        return None
    given = "-" if text is None and file is None else text
    message = read_text(given, file, what="message", fix='sightline chat MODEL "Hello"').rstrip(
        "\n"
    )
    if not message.strip():
        raise InputError(
            "an empty message", expected="some text", fix='sightline chat MODEL "Hello"'
        )
    return message


def opened(
    model: str,
    load: Path | None,
    system: str | None,
    given: dict[str, Any],
    *,
    engine: Engine,
    dtype: str,
    strict: bool,
    ignore_tensors: Sequence[str],
) -> Conversation:
    """A new conversation or a saved one. What was given counts most, then what was saved, then what
    the checkpoint recommends."""
    from sightline.cli.ui.loading import load_shown
    from sightline.conversation import Conversation, recommended

    loaded = load_shown(
        model, engine=engine, dtype=dtype, strict=strict, ignore_tensors=ignore_tensors
    )
    found = (
        Conversation(loaded, **recommended(loaded.defaults))
        if load is None
        else Conversation.read(load, model=loaded)
    )
    found.reference = model
    found.system = found.system if system is None else system
    found.set(**given)
    return found


def answer_once(conversation: Conversation, message: str, *, json: bool) -> None:
    """One answer on stdout, what it cost on stderr."""
    from sightline.generation.text import gather

    found = gather(shown(conversation.say(message), silent=json))
    if json:
        write_json(to_plain(conversation, found))
        return
    remark(settings(conversation))
    remark(f"{costs(conversation.figures)}, ended by {found.finish_reason}")


def to_plain(conversation: Conversation, found: Generation) -> dict[str, Any]:
    """An answer as plain values."""
    figures = conversation.figures
    return {
        "message": {"role": "assistant", "content": found.text},
        "tokens": found.tokens,
        "finish_reason": found.finish_reason,
        "prompt_tokens": figures.prompt_tokens,
        "options": conversation.options,
        "figures": asdict(figures)
        | {"tokens_per_second": figures.tokens_per_second, "fullness": figures.fullness},
    }
