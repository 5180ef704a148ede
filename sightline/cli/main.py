"""`sightline`: the commands, and what every one of them does with a user's mistake: one line, exit
code 2, no traceback.

Results go to stdout, progress to stderr. A command is loaded when it is asked for, so that `--help`
and `--version` are quick. To add one: a module in `commands/GROUP/` with a function of its name,
and a line in COMMANDS_BY_GROUP.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Sequence

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

from sightline import __version__
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
OPTIONS = ("--help", "-h", "--version")
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
    """Each command is the function of its own name in the module of its own name."""
    app = App(
        name="sightline",
        help="Build, train, run and see Transformers.",
        version=__version__,
        help_format="plaintext",
        default_parameter=Parameter(negative=(), show_default=False),
        result_action="return_none",
    )
    for group, commands in COMMANDS_BY_GROUP.items():
        panel = Group.create_ordered(GROUPS[group])
        for name, text in commands.items():
            module = f"sightline.cli.commands.{group}.{name}"
            app.command(f"{module}:{name}", name=name, help=text, group=panel)
    return app


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command line; the exit code."""
    app = make_app()
    line = sys.argv[1:] if arguments is None else list(arguments)
    return guard(lambda: run(app, line))


def run(app: App, line: list[str]) -> None:
    """Hand the line to its command."""
    if line and line[0] not in COMMANDS and line[0] not in OPTIONS:
        what, known = ("option", OPTIONS) if line[0].startswith("-") else ("command", COMMANDS)
        raise InputError(f"no {what} is called {line[0]!r}", fix=nearest(line[0], known))
    app(line, exit_on_error=False, print_error=False, verbose=False)


def guard(run: Callable[[], object]) -> int:
    """Turn what may go wrong into one line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    try:
        run()
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
            sys.stdout.flush()
    except SightlineError as error:
        return complain(as_typed(str(error)), MISTAKE)
    except CycloptsError as error:
        return complain(parsing_error(error), MISTAKE)
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        return leave_pipe()
    except OSError as error:
        leave_pipe()
        return complain(f"cannot write the result: {error.strerror}", CANNOT_WRITE)
    return 0


def as_typed(text: str) -> str:
    """A fix that is written as Python has it, `max_tokens=64`, as the command line has it:
    `--max-tokens 64`."""
    return re.sub(
        rf"(?<=Fix: )({'|'.join(TYPED)})=(\S+)",
        lambda found: f"--{found[1].replace('_', '-')} {found[2]}",
        text,
    )


def parsing_error(error: CycloptsError) -> str:
    """What was wrong with the words of a command line, and where to look."""
    command = " ".join(["sightline", *(error.command_chain or ())])
    extra = error.unused_tokens if isinstance(error, UnusedCliTokensError) else None
    seen = f"too many arguments: {' '.join(extra)}" if extra else str(error)
    if ". Did you mean" in seen:
        return seen.replace(". Did you mean", ". Fix: did you mean")
    return f"{seen.rstrip('.')}. Fix: see {command} --help"


def complain(text: str, code: int) -> int:
    """One line on stderr, whatever was in the text."""
    from sightline.cli.ui import output  # rich takes a tenth of a second

    output.complain(text)
    return code


def leave_pipe() -> int:
    """The reader of our output is gone: let the rest of it go nowhere, in silence."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return CLOSED_PIPE


if __name__ == "__main__":
    sys.exit(main())
