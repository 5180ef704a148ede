"""Where the text of a command comes from, and in which form the result is written."""

from dataclasses import dataclass
from pathlib import Path

from cyclopts import Parameter

from sightline.cli.ui.input import read_text
from sightline.cli.ui.options.groups import OPTIONS, OUTPUT


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """A text that is not given as an argument."""

    file: Path | None = None
    """Read the text from a UTF-8 file."""

    def read(self, text: str | None, *, what: str = "text", fix: str) -> str:
        """The text exactly as it is: from the argument, the file, or standard input (-)."""
        return read_text(text, self.file, what=what, fix=fix)

    def read_prompt(self, text: str | None, *, what: str = "text", fix: str) -> str:
        """The same, without the newline that ends a file or a pipe."""
        content = self.read(text, what=what, fix=fix)
        is_argument = text not in (None, "-")
        return content if is_argument else content.removesuffix("\n")


@Parameter(name="*", group=OUTPUT)
@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The form of the result on stdout."""

    json: bool = False
    """Write the result as JSON."""
