"""Text that must have a form: a model that wants something else writes it nevertheless, and wants
are otherwise respected."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models
from torch import Tensor

import sightline as sl
from sightline.errors import InputError
from sightline.generation import constrained
from sightline.generation.beam import search
from sightline.generation.constrained import (
    Bound,
    Constraint,
    bind,
    choice,
    grammar,
    json_object,
    json_schema,
    regex,
)
from sightline.generation.decode import Request, decode
from sightline.generation.sampling import Sampling, choose
from sightline.text.engines.rust import RustEngine
from sightline.text.tokenizer import Tokenizer
from tests.support.stream_tokenizers import tokenizer
from tests.support.tiny import make

PROMPT = [1, 3, 2]
PADDING = 20  # ids that the model has and the tokenizer has not


@cache
def model(vocab_size: int, seed: int = 0) -> sl.Transformer:
    """An untrained model with pronounced opinions about everything."""
    made = make(
        sl.llama(width=16, layers=1, heads=2, vocab_size=vocab_size, max_positions=256, tied=False),
        seed,
    )
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(2.0)
    return made


@cache
def opinions(vocab_size: int) -> Tensor:
    """Logits after each token: what that model says when a text of one token is all it sees, which
    takes no time."""
    with torch.no_grad():
        return model(vocab_size)(torch.arange(vocab_size)[:, None])[:, 0]


def bound(constraint: Constraint, kind: str, end: tuple[int, ...]) -> Bound:
    made = tokenizer(kind)
    return bind(
        constraint, made, prompt_length=len(PROMPT), end=end, vocab_size=made.vocab_size + PADDING
    )


def end_of(made: Tokenizer) -> tuple[int, ...]:
    """Two end tokens: a control token, and an id that the tokenizer does not know."""
    return (min(made.special_ids), made.vocab_size + 1)


def generated(
    constraint: Constraint, kind: str, seed: int, *, most: int = 900, with_end: bool = True
) -> str:
    """A finished text."""
    made = tokenizer(kind)
    end = end_of(made) if with_end else ()
    change, history = bound(constraint, kind, end), list(PROMPT)
    for step in range(most):
        logits = opinions(made.vocab_size + PADDING)[history[-1]]
        token = choose(
            logits,
            history,
            Sampling(temperature=1.0, seed=seed),
            step,
            prompt_length=3,
            extra=(change,),
        ).token
        if token in end:
            break
        history.append(token)
        if change.finished(history) and not end:
            break
    else:
        pytest.fail("the text has no end")
    return made.decode(history[len(PROMPT) :])


# ── the text has its form ──

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"enum": ["cat", "dog"]}, "minItems": 1, "maxItems": 3},
        "born": {
            "type": "object",
            "properties": {"in": {"type": ["boolean", "null"]}},
            "required": ["in"],
            "additionalProperties": False,
        },
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def is_person(value: Any) -> bool:
    """`PERSON`, written once more by hand."""
    return (
        isinstance(value, dict)
        and {"name", "age", "tags"} <= set(value) <= {"name", "age", "tags", "born"}
        and isinstance(value["name"], str)
        and len(value["name"]) <= 6
        and isinstance(value["age"], int)
        and not isinstance(value["age"], bool)
        and 0 <= value["age"] <= 120
        and 1 <= len(value["tags"]) <= 3
        and set(value["tags"]) <= {"cat", "dog"}
        and (
            "born" not in value
            or (set(value["born"]) == {"in"} and value["born"]["in"] in (True, False, None))
        )
    )


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "sentencepiece json", "marian"])
def test_json_of_a_schema(kind: str) -> None:
    texts = {generated(json_schema(PERSON), kind, seed) for seed in range(5)}
    assert len(texts) > 1
    for text in texts:
        assert is_person(json.loads(text)), text


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "sentencepiece json"])
@pytest.mark.parametrize(
    "pattern",
    [
        r"(yes|no)!{0,3}",
        r"\d{3}-[a-f]{2,5}",
        "(?i)caf[é猫]",
        r"[^a-z\n]{1,4}x",
        " two  spaces|the",
        r"/\\\[\.]",
    ],
)
def test_a_regular_expression(pattern: str, kind: str) -> None:
    for seed in range(6):
        text = generated(regex(pattern), kind, seed)
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize(
    ("kind", "choices"),
    [
        ("bytes", ["yes", "yes, please", "no", "日本", "a/b\n", "(.*)", "\x00"]),
        ("sentencepiece", ["yes", "yes, please", "no", "日本", " space", "the"]),
        ("sentencepiece json", ["yes", "yes, please", "no", "日本", " space", "the"]),
        ("marian", ["yes", "the cat", "日本"]),
        ("metaspace", ["the cat", "hello", "it"]),
        ("wordpiece", ["the cat", "the mat", "sat on"]),
        ("no decoder", ["cat on", "cat mat", "sat on"]),
        ("characters", ["the cab", "abc", "日é\n"]),
    ],
)
def test_one_of_the_choices(kind: str, choices: list[str]) -> None:
    result = {generated(choice(choices), kind, seed) for seed in range(40)}
    assert result <= set(choices)
    assert len(result) > 1


def test_a_context_free_grammar() -> None:
    """Brackets that close as deep as they opened: no regular expression can say that."""
    texts = {
        generated(grammar('start: item\nitem: "(" item ")" | "-"'), "bytes", seed)
        for seed in range(12)
    }
    assert len(texts) > 1
    for text in texts:
        depth = text.index("-")
        assert text == "(" * depth + "-" + ")" * depth


def test_a_grammar_may_name_control_tokens() -> None:
    made = tokenizer("bytes")
    change = bind(
        grammar('start: "a" <|end|> "b"'), made, prompt_length=0, end=(), vocab_size=made.vocab_size
    )
    ids = [*made.encode("a"), *made.special_ids, *made.encode("b")]
    assert [change.finished(ids[:n]) for n in range(4)] == [False, False, False, True]
    assert allowed(change, ids[:1], made.vocab_size) == made.special_ids


def allowed(change: Bound, tokens: Sequence[int], vocab_size: int) -> set[int]:
    return set(torch.nonzero(change(torch.zeros(vocab_size), tokens) == 0).flatten().tolist())


# ── and otherwise what the model wants ──


LETTERS = {"a": 0, "b": 1, "c": 2, "ab": 3, "bc": 4, "abc": 5, "aa": 6, "x": 7, "Ġa": 8, "Ġ": 9}
FINITE = ["a{1,3}(b|bc)?", "(ab|a)(bc|c)", "(a a|ab ?c)b?c?", "abc|aab|c", "[ab]{2,3}"]


def bytes_of_letters() -> Tokenizer:
    """Ten tokens over four characters: most texts can be written in several ways."""
    made = tokenizers.Tokenizer(models.BPE(vocab=LETTERS, merges=[]))
    made.decoder = decoders.ByteLevel()
    return Tokenizer(RustEngine(Path("test"), made))


def pieces_of_letters() -> Tokenizer:
    """The same as Llama 2 has it: the space that opens a text is not written."""
    made = tokenizers.Tokenizer(
        models.BPE(vocab={piece.replace("Ġ", "▁"): id for piece, id in LETTERS.items()}, merges=[])
    )
    made.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return Tokenizer(RustEngine(Path("test"), made))


def language(pattern: str) -> set[str]:
    """Every text of a pattern, found by trying all up to seven characters."""
    known = re.compile(pattern)
    texts = (
        "".join(text) for length in range(8) for text in itertools.product("abc ", repeat=length)
    )
    return {text for text in texts if known.fullmatch(text)}


@pytest.mark.parametrize("make_tokenizer", [bytes_of_letters, pieces_of_letters])
@pytest.mark.parametrize("pattern", FINITE)
def test_exactly_the_tokens_after_which_the_form_can_still_be_reached(
    pattern: str, make_tokenizer: Callable[[], Tokenizer]
) -> None:
    """For every beginning there is, against all texts of the language; and p′ = p over these,
    divided by their sum."""
    made, texts = make_tokenizer(), language(pattern)
    end, size = len(LETTERS), len(LETTERS) + 3
    change = bind(regex(pattern), made, prompt_length=2, end=(end,), vocab_size=size)
    logits = torch.randn(size, generator=torch.Generator().manual_seed(1))
    beginnings: list[tuple[int, ...]] = [()]
    for new in beginnings:
        text = made.decode(new)
        right = {
            token
            for token in LETTERS.values()
            if any(whole.startswith(made.decode([*new, token])) for whole in texts)
        }
        right |= {end} if text in texts else set()
        result = change(logits, [5, 5, *new]).softmax(0)
        wanted = torch.tensor(
            [float(logits[token].exp()) if token in right else 0.0 for token in range(size)]
        )
        torch.testing.assert_close(
            result, wanted / wanted.sum(), msg=lambda text, new=new: f"{new}: {text}"
        )
        assert change.finished([5, 5, *new]) == (right == {end})
        beginnings += [(*new, token) for token in sorted(right - {end})]
    assert len(beginnings) > 10


def test_in_any_order_the_same() -> None:
    made = tokenizer("sentencepiece")
    size, end = made.vocab_size + PADDING, end_of(tokenizer("sentencepiece"))
    whole = [
        PROMPT + made.encode(text)
        for text in ('{"age": 12, "name": "a"}', '{"name": "日", "age": 1}', '{ "b')
    ]
    broken = [
        [*PROMPT, *made.encode("yes")],
        [*PROMPT, size - 1, 5],
        [*PROMPT, *made.encode("{}"), end[0], 7],
    ]
    histories = [
        history[:n] for history in whole for n in range(len(PROMPT), len(history) + 1)
    ] + broken
    logits = torch.randn(size)
    alone = [bound(json_object(), "sentencepiece", end)(logits, history) for history in histories]
    shared = bound(json_object(), "sentencepiece", end)
    for seed in range(3):
        order = random.Random(seed).sample(range(len(histories)), len(histories))
        for place in order:
            assert torch.equal(shared(logits, histories[place]), alone[place]), histories[place]


def test_what_breaks_the_form_makes_everything_impossible_and_nothing_after_it() -> None:
    made = tokenizer("bytes")
    size = made.vocab_size + PADDING
    change = bound(regex("the cat"), "bytes", ())
    before = allowed(change, [*PROMPT, *made.encode("the")], size)
    for broken in (made.encode("mat"), [size - 1], [10**9], [-1]):
        assert allowed(change, [*PROMPT, *made.encode("the"), *broken], size) == set()
    assert allowed(change, [*PROMPT, *made.encode("the")], size) == before != set()


@pytest.mark.parametrize("seed", range(6))
def test_a_text_that_has_the_form_anyway_stays(seed: int) -> None:
    """Greedy, as the model would write it alone; with a form that other texts have too."""
    made = Tokenizer.from_characters("abc the日é\n", special=("<s>",))
    transformer = model(made.vocab_size, seed)
    request: dict[str, Any] = {"prompt": PROMPT, "max_tokens": 25, "end": (0,)}
    free = [event.token for event in decode(transformer, Request(**request))]
    text = made.decode(free)
    for constraint in (
        (regex(f"(?s:.{{0,{len(text)}}}|x)"), choice([*{text, "the cat", text[:1] + "z"} - {""}]))
        if text
        else ()
    ):
        change = bind(
            constraint, made, prompt_length=len(PROMPT), end=(0,), vocab_size=made.vocab_size
        )
        held = [event.token for event in decode(transformer, Request(**request, changes=(change,)))]
        assert held == free


# ── beams, and models without an end ──


def test_beams_find_the_best_text_of_the_form() -> None:
    """Against log p of every text there is, one token per character."""
    made = Tokenizer.from_characters("abcdef", special=("<s>",))
    transformer, prompt = model(made.vocab_size, 2), torch.tensor([PROMPT])
    texts = language("[abc]{1,2}(ca|b{2,3})")
    change = bind(
        choice(sorted(texts)), made, prompt_length=len(PROMPT), end=(0,), vocab_size=made.vocab_size
    )
    (result,) = search(
        transformer,
        prompt,
        beams=64,
        max_tokens=7,
        end=(0,),
        count=10,
        early_stopping="never",
        changes=(change,),
    )

    def score(text: str) -> float:
        ids = [*made.encode(text), 0]
        with torch.no_grad():
            logs = transformer(torch.tensor([[*PROMPT, *ids]]))[0].log_softmax(-1)[
                len(PROMPT) - 1 : -1
            ]
        return float(sum(row[id] for row, id in zip(logs, ids, strict=True))) / len(ids)

    best = sorted(texts, key=score, reverse=True)[:10]
    assert [made.decode(hypothesis.tokens) for hypothesis in result] == best
    assert [hypothesis.score for hypothesis in result] == pytest.approx(
        [score(text) for text in best], abs=1e-4
    )


@pytest.mark.parametrize("seed", range(4))
def test_without_end_token_a_text_is_finished_when_nothing_can_follow(seed: int) -> None:
    assert is_person(json.loads(generated(json_schema(PERSON), "bytes", seed, with_end=False)))


@pytest.mark.parametrize("seed", range(3))
def test_decoding_as_users_do(seed: int) -> None:
    made = tokenizer("bytes")
    end, sampling = end_of(made), Sampling(temperature=1.0, seed=seed)
    request = Request(
        prompt=PROMPT,
        max_tokens=40,
        end=end,
        sampling=sampling,
        changes=(bound(regex(r"\d{1,9} (猫|é)!"), "bytes", end),),
    )
    events = list(decode(model(made.vocab_size + PADDING), request))
    assert events[-1].finish == "stop"
    assert re.fullmatch(r"\d{1,9} (猫|é)!", made.decode([event.token for event in events]))


def test_masks_are_counted_and_timed() -> None:
    change = bound(regex("a+"), "bytes", ())
    ids = tokenizer("bytes").encode("aaa")
    made = change.masks
    for n in (0, 1, 2, 3, 3, 3):
        change(torch.zeros(tokenizer("bytes").vocab_size + PADDING), [*PROMPT, *ids[:n]])
    assert change.masks - made == len(
        ids
    )  # the beginning was looked at when it was bound, and the same tokens need no second mask
    assert 0 < change.slowest <= change.seconds < 1


# ── mistakes and malice ──


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (lambda: json_schema("{"), "the JSON schema is not JSON"),
        (lambda: json_schema("[1]"), "the JSON schema is [1]; expected a JSON object"),
        (lambda: json_schema({"type": {1, 2}}), "the JSON schema is not JSON"),
        (lambda: json_schema({"type": "objct"}), "Invalid type: objct"),
        (
            lambda: json_schema({"uniqueItems": True, "type": "array"}),
            'Unimplemented keys: ["uniqueItems"]',
        ),
        (lambda: json_schema({"type": "string", "pattern": "("}), "unclosed group"),
        (lambda: json_schema({"$ref": "#/nowhere"}), "Pointer '/nowhere' does not exist"),
        (lambda: json_schema({"$ref": "#"}), "no text satisfies it"),
        (lambda: json_schema({"x-guidance": 3}), "x-guidance is 3"),
        (lambda: regex("(a"), "unclosed group"),
        (lambda: regex("a\\"), "ends in a single backslash"),
        (lambda: regex(r"(?=a)b"), "look-around"),
        (lambda: regex(r"(a)\1"), "backreferences are not supported"),
        (lambda: regex("\ud800"), "the pattern is"),
        (lambda: regex("a" * 100_001), "a regex of 100,001 characters"),
        (lambda: grammar("start: other\nother: nothing"), 'line 2: unknown name: "nothing"'),
        (lambda: grammar("start: <|none|>"), "unknown special token"),
        (lambda: grammar('begin: "a"'), "no start rule found"),
        (lambda: choice([]), "the choices are []"),
        (lambda: choice("yes"), "the choices are 'yes'"),
        (lambda: choice(["a", "\ud800"]), "the choice is"),
        (lambda: json_schema({"enum": ["\ud800"]}), "this JSON schema cannot be used"),
        (lambda: choice(["a", ""]), "the choices are ['a', '']"),
    ],
)
def test_mistakes_are_one_line(constraint: Callable[[], Constraint], message: str) -> None:
    with pytest.raises(InputError) as refusal:
        bound(constraint(), "bytes", ())
    assert message in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_what_the_vocabulary_cannot_write_is_refused_when_bound() -> None:
    with pytest.raises(
        InputError, match="no token of this model can start a text of this JSON schema"
    ):
        bound(json_object(), "characters", ())
    with pytest.raises(InputError, match=r"the end tokens are \(900,\)"):
        bound(regex("a"), "bytes", (900,))
    with pytest.raises(InputError, match=r"3 logits; expected 320"):
        bound(regex("a"), "bytes", ())(torch.zeros(3), PROMPT)


def rules(count: int) -> str:
    return "start: r0\n" + "".join(f"r{n}: r{n + 1}\n" for n in range(count)) + f'r{count}: "a"'


HOSTILE: dict[str, Callable[[], Constraint]] = {
    "deep JSON": lambda: json_schema('{"a":' * 10_000),
    "deep schema": lambda: json_schema('{"items":' * 300 + "{}" + "}" * 300),
    "rules that overflow the stack": lambda: grammar(rules(5000)),
    "patterns that must hold together": lambda: grammar(
        "start: A\nA: " + " & ".join(f"/(.*a){{{n}}}.*/" for n in range(60))
    ),
    "words that double": lambda: grammar(
        "start: R0\n" + "".join(f"R{n}: R{n + 1} R{n + 1}\n" for n in range(60)) + 'R60: "a"'
    ),
    "nested groups": lambda: regex("(" * 5000 + "a" + ")" * 5000),
    "all of any of": lambda: json_schema(
        {
            "allOf": [
                {"anyOf": [{"type": "string", "minLength": n * m} for n in range(1, 12)]}
                for m in range(1, 12)
            ]
        }
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_grammar_costs_seconds_and_an_error(name: str) -> None:
    started = time.monotonic()
    with pytest.raises(InputError) as refusal:
        bound(HOSTILE[name](), "bytes", ())
    assert time.monotonic() - started < 20
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 300
    assert allowed(bound(regex("x"), "bytes", ()), PROMPT, 320)  # the next one is served as ever


def test_following_a_hostile_grammar_has_an_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """So ambiguous that each step has more ways to go on than the last."""
    monkeypatch.setattr(constrained, "MOST_SECONDS", 0.3)
    change = bound(grammar('start: s\ns: s s | "a" | s s s |'), "bytes", ())
    letter = tokenizer("bytes").encode("a")

    def follow() -> None:
        for n in range(10_000):
            change.finished([*PROMPT, *letter * n])

    with pytest.raises(InputError, match="this grammar cannot be used"):
        follow()
    assert change.seconds < 3


def test_a_dead_end_is_impossible_and_forgotten() -> None:
    """A vocabulary without z: after b nothing is possible, and a still is."""
    made = Tokenizer.from_characters("abc", special=("<s>",))
    change = bind(regex("abc|bz"), made, prompt_length=0, end=(0,), vocab_size=made.vocab_size)
    for _ in range(2):
        assert allowed(change, made.encode("b"), made.vocab_size) == set()
        assert not change.finished(made.encode("b"))
        assert allowed(change, made.encode("a"), made.vocab_size) == set(made.encode("b"))


def test_white_space_in_json_is_bounded_and_ones_own() -> None:
    made = tokenizer("bytes")
    size, loose, tight = (
        made.vocab_size + PADDING,
        {"type": "object"},
        {"type": "object", "x-guidance": {"whitespace_flexible": False}},
    )
    space = made.encode(" ")[0]
    for schema, most in ((loose, 32), (tight, 0)):
        change = bound(json_schema(schema), "bytes", ())
        spaces = [
            space in allowed(change, [*PROMPT, *made.encode("{"), *[space] * n], size)
            for n in range(most + 1)
        ]
        assert spaces == [True] * most + [False]


def test_a_constraint_is_a_value() -> None:
    assert json_schema({"type": "object"}) == json_schema('{"type": "object"}') == json_object()
    assert len({regex("a"), regex("a"), regex("b"), choice(["a"])}) == 3
    assert choice(["a", "b", "a"]) == choice(["a", "b"])
