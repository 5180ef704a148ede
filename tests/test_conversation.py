"""A chat that goes on: what is reused changes no token, what is cut does no harm, and a saved
conversation comes back."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from pathlib import Path

import pytest
from torch import nn

import sightline as sl
from sightline.checkpoints.defaults import Defaults
from sightline.conversation import Conversation, Exchange, recommended_options
from sightline.core.cache.kv_cache import Cache, Store
from sightline.engine.matrices import Precision
from sightline.generation.decode import Request, decode
from sightline.generation.sampling import Sampling
from sightline.kernels import library as kernels
from sightline.text.chat import chat_ids
from sightline.text.tokenizer import Tokenizer
from tests.support.chat_folder import TEMPLATE, TEXT, make_folder

WARM = {"temperature": 1.5, "seed": 5, "max_tokens": 8}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> sl.Model:
    return sl.load(make_folder(tmp_path_factory.mktemp("chat")), engine="torch")


def output(conversation: Conversation, text: str) -> list[int]:
    """The tokens of the whole answer."""
    return [piece.event.token for piece in conversation.say(text)]


def fresh(conversation: Conversation, text: str) -> list[int]:
    """The tokens of an answer to the same messages by nothing but the decoder, without any cache of
    before."""
    model, options = conversation.model, dict(conversation.options)
    ids = chat_ids(model.tokenizer, [*conversation.messages, {"role": "user", "content": text}])
    request = Request(
        prompt=ids,
        max_tokens=min(options.pop("max_tokens"), conversation.context - len(ids)),
        sampling=Sampling(**options),
        end=tuple({model.tokenizer.id_of("<|im_end|>"), model.tokenizer.eos} - {None}),
    )
    return [event.token for event in decode(model.runner, request)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 8},
        WARM,
        WARM | {"repetition_penalty": 1.4, "top_p": 0.9},
        WARM | {"seed": 11, "top_k": 9},
    ],
)
def test_with_reuse_is_without(options: dict[str, object], model: sl.Model) -> None:
    conversation = Conversation(model, system="the dog", **options)
    for turn, text in enumerate(["the cat", "on the mat 猫", "🙂 <|im_end|> and the log", "the"]):
        expected = fresh(conversation, text)
        assert output(conversation, text) == expected
        assert (conversation.figures.reused_tokens > 0) == (turn > 0)
        assert conversation.exchanges[-1].answer == model.tokenizer.decode(expected)
    roles = [message["role"] for message in conversation.messages]
    assert roles == ["system", *["user", "assistant"] * 4]


@pytest.mark.parametrize("options", [{"max_tokens": 8}, WARM])
def test_only_what_is_new_is_computed(options: dict[str, object], model: sl.Model) -> None:
    computed: list[int] = []
    handle = model.transformer.decoder.embedding.register_forward_hook(
        lambda part, given, made: computed.append(made.shape[1])
    )
    conversation, before = Conversation(model, system="the mat", **options), list[int]()
    try:
        for text in ["the cat", "on the mat", "and the dog"]:
            ids = chat_ids(
                model.tokenizer, [*conversation.messages, {"role": "user", "content": text}]
            )
            common = next(
                (n for n, (a, b) in enumerate(zip(before, ids, strict=False)) if a != b),
                len(before),
            )
            computed.clear()
            answer = output(conversation, text)
            figures = conversation.figures
            assert (figures.prompt_tokens, figures.reused_tokens, figures.new_tokens) == (
                len(ids),
                common,
                len(answer),
            )
            assert sum(computed) == len(ids) - common + len(answer) - 1
            before = [*ids, *answer[:-1]]
    finally:
        handle.remove()
    assert figures.reused_tokens > 20
    assert figures.tokens_per_second > 0
    assert figures.fullness == (figures.prompt_tokens + figures.new_tokens) / 256
    assert figures.cache_bytes == 2 * 2 * 32 * 4 * (figures.prompt_tokens + figures.new_tokens - 1)


def stop_early(conversation: Conversation, text: str) -> None:
    list(islice(conversation.say(text), 5))


def close(conversation: Conversation, text: str) -> None:
    pieces = conversation.say(text)
    next(pieces), next(pieces)
    pieces.close()


def interrupt_layer(conversation: Conversation, text: str) -> None:
    """Ctrl-C in the second layer of the sixth pass: the first layer's cache has a token that the
    second has not."""
    passes: list[None] = []

    def press(*_: object) -> None:
        passes.append(None)
        if len(passes) == 6:
            raise KeyboardInterrupt

    last = [
        part
        for part in conversation.model.transformer.decoder.modules()
        if isinstance(part, nn.Linear)
    ][-1]
    handle = last.register_forward_hook(press)
    with pytest.raises(KeyboardInterrupt):
        output(conversation, text)
    handle.remove()


def interrupt_cutting(conversation: Conversation, text: str) -> None:
    """Ctrl-C after one of two layers was cut back, further than the next prompt will need: another
    system message begins otherwise."""
    kind, calls = type(Cache.growing(conversation.model.config).stores[0]), list[None]()
    whole = kind.truncate

    def press(store: Store, length: int) -> None:
        calls.append(None)
        if len(calls) == 2:
            raise KeyboardInterrupt
        whole(store, length)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kind, "truncate", press)
        conversation.system = "the log"
        with pytest.raises(KeyboardInterrupt):
            output(conversation, text)
    conversation.system = None


@pytest.mark.parametrize("cut", [stop_early, close, interrupt_layer, interrupt_cutting])
def test_a_cut_answer_does_no_harm(
    cut: Callable[[Conversation, str], None], model: sl.Model
) -> None:
    conversation = Conversation(model, **WARM)
    output(conversation, "the cat")
    cut(conversation, "the dog and the log")
    if cut is interrupt_cutting:
        assert len(conversation.exchanges) == 1
    for text in ["on the mat", "sat"]:
        expected = fresh(conversation, text)
        assert output(conversation, text) == expected


def test_what_was_shown_is_kept(model: sl.Model) -> None:
    conversation = Conversation(model, **WARM)
    shown = "".join(piece.text for piece in islice(conversation.say("the cat"), 5))
    conversation.undo()
    first = "".join(piece.text for piece in islice(conversation.say("the cat"), 5))
    output(conversation, "the dog")
    assert first == shown
    assert conversation.exchanges[0] == Exchange("the cat", shown, "cut")
    assert conversation.exchanges[1].ended == "length"


def test_an_answer_that_never_began_is_no_answer(model: sl.Model) -> None:
    conversation = Conversation(model, **WARM)
    conversation.say("the cat")
    conversation.say("the dog").close()
    assert conversation.messages == []


def test_the_templates_end_ends_an_answer(model: sl.Model) -> None:
    """The second token of the answer and <|im_end|>, which this template writes after answers only,
    change places."""
    template = TEMPLATE.replace(
        "<|im_end|>\n", "{% if message.role == 'assistant' %}<|im_end|>{% endif %}\n"
    )
    tokenizer = Tokenizer(model.tokenizer.engine, chat_template=template)
    end, answer = (
        tokenizer.id_of("<|im_end|>"),
        output(Conversation(sl.Model(model.transformer, tokenizer), max_tokens=6), "the cat"),
    )
    assert answer[0] != answer[1]
    swapped = deepcopy(model.transformer)
    rows = swapped.decoder.embedding.tokens.weight.data
    rows[[end, answer[1]]] = rows[[answer[1], end]]
    conversation = Conversation(sl.Model(swapped, tokenizer), max_tokens=6)
    assert conversation.model.defaults.end == ()
    assert output(conversation, "the cat") == [answer[0], end]
    assert conversation.exchanges == [Exchange("the cat", tokenizer.decode(answer[:1]), "stop")]


def test_undo_reset_and_another_system_message(model: sl.Model) -> None:
    conversation = Conversation(model, **WARM)
    first, second = output(conversation, "the cat"), output(conversation, "the dog")
    assert conversation.undo() == "the dog"
    assert output(conversation, "the dog") == second
    conversation.system = "the mat"
    expected = fresh(conversation, "the log")
    assert output(conversation, "the log") == expected
    conversation.reset()
    assert conversation.messages == [{"role": "system", "content": "the mat"}]
    conversation.system = None
    assert output(conversation, "the cat") == first
    conversation.undo()
    with pytest.raises(sl.InputError, match="nothing to undo"):
        conversation.undo()


@pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_the_native_engine_reuses_as_well(precision: Precision, model: sl.Model) -> None:
    native = sl.Model(
        model.transformer, model.tokenizer, defaults=model.defaults, precision=precision
    )
    conversation = Conversation(native, system="the dog", **WARM)
    for text in ("the cat sat", "on the mat", "and the log"):
        wanted = fresh(conversation, text)
        assert output(conversation, text) == wanted
        conversation.undo()
        assert output(conversation, text) == wanted


def test_a_full_context_leaves_out_the_oldest(model: sl.Model) -> None:
    conversation = Conversation(model, system="the system stays", **WARM | {"max_tokens": 7})
    left_out: list[int] = []
    for turn in range(9):
        text = f"the cat {turn} sat on the mat and the dog sat on the log" * 2
        tokens = output(conversation, text)
        figures = conversation.figures
        left_out.append(figures.left_out)
        seen = Conversation(model, system="the system stays", **conversation.options)
        seen.exchanges = conversation.exchanges[figures.left_out : -1]
        assert tokens == fresh(seen, text)
        assert figures.prompt_tokens + 7 <= 256
        if figures.left_out:
            seen.exchanges = conversation.exchanges[figures.left_out - 1 : -1]
            longer = chat_ids(model.tokenizer, [*seen.messages, {"role": "user", "content": text}])
            assert len(longer) + 7 > 256
    assert left_out == sorted(left_out)
    assert (left_out[0], left_out[-1] > 3) == (0, True)
    assert len(conversation.messages) == 19


def test_a_message_that_is_too_long_is_refused_with_both_numbers(model: sl.Model) -> None:
    conversation = Conversation(model, **WARM)
    output(conversation, "the cat")
    ids = chat_ids(model.tokenizer, [{"role": "user", "content": TEXT}])
    with pytest.raises(
        sl.InputError,
        match=f"a prompt of {len(ids):,} tokens for a context of 256; expected at most 255",
    ):
        conversation.say(TEXT)
    assert len(conversation.exchanges) == 1
    expected = fresh(conversation, "the dog")
    assert output(conversation, "the dog") == expected


def test_saved_is_read(model: sl.Model, tmp_path: Path) -> None:
    conversation = Conversation(model, system="the mat", stop=["dog log"], **WARM)
    output(conversation, "the cat 猫")
    list(islice(conversation.say("the dog"), 4))
    path = conversation.save(tmp_path / "talk.json")
    plain = json.loads(path.read_text(encoding="utf-8"))
    assert plain["messages"][0] == {"role": "system", "content": "the mat"}
    assert plain["messages"][4]["ended"] == "cut"
    assert plain["options"] == {"stop": ["dog log"], **WARM}
    assert "猫" in path.read_text(encoding="utf-8")
    for again in (Conversation.read(path), Conversation.read(path, model=model)):
        assert again.messages == conversation.messages
        assert again.exchanges == conversation.exchanges
        assert output(again, "the log") == output(conversation, "the log")
        conversation.undo()
    assert [file.name for file in tmp_path.iterdir()] == ["talk.json"]


def test_a_file_is_not_overwritten_unasked(model: sl.Model, tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text("mine")
    conversation = Conversation(model)
    with pytest.raises(sl.InputError, match=r" exists; expected a new name"):
        conversation.save(tmp_path / "talk.json")
    assert (tmp_path / "talk.json").read_text() == "mine"
    conversation.save(tmp_path / "talk.json", overwrite=True)
    assert Conversation.read(tmp_path / "talk.json", model=model).messages == []
    with pytest.raises(sl.InputError, match="cannot be written: No such file"):
        conversation.save(tmp_path / "none" / "talk.json")


USER, ASSISTANT = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"model": "x", "options": {}, "messages": {}},
        {"model": "x", "options": [], "messages": []},
        {"model": "x", "options": {}, "messages": [USER]},
        {"model": "x", "options": {}, "messages": [ASSISTANT, USER]},
        {"model": "x", "options": {}, "messages": [USER, {**ASSISTANT, "content": 3}]},
        {"model": "x", "options": {}, "messages": [USER, {**ASSISTANT, "ended": []}]},
        {"model": "x", "options": {}, "messages": [USER, {**ASSISTANT, "more": 1}]},
        {"model": "x", "options": {"temperatur": 1}, "messages": [USER, ASSISTANT]},
        {"model": "x", "options": {"temperature": "hot"}, "messages": [USER, ASSISTANT]},
        {"model": "x", "options": {"system": "y"}, "messages": [USER, ASSISTANT]},
    ],
)
def test_files_that_are_no_conversation(data: object, model: sl.Model, tmp_path: Path) -> None:
    (tmp_path / "talk.json").write_text(json.dumps(data))
    with pytest.raises(sl.SightlineError) as refusal:
        Conversation.read(tmp_path / "talk.json", model=model)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -1.0},
        {"max_tokens": 0},
        {"top_p": 3},
        {"temprature": 1},
        {"stop": "x"},
        {"beams": 2},
    ],
)
def test_options_are_checked_at_once(options: dict[str, object], model: sl.Model) -> None:
    with pytest.raises(sl.InputError):
        Conversation(model, **options)
    conversation = Conversation(model, **WARM)
    with pytest.raises(sl.InputError):
        conversation.set(**options)
    assert conversation.options == WARM
    conversation.set(temperature=None, top_k=3)
    assert conversation.options == {"seed": 5, "max_tokens": 8, "top_k": 3}


def test_models_that_cannot_chat(model: sl.Model) -> None:
    with pytest.raises(sl.InputError, match="no tokenizer"):
        Conversation(sl.Model(model.transformer))
    with pytest.raises(
        sl.InputError, match=r"no chat template; expected a model for chats\. Fix: use generate"
    ):
        Conversation(sl.Model(model.transformer, Tokenizer.from_characters("abc")))
    with pytest.raises(sl.InputError, match="does not continue a text"):
        Conversation(
            sl.Model(
                sl.build(sl.bert(width=24, layers=1, heads=2, vocab_size=320)), model.tokenizer
            )
        )
    with pytest.raises(sl.InputError, match="an empty message"):
        Conversation(model).say("  \n")


def test_what_the_makers_recommend() -> None:
    assert recommended_options(Defaults()) == {"temperature": 0.7, "repetition_penalty": None}
    output = Defaults(sample=True, top_k=0, top_p=0.8, repetition_penalty=1.1)
    assert recommended_options(output) == {
        "temperature": 1.0,
        "top_k": None,
        "top_p": 0.8,
        "repetition_penalty": 1.1,
    }
    assert (
        recommended_options(Defaults(sample=True, temperature=0.0, top_k=20))["temperature"] == 0.0
    )
