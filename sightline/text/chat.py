"""Messages to the text, or the tokens, that a chat model was trained on.

    messages = [{"role": "user", "content": "Hello"}]
    render(tokenizer.chat_template, messages)
        "<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n"
    chat_ids(tokenizer, messages)
        [1, 4093, 198, 19556, 2, 198, 1, 520, 9531, 198]

A template comes with the model and is a program of a stranger: it runs in a process of its own
(`template_process`), in Jinja's sandbox, for two seconds at most. What a user types is text:
`<|im_end|>` in a message does not end it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from sightline.errors import InputError
from sightline.sandbox import Limited
from sightline.text import template_process
from sightline.text.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")
KEYS = ("role", "content", "name")
LONGEST_TEMPLATE = 256 * 1024
SIGN = "answer"
RENDERER = Limited(
    template_process.__file__,
    seconds=template_process.SECONDS,
    memory=template_process.MEMORY,
    first={"template": "-", "values": {}, "now": "2000-01-01"},
)
PRIVATE = range(0xF0000, 0xFFFFE)  # a plane of Unicode that nobody gives a meaning

Message = Mapping[str, Any]


def render(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    special_tokens: Mapping[str, str] | None = None,
    now: datetime | None = None,
) -> str:
    """The text of a chat. `special_tokens` are the names that a template may use: {"bos_token":
    "<s>"}; `now` is its clock."""
    check_template(template)
    values = {
        "messages": plain_messages(template, messages),
        "tools": None,
        "documents": None,
        "add_generation_prompt": add_generation_prompt,
        **(special_tokens or {}),
    }
    reply = RENDERER.ask(
        {
            "template": template,
            "values": values,
            "now": (now or datetime.now()).replace(tzinfo=None).isoformat(),
        }
    )
    if reply is None:
        reply = {
            "error": f"it takes more than {RENDERER.seconds:g} s or {RENDERER.memory // 1024**2} MB"
        }
    if "text" not in reply:
        raise InputError(
            f"the chat template fails: {reply['error']}",
            fix="change the messages, or give another template",
        )
    return reply["text"]


def check_template(template: Any) -> None:
    """A text of a sensible length."""
    if not isinstance(template, str) or not template:
        raise InputError(
            "there is no chat template", expected="a model for chats", fix="complete a text instead"
        )
    if len(template.encode("utf-8", "replace")) > LONGEST_TEMPLATE:
        raise InputError(
            f"a chat template of {len(template):,} characters",
            expected=f"at most {LONGEST_TEMPLATE // 1024} kB",
        )


def plain_messages(template: str, messages: Any) -> list[dict[str, Any]]:
    """The messages, checked; parts of a text are joined for a template that knows of no parts."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InputError(
            "there are no messages",
            expected="a list with at least one",
            fix='[{"role": "user", "content": "Hello"}]',
        )
    parts = (
        re.search(r"""is (not )?string|is iterable|\.type\b|['"]type['"]""", template) is not None
    )
    return [_plain(place, message, parts=parts) for place, message in enumerate(messages)]


def _plain(place: int, message: Any, *, parts: bool) -> dict[str, Any]:
    """One message."""
    if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
        raise InputError(
            f"message {place} has no role and content",
            expected='{"role": "user", "content": "Hello"}',
        )
    extra = [str(key)[:40] for key in message if key not in KEYS]
    if extra:
        raise InputError(
            f"message {place} has the key {extra[0]!r}", expected=f"only {', '.join(KEYS)}"
        )
    if message["role"] not in ROLES:
        raise InputError(
            f"message {place} has the role {str(message['role'])[:40]!r}",
            expected=f"one of {', '.join(ROLES)}",
        )
    if not isinstance(message.get("name", ""), str):
        raise InputError(f"the name of message {place} is no text")
    return {**message, "content": _content(place, message["content"], parts=parts)}


def _content(place: int, content: Any, *, parts: bool) -> Any:
    """A text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    texts = [_part(part) for part in content] if isinstance(content, list | tuple) else []
    if not texts or None in texts:
        raise InputError(
            f"the content of message {place} is no text",
            expected='a text or [{"type": "text", "text": "Hello"}]',
        )
    return [{"type": "text", "text": text} for text in texts] if parts else "".join(map(str, texts))


def _part(part: Any) -> str | None:
    """The text of a part, or None if it is none."""
    text = part.get("text") if isinstance(part, Mapping) and part.get("type") == "text" else None
    return text if isinstance(text, str) else None


def chat_ids(
    tokenizer: Tokenizer,
    messages: Sequence[Message],
    *,
    template: str | None = None,
    add_generation_prompt: bool = True,
    now: datetime | None = None,
) -> list[int]:
    """The tokens of a chat: `encode(rendered, control=True)`, except that control tokens which a
    user typed are plain text.

    Which part of the rendered text a user typed is found by rendering twice, the second time with
    private characters around every content. Where the template looks into the contents, so that the
    two differ, they stand around each control token's text instead. Only a chat in which a user did
    type one is cut there and encoded in parts.
    """
    template = tokenizer.chat_template if template is None else template
    check_template(template)
    assert template is not None
    names = special_names(tokenizer)
    moment = now or datetime.now()

    def draw(change: Callable[[str], str]) -> str:
        changed = map_texts(plain_messages(template, messages), change)
        return render(
            template,
            changed,
            add_generation_prompt=add_generation_prompt,
            special_tokens=names,
            now=moment,
        )

    text = draw(lambda content: content)
    controls = control_pattern(tokenizer)
    if controls is None:
        return tokenizer.encode(text, control=True)
    begin, end = private_characters(text + template + repr(messages))
    spans = typed_spans(
        text, draw(lambda content: framed(content, begin, end)), controls, begin, end
    )
    if spans is None:
        marked = draw(
            lambda content: f"{controls.sub(lambda found: begin + found[0] + end, content)}{end}"
        )
        text, spans = marked_spans(marked, controls, begin, end)
    return encode_around(tokenizer, text, spans)


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens by the names that templates use."""
    ids = {
        "bos": tokenizer.bos,
        "eos": tokenizer.eos,
        "pad": tokenizer.pad,
        "unk": tokenizer.unknown,
        "mask": tokenizer.mask,
    }
    return {
        f"{name}_token": tokenizer.engine.piece(id) or ""
        for name, id in ids.items()
        if id is not None
    }


