"""What a model is asked to be seen doing: texts, ids, a source, a translation; and what cannot be
asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.checkpoints.defaults import Defaults
from sightline.kernels import library as kernels
from sightline.lens.trace.native import BY_TORCH
from sightline.tasks.tracing import as_ids
from sightline.tasks.translate import translate
from sightline.text.tokenizer import Tokenizer
from tests.support.letter_tokenizer import tokenizer
from tests.support.pair_models import WORDS, defaults_of, pair
from tests.support.tiny import ALL, SIZE, make

pytestmark = pytest.mark.usefixtures(
    "as_users_run_it"
)  # the shapes are checked elsewhere; here they would take half of the time
LETTERS = Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy")
FORTY = SIZE | {"vocab_size": 40}


def model_of(name: str, reader: Tokenizer | None = LETTERS) -> sl.Model:
    return sl.Model(
        make(ALL[name]), reader, defaults=Defaults(decoder_start=1, end=(2,)), name=name
    )


def translator(name: str = "bart", **settings: Any) -> sl.Model:
    return sl.Model(pair(name)[1], WORDS, defaults=defaults_of(name, **settings), name=name)


def test_a_text_is_read_as_the_model_reads_it() -> None:
    for reader in (tokenizer(), tokenizer(before=(1,), after=(2,))):
        model = sl.Model(make(sl.gpt(**FORTY)), reader, name="letters")
        result = model.trace("the cat")
        ids = reader.encode("the cat", special=True)
        assert [token.id for token in result.tokens] == ids
        assert (result.text, result.name, result.source) == ("the cat", "letters", None)
        assert [token.start for token in result.tokens if token.start is not None] == list(range(7))
        assert torch.equal(result.logits, model.trace(ids).logits)
        assert model.trace(ids).text == ""


def test_ids_of_any_make() -> None:
    model, ids = model_of("rotary"), [4, 5, 6]
    expected = model.trace(ids).logits
    for made in ((4, 5, 6), np.array(ids), torch.tensor(ids), list(np.array(ids)), range(4, 7)):
        assert torch.equal(model.trace(made).logits, expected)
    assert as_ids(torch.tensor([[1, 2]])) == [[1, 2]]


def test_a_given_translation_is_seen_being_written() -> None:
    model = translator()
    result = model.trace("dog", source="the cat")
    assert [token.id for token in result.tokens] == [2, *WORDS.encode("dog")]
    assert result.source is not None
    assert [token.id for token in result.source] == WORDS.encode("the cat", special=True)
    assert [token.text for token in result.source[:3]] == ["t", "h", "e"]
    assert [token.start for token in result.tokens] == [None, 0, 1, 2]
    assert [token.start for token in result.source] == [*range(7), None]
    assert (result.text, result.source_text) == ("dog", "the cat")
    assert result.cross_weights(0).shape == (4, 4, 8)
    same = model.trace(WORDS.encode("dog"), source=WORDS.encode("the cat", special=True))
    assert torch.equal(result.logits, same.logits)
    assert model.trace("", source="the cat").logits.shape == (1, 40), "the start token alone"


@pytest.mark.parametrize(("name", "beams"), [("bart", 3), ("marian", 1), ("t5", 2)])
def test_one_text_is_translated_first(name: str, beams: int) -> None:
    model = translator(name, num_beams=beams)
    result, expected = model.trace("the cat sat"), model.translate("the cat sat")
    start = defaults_of(name).decoder_start
    assert [token.id for token in result.tokens] == [start, *expected.tokens[:-1]], (
        "as the checkpoint recommends"
    )
    assert result.text == expected.text
    layer = max(0, model.config.decoder.layers - 2)
    torch.testing.assert_close(
        result.cross_weights(layer).mean(0), expected.alignment, atol=1e-5, rtol=0
    )
    again = model.trace(expected.tokens[:-1], source="the cat sat")
    assert torch.equal(result.logits, again.logits)


@pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
def test_the_engine_that_translates_also_translates_before_a_trace(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In int8 the engines may write different translations. The pass that is traced is torch's."""
    model = translator(num_beams=2)
    model.precision = "int8"
    runners = []

    def recorded(runner: Any, *arguments: Any, **options: Any) -> Any:
        runners.append(runner)
        return translate(runner, *arguments, **options)

    monkeypatch.setattr("sightline.model.translate", recorded)
    result = model.trace("the cat sat")
    assert runners == [model.runner]
    expected = model.translate("the cat sat")
    assert [token.id for token in result.tokens] == [2, *expected.tokens[:-1]]
    assert result.notes == (BY_TORCH,)


@pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
def test_what_the_engine_generates_is_traced_by_torch_with_a_note() -> None:
    model = translator()
    model.precision = "int8"
    result = model.generate("the cat sat", max_tokens=4, trace=True)
    assert result.tokens == model.generate("the cat sat", max_tokens=4).tokens
    assert result.trace.notes == (BY_TORCH,)
    read = [token.id for token in result.trace.tokens]
    assert read == [2, *result.tokens[:-1]]


REFUSED: list[tuple[Any, Any, str]] = [
    (
        lambda: model_of("rotary"),
        lambda m: m.trace(""),
        r"an empty text; expected at least one token",
    ),
    (lambda: model_of("rotary"), lambda m: m.trace([]), r"an empty text"),
    (
        lambda: model_of("rotary"),
        lambda m: m.trace("abc" * 20),
        r"a text of 60 tokens for a context of 48; expected at most 48\. Fix: .*\[:48\]",
    ),
    (
        lambda: model_of("learned"),
        lambda m: m.trace("abc" * 20),
        r"a text of 60 tokens for a context of 48",
    ),
    (
        lambda: model_of("bert"),
        lambda m: m.trace("abc" * 20),
        r"a text of 60 tokens for a context of 48",
    ),
    (
        lambda: model_of("rotary"),
        lambda m: m.trace("abc", source="b"),
        r"a source for a model with one stack; expected an encoder–decoder",
    ),
    (
        lambda: model_of("rotary"),
        lambda m: m.trace([3, 29]),
        r"the text holds 29; expected token ids below 29",
    ),
    (lambda: model_of("rotary"), lambda m: m.trace([3, -1]), r"the text holds -1"),
    (lambda: model_of("rotary"), lambda m: m.trace([3, 2.5]), r"the text holds 2\.5"),
    (lambda: model_of("rotary"), lambda m: m.trace([True]), r"the text holds True"),
    (lambda: model_of("rotary"), lambda m: m.trace(["a"]), r"the text holds 'a'"),
    (lambda: model_of("rotary"), lambda m: m.trace([[3, 4]]), r"the text holds \[3, 4\]"),
    (
        lambda: model_of("rotary"),
        lambda m: m.trace(torch.tensor([[3, 4]])),
        r"the text holds \[3, 4\]",
    ),
    (
        lambda: model_of("rotary"),
        lambda m: m.trace(5),
        r"the text is 5; expected a text, or a list of token ids",
    ),
    (lambda: model_of("rotary"), lambda m: m.trace(None), r"the text is None"),
    (
        lambda: model_of("rotary", None),
        lambda m: m.trace("abc"),
        r"a text for a model without tokenizer; expected token ids",
    ),
    (
        lambda: model_of("t5", None),
        lambda m: m.trace("abc", source=[3]),
        r"a text for a model without tokenizer",
    ),
    (
        lambda: model_of("t5"),
        lambda m: m.trace([3, 4]),
        r"token ids for an encoder–decoder, without their source.*trace\(target, source=source\)",
    ),
    (lambda: model_of("t5"), lambda m: m.trace([3, 4], source=[]), r"an empty source"),
    (
        lambda: model_of("transformer"),
        lambda m: m.trace([3], source="abc" * 20),
        r"a source of 60 tokens for a context of 48",
    ),
    (
        lambda: model_of("transformer"),
        lambda m: m.trace("a" * 48, source="abc"),
        r"a text of 49 tokens for a context of 48",
    ),
    (lambda: model_of("t5"), lambda m: m.trace([3], source=[99]), r"the source holds 99"),
    (
        lambda: sl.Model(make(ALL["t5"])),
        lambda m: m.trace([3], source=[3]),
        r"without a start token",
    ),
]


@pytest.mark.parametrize(("made", "ask", "words"), REFUSED)
def test_what_cannot_be_asked_is_refused_in_one_line(made: Any, ask: Any, words: str) -> None:
    with pytest.raises(sl.InputError, match=words) as refusal:
        ask(made())
    assert "\n" not in str(refusal.value)


def test_a_text_as_long_as_the_context_fits() -> None:
    assert model_of("learned").trace("ab" * 24).weights(0).shape == (4, 48, 48)


def test_a_model_without_tokenizer_shows_its_ids() -> None:
    result = model_of("transformer", None).trace([4, 5], source=[6, 7, 8])
    assert [token.text for token in result.tokens] == ["<1>", "<4>", "<5>"]
    assert result.source is not None
    assert [token.text for token in result.source] == ["<6>", "<7>", "<8>"]
