"""Conversations: only the assistant's tokens are targets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sightline.errors import InputError
from sightline.text.tokenizer import Tokenizer
from sightline.training.data.batch import IGNORED
from sightline.training.data.chats import Chats, Conversation, read_chats

LETTERS = "abcdefghijklmnopqrstuvwxyz \nUASH:!?."
TEMPLATE = (
    "{% for m in messages %}{{ {'user': 'U', 'assistant': 'A', 'system': 'S'}[m.role] + ':' + m.content }}</s>\n{% endfor %}"
    "{% if add_generation_prompt %}A:{% endif %}"
)
# drops all answers but the last, like templates that remove earlier reasoning
FORGETFUL = (
    "{% for m in messages %}{% if m.role == 'user' or loop.last %}{{ {'user': 'U', 'assistant': 'A'}[m.role] + ':' + m.content }}</s>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}A:{% endif %}"
)
TALK = [
    ("system", "be kind"),
    ("user", "hi"),
    ("assistant", "hello!"),
    ("user", "bye"),
    ("assistant", "so long."),
]


def tokenizer(template: str | None = TEMPLATE) -> Tokenizer:
    characters = Tokenizer.from_characters(LETTERS)
    characters.chat_template = template
    return characters


def messages(talk: list[tuple[str, str]]) -> str:
    return json.dumps({"messages": [{"role": role, "content": content} for role, content in talk]})


def read(place: Path, *lines: str, template: str | None = TEMPLATE) -> list[Conversation]:
    (place / "chats.jsonl").write_text("\n".join(lines), encoding="utf-8")
    return read_chats(place / "chats.jsonl", tokenizer(template))


def target_text(row: Conversation) -> str:
    """The targets as text, with | for the end of a turn."""
    characters = tokenizer()
    return "".join(
        "|" if id == characters.eos else characters.token(id)
        for id, answer in zip(row.ids, row.answers, strict=True)
        if answer
    )


def full_text(row: Conversation) -> str:
    return tokenizer().decode(row.ids, skip_special=False)


def test_the_answer_mask_by_hand(tmp_path: Path) -> None:
    (row,) = read(tmp_path, messages(TALK))
    assert full_text(row) == "S:be kind</s>\nU:hi</s>\nA:hello!</s>\nU:bye</s>\nA:so long.</s>\n"
    assert target_text(row) == "hello!|so long.|"
    assert row.answers == [
        *([False] * len("S:be kind|\nU:hi|\nA:")),
        *([True] * len("hello!|")),
        *([False] * len("\nU:bye|\nA:")),
        *([True] * len("so long.|")),
        False,
    ]


def test_targets_are_shifted_by_one(tmp_path: Path) -> None:
    (row,) = read(tmp_path, messages(TALK[1:3]))
    batch = Chats([row], pad=0, tokens=64, seed=0).batch(0)
    characters = tokenizer()
    assert batch.tokens[0].tolist() == row.ids[:-1]
    answer = [*characters.encode("hello!"), characters.eos]
    expected = [*([IGNORED] * len("U:hi|\nA")), *answer, IGNORED]
    assert batch.targets[0].tolist() == expected[: len(row.ids) - 1]
    assert batch.count == 7


def test_an_end_token_typed_as_text_does_not_end_the_turn(tmp_path: Path) -> None:
    (row,) = read(tmp_path, messages([("user", "hi"), ("assistant", "a</s>b")]))
    assert row.ids.count(tokenizer().eos or -1) == 2
    assert target_text(row).endswith("b|")


def test_a_template_that_drops_answers_gives_one_row_per_answer(tmp_path: Path) -> None:
    rows = read(tmp_path, messages(TALK[1:]), template=FORGETFUL)
    assert [full_text(row) for row in rows] == [
        "U:hi</s>\nA:hello!</s>\n",
        "U:hi</s>\nU:bye</s>\nA:so long.</s>\n",
    ]
    assert [target_text(row) for row in rows] == ["hello!|", "so long.|"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("[]", "line 2: no JSON object"),
        ("{}", "line 2: no list of messages"),
        ('{"messages": "hi"}', "line 2: no list of messages"),
        (
            '{"messages": [{"role": "user", "content": "hi"}]}',
            "line 2: no assistant message after a user message",
        ),
        (
            '{"messages": [{"role": "assistant", "content": "hi"}]}',
            "line 2: no assistant message after a user message",
        ),
        (
            '{"messages": [{"role": "user"}, {"role": "assistant", "content": "hi"}]}',
            "line 2: message 0 has no role and content",
        ),
        (
            '{"messages": [{"role": "judge", "content": "a"}, {"role": "assistant", "content": "hi"}]}',
            "line 2: message 0 has the role",
        ),
    ],
)
def test_errors_name_the_line(line: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=message):
        read(tmp_path, messages(TALK), line)


def test_a_model_without_template(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no chat template"):
        read(tmp_path, messages(TALK), template=None)


def conversations(count: int) -> list[Conversation]:
    rows = [[n + 1] * (4 + n % 9) for n in range(count)]
    return [Conversation(row, [False, False, *([True] * (len(row) - 2))]) for row in rows]


def test_batches_are_padded_and_truncated() -> None:
    chats = Chats(conversations(60), pad=0, tokens=40, seed=0, held_out=conversations(5), longest=7)
    seen = list[int]()
    for step in range(chats.epoch_batches):
        batch = chats.batch(step)
        assert batch.tokens.shape[1] <= 7
        assert batch.tokens.numel() <= 40
        assert batch.count == int((batch.targets != IGNORED).sum())
        assert bool((batch.targets[:, 0] == IGNORED).all())
        if batch.padding is not None:
            assert bool((batch.targets[batch.padding] == IGNORED).all())
        seen += [int(row[0]) - 1 for row in batch.tokens]
    assert sorted(seen) == list(range(60))
    assert sum(batch.rows for batch in chats.validation()) == 5
    assert torch.equal(
        chats.batch(100).tokens, Chats(conversations(60), 0, 40, 0, longest=7).batch(100).tokens
    )


def test_answers_beyond_the_context_are_left_out() -> None:
    long = Conversation([1] * 30, [False] * 28 + [True] * 2)
    chats = Chats([*conversations(3), long], pad=0, tokens=40, seed=0, longest=12)
    assert chats.left_out == 1
    with pytest.raises(InputError, match="no answer within 12 tokens"):
        Chats([long], pad=0, tokens=40, seed=0, longest=12)
