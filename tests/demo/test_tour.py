"""What the demo shows of a model is what the trace says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.demo import tour
from sightline.errors import InputError
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import save_tokenizer, train_tokenizer
from tests.support.page_elements import traced
from tests.support.tiny import ENCODER_DECODERS


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> sl.Model:
    """A random decoder whose tokenizer knows the demo's words as one token each."""
    place = tmp_path_factory.mktemp("words")
    (place / "text").write_text(f"{tour.SENTENCE}\n{tour.STORY}\n" * 50)
    save_tokenizer(train_tokenizer([place / "text"], vocab_size=332), place / "tokenizer")
    torch.manual_seed(0)
    transformer = sl.build(
        sl.llama(width=32, layers=3, heads=4, kv_heads=2, vocab_size=332, max_positions=128)
    ).eval()
    return sl.Model(transformer, Tokenizer.from_folder(place / "tokenizer"), name="tiny")


def test_the_heads_that_link_two_words(model: sl.Model) -> None:
    trace = model.trace(tour.SENTENCE)
    words = [token.text.strip() for token in trace.tokens]
    row, column = words.index("it"), words.index("animal")
    result = tour.linking_heads(trace, "it", "animal", count=12)
    for link in result:
        weights = trace.weights(link.layer, link.head).numpy()[row]
        assert link.share == pytest.approx(weights[column] / weights[1:].sum(), rel=1e-4)
        assert link.strongest == (int(np.argmax(weights[1:])) + 1 == column)
    order = [(link.strongest, link.share) for link in result]
    assert order == sorted(order, reverse=True)
    assert len(result) == 12
    with pytest.raises(InputError, match="no token 'cat'"):
        tour.linking_heads(trace, "it", "cat")


def test_the_page_opens_where_its_captions_say(model: sl.Model, tmp_path: Path) -> None:
    seen, translated = tour.analyze_sentence(model), traced(ENCODER_DECODERS["t5"])
    story = model.generate(tour.STORY, max_tokens=2, alternatives=1)
    page = tour.write_tour(tmp_path / "page.html", model, story, seen, translated).read_text(
        encoding="utf-8"
    )
    sentence, translation = (
        json.loads(text)
        for text in re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', page)
    )
    assert sentence["tokens"]["texts"][sentence["start"]["row"]].strip() == tour.PRONOUN
    assert sentence["start"]["head"] == seen.links[0].head
    assert translation["attentions"][0]["name"] == "cross"
    assert translation["start"]["row"] == 0


def test_the_page_holds_all_of_it(model: sl.Model, tmp_path: Path) -> None:
    seen = tour.analyze_sentence(model)
    story = model.generate(tour.STORY, max_tokens=6, alternatives=3)
    page = tour.write_tour(tmp_path / "page.html", model, story, seen, None).read_text(
        encoding="utf-8"
    )
    assert "What it writes" in page
    assert seen.geometry.line() in page.replace("&#x27;", "'")
    assert f"layer {seen.links[0].layer}, head {seen.links[0].head}" in page
    assert len(tour.token_probabilities(model, story)) == 6
    assert all(
        0 < probability <= 1 and len(others) == 3
        for _, probability, others in tour.token_probabilities(model, story)
    )
    assert "://" not in page