def map_texts(messages: Sequence[Message], change: Callable[[str], str]) -> list[dict[str, Any]]:
    """The messages with every text that a user may have typed changed."""

    def of(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        return [{**part, "text": change(part["text"])} for part in value]

    return [
        {key: value if key == "role" else of(value) for key, value in message.items()}
        for message in messages
    ]


def control_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """Finds the text of any control token, the longest first."""
    pieces = {piece for id in tokenizer.special_ids if (piece := tokenizer.engine.piece(id))}
    return (
        re.compile("|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True)))
        if pieces
        else None
    )


def private_characters(used: str) -> tuple[str, str]:
    """Two characters that are not in the text."""
    taken = set(used)
    free = (chr(code) for code in PRIVATE if chr(code) not in taken)
    return next(free), next(free)


def framed(content: str, begin: str, end: str) -> str:
    """A content between two private characters; spaces stay outside, so that a template can still
    trim them."""
    body = content.strip()
    if not body:
        return content
    start = content.index(body)
    return f"{content[:start]}{begin}{body}{end}{content[start + len(body) :]}"


def typed_spans(
    text: str, marked: str, controls: re.Pattern[str], begin: str, end: str
) -> list[tuple[int, int]] | None:
    """Where a control token's text lies in or touches what a user typed; None if the frames changed
    what the template wrote."""
    typed = framed_spans(marked, begin, end)
    if typed is None or marked.replace(begin, "").replace(end, "") != text:
        return None
    found = [match.span() for match in controls.finditer(text)]
    return [
        span for span in found if any(start < span[1] and span[0] < stop for start, stop in typed)
    ]


def framed_spans(marked: str, begin: str, end: str) -> list[tuple[int, int]] | None:
    """Where the framed contents lie in the text without frames; None if a frame is not whole."""
    spans = list[tuple[int, int]]()
    at = 0
    opened = None
    for part in re.split(f"([{begin}{end}])", marked):
        if part not in (begin, end):
            at += len(part)
        elif (part == begin) != (opened is None):
            return None
        elif opened is None:
            opened = at
        else:
            spans.append((opened, at))
            opened = None
    return spans if opened is None else None


def marked_spans(
    marked: str, controls: re.Pattern[str], begin: str, end: str
) -> tuple[str, list[tuple[int, int]]]:
    """The text without marks, and the spans between two marks; a mark that stands alone counts
    where it cuts a control token in two."""
    text = ""
    spans = list[tuple[int, int]]()
    for part in re.split(f"({begin}(?:{controls.pattern}){end}|[{begin}{end}])", marked):
        bare = part.strip(begin + end)
        if bare != part:
            spans.append((len(text), len(text) + len(bare)))
        text += bare
    found = [match.span() for match in controls.finditer(text)]
    return text, [
        span
        for span in spans
        if span[0] < span[1] or any(start < span[0] < stop for start, stop in found)
    ]


def encode_around(tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Encode a text with its control tokens, except those in the spans."""
    ids = list[int]()
    at = 0
    for start, stop in spans:
        ids += encode_on(tokenizer, text[at:start], control=True, first=not ids)
        ids += encode_on(tokenizer, text[start:stop], control=False, first=not ids)
        at = stop
    return ids + encode_on(tokenizer, text[at:], control=True, first=not ids)


def encode_on(tokenizer: Tokenizer, text: str, *, control: bool, first: bool) -> list[int]:
    """Encode a text that goes on: a line's end before it keeps SentencePiece from putting a space
    there, and goes again."""
    if first or not text:
        return tokenizer.encode(text, control=control)
    line, both = (tokenizer.encode(part, control=control) for part in ("\n", "\n" + text))
    return (
        both[len(line) :] if both[: len(line)] == line else tokenizer.encode(text, control=control)
    )


def turn_end(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The control token that the template writes after an answer: it ends one, whether or not
    config.json says so."""
    said = [{"role": "user", "content": "question"}, {"role": "assistant", "content": SIGN}]
    text = ""
    with suppress(InputError):  # a template may refuse these messages
        text = render(
            tokenizer.chat_template or "",
            said,
            add_generation_prompt=False,
            special_tokens=special_names(tokenizer),
        )
    after = tokenizer.encode(text.rpartition(SIGN)[2], control=True) if SIGN in text else []
    return tuple(id for id in after if id in tokenizer.special_ids)[:1]
