"""`sightline chat`: talk with a chat model in a terminal, or one message from a script."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from sightline.cli.ui.answers import answer_cost, settings_line, stream_answer
from sightline.cli.ui.input import read_text
from sightline.cli.ui.options.model import RunOptions
from sightline.cli.ui.options.sampling import ChatSamplingOptions
from sightline.cli.ui.options.text import InputOptions, OutputOptions
from sightline.cli.ui.options.values import ModelName
from sightline.cli.ui.output import remark, write_json
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.conversation import Conversation
    from sightline.generation.text import Generation
    from sightline.model import Model

EXAMPLE = 'sightline chat MODEL "Hello"'


def chat(
    model: ModelName,
    text: Annotated[str | None, Parameter(show_default=False)] = None,
    /,
    *,
    system: str | None = None,
    load: Path | None = None,
    input: InputOptions = InputOptions(),
    sampling: ChatSamplingOptions = ChatSamplingOptions(),
    running: RunOptions = RunOptions(),
    output: OutputOptions = OutputOptions(),
) -> None:
    """Talk with a chat model.

    On a terminal this is a conversation (/help lists its commands). With a message as an argument,
    from a file or from standard input, it is one answer.

    Parameters
    ----------
    text
        One message; - reads standard input.
    system
        The system message.
    load
        Continue a conversation written by /save.
    input.file
        Read the message from a UTF-8 file.
    output.json
        Write JSON: message, tokens, finish_reason, prompt_tokens, timing, and the runner.
    """
    message = read_message(text, input.file)
    if message is None and output.json:
        raise InputError(
            "--json without a message",
            expected="one message, one answer",
            fix=f"{EXAMPLE} --json",
        )
    loaded = running.load(model)
    conversation = open_conversation(loaded, load)
    conversation.reference = model
    conversation.system = conversation.system if system is None else system
    conversation.set(**sampling.to_options())
    if message is None:
        from sightline.cli.ui.chat_session import ChatSession

        ChatSession(conversation).run()
    else:
        answer_once(conversation, message, json=output.json)


def read_message(text: str | None, file: Path | None) -> str | None:
    """The message from the argument, the file or standard input; None on a terminal without
    one."""
    if text is not None and file is not None:
        raise InputError("a message and a file", expected="one of them", fix=EXAMPLE)
    if text is None and file is None:
        if sys.stdin.isatty():
            return None
        text = "-"
    message = read_text(text, file, what="message", fix=EXAMPLE).rstrip("\n")
    if not message.strip():
        raise InputError("an empty message", expected="some text", fix=EXAMPLE)
    return message


def open_conversation(loaded: Model, file: Path | None) -> Conversation:
    """A saved conversation, or a new one with the sampling that the checkpoint recommends."""
    from sightline.conversation import Conversation, recommended_options

    if file is not None:
        return Conversation.read(file, model=loaded)
    return Conversation(loaded, **recommended_options(loaded.defaults))


def answer_once(conversation: Conversation, message: str, *, json: bool) -> None:
    """One answer on stdout, its cost on stderr."""
    from sightline.generation.text import gather

    generation = gather(stream_answer(conversation.say(message), silent=json))
    if json:
        write_json(answer_dict(conversation, generation))
        return
    remark(settings_line(conversation))
    remark(f"{answer_cost(conversation.figures)}, finish reason: {generation.finish_reason}")


def answer_dict(conversation: Conversation, generation: Generation) -> dict[str, Any]:
    """An answer as a JSON object."""
    figures = conversation.figures
    rates = {"tokens_per_second": figures.tokens_per_second, "fullness": figures.fullness}
    return {
        "message": {"role": "assistant", "content": generation.text},
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "prompt_tokens": figures.prompt_tokens,
        "options": conversation.options,
        "figures": asdict(figures) | rates,
        "runner": conversation.model.runner.name,
    }
