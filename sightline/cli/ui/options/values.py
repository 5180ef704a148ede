"""Types of arguments: integers, texts that may begin with a hyphen, and names that complete."""

import re
from collections.abc import Sequence
from typing import Annotated, Any

from cyclopts import Parameter, Token

from sightline.cli.ui.completion import model_names, run_folders

OPTION = re.compile(r"--[a-z][a-z-]*(=.*)?")


def parse_integer(kind: Any, tokens: Sequence[Token]) -> int:
    """An integer as typed: 1.5 is refused, not rounded."""
    text = tokens[0].value
    if not text.lstrip("+-").isdecimal():
        raise ValueError(f"{text!r} is not an integer.")
    return int(text)


def parse_text(kind: Any, tokens: Sequence[Token]) -> str:
    """A text as typed. It may begin with a hyphen unless it looks like an option."""
    text = tokens[0].value
    if OPTION.fullmatch(text):
        raise ValueError(f"no option is called {text}.")
    return text


def shown_default(value: Any) -> str | None:
    """A default as `--help` shows it; flags that are off and options without a value show none."""
    return None if value is None or value is False or value == () else str(value)


Count = Annotated[int | None, Parameter(converter=parse_integer)]
Index = Annotated[Count, Parameter(allow_leading_hyphen=True)]
OptionalText = Annotated[
    str | None, Parameter(allow_leading_hyphen=True, converter=parse_text, show_default=False)
]
# without the leading hyphen, a lone - for standard input would be an unknown option
Text = Annotated[str, Parameter(allow_leading_hyphen=True)]
ModelName = Annotated[
    str,
    Parameter(
        completer=model_names,
        help=(
            "A folder, a .gguf file, a name listed by `sightline models`, or OWNER/NAME on the"
            " Hugging Face Hub."
        ),
    ),
]
RunFolder = Annotated[str, Parameter(completer=run_folders)]
Stride = Annotated[
    Count,
    Parameter(
        help="Tokens between the windows in which a text longer than the context is scored.",
        show_default="half the context",
    ),
]
