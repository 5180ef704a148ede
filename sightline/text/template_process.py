"""The process that renders chat templates, which come with models and are programs of strangers: sandboxed, small, and killable.

It runs by itself (`python -P template_process.py`, nothing of sightline imported), reads requests from stdin and answers on stdout, each
a length of four bytes and that much JSON. `ask` starts it when it is first needed, keeps it, and kills it when it takes too long.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import IO, Any, NoReturn

from jinja2 import Template, nodes
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.runtime import Undefined
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

SECONDS = 2.0
START_SECONDS = 20.0  # for the first answer, on a machine with much else to do
MEMORY = 512 * 1024 * 1024
LONGEST_OUTPUT = 4 * 1024 * 1024
ALARM = 5  # seconds; for the case that whoever started this is no more


class Generation(Extension):
    """`{% generation %}…{% endgeneration %}` marks what the model wrote, for training; a rendered chat has it as it is."""

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


def to_json(value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
    """JSON as it is, where Jinja's own filter would escape it for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: Any) -> NoReturn:
    """How a template says that it does not take these messages."""
    raise TemplateError(str(message))


@lru_cache(maxsize=16)
def compiled(template: str) -> Template:
    """A template with the names that chat templates use."""
    environment = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
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
    for part in compiled(request["template"]).generate(request["values"] | {"strftime_now": clock(request["now"])}):
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


def read_message(stream: IO[bytes]) -> Any:
    """The next message, or None at the end."""
    head = stream.read(4)
    if len(head) < 4:
        return None
    body = stream.read(struct.unpack(">I", head)[0])
    return json.loads(body)


def write_message(stream: IO[bytes], message: Any) -> None:
    """Send a message."""
    body = json.dumps(message).encode()
    stream.write(struct.pack(">I", len(body)) + body)
    stream.flush()


def limit_memory() -> None:
    """Where the system has limits."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def main() -> None:
    """Answer until there is nobody to ask."""
    limit_memory()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    alarm: Callable[[int], Any] = getattr(signal, "alarm", lambda seconds: None)
    while (request := read_message(sys.stdin.buffer)) is not None:
        alarm(ALARM)
        reply = answer(request)
        alarm(0)
        write_message(sys.stdout.buffer, reply)


class Process:
    """The other side: one running process, asked by one thread at a time."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        kept = {name: value for name, value in os.environ.items() if name in ("PATH", "PYTHONPATH", "PYTHONHOME", "SYSTEMROOT")}
        command = [sys.executable, "-P", os.path.abspath(__file__)]
        self._running = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=kept, cwd=os.path.abspath(os.sep)
        )
        self._within({"template": "-", "values": {}, "now": "2000-01-01"}, START_SECONDS)

    def ask(self, request: dict[str, Any]) -> dict[str, str] | None:
        """The answer, or None if there was none in time; then the process is gone."""
        return self._within(request, SECONDS)

    def _within(self, request: dict[str, Any], seconds: float) -> dict[str, str] | None:
        """Ask, with somebody beside who ends the process and so the waiting."""
        assert self._running.stdin is not None
        assert self._running.stdout is not None
        guard = threading.Timer(seconds, self._running.kill)
        guard.daemon = True
        guard.start()
        reply = None
        try:
            with suppress(OSError, ValueError):
                write_message(self._running.stdin, request)
                reply = read_message(self._running.stdout)
        finally:
            guard.cancel()
            if reply is None:  # also after Ctrl-C: half an answer may be on its way
                self.stop()
        return reply

    def stop(self) -> None:
        """End it."""
        if self.owner != os.getpid():
            return
        self._running.kill()
        self._running.wait()
        for pipe in (self._running.stdin, self._running.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


class _Kept:
    """The process that is kept between two calls."""

    process: Process | None = None
    lock = threading.Lock()


def ask(request: dict[str, Any]) -> dict[str, str]:
    """Have a template rendered: {"text": …} or {"error": why}."""
    with _Kept.lock:
        if _Kept.process is None or _Kept.process.owner != os.getpid():
            _Kept.process = Process()
            atexit.register(_Kept.process.stop)
        process, _Kept.process = _Kept.process, None
        reply = process.ask(request)
        if reply is not None:
            _Kept.process = process
            return reply
        atexit.unregister(process.stop)
    return {"error": f"it takes more than {SECONDS:g} s or {MEMORY // 1024**2} MB"}


if __name__ == "__main__":
    main()
