"""Masks filled: Hugging Face's fill-mask gives the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import sightline as sl
from sightline.tasks.fill import fill
from sightline.text.tokenizer import Tokenizer
from tests.families.oracle import transformers
from tests.tasks.tiny_folders import bert, roberta

TEXTS = [
    "the capital of {} is paris.",
    "{}",
    "{} sat on the mat",
    "the cat sat on the {}",
    "cat{}dog",
    "the {} sat on  {} and {}.",
    "a\n{} b",
]
MAKERS = {
    "BertForMaskedLM": bert,
    "RobertaForMaskedLM": roberta,
    "XLMRobertaForMaskedLM": roberta,
    "CamembertForMaskedLM": roberta,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """A folder of each kind, and transformers' pipeline over the same weights."""
    made: dict[str, tuple[Path, Any]] = {}
    for name, make in MAKERS.items():
        place = tmp_path_factory.mktemp(name)
        model, tokenizer = make(place, name)
        made[name] = (
            place,
            transformers.pipeline("fill-mask", model=model, tokenizer=tokenizer, top_k=7),
        )
    return made


@pytest.fixture(scope="module")
def model(folders: dict[str, tuple[Path, Any]]) -> sl.Model:
    return sl.load(folders["BertForMaskedLM"][0])


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("mask", ["[MASK]", "<mask>", "___", "______"])
def test_ours_is_fill_mask_however_the_mask_is_written(
    name: str, mask: str, folders: dict[str, tuple[Path, Any]]
) -> None:
    place, pipe = folders[name]
    loaded = sl.load(place)
    for text in TEXTS:
        written = text.replace("{}", mask)
        result = loaded.fill(written, top_k=7)
        expected = pipe(text.replace("{}", pipe.tokenizer.mask_token))
        expected = expected if isinstance(expected[0], list) else [expected]
        for filling, rows in zip(result, expected, strict=True):
            assert written[filling.start : filling.end] == mask
            assert [one.token for one in filling.candidates] == [row["token"] for row in rows]
            assert [one.probability for one in filling.candidates] == pytest.approx(
                [row["score"] for row in rows], rel=1e-4
            )


def test_the_whole_text_is_written_as_the_user_wrote_it(model: sl.Model) -> None:
    result = model.fill("The Capital of [MASK] is ___.", top_k=3)
    words = [filling.candidates[0].text for filling in result]
    assert len(result) == 2
    assert result[0].text == result[1].text
    pieces = [word.removeprefix("##") if word.startswith("##") else " " + word for word in words]
    assert result[0].text == f"The Capital of{pieces[0]} is{pieces[1]}."


def test_other_special_tokens_stay_text(model: sl.Model) -> None:
    assert model.tokenizer is not None
    from sightline.tasks.fill import split_at_masks, with_masks

    ids, places = with_masks(
        model.tokenizer, split_at_masks("[SEP] the [MASK] [CLS]", "[MASK]").parts, 4
    )
    assert (ids[0], ids[-1]) == (2, 3)
    assert ids.count(2) == ids.count(3) == ids.count(4) == 1
    assert ids[places[0]] == 4


def test_probabilities_are_of_the_whole_vocabulary(model: sl.Model) -> None:
    size = model.config.last.embedding.vocab_size
    candidates = model.fill("the [MASK]", top_k=size)[0].candidates
    assert sum(one.probability for one in candidates) == pytest.approx(1, abs=1e-5)
    assert sorted(one.token for one in candidates) == list(range(size))


@pytest.mark.parametrize("top_k", [0, -3, 10_000])
def test_counts_that_cannot_be(top_k: int, model: sl.Model) -> None:
    with pytest.raises(sl.InputError, match=f"top_k is {top_k}; expected 1 to"):
        model.fill("the [MASK]", top_k=top_k)


def test_mistakes_are_one_line(model: sl.Model) -> None:
    assert model.tokenizer is not None
    with pytest.raises(
        sl.InputError,
        match=r"no mask in 'the cat'; expected .*Fix: \"The capital of France is \[MASK\]",
    ):
        model.fill("the cat")
    with pytest.raises(sl.InputError, match="a text of 93 tokens; expected at most 64"):
        model.fill("the " * 90 + "[MASK]")
    with pytest.raises(sl.InputError, match="a tokenizer without mask token"):
        fill(model.transformer, Tokenizer.from_characters("abc"), "[MASK]")
    with pytest.raises(sl.InputError, match="Fix: sightline generate MODEL"):
        fill(sl.build(sl.gpt(width=16, layers=1, heads=2, vocab_size=9)), model.tokenizer, "[MASK]")
