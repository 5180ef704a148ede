"""A conversation on a terminal: messages, and commands that begin with a slash."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sightline.cli.ui.answers import costs, settings, shown
from sightline.cli.ui.output import complain, remark
from sightline.errors import InputError, SightlineError, nearest, short

if TYPE_CHECKING:
    from sightline.conversation import Conversation

PROMPT = "> "
MORE = "  "
QUOTES = '"""'
HELP = {
    "/help": "this list",
    "/system TEXT": "set the system message; - takes it away, nothing shows it",
    "/set NAME VALUE": "temperature, top_p, max_tokens, seed …; none takes it back",
    "/tokens": "what the last answer cost, and how full the context is",
    "/retry": "another answer to the last message, with the next seed",
    "/undo": "take back the last message and its answer",
    "/reset": "forget all that was said",
    "/save FILE": "write the conversation as JSON",
    "/load FILE": "go on with a saved one",
    "/exit": "leave, as Ctrl-D does",
}
ENTERING = (
    f"A line that ends in \\ goes on in the next; so does all between two {QUOTES}.",
    "After a space, / begins no command. Ctrl-C stops an answer.",
)


class Talk:
    """A conversation on a terminal: messages and commands, until Ctrl-D."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.warned = self.left = False
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
            "/exit": self.leave,
            "/quit": self.leave,
        }

    def run(self) -> None:
        """Ask, answer, and survive every mistake."""
        edit_lines(list(self.commands))
        self.note(settings(self.conversation))
        self.note("/help lists the commands, Ctrl-D leaves")
        while not self.left:
            try:
                self.handle(read_lines())
            except EOFError:
                self.left = True
                remark("")
            except KeyboardInterrupt:
                self.interrupted()
            except (SightlineError, UnicodeDecodeError) as error:
                said = (
                    str(error) if isinstance(error, SightlineError) else "that was no text in UTF-8"
                )
                complain(said)

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
            raise InputError(
                f"there is no command {name[:40]}", fix=nearest(name[:40], self.commands)
            )

    def interrupted(self) -> None:
        """Ctrl-C where no answer is coming: the second in a row leaves."""
        remark("")
        self.left = self.warned
        self.warned = True
        if not self.left:
            self.note("Ctrl-D or /exit leaves; so does Ctrl-C once more")

    def answer(self, message: str) -> None:
        """The answer as it comes. Ctrl-C ends it, and what was shown stays in the conversation."""
        before = len(self.conversation.exchanges)
        with suppress(KeyboardInterrupt), closing(self.conversation.say(message)) as pieces:
            for _ in shown(pieces):
                pass
        if len(self.conversation.exchanges) == before:
            self.note("(stopped before the first word: the message was taken back)")
            return
        self.remark()

    def remark(self) -> None:
        """What a reader should know of the answer that just ended."""
        last = self.conversation.exchanges[-1]
        figures = self.conversation.figures
        if last.ended == "cut":
            self.note("(stopped: the answer stays in the conversation as far as it was shown)")
        elif last.ended == "length":
            why = "the context is full" if figures.fullness >= 1 else "/set max_tokens allows more"
            self.note(f"(ended after {figures.new_tokens} tokens: {why})")
        elif not last.answer.strip():
            self.note("(an empty answer)")
        if figures.left_out:
            oldest = (
                "oldest exchange"
                if figures.left_out == 1
                else f"{figures.left_out} oldest exchanges"
            )
            self.note(
                f"(the context of {figures.context:,} tokens is full: the model no longer saw the"
                f" {oldest})"
            )

    def note(self, text: str) -> None:
        remark(text)

    def help(self, rest: str) -> None:
        """The commands and what else there is to know."""
        for usage, meaning in HELP.items():
            remark(f"{usage:<16}  {meaning}", style="")
        for line in ENTERING:
            self.note(line)

    def system(self, rest: str) -> None:
        """Set, take away or show the system message."""
        if rest:
            self.conversation.system = None if rest == "-" else rest
        said = self.conversation.system
        self.note("no system message" if said is None else f"system message: {said}")

    def set(self, rest: str) -> None:
        """Change an option, or show all."""
        name, _, value = rest.partition(" ")
        if name:
            self.conversation.set(**{name.replace("-", "_"): option(name, value.strip())})  # pyright: ignore[reportArgumentType]
        self.note(settings(self.conversation))

    def tokens(self, rest: str) -> None:
        """What the last answer cost."""
        figures = self.conversation.figures
        if not figures.prompt_tokens:
            raise InputError("nothing was answered yet", fix="say something first")
        self.note(f"{costs(figures)}, first token after {figures.first_seconds:.2f} s")

    def retry(self, rest: str) -> None:
        """Another answer: the next seed decides otherwise, unless nothing is left to chance."""
        message = self.conversation.undo()
        if self.conversation.options.get("temperature", 0.0) == 0.0:
            self.note("(at temperature 0 the answer is the same: /set temperature 0.7)")
        self.conversation.set(seed=self.conversation.options.get("seed", 0) + 1)
        self.answer(message)

    def undo(self, rest: str) -> None:
        """Take back the last exchange."""
        self.note(f"took back {short(self.conversation.undo())} and its answer")

    def reset(self, rest: str) -> None:
        """Forget all that was said."""
        self.conversation.reset()
        self.note("forgot all that was said")

    def save(self, rest: str) -> None:
        """Write the conversation; a file that is there is overwritten only after a yes."""
        path = named(rest, "/save talk.json")
        overwrite = os.path.lexists(path) and ask(
            f"{path} exists: overwrite it? [y/N] "
        ).strip().lower() in ("y", "yes")
        if os.path.lexists(path) and not overwrite:
            raise InputError(f"{path} was left as it is", fix="/save with another name")
        self.note(
            f"saved {len(self.conversation.messages)} messages to"
            f" {self.conversation.save(path, overwrite=overwrite)}"
        )

    def load(self, rest: str) -> None:
        """Go on with a saved conversation, and with this model."""
        from sightline.conversation import Conversation

        found = Conversation.read(named(rest, "/load talk.json"), model=self.conversation.model)
        found.reference = self.conversation.reference
        self.conversation = found
        self.note(f"loaded {len(found.messages)} messages; {settings(found)}")

    def leave(self, rest: str) -> None:
        self.left = True


def edit_lines(commands: list[str]) -> None:
    """Arrow keys, a history, and Tab for commands, where Python has readline."""
    with suppress(ImportError):
        import readline

        def complete(text: str, state: int) -> str | None:
            found = [name for name in commands if text and name.startswith(text)]
            return found[state] if state < len(found) else None

        readline.set_completer(complete)
        readline.set_completer_delims(" ")
        readline.parse_and_bind("tab: complete")


def read_lines() -> str:
    """A message or command. What stood in quotes begins with a line's end: it is never a
    command."""
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
    """A line that the user types. Where answers go into a file, the prompt must not."""
    if sys.stdout.isatty():
        return input(bold(prompt))
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line.rstrip("\n")


def bold(prompt: str) -> str:
    """Bold, between the signs by which readline knows what takes no room on the line."""
    plain = (
        "readline" not in sys.modules
        or os.environ.get("NO_COLOR")
        or os.environ.get("TERM") == "dumb"
    )
    return prompt if plain else f"\x01\x1b[1m\x02{prompt}\x01\x1b[0m\x02"


def named(rest: str, example: str) -> Path:
    """The file that a command names."""
    if not rest:
        raise InputError("no file was named", expected="a path", fix=example)
    return Path(rest).expanduser()


def option(name: str, text: str) -> Any:
    """The value of an option as it was typed; None takes it back."""
    if name == "stop" or text == "none":
        return None if text == "none" else [text]
    with suppress(ValueError):
        return json.loads(text)
    raise InputError(
        f"{name[:40]} {short(text)}", expected="a number, or none", fix="/set temperature 0.7"
    )
