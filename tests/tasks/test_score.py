"""Scores against transformers' loss, against its recipe for long texts, and against arithmetic by
hand."""

from __future__ import annotations

import math
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.errors import InputError
from sightline.tasks import score as module
from sightline.tasks.score import Score, score, windows
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.vocabulary import CONTROL, NORMAL, Vocabulary
from tests.families.oracle import ours, reference
from tests.support.decoder_configs import GPT2, LLAMA
from tests.support.encoder_decoder_configs import BART
from tests.support.letter_tokenizer import LETTERS, tokenizer
from tests.support.tiny import CLASSIFIERS, ENCODERS, make

MODELS = {"gpt2": ("GPT2LMHeadModel", GPT2), "llama": ("LlamaForCausalLM", LLAMA)}
TEXT = "the cat sat, the dog sat; 猫! "


@cache
def pair(name: str) -> tuple[Any, sl.Transformer]:
    model = reference(*MODELS[name])
    return model, ours(model).transformer


def ids_of(length: int, seed: int = 0) -> list[int]:
    return torch.randint(3, 40, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_a_short_text_is_transformers_loss(name: str) -> None:
    theirs, mine = pair(name)
    ids = torch.tensor([tokenizer().encode(TEXT)])
    with torch.no_grad():
        loss = float(theirs(ids, labels=ids).loss)
    result = score(mine, tokenizer(), TEXT)
    assert result.tokens == ids[0].tolist()
    assert result.logprobs[0] is None
    assert result.scored == ids.shape[1] - 1
    assert -result.total / result.scored == pytest.approx(loss, rel=1e-5)
    assert result.perplexity == pytest.approx(math.exp(loss), rel=1e-5)
    assert result.bytes == len(TEXT.encode()) - 1, (
        "all but the first letter, which nothing predicts"
    )
    assert result.bits_per_byte == pytest.approx(
        loss * result.scored / math.log(2) / result.bytes, rel=1e-5
    )


@torch.no_grad()
def recipe(model: Any, ids: list[int], context: int, stride: int) -> dict[int, float]:
    """transformers' own for texts of any length: windows a stride apart, labels −100 for what an
    earlier window had."""
    result, previous = {}, 0
    for begin in range(0, len(ids), stride):
        end = min(begin + context, len(ids))
        window = torch.tensor([ids[begin:end]])
        labels = window.clone()
        labels[:, : previous - begin] = -100
        shifted, logits = labels[0, 1:], model(window).logits[0, :-1]
        losses = torch.nn.functional.cross_entropy(logits, shifted, reduction="none")
        for n, (label, loss) in enumerate(zip(shifted.tolist(), losses.tolist(), strict=True)):
            if label != -100:
                assert begin + 1 + n not in result
                result[begin + 1 + n] = -loss
        previous = end
        if end == len(ids):
            break
    return result


@pytest.mark.parametrize("length", [47, 48, 49, 131])
@pytest.mark.parametrize("stride", [1, 7, 24, 47])
def test_a_long_text_is_transformers_recipe(stride: int, length: int) -> None:
    theirs, mine = pair("gpt2")
    ids = ids_of(length)
    expected = recipe(theirs, ids, 48, stride)
    assert sorted(expected) == list(range(1, length)), "each token once"
    result = score(mine, tokenizer(), ids, stride=stride)
    assert result.logprobs[1:] == pytest.approx([expected[n] for n in range(1, length)], abs=1e-5)


def test_half_the_context_is_the_default() -> None:
    ids = ids_of(200, seed=2)
    _, mine = pair("llama")
    assert (
        score(mine, tokenizer(), ids).logprobs == score(mine, tokenizer(), ids, stride=32).logprobs
    )
    assert (
        score(mine, tokenizer(), ids).logprobs != score(mine, tokenizer(), ids, stride=31).logprobs
    )


def test_with_stride_one_each_token_has_the_whole_context_before_it() -> None:
    _, mine = pair("llama")
    ids = ids_of(90, seed=3)
    result = score(mine, tokenizer(), ids, stride=1)
    for n in (1, 40, 63, 64, 80, 89):
        with torch.no_grad():
            logits = mine(torch.tensor([ids[max(0, n - 63) : n]]))[0, -1]
        assert result.logprobs[n] == pytest.approx(float(logits.log_softmax(-1)[ids[n]]), abs=1e-5)


@pytest.mark.parametrize(
    ("length", "context", "stride"),
    [(2, 8, 1), (8, 8, 3), (9, 8, 3), (30, 8, 7), (31, 8, 4), (17, 2, 1)],
)
def test_windows_hold_each_token_once(length: int, context: int, stride: int) -> None:
    seen = list[int]()
    for begin, first, end in windows(length, context, stride=stride):
        assert end - begin <= context
        assert first > begin, "something stands before it"
        assert first - begin >= (context - stride if begin else 1)
        seen += range(first, end)
    assert seen == list(range(1, length))


def test_chunks_and_rows_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    _, mine = pair("gpt2")
    ids = ids_of(70, seed=4)
    whole = score(mine, tokenizer(), ids, stride=11).logprobs[1:]
    monkeypatch.setattr(module, "CHUNK", 5)
    monkeypatch.setattr(module, "ROWS", 2)
    reported = list[int]()
    assert score(mine, tokenizer(), ids, stride=11, progress=reported.append).logprobs[
        1:
    ] == pytest.approx(whole, abs=1e-5)
    assert sum(reported) == 69
    assert max(reported) <= 5


def test_a_begin_token_makes_the_first_token_likely_or_not() -> None:
    _, mine = pair("llama")
    result = score(mine, tokenizer(before=(1,), after=(2,)), TEXT)
    bare = score(mine, tokenizer(), [1, *tokenizer().encode(TEXT)])
    assert result.tokens == tokenizer().encode(TEXT), "neither the begin nor the end token"
    assert result.logprobs == pytest.approx(bare.logprobs[1:])
    assert result.bytes == len(TEXT.encode())
    two = score(mine, tokenizer(before=(2, 1)), TEXT)
    assert two.logprobs == pytest.approx(
        score(mine, tokenizer(), [2, 1, *result.tokens]).logprobs[2:]
    )


def test_by_hand() -> None:
    result = Score([7, 8, 9], [None, math.log(0.5), math.log(0.25)], bytes=6)
    assert result.total == pytest.approx(-math.log(8))
    assert result.perplexity == pytest.approx(math.sqrt(8))
    assert result.bits_per_byte == pytest.approx(0.5)
    assert Score([7, 8], [None, -1e6], bytes=1).perplexity == math.inf
    assert math.isnan(Score([7, 8], [None, -1.0], bytes=0).bits_per_byte)


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary() -> None:
    model = make(sl.gpt(width=8, layers=1, heads=2, vocab_size=40, max_positions=16))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert score(model, tokenizer(), TEXT * 3).perplexity == pytest.approx(40)


@torch.no_grad()
def test_a_target_is_what_transformers_teaches() -> None:
    theirs = reference(
        "BartForConditionalGeneration", BART | {"decoder_start_token_id": 2, "pad_token_id": 0}
    )
    words = tokenizer(before=(1,), after=(2,))
    source, labels = words.encode("the cat", special=True), words.encode("die katze", special=True)
    loss = float(theirs(input_ids=torch.tensor([source]), labels=torch.tensor([labels])).loss)
    mine = ours(theirs).transformer
    result = score(mine, words, "die katze", source="the cat", start=2)
    assert (result.tokens, result.scored) == (labels, len(labels))
    assert -result.total / len(labels) == pytest.approx(loss, rel=1e-5)
    assert score(mine, words, labels, source="the cat", start=2).logprobs == result.logprobs


@pytest.mark.parametrize(
    ("which", "arguments", "message"),
    [
        ("gpt2", {"text": ""}, "an empty text"),
        ("gpt2", {"text": []}, "an empty text"),
        ("gpt2", {"text": "a"}, "a text of one token"),
        ("gpt2", {"stride": 0}, "stride is 0; expected 1 to 47"),
        ("gpt2", {"stride": 48}, "stride is 48; expected 1 to 47"),
        ("gpt2", {"source": "the cat"}, "a source for a model with one stack"),
        ("gpt2", {"text": [3, 40]}, "tokens holds id 40"),
        ("bert", {}, "sees both sides of every token.*sightline fill"),
        ("decoder-classifier", {}, "without a language head"),
        ("bart", {}, "no source for an encoder–decoder"),
        ("bart", {"source": "the cat"}, "no start token"),
        (
            "bart",
            {"source": "the cat" * 20, "start": 2},
            "a source of 140 tokens; expected at most 48",
        ),
        (
            "bart",
            {"text": "cat" * 20, "source": "the cat", "start": 2},
            "a target of 60 tokens; expected at most 48",
        ),
    ],
)
def test_refusals(
    which: str, arguments: dict[str, Any], message: str, as_users_run_it: None
) -> None:
    if which == "bart":
        model = ours(reference("BartForConditionalGeneration", BART)).transformer
    else:
        model = pair(which)[1] if which in MODELS else make((ENCODERS | CLASSIFIERS)[which])
    with pytest.raises(InputError, match=message) as refusal:
        score(model, tokenizer(), **({"text": TEXT} | arguments))
    assert "\n" not in str(refusal.value)


def test_a_tokenizer_that_writes_other_letters_than_it_reads_cuts_no_target() -> None:
    pieces = ["<pad>", "<s>", "</s>", *LETTERS][:40]
    other = Vocabulary(
        where=Path("x"),
        kind="characters",
        pieces=pieces,
        kinds=[CONTROL] * 3 + [NORMAL] * 37,
        written=[*pieces[:3], *pieces[:2:-1]],
    )
    model = ours(reference("BartForConditionalGeneration", BART)).transformer
    with pytest.raises(InputError, match="reads the source's language only"):
        score(model, Tokenizer.from_vocabulary(other), "die", source="the", start=2)


def test_nan_is_said() -> None:
    model = make(sl.gpt(width=8, layers=1, heads=2, vocab_size=40, max_positions=16))
    with torch.no_grad():
        model.decoder.embedding.tokens.weight[5] = math.nan
    with pytest.raises(InputError, match="NaN"):
        score(model, tokenizer(), [3, 5, 6])
