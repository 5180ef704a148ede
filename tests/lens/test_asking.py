"""Texts, ids and traces become the ids that a model reads."""

from __future__ import annotations

import pytest

import sightline as sl
from sightline.lens.trace.prompt import ids_for, prompt_of, trace_attention
from sightline.lens.trace.trace import trace_of
from sightline.text.tokenizer import Tokenizer
from tests.lens.asked import Tiny, ids_of, source_of, tiny


def test_a_text_is_encoded_and_ids_stay() -> None:
    subject = Tiny(tiny("rotary").transformer, Tokenizer.from_characters("abcdefgh"))
    assert ids_for(subject, "bad") == subject.tokenizer.encode("bad", special=True)
    assert ids_for(subject, (3, 1)) == [3, 1]


def test_what_cannot_be_read_is_refused() -> None:
    subject = tiny("rotary")
    with pytest.raises(sl.InputError, match=r"without tokenizer.*Fix: give the ids"):
        ids_for(subject, "text")
    with pytest.raises(sl.InputError, match="an empty text"):
        ids_for(subject, [])
    with pytest.raises(sl.InputError, match=r"token 29; expected 0 to 28"):
        ids_for(subject, [1, 29])
    with pytest.raises(sl.InputError, match="a source for a model with one stack"):
        prompt_of(subject, [1], [2])
    with pytest.raises(sl.InputError, match=r"for an encoder–decoder.*model\.trace"):
        prompt_of(tiny("transformer"), [1])


def test_a_trace_is_asked_again_only_if_it_lacks_something() -> None:
    subject, ids, source = tiny("transformer"), ids_of("transformer"), source_of("transformer")
    whole, part = trace_of(subject, ids, **source), trace_of(subject, ids, **source, layers=[0])
    assert trace_attention(subject, whole, value=True) is whole
    again = trace_attention(subject, part)
    assert len(again.looks) == len(whole.looks) > len(part.looks)
    assert [token.id for token in again.tokens] == ids
    question = prompt_of(subject, part)
    assert (question.ids, question.source) == (ids, source["source"])
