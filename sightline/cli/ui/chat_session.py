"""A conversation on a terminal: messages, and commands that begin with a slash."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.ui.answers import answer_cost, settings_line, stream_answer
from sightline.cli.ui.output import remark, write_error
from sightline.errors import InputError, SightlineError, nearest, short_repr

if TYPE_CHECKING:
    from sightline.conversation import Conversation

PROMPT = "> "
MORE = "  "
QUOTES = '"""'
HELP = {
    "/help": "this list",
    "/system TEXT": "set the system message; - removes it, no text shows it",
    "/set NAME VALUE": "temperature, top_p, max_tokens, seed …; none resets it",
    "/tokens": "tokens, speed and memory of the last answer",
    "/retry": "another answer to the last message, with the next seed",
    "/undo": "remove the last message and its answer",
    "/reset": "clear the conversation",
    "/save FILE": "save the conversation as JSON",
    "/load FILE": "continue a saved conversation",
    "/exit": "quit, like Ctrl-D",
}
ENTRY_HELP = (
    f"A line that ends in \\ continues on the next; {QUOTES} encloses a message of several lines.",
    "A line that begins with a space is never a command. Ctrl-C stops an answer.",
)


class ChatSession:
    """Reads messages and commands from the terminal until Ctrl-D."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.warned = False
        self.is_over = False
        self.commands: dict[str, Callable[[str], None]] = {
            "/help": self.help,
            "/system": self.system,
            "/set": self.set,
            "/tokens": self.tokens,
            "/retry": self.retry,
            "/undo": self.undo,
            "/reset": self.reset,
            "/save": self.save,
            "/load": self.load,
            "/exit": self.exit,
            "/quit": self.exit,
        }

    def run(self) -> None:
        """Prompt and answer in a loop; an error is shown and the session continues."""
        enable_line_editing(list(self.commands))
        self.note(settings_line(self.conversation))
        self.note("/help lists the commands, Ctrl-D quits")
        while not self.is_over:
            try:
                self.handle(read_lines())
            except EOFError:
                self.is_over = True
                remark("")
            except KeyboardInterrupt:
                self.interrupted()
            except SightlineError as error:
                write_error(str(error))
            except UnicodeDecodeError:
                write_error("the input is not UTF-8")

    def handle(self, line: str) -> None:
        """One command or message."""
        self.warned = False
        name, _, rest = line.strip().partition(" ")
        if not line.startswith("/"):
            if name:
                self.answer(line.strip())
        elif name in self.commands:
            self.commands[name](rest.strip())
        else:
            raise InputError(f"unknown command {name[:40]}", fix=nearest(name[:40], self.commands))

    def interrupted(self) -> None:
        """Ctrl-C at the prompt: the second in a row quits."""
        remark("")
        self.is_over = self.warned
        self.warned = True
        if not self.is_over:
            self.note("Ctrl-D, /exit or another Ctrl-C quits")

    def answer(self, message: str) -> None:
        """Stream the answer. Ctrl-C ends it; the part that was shown stays in the conversation."""
        before = len(self.conversation.exchanges)
        with suppress(KeyboardInterrupt), closing(self.conversation.say(message)) as pieces:
            for _ in stream_answer(pieces):
                pass
        if len(self.conversation.exchanges) == before:
            self.note("(stopped before the first token: the message was removed)")
            return
        self.note_ending()

    def note_ending(self) -> None:
        """Notes on how the last answer ended."""
        last = self.conversation.exchanges[-1]
        figures = self.conversation.figures
        if last.ended == "cut":
            self.note("(stopped: the part shown stays in the conversation)")
        elif last.ended == "length":
            why = (
                "the context is full"
                if figures.fullness >= 1
                else "/set max_tokens raises the limit"
            )
            self.note(f"(ended after {figures.new_tokens} tokens: {why})")
        elif not last.answer.strip():
            self.note("(an empty answer)")
        if figures.left_out:
            count = figures.left_out
            oldest = "oldest exchange" if count == 1 else f"{count} oldest exchanges"
            self.note(
                f"(the context of {figures.context:,} tokens is full: the {oldest} had to be"
                " dropped)"
            )

    def note(self, text: str) -> None:
        remark(text)

    def help(self, rest: str) -> None:
        """List the commands and the ways to enter text."""
        for usage, meaning in HELP.items():
            remark(f"{usage:<16}  {meaning}", style="")
        for line in ENTRY_HELP:
            self.note(line)

    def system(self, rest: str) -> None:
        """Set, remove or show the system message."""
        if rest:
            self.conversation.system = None if rest == "-" else rest
        message = self.conversation.system
        self.note("no system message" if message is None else f"system message: {message}")

    def set(self, rest: str) -> None:
        """Set an option, then show all."""
        name, _, value = rest.partition(" ")
        if name:
            self.conversation.set(**{name.replace("-", "_"): parse_option(name, value.strip())})  # pyright: ignore[reportArgumentType]
        self.note(settings_line(self.conversation))

    def tokens(self, rest: str) -> None:
        """Show what the last answer cost."""
        figures = self.conversation.figures
        if not figures.prompt_tokens:
            raise InputError("there is no answer yet", fix="type a message first")
        self.note(f"{answer_cost(figures)}, first token after {figures.first_seconds:.2f} s")

    def retry(self, rest: str) -> None:
        """Answer the last message again with the next seed; greedy decoding repeats itself."""
        message = self.conversation.undo()
        if self.conversation.options.get("temperature", 0.0) == 0.0:
            self.note("(temperature 0 gives the same answer: /set temperature 0.7)")
        self.conversation.set(seed=self.conversation.options.get("seed", 0) + 1)
        self.answer(message)

    def undo(self, rest: str) -> None:
        """Remove the last exchange."""
        self.note(f"removed {short_repr(self.conversation.undo())} and its answer")

    def reset(self, rest: str) -> None:
        """Clear the conversation."""
        self.conversation.reset()
        self.note("cleared the conversation")

    def save(self, rest: str) -> None:
        """Save the conversation; an existing file is overwritten only after confirmation."""
        path = parse_path(rest, "/save talk.json")
        exists = os.path.lexists(path)
        if exists and not confirm(f"{path} exists: overwrite it? [y/N] "):
            raise InputError(f"{path} was not overwritten", fix="/save with another name")
        saved = self.conversation.save(path, overwrite=exists)
        self.note(f"saved {len(self.conversation.messages)} messages to {saved}")

    def load(self, rest: str) -> None:
        """Continue a saved conversation with this model."""
        from sightline.conversation import Conversation

        path = parse_path(rest, "/load talk.json")
        conversation = Conversation.read(path, model=self.conversation.model)
        conversation.reference = self.conversation.reference
        self.conversation = conversation
        self.note(f"loaded {len(conversation.messages)} messages; {settings_line(conversation)}")

    def exit(self, rest: str) -> None:
        self.is_over = True


def enable_line_editing(commands: list[str]) -> None:
    """Arrow keys, history, and Tab completion of commands, if Python has readline."""
    with suppress(ImportError):
        import readline

        def complete(text: str, state: int) -> str | None:
            matches = [name for name in commands if text and name.startswith(text)]
            return matches[state] if state < len(matches) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")


def read_lines() -> str:
    """A message or command. Quoted text begins with a newline, so it is never a command."""
    line = ask(PROMPT)
    if line.strip().startswith(QUOTES):
        text = line.strip()[len(QUOTES) :]
        while QUOTES not in text:
            text += "\n" + ask(MORE)
        return "\n" + text.partition(QUOTES)[0]
    while line.endswith("\\"):
        line = f"{line[:-1]}\n{ask(MORE)}"
    return line


def ask(prompt: str) -> str:
    """A line typed by the user. Where stdout is a file, the prompt goes to stderr."""
    if sys.stdout.isatty():
        return input(bold(prompt))
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def confirm(question: str) -> bool:
    return ask(question).strip().lower() in ("y", "yes")


def bold(prompt: str) -> str:
    """Bold, with the escape sequences marked as zero-width for readline."""
    no_colour = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    if no_colour or "readline" not in sys.modules:
        return prompt
    return f"\x01\x1b[1m\x02{prompt}\x01\x1b[0m\x02"


def parse_path(rest: str, example: str) -> Path:
    """The file named after a command."""
    if not rest:
        raise InputError("no file was named", expected="a path", fix=example)
    return Path(rest).expanduser()


def parse_option(name: str, text: str) -> Any:
    """The value of an option as typed; `none` is None, which resets the option."""
    if name == "stop" or text == "none":
        return None if text == "none" else [text]
    with suppress(ValueError):
        return json.loads(text)
    raise InputError(
        f"{name[:40]} {short_repr(text)}", expected="a number, or none", fix="/set temperature 0.7"
    )
