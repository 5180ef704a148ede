"""Chat templates. The reference is transformers' own rendering."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from sightline.text.chat import RENDERER, render
from tools.fuzz.formats.samples import TEMPLATE
from tools.fuzz.formats.tensors import reference_of
from tools.fuzz.outcome import require

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello {{ 7 * 7 }}"},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "The end?"},
]
CHATML = (
    "{%- for message in messages -%}{{ '<|im_start|>' + message['role'] + '\\n' +"
    " message['content'] + '<|im_end|>' + '\\n' }}{%- endfor -%}\n{%- if add_generation_prompt"
    " -%}{{ '<|im_start|>assistant\\n' }}{%- endif -%}\n"
)
STRICT = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system ="
    " messages[0]['content'] | trim %}{% else %}{% set rest = messages %}{% set system = '' %}{%"
    " endif %}{% for message in rest %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0)"
    " %}{{ raise_exception('roles must alternate') }}{% endif %}{{ loop.index ~ ' ' ~"
    " message['role'] ~ ': ' ~ (message['content'] | upper | tojson) ~ '\\n' }}{% endfor %}{{"
    " system }}"
)


def make(place: Path) -> None:
    for name, text in (("plain", TEMPLATE), ("chatml", CHATML), ("strict", STRICT)):
        (place / name).mkdir()
        (place / name / "chat_template.jinja").write_text(text)


def check(case: Path, sample: Path) -> None:
    template = (case / "chat_template.jinja").read_bytes().decode(errors="replace")
    RENDERER.seconds = 5.0
    ours = render(template, MESSAGES, now=datetime(2026, 1, 1))
    theirs = reference_of(lambda: reference(template))
    require(ours == theirs, f"{ours[:60]!r}, the reference renders {theirs[:60]!r}")


def reference(template: str) -> str:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered, _ = render_jinja_template(
        conversations=[MESSAGES], chat_template=template, add_generation_prompt=True
    )
    return rendered[0]
