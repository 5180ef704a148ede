"""Translations against transformers' generate, alignments against its attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sightline as sl
from sightline.checkpoints.defaults import Defaults
from sightline.errors import InputError
from sightline.tasks.translate import Translation, align, max_new_tokens, translate
from tests.families.oracle import transformers
from tests.support.letter_tokenizer import tokenizer
from tests.support.pair_models import MODELS, WORDS, defaults_of, pair
from tests.support.tiny import DECODERS, ENCODERS, make

LONGEST = 12
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "banned": {"banned": (9, 14, 39, 0)},
    "the end is never banned": {"banned": (2,)},
    "forced": {"forced_begin": 1, "forced_end": 2},
    "all": {"banned": (9, 14, 39, 0), "forced_begin": 7, "forced_end": 2},
}


@torch.no_grad()
def theirs(
    name: str, text: str, defaults: Defaults, *, beams: int, seed: int, penalty: float
) -> tuple[list[list[int]], list[float] | None]:
    """`generate`, told the same in its own words."""
    model, _ = pair(name, seed)
    output = {
        "forced_bos_token_id": defaults.forced_begin,
        "forced_eos_token_id": defaults.forced_end,
    }
    if beams > 1:
        output |= {
            "num_return_sequences": beams,
            "length_penalty": penalty,
            "early_stopping": False,
        }
    model.generation_config = transformers.GenerationConfig(
        num_beams=beams,
        do_sample=False,
        bad_words_ids=[[id] for id in defaults.banned] or None,
        eos_token_id=2,
        pad_token_id=0,
        decoder_start_token_id=defaults.decoder_start,
        **output,
    )
    source = torch.tensor([WORDS.encode(text, special=True)])
    out = model.generate(
        input_ids=source, max_new_tokens=LONGEST, return_dict_in_generate=True, output_scores=True
    )
    return out.sequences[:, 1:].tolist(), out.sequences_scores.tolist() if beams > 1 else None


@pytest.mark.parametrize("beams", [1, 4])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["bart", "marian", "t5"])
def test_it_is_what_transformers_generates(name: str, way: str, beams: int) -> None:
    for seed, text in enumerate(("the cat sat", "猫! the dog, ok?")):
        defaults = defaults_of(name, **WAYS[way])
        _, mine = pair(name, seed)
        result = translate(
            mine, WORDS, defaults, text, beams=beams, max_tokens=LONGEST, length_penalty=0.8
        )
        expected, scores = theirs(name, text, defaults, beams=beams, seed=seed, penalty=0.8)
        assert expected[0][: len(result.tokens)] == result.tokens
        assert result.text == WORDS.decode(result.tokens)
        assert [other for other, _ in result.others] == [WORDS.decode(row) for row in expected[1:]]
        if scores is not None:
            assert [result.score, *(score for _, score in result.others)] == pytest.approx(
                scores, abs=1e-4
            )
        assert not (set(defaults.banned) - {2}) & set(result.tokens)
        if defaults.forced_begin is not None:
            assert result.tokens[0] == WAYS[way]["forced_begin"]
            assert result.tokens[-1] == 2
            assert result.finished


@pytest.mark.parametrize("name", MODELS)
def test_the_alignment_is_transformers_attention(name: str) -> None:
    model, mine = pair(name)
    result = translate(mine, WORDS, defaults_of(name), "the cat sat on", max_tokens=LONGEST)
    source = torch.tensor([WORDS.encode("the cat sat on", special=True)])
    fed = torch.tensor([[MODELS[name][1]["decoder_start_token_id"], *result.tokens[:-1]]])
    with torch.no_grad():
        attention = model(
            input_ids=source, decoder_input_ids=fed, output_attentions=True
        ).cross_attentions
    layer = max(0, len(attention) - 2)
    torch.testing.assert_close(result.alignment, attention[layer][0].mean(0), atol=1e-5, rtol=0)
    assert result.alignment.shape == (len(result.target_tokens), len(result.source_tokens))
    torch.testing.assert_close(result.alignment.sum(-1), torch.ones(len(result.tokens)))
    if len(attention) > 1:
        assert not torch.allclose(result.alignment, attention[-1][0].mean(0), atol=1e-3), (
            "the layers differ, so the test can fail"
        )


def test_the_alignment_is_the_attention_that_was_paid_while_decoding() -> None:
    """Row t from one step on a cache, with token t − 1 as its input."""
    _, mine = pair("bart")
    source, target = WORDS.encode("the dog", special=True), [2, 5, 9, 11]
    cache, rows = sl.Cache.growing(mine.config), []
    with torch.no_grad():
        for n, token in enumerate(target[:-1]):
            seen = sl.Recorder({"cross_weights"}, layers={0})
            mine(
                torch.tensor([[token]]),
                cache=cache,
                source=torch.tensor([source]) if n == 0 else None,
                record=seen,
            )
            rows.append(seen["decoder", 0, "cross_weights"][0].mean(0)[0])
    torch.testing.assert_close(align(mine, source, target), torch.stack(rows), atol=1e-5, rtol=0)


def test_tokens_are_shown_as_a_reader_writes_them() -> None:
    _, mine = pair("bart")
    result = translate(mine, WORDS, defaults_of("bart", forced_end=2), "the 猫", max_tokens=5)
    assert result.source_tokens == ["t", "h", "e", " ", "猫", "</s>"]
    assert result.target_tokens == [WORDS.token(id) for id in result.tokens]
    assert result.target_tokens[-1] == "</s>"
    assert "</s>" not in result.text


def test_none_is_what_the_checkpoint_recommends() -> None:
    _, mine = pair("bart")

    def run(defaults: Defaults, **options: Any) -> Translation:
        return translate(mine, WORDS, defaults, "the cat", max_tokens=6, **options)

    endless = {"decoder_start": 2, "end": (39,), "banned": (2,)}
    plain, output = Defaults(**endless), Defaults(**endless, num_beams=2, length_penalty=0.0)
    assert len(run(output, beams=None).others) == 1
    assert len(run(plain, beams=None).others) == 3
    assert len(run(output).others) == 3
    assert run(output, beams=None, length_penalty=None).score == pytest.approx(
        run(plain, beams=2, length_penalty=0.0).score
    )
    assert run(output, beams=2, length_penalty=None).score != pytest.approx(
        run(plain, beams=2).score
    )


def test_where_the_checkpoint_says_nothing_the_tokenizer_does() -> None:
    _, mine = pair("bart")
    output = translate(mine, WORDS, Defaults(decoder_start=1, end=(2,)), "the cat", max_tokens=6)
    assert translate(mine, WORDS, Defaults(), "the cat", max_tokens=6).tokens == output.tokens
    nameless = tokenizer(after=(2,))
    nameless.bos = None
    with pytest.raises(InputError, match="without a start token for its decoder"):
        translate(mine, nameless, Defaults(), "the cat")


def test_a_translation_that_does_not_end_is_cut_and_says_so() -> None:
    _, mine = pair("marian")
    endless = Defaults(decoder_start=39, end=(0,), banned=())
    for beams in (1, 3):
        result = translate(mine, WORDS, endless, "the cat", beams=beams, max_tokens=4)
        assert (len(result.tokens), result.finished) == (4, 0 in result.tokens)
    assert max_new_tokens(mine, 5, None) == 47, "the room in the decoder's context"
    assert (
        max_new_tokens(
            make(sl.encoder_decoder(width=8, layers=1, heads=2, vocab_size=40, max_positions=512)),
            5,
            None,
        )
        == 65
    )


@pytest.mark.parametrize(
    ("which", "options", "message"),
    [
        ("bart", {"text": " \n"}, "an empty text"),
        ("bart", {"text": "cat" * 20}, "a text of 61 tokens for an encoder of 48"),
        ("bart", {"max_tokens": 0}, "max_tokens is 0; expected 1 to 47"),
        ("bart", {"max_tokens": 48}, "max_tokens is 48; expected 1 to 47"),
        ("bart", {"beams": 0}, "beams is 0"),
        (
            "bart",
            {"beams": 3, "defaults": Defaults(decoder_start=2, banned=tuple(range(40)))},
            "every token is banned",
        ),
        ("rotary", {}, "translation with a decoder-only model.*use generate"),
        ("bert", {}, "translation with an encoder-only model.*fill, classify or embed"),
    ],
)
def test_refusals(which: str, options: dict[str, Any], message: str, as_users_run_it: None) -> None:
    model = pair(which)[1] if which in MODELS else make((DECODERS | ENCODERS)[which])
    words = tokenizer(after=(2,))
    if "defaults" in options:
        words.eos = None
    with pytest.raises(InputError, match=message) as refusal:
        translate(model, words, **({"defaults": defaults_of("bart"), "text": "the cat"} | options))
    assert "\n" not in str(refusal.value)
