"""The process that renders chat templates, which come with models and are programs of strangers:
sandboxed, small, and killable.

It runs by itself, nothing of sightline imported: see `limited`, which starts it and holds it to its
limits.
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
LONGEST_OUTPUT = 4 * 1024 * 1024


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote, for training; a rendered
    chat has it as it is."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The statements between the tags, in a scope of their own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [nodes.Scope(body).set_lineno(line)]


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's sandbox, except that what is forbidden is an error and not an empty text."""

    def unsafe_undefined(self, obj: Any, attribute: str) -> Undefined:
        """Refuse at once."""
        raise SecurityError(f"{attribute!r} of a {type(obj).__name__} is not allowed")


class PlainNamespace(Namespace):
    """`namespace()` without hidden names."""

    def __init__(*args: Any, **names: Any) -> None:
        values = dict(*args[1:], **names)
        for name in values:
            visible(name)
        Namespace.__init__(args[0], values)

    def __setitem__(self, name: str, value: Any) -> None:
        visible(name)
        super().__setitem__(name, value)


class PlainDict:
    """`dict()` and nothing of the type behind it."""

    def __call__(self, *args: Any, **names: Any) -> dict[Any, Any]:
        return dict(*args, **names)

    def fromkeys(self, *args: Any) -> dict[Any, Any]:
        """As `dict.fromkeys`."""
        return dict.fromkeys(*args)


def visible(name: Any) -> None:
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
    """JSON as it is, where Jinja's own filter would escape it for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: Any) -> NoReturn:
    """How a template says that it does not take these messages."""
    raise TemplateError(str(message))


@lru_cache(maxsize=16)
def compiled(template: str) -> Template:
    """A template with the names that chat templates use."""
    environment = Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = to_json
    names: dict[str, Any] = environment.globals  # pyright: ignore[reportAssignmentType]
    names.update(raise_exception=raise_exception, dict=PlainDict(), namespace=PlainNamespace)
    return environment.from_string(template)


def clock(now: str) -> Callable[[str], str]:
    """`strftime_now` at the asker's time."""
    return lambda form: datetime.fromisoformat(now).strftime(form)


def rendered(request: dict[str, Any]) -> str:
    """The text of a chat, unless it grows too long."""
    parts: list[str] = []
    size = 0
    for part in compiled(request["template"]).generate(
        request["values"] | {"strftime_now": clock(request["now"])}
    ):
        size += len(part)
        if size > LONGEST_OUTPUT:
            raise TemplateError(f"it writes more than {LONGEST_OUTPUT:,} characters")
        parts.append(part)
    return "".join(parts)


def answer(request: dict[str, Any]) -> dict[str, str]:
    """The text, or why there is none."""
    try:
        return {"text": rendered(request)}
    except MemoryError:
        return {"error": f"it needs more than {MEMORY // 1024**2} MB of memory"}
    except RecursionError:
        return {"error": "it calls itself without end"}
    except Exception as error:
        line = getattr(error, "lineno", None)
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        return {"error": f"line {line}: {reason}" if line else reason}
