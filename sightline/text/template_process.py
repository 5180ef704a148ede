"""The process that renders chat templates, which are untrusted code that comes with models.

It imports nothing of sightline. `sightline.sandbox` starts it and enforces its limits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

SECONDS = 2.0
MEMORY = 512 * 1024 * 1024
MAX_OUTPUT = 4 * 1024 * 1024


class GenerationTag(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote, for training;
    rendering ignores the tags."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags, in a new scope."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body).set_lineno(line)]


class StrictEnvironment(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, except that forbidden access is an error instead of an empty text."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Raise at once."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not allowed")


class PlainNamespace(Namespace):
    """`namespace()` without names that begin with an underscore."""

    def __init__(*args: Any, **names: Any) -> None:
        values = dict(*args[1:], **names)
        for name in values:
            refuse_hidden_name(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        refuse_hidden_name(name)
        super().__setitem__(name, value)


class PlainDict:
    """`dict()` without access to the type itself."""

    def __call__(self, *args: Any, **names: Any) -> dict[Any, Any]:
        return dict(*args, **names)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As `dict.fromkeys`."""
        return dict.fromkeys(*args)


def refuse_hidden_name(name: Any) -> None:
    """Refuse names that begin with an underscore."""
    if str(name).startswith("_"):
        raise SecurityError(f"the name {name!r} is not allowed")


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """JSON without the HTML escapes of Jinja's filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: Any) -> NoReturn:
    """Called by a template that rejects the messages."""
    raise TemplateError(str(message))


@lru_cache(maxsize=16)
def compile_template(template: str) -> Template:
    """A template with the functions that chat templates use."""
    environment = StrictEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    names: dict[str, Any] = environment.globals  # pyright: ignore[reportAssignmentType]
    names.update(raise_exception=raise_exception, dict=PlainDict(), namespace=PlainNamespace)
    return environment.from_string(template)


def strftime_at(now: str) -> Callable[[str], str]:
    """`strftime_now` for a fixed time."""
    return lambda form: datetime.fromisoformat(now).strftime(form)


def render_template(request: dict[str, Any]) -> str:
    """The text of a chat; an error if it grows too long."""
    parts: list[str] = []
    size = 0
    for part in compile_template(request["template"]).generate(
        request["values"] | {"strftime_now": strftime_at(request["now"])}
    ):
        size += len(part)
        if size > MAX_OUTPUT:
            raise TemplateError(f"it writes more than {MAX_OUTPUT:,} characters")
        parts.append(part)
    return "".join(parts)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The text, or the error."""
    try:
        return {"text": render_template(request)}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY // 1024**2} MB of memory"}
    except RecursionError:
        return {"error": "it recurses without end"}
    except Exception as error:
        line = getattr(error, "lineno", None)
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return {"error": f"line {line}: {reason}" if line else reason}
