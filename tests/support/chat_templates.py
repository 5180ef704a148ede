"""Chat templates of known models, and tokenizers that have their control tokens."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from sightline.text.engines.rust import RustEngine
from sightline.text.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system = messages[0]['content'] %}
{% else %}{% set loop_messages = messages %}{% set system = false %}{% endif %}
{% for message in loop_messages %}
    {% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}
    {% if loop.index0 == 0 and system %}{% set content = '<<SYS>>\\n' + system + '\\n<</SYS>>\\n\\n' + message['content'] %}
    {% else %}{% set content = message['content'] %}{% endif %}
    {%- if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
    {%- else %}{{ ' ' + content | trim + ' ' + eos_token }}{% endif %}
{% endfor %}"""

LLAMA3 = """{{- bos_token }}
{%- set date = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- if messages[0].role == 'system' %}{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}
{{- "<|start|>system<|stop|>\\n\\nToday Date: " + date + "\\n\\n" + system }}
{%- for message in messages %}
    {%- if message.role == 'tool' %}{% continue %}{% endif %}
    {{- '<|start|>' + message['role'] + '<|stop|>\\n\\n' }}
    {%- if message.content is string %}{{ message.content | trim }}{% else %}
        {%- for part in message.content %}{{ part['text'] }}{% endfor %}{% endif %}
    {{- '<|eot|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|start|>assistant<|stop|>\\n\\n' }}{% endif %}"""

QWEN = """{%- set ns = namespace(last=messages|length - 1) %}
{%- for message in messages[::-1] %}{% if message.role == 'user' and ns.last > loop.index0 %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}
{%- for message in messages %}
    {%- set content = message.content %}
    {%- if message.role == 'assistant' and '</think>' in content %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
    {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if tools %}{{ tools | tojson }}{% endif %}{{ {"last": ns.last, "tag": "<é>"} | tojson }}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

SMOLLM2 = """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
You are a helpful AI assistant<|im_end|>
' }}{% endif %}{{ '<|im_start|>' + message['role'] + '
' }}{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '
' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}"""

TEMPLATES = {
    "ChatML": CHATML,
    "Llama 2": LLAMA2,
    "Llama 3": LLAMA3,
    "Qwen": QWEN,
    "SmolLM2": SMOLLM2,
}

HELLO = [{"role": "user", "content": "Hello"}]

SPECIAL = ["<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|start|>", "<|stop|>", "<|eot|>"]


def byte_bpe() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    letters = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIAL, initial_alphabet=letters, show_progress=False
    )
    made.train_from_iterator([CHATML, LLAMA2, "hello world Hello\n\nHello"] * 3, trainer=trainer)
    return made


def metaspace() -> tokenizers.Tokenizer:
    made = tokenizers.Tokenizer(models.Unigram())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=120, special_tokens=["<unk>", *SPECIAL], unk_token="<unk>", show_progress=False
    )
    made.train_from_iterator(
        [CHATML, LLAMA2, "hello world Hello\n\nHello", "".join(map(chr, range(32, 127)))] * 3,
        trainer=trainer,
    )
    return made


@cache
def spelled(make: Callable[[], tokenizers.Tokenizer]) -> str:
    """Trained once: Unigram's training comes out a little different each time."""
    return make().to_str()


def copy(make: Callable[[], tokenizers.Tokenizer]) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(spelled(make))


def wrapped(made: tokenizers.Tokenizer, template: str | None = None) -> Tokenizer:
    tokenizer = Tokenizer(RustEngine(Path("test"), made), chat_template=template)
    tokenizer.bos, tokenizer.eos = tokenizer.id_of("<s>"), tokenizer.id_of("</s>")
    tokenizer.unknown = tokenizer.id_of("<unk>")
    return tokenizer
