"""`sightline`: the table of commands, and how errors are reported: one line on stderr, exit code 2,
no traceback.

Results go to stdout, progress to stderr. A command's module is imported only when it runs, so that
`--help` and `--version` are quick. To add a command: a module in `commands/GROUP/` with a function
of its name, a line in COMMANDS_BY_GROUP, and an example in `examples.py`.
"""

from __future__ import annotations

import inspect
import io
import os
import re
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from sightline import __version__
from sightline.cli.ui.options import groups
from sightline.cli.ui.options.values import shown_default
from sightline.errors import InputError, SightlineError, nearest

GROUPS = {
    "run": "Run a model",
    "see": "See inside",
    "train": "Train",
    "learn": "Learn",
    "manage": "Manage",
}
COMMANDS_BY_GROUP = {
    "run": {
        "generate": "Continue a text, streamed as it is generated.",
        "chat": "Talk with a chat model.",
        "translate": "Translate a text, with its word alignment.",
        "fill": "Fill in the masked words of a text.",
        "classify": "Label texts, or each token of a text.",
        "embed": "Embed texts: one vector per text.",
        "score": "Score a text: log-likelihood and perplexity.",
    },
    "see": {
        "trace": "See where a model attends while it reads a text.",
        "heads": "What every attention head does, and which heads find which relation.",
        "explain": "A model as equations with shapes: parameters, FLOPs and memory.",
    },
    "train": {
        "train": "Train a model by a recipe; run it again to resume.",
        "data": "Tokenize text files for training, or inspect a prepared folder.",
        "tokenizer": "Train a tokenizer, or see how one splits a text.",
        "eval": "Evaluate a model: perplexity, BLEU and chrF, accuracy.",
        "compare": "Compare runs: a table, and their loss curves.",
    },
    "learn": {
        "demo": "See a Transformer at work in half a minute.",
        "lab": "Claims of the theory as experiments with a verdict.",
    },
    "manage": {
        "models": "List the models known by name, and download one.",
        "info": "What a checkpoint is: family, sizes, format, tokenizer, licence.",
        "check": "Check the laws on a checkpoint.",
        "convert": "Write a checkpoint as a Hugging Face folder or as GGUF.",
        "quantize": "What a model weighs in each precision, and what that costs in quality.",
        "doctor": "What this machine has, which engine runs, and why.",
        "bench": "Benchmark this machine against peers; needs the repository.",
    },
}
COMMANDS = {name: group for group, names in COMMANDS_BY_GROUP.items() for name in names}
OPTIONS = ("--help", "-h", "--version", "--install-completion")
GENERAL = Group("General", sort_key=len(GROUPS))
COMPLETION_REQUEST = "__complete"  # what an installed completion script runs
TYPED = (
    "max_tokens",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "beams",
    "seed",
    "stride",
    "layer",
    "head",
    "view",
)
MISTAKE = 2
INTERRUPTED = 130
CLOSED_PIPE = 141
CANNOT_WRITE = 1


def make_app() -> App:
    """Each command is the function or App with the command's name, in a module of the same name."""
    app = App(
        name="sightline",
        help="Build, train, run and see Transformers.",
        help_epilogue="sightline help COMMAND shows the options of a command, with examples.",
        version=__version__,
        help_format="plaintext",
        default_parameter=Parameter(negative=(), show_default=shown_default),
        group_arguments=groups.ARGUMENTS,
        group_parameters=groups.OPTIONS,
        result_action="return_none",
    )
    for place, (group, commands) in enumerate(COMMANDS_BY_GROUP.items()):
        panel = Group(GROUPS[group], sort_key=place)
        for order, (name, text) in enumerate(commands.items()):
            path = f"sightline.cli.commands.{group}.{name}:{name}"
            app.command(path, name=name, help=text, group=panel, sort_key=order)
    app.command(
        "sightline.cli.commands.general.help:help",
        name="help",
        help="Show the help of a command, with examples.",
        group=GENERAL,
    )
    app.command(
        "sightline.cli.commands.general.install_completion:install_completion",
        name="--install-completion",
        help="Install completion for bash, zsh or fish.",
        group=GENERAL,
    )
    for flag in ("--help", "--version"):
        app[flag].group = GENERAL
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    app = make_app()
    line = sys.argv[1:] if arguments is None else list(arguments)
    return guard(lambda: run(app, line))


def run(app: App, line: list[str]) -> None:
    """Dispatch the command line to its command."""
    name = line[0] if line else "--help"
    known = (*COMMANDS, *OPTIONS, "help", COMPLETION_REQUEST)
    if name not in known:
        what, names = ("option", OPTIONS) if name.startswith("-") else ("command", COMMANDS)
        raise InputError(f"no {what} is called {name!r}", fix=nearest(name, names))
    if not line or {"--help", "-h"} & set(line):
        prepare_help(app, name)
    app(line, exit_on_error=False, print_error=False, verbose=False)


def prepare_help(app: App, name: str) -> None:
    """Give a command the help of its docstring, with its examples at the end. In lists, and for
    completion, its help is the line in COMMANDS_BY_GROUP."""
    from sightline.cli.examples import add_examples
    from sightline.cli.ui.help_page import HelpPage  # rich takes a tenth of a second

    app.help_formatter = HelpPage()
    if not name.startswith("-") or name == "--install-completion":
        command = app[name]
        command.help = inspect.getdoc(command.default_command) or ""
        add_examples(command, name)


def guard(run: Callable[[], object]) -> int:
    """Turn an error into one line on stderr and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        run()
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
            sys.stdout.flush()
    except SightlineError as error:
        return report_error(as_typed(str(error)), MISTAKE)
    except CycloptsError as error:
        return report_error(parsing_error(error), MISTAKE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return leave_pipe()
    except OSError as error:
        leave_pipe()
        return report_error(f"cannot write the result: {error.strerror}", CANNOT_WRITE)
    return 0


def as_typed(text: str) -> str:
    """Rewrite a fix from Python's form, `max_tokens=64`, to the command line's:
    `--max-tokens 64`."""
    return re.sub(
        rf"(?<=Fix: )({'|'.join(TYPED)})=(\S+)",
        lambda match: f"--{match[1].replace('_', '-')} {match[2]}",
        text,
    )


def parsing_error(error: CycloptsError) -> str:
    """What was wrong with the arguments, and which help to read."""
    command = " ".join(["sightline", *(error.command_chain or ())])
    extra = error.unused_tokens if isinstance(error, UnusedCliTokensError) else None
    message = f"too many arguments: {' '.join(extra)}" if extra else str(error)
    if ". Did you mean" in message:
        return message.replace(". Did you mean", ". Fix: did you mean")
    return f"{message.rstrip('.')}. Fix: see {command} --help"


def report_error(text: str, code: int) -> int:
    """One line on stderr; returns the exit code."""
    from sightline.cli.ui import output  # rich takes a tenth of a second

    output.write_error(text)
    return code


def leave_pipe() -> int:
    """The reader of our output is gone: discard the rest silently."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


if __name__ == "__main__":
    sys.exit(main())
