"""The form that a generated text must have."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from sightline.cli.ui.input import read_file
from sightline.cli.ui.options.groups import CONSTRAINTS
from sightline.errors import InputError

if TYPE_CHECKING:
    from sightline.generation.constrained import Constraint


@Parameter(name="*", group=CONSTRAINTS)
@dataclass(frozen=True, kw_only=True)
class ConstraintOptions:
    """At most one of four ways to constrain the output."""

    json_schema: Path | None = None
    """File with a JSON schema; the output is JSON that validates against it."""

    regex: str | None = None
    """The output matches this regular expression."""

    grammar: Path | None = None
    """File with a Lark grammar; the output is a text of its language."""

    choice: Annotated[tuple[str, ...], Parameter(negative=())] = ()
    """The output is one of these strings; repeat the option for each."""

    def constraint(self) -> "Constraint | None":
        """The constraint, or None. More than one is refused."""
        values = {
            "--json-schema": self.json_schema,
            "--regex": self.regex,
            "--grammar": self.grammar,
            "--choice": self.choice or None,
        }
        names = [name for name, value in values.items() if value is not None]
        if len(names) > 1:
            raise InputError(
                f"{' and '.join(names)} together",
                expected="one constraint",
                fix=f"leave {names[1]} out",
            )
        if not names:
            return None
        return self._parse()

    def _parse(self) -> "Constraint":
        from sightline.generation import constrained

        if self.json_schema is not None:
            return constrained.json_schema(read_file(self.json_schema))
        if self.grammar is not None:
            return constrained.grammar(read_file(self.grammar))
        if self.choice:
            return constrained.choice(self.choice)
        return constrained.regex(str(self.regex))
