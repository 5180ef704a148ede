"""Vectors for texts: sentence-transformers' numbers, and a text alone is the text in any
company."""

from __future__ import annotations

import json
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.checkpoints.pooling import Pooling
from sightline.tasks import batches as making
from sightline.tasks.embed import embed
from sightline.text.tokenizer import Tokenizer
from tests.families.oracle import ours, reference
from tests.tasks.tiny_folders import TEXTS, bert

PLAIN = [
    text for text in TEXTS if "[" not in text
]  # transformers takes a typed [MASK] for the mask; to us it is text
CHARACTERS = "abcdefghijklmnopqrstuvwxyz .,!"
MEAN = Pooling(how="mean", normalize=True)
SENTENCES = [
    " ".join(
        random.Random(seed).choices(
            ["the", "cat", "dog", "sat", "on a", "mat"], k=1 + seed * 7 % 23
        )
    )
    for seed in range(60)
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("bert")
    bert(place, "BertModel")
    return place


@pytest.fixture(scope="module")
def model(folder: Path) -> sl.Model:
    return sl.load(folder)


def sentence_transformer(
    folder: Path,
    place: Path,
    *,
    mode: str = "mean",
    normalize: bool = True,
    limits: dict[str, Any] | None = None,
) -> Any:
    """The folder as sentence-transformers saves it and loads it again; `limits` in the file where
    published models have them."""
    library = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    parts = [
        modules.Transformer(str(folder)),
        modules.Pooling(32, pooling_mode=mode),
        *([modules.Normalize()] if normalize else []),
    ]
    library.SentenceTransformer(modules=parts, device="cpu").save(str(place))
    if limits:
        (place / "sentence_bert_config.json").write_text(json.dumps(limits), encoding="utf-8")
    return library.SentenceTransformer(str(place), device="cpu")


def difference(result: Tensor, expected: Tensor) -> float:
    assert result.shape == expected.shape
    return float((result - expected).abs().max())


# -------------------------------------------------------------------------- sentence-transformers


@pytest.mark.parametrize("mode", ["mean", "cls", "lasttoken"])
@pytest.mark.parametrize("normalize", [True, False])
def test_ours_is_sentence_transformers(
    mode: str, normalize: bool, folder: Path, tmp_path: Path
) -> None:
    theirs = sentence_transformer(folder, tmp_path / "st", mode=mode, normalize=normalize)
    expected = theirs.encode(PLAIN + SENTENCES, convert_to_tensor=True).clone()
    assert difference(sl.load(tmp_path / "st").embed(PLAIN + SENTENCES), expected) < 2e-6 * max(
        1.0, float(expected.abs().max())
    )


def test_a_long_text_is_cut_as_they_cut_it_and_that_is_said(folder: Path, tmp_path: Path) -> None:
    theirs = sentence_transformer(
        folder, tmp_path / "st", limits={"max_seq_length": 12, "do_lower_case": False}
    )
    ours = sl.load(tmp_path / "st")
    assert ours.pooling is not None
    assert ours.pooling.max_length == 12
    with pytest.warns(UserWarning, match=r"\d+ of \d+ texts were cut to 12 tokens"):
        result = ours.embed(PLAIN)
    assert difference(result, theirs.encode(PLAIN, convert_to_tensor=True).clone()) < 2e-6
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours.embed(["the cat"])


def test_prompt_and_lower_case_are_theirs(tmp_path: Path) -> None:
    bert(tmp_path / "cased", "BertModel", lowercase=False)
    theirs = sentence_transformer(
        tmp_path / "cased", tmp_path / "st", limits={"max_seq_length": 64, "do_lower_case": True}
    )
    theirs.prompts, theirs.default_prompt_name = {"query": "The capital of "}, "query"
    prompted = tmp_path / "st" / "config_sentence_transformers.json"
    prompted.write_text(
        json.dumps({"prompts": theirs.prompts, "default_prompt_name": "query"}), encoding="utf-8"
    )
    texts = ["FRANCE", "a GOOD film", "ΣΣ Σ", "paris"]
    loaded = sl.load(tmp_path / "st")
    assert loaded.pooling == Pooling(
        how="mean", normalize=True, max_length=64, lowercase=True, prompt="The capital of "
    )
    assert (
        difference(loaded.embed(texts), theirs.encode(texts, convert_to_tensor=True).clone()) < 2e-6
    )


# ----------------------------------------------------------------------------------- other models


def test_an_encoder_decoder_embeds_with_its_encoder() -> None:
    sizes = {
        "vocab_size": 40,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 64,
        "num_layers": 2,
        "num_heads": 4,
    }
    theirs = reference("T5ForConditionalGeneration", sizes)
    tokenizer = Tokenizer.from_characters(CHARACTERS)
    texts = ["the cat", "a much longer text, of many words.", "the dog"]
    with torch.no_grad():
        states = [
            theirs.encoder(torch.tensor([tokenizer.encode(text, special=True)])).last_hidden_state
            for text in texts
        ]
    result = embed(
        ours(theirs).transformer, tokenizer, texts, pooling=Pooling(how="mean", normalize=False)
    )
    assert difference(result, torch.cat([state.mean(1) for state in states])) < 1e-5


@pytest.mark.parametrize("how", ["mean", "first", "last"])
def test_a_decoder_works_too(how: str) -> None:
    theirs = reference(
        "GPT2Model", {"vocab_size": 40, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
    )
    tokenizer = Tokenizer.from_characters(CHARACTERS)
    texts = ["the cat", "a much longer text, of many words.", "the dog!"]
    with torch.no_grad():
        states = [
            theirs(torch.tensor([tokenizer.encode(text, special=True)])).last_hidden_state[0]
            for text in texts
        ]
    pick = {
        "mean": lambda state: state.mean(0),
        "first": lambda state: state[0],
        "last": lambda state: state[-1],
    }[how]
    result = embed(
        ours(theirs).transformer, tokenizer, texts, pooling=Pooling(how=how, normalize=False)
    )
    assert difference(result, torch.stack([pick(state) for state in states])) < 1e-4 * float(
        result.abs().max()
    )


# ------------------------------------------------------------------------------------------- laws


def test_alone_is_in_a_batch(model: sl.Model) -> None:
    assert model.tokenizer is not None
    together = embed(model.transformer, model.tokenizer, SENTENCES + TEXTS, pooling=MEAN)
    alone = torch.cat(
        [
            embed(model.transformer, model.tokenizer, [text], pooling=MEAN)
            for text in SENTENCES + TEXTS
        ]
    )
    assert difference(together, alone) <= 1e-6
    assert difference(together.norm(dim=1), torch.ones(len(together))) < 1e-6
    backwards = embed(model.transformer, model.tokenizer, (SENTENCES + TEXTS)[::-1], pooling=MEAN)
    assert difference(together, backwards.flip(0)) <= 1e-6


def test_the_mean_is_of_the_hidden_states(model: sl.Model) -> None:
    assert model.tokenizer is not None
    ids = torch.tensor([model.tokenizer.encode("the cat sat", special=True)])
    with torch.no_grad():
        expected = model.transformer.hidden(ids).mean(1)
    assert difference(model.embed(["the cat sat"]), expected) < 1e-6


def test_one_string_is_one_text_and_no_text_is_no_vector(model: sl.Model) -> None:
    assert torch.equal(model.embed("the cat"), model.embed(["the cat"]))
    assert model.embed([]).shape == (0, 32)
    assert not model.embed(["the cat"]).is_inference()


def test_a_text_of_no_tokens_is_zero_and_progress_counts_all() -> None:
    transformer = sl.build(
        sl.gpt(width=16, layers=1, heads=2, vocab_size=40, max_positions=32)
    ).eval()
    reported: list[int] = []
    result = embed(
        transformer,
        Tokenizer.from_characters(CHARACTERS),
        ["", "a cat", ""],
        pooling=MEAN,
        progress=reported.append,
    )
    assert result.norm(dim=1).tolist() == pytest.approx([0, 1, 0])
    assert sum(reported) == 3


def test_other_things_than_strings_are_refused(model: sl.Model) -> None:
    with pytest.raises(sl.InputError, match="text 1 is 7; expected strings"):
        model.embed(["a", 7])  # pyright: ignore[reportArgumentType]


# ---------------------------------------------------------------------------------------- batches


def test_rows_are_the_tokenizers(model: sl.Model) -> None:
    assert model.tokenizer is not None
    for texts in (TEXTS, [*TEXTS, "a lone \ud83d surrogate"]):
        assert making.encode_rows(model.tokenizer, texts, most=64) == [
            model.tokenizer.encode(text, special=True) for text in texts
        ]


@pytest.mark.parametrize("budget", [1, 100, 2048])
def test_batches_hold_each_row_once_with_little_padding(budget: int) -> None:
    rows = [[1] * random.Random(seed).randint(0, 90) for seed in range(300)]
    made = list(making.batches(rows, torch.device("cpu"), budget=budget))
    assert sorted(place for batch in made for place in batch.places) == [
        place for place, row in enumerate(rows) if row
    ]
    for batch in made:
        lengths = [len(rows[place]) for place in batch.places]
        assert batch.tokens.shape == (len(lengths), max(lengths))
        assert batch.tokens.numel() <= budget or len(lengths) == 1
        assert min(lengths) >= 0.9 * max(lengths)
        assert (batch.padding is None) == (min(lengths) == max(lengths))
        if batch.padding is not None:
            assert (~batch.padding).sum(1).tolist() == lengths
