"""Messages to the text, or the tokens, that a chat model was trained on.

    messages = [{"role": "user", "content": "Hello"}]
    render(tokenizer.chat_template, messages)
        "<|im_start|>user\\nHello<|im_end|>\\n<|im_start|>assistant\\n"
    chat_ids(tokenizer, messages)
        [1, 4093, 198, 19556, 2, 198, 1, 520, 9531, 198]

A template comes with the model and is untrusted code: it runs in a separate process
(`template_process`), in Jinja's sandbox, for at most two seconds. What a user types is text:
`<|im_end|>` in a message does not end it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from sightline.errors import InputError
from sightline.sandbox import Sandbox
from sightline.text import template_process
from sightline.text.tokenizer import Tokenizer

ROLES = ("system", "developer", "user", "assistant", "tool")
KEYS = ("role", "content", "name")
MAX_TEMPLATE_BYTES = 256 * 1024
ANSWER_MARK = "answer"
RENDERER = Sandbox(
    template_process.__file__,
    seconds=template_process.SECONDS,
    memory=template_process.MEMORY,
    first={"template": "-", "values": {}, "now": "2000-01-01"},
)
PRIVATE_USE = range(0xF0000, 0xFFFFE)  # code points without a meaning

Message = Mapping[str, Any]


def render(
    template: str,
    messages: Sequence[Message],
    *,
    add_generation_prompt: bool = True,
    special_tokens: Mapping[str, str] | None = None,
    now: datetime | None = None,
) -> str:
    """The text of a chat. `special_tokens` are variables for the template: {"bos_token": "<s>"};
    `now` is the time that it sees."""
    check_template(template)
    values = {
        "messages": check_messages(template, messages),
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
    """Refuse a missing or very long template."""
    if not isinstance(template, str) or not template:
        raise InputError(
            "there is no chat template", expected="a model for chats", fix="complete a text instead"
        )
    if len(template.encode("utf-8", "replace")) > MAX_TEMPLATE_BYTES:
        raise InputError(
            f"a chat template of {len(template):,} characters",
            expected=f"at most {MAX_TEMPLATE_BYTES // 1024} kB",
        )


def check_messages(template: str, messages: Any) -> list[dict[str, Any]]:
    """The messages, checked; content parts are joined for a template that does not use parts."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InputError(
            "there are no messages",
            expected="a list with at least one",
            fix='[{"role": "user", "content": "Hello"}]',
        )
    has_parts = (
        re.search(r"""is (not )?string|is iterable|\.type\b|['"]type['"]""", template) is not None
    )
    return [
        _check_message(place, message, parts=has_parts) for place, message in enumerate(messages)
    ]


def _check_message(place: int, message: Any, *, parts: bool) -> dict[str, Any]:
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
        raise InputError(f"the name of message {place} is not a text")
    return {**message, "content": _check_content(place, message["content"], parts=parts)}


def _check_content(place: int, content: Any, *, parts: bool) -> Any:
    """A text, or a list of parts that are texts."""
    if isinstance(content, str):
        return content
    texts = [_part_text(part) for part in content] if isinstance(content, list | tuple) else []
    if not texts or None in texts:
        raise InputError(
            f"the content of message {place} is not a text",
            expected='a text or [{"type": "text", "text": "Hello"}]',
        )
    return [{"type": "text", "text": text} for text in texts] if parts else "".join(map(str, texts))


def _part_text(part: Any) -> str | None:
    """The text of a text part, else None."""
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
    """The tokens of a chat: `encode(rendered, control=True)`, except that control tokens typed
    by a user are plain text.

    The parts of the rendered text that a user typed are located by rendering twice, the second time
    with private-use characters around every content. If the template inspects the contents, so that
    the two differ, they are put around each control token's text instead. Only a chat in which a
    user typed a control token is split and encoded in parts."""
    template = tokenizer.chat_template if template is None else template
    check_template(template)
    assert template is not None
    names = special_names(tokenizer)
    time = now or datetime.now()

    def render_with(change: Callable[[str], str]) -> str:
        changed = map_texts(check_messages(template, messages), change)
        return render(
            template,
            changed,
            add_generation_prompt=add_generation_prompt,
            special_tokens=names,
            now=time,
        )

    text = render_with(lambda content: content)
    controls = control_pattern(tokenizer)
    if controls is None:
        return tokenizer.encode(text, control=True)
    begin, end = private_characters(text + template + repr(messages))
    spans = typed_spans(
        text, render_with(lambda content: frame(content, begin, end)), controls, begin, end
    )
    if spans is None:
        marked = render_with(
            lambda content: f"{controls.sub(lambda match: begin + match[0] + end, content)}{end}"
        )
        text, spans = marked_spans(marked, controls, begin, end)
    return encode_around(tokenizer, text, spans)


def special_names(tokenizer: Tokenizer) -> dict[str, str]:
    """The special tokens by their names in templates."""
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
    """The messages with `change` applied to every text that a user may have typed."""

    def map_value(value: Any) -> Any:
        if isinstance(value, str):
            return change(value)
        return [{**part, "text": change(part["text"])} for part in value]

    return [
        {key: value if key == "role" else map_value(value) for key, value in message.items()}
        for message in messages
    ]


def control_pattern(tokenizer: Tokenizer) -> re.Pattern[str] | None:
    """A pattern that matches the text of any control token, the longest first."""
    pieces = {piece for id in tokenizer.special_ids if (piece := tokenizer.engine.piece(id))}
    return (
        re.compile("|".join(re.escape(piece) for piece in sorted(pieces, key=len, reverse=True)))
        if pieces
        else None
    )


def private_characters(used: str) -> tuple[str, str]:
    """Two characters that are not in the text."""
    characters = set(used)
    free = (chr(code) for code in PRIVATE_USE if chr(code) not in characters)
    return next(free), next(free)


def frame(content: str, begin: str, end: str) -> str:
    """A content between two private-use characters; spaces stay outside, so that a template can
    still trim them."""
    body = content.strip()
    if not body:
        return content
    start = content.index(body)
    return f"{content[:start]}{begin}{body}{end}{content[start + len(body) :]}"


def typed_spans(
    text: str, marked: str, controls: re.Pattern[str], begin: str, end: str
) -> list[tuple[int, int]] | None:
    """Spans of control tokens that overlap what a user typed; None if the frames changed the
    template's output."""
    typed = framed_spans(marked, begin, end)
    if typed is None or marked.replace(begin, "").replace(end, "") != text:
        return None
    controls_at = [match.span() for match in controls.finditer(text)]
    return [
        span
        for span in controls_at
        if any(start < span[1] and span[0] < stop for start, stop in typed)
    ]


def framed_spans(marked: str, begin: str, end: str) -> list[tuple[int, int]] | None:
    """Spans of the framed contents in the text without frames; None if a frame is incomplete."""
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
    """The text without marks, and the spans between two marks; a single mark counts if it splits a
    control token."""
    text = ""
    spans = list[tuple[int, int]]()
    for part in re.split(f"({begin}(?:{controls.pattern}){end}|[{begin}{end}])", marked):
        bare = part.strip(begin + end)
        if bare != part:
            spans.append((len(text), len(text) + len(bare)))
        text += bare
    controls_at = [match.span() for match in controls.finditer(text)]
    return text, [
        span
        for span in spans
        if span[0] < span[1] or any(start < span[0] < stop for start, stop in controls_at)
    ]


def encode_around(tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]]) -> list[int]:
    """Encode a text with its control tokens, except those in the spans."""
    ids = list[int]()
    at = 0
    for start, stop in spans:
        ids += encode_continuation(tokenizer, text[at:start], control=True, first=not ids)
        ids += encode_continuation(tokenizer, text[start:stop], control=False, first=not ids)
        at = stop
    return ids + encode_continuation(tokenizer, text[at:], control=True, first=not ids)


def encode_continuation(
    tokenizer: Tokenizer, text: str, *, control: bool, first: bool
) -> list[int]:
    """Encode a continuation: a newline before it, removed afterwards, keeps SentencePiece from
    adding a space."""
    if first or not text:
        return tokenizer.encode(text, control=control)
    newline, both = (tokenizer.encode(part, control=control) for part in ("\n", "\n" + text))
    return (
        both[len(newline) :]
        if both[: len(newline)] == newline
        else tokenizer.encode(text, control=control)
    )


def turn_end(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The control token that the template writes after an answer, which ends generation even if
    config.json does not list it."""
    messages = [
        {"role": "user", "content": "question"},
        {"role": "assistant", "content": ANSWER_MARK},
    ]
    text = ""
    with suppress(InputError):  # a template may refuse these messages
        text = render(
            tokenizer.chat_template or "",
            messages,
            add_generation_prompt=False,
            special_tokens=special_names(tokenizer),
        )
    after = (
        tokenizer.encode(text.rpartition(ANSWER_MARK)[2], control=True)
        if ANSWER_MARK in text
        else []
    )
    return tuple(id for id in after if id in tokenizer.special_ids)[:1]
