"""A head that was planted to know the words finds the relation; one of a fixed offset and one that
looks everywhere do not."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.errors import InputError
from sightline.lens.heads.links import RELATIONS, TokenLink, sentences, token_links
from sightline.lens.heads.relations import best_offset, binomial_tail, relations_of
from sightline.lens.trace.subject import Subject
from sightline.text.tokenizer import Tokenizer
from tests.support.planted_links import USUAL, P, planted, word_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [sentence.text for sentence in sentences("en")]
    return word_tokenizer(tmp_path_factory.mktemp("words"), texts)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "knows", [USUAL, ("predicate", "place", "synonym"), ("preposition",)], ids="-".join
)
def test_the_head_that_knows_is_found_and_no_other(
    tokenizer: Tokenizer, causal: bool, knows: Sequence[str]
) -> None:
    result = relations_of(planted(tokenizer, causal=causal, knows=knows), language="en")
    assert (result.causal, result.stack) == (causal, "decoder" if causal else "encoder")
    assert [one.relation for one in result.relations] == list(RELATIONS)
    for one in (one for one in result.relations if one.relation in knows):
        assert one.skipped == 0
        assert one.top[0].head == 0
        assert one.top[0].is_significant
        assert one.top[0].rate > 0.85
        assert not any(head.is_significant for head in one.top[1:])
        for shifted in one.top[1:]:
            if shifted.head in (1, 2):
                assert shifted.rate <= one.offset_rate + 0.2


def test_a_causal_model_asks_the_noun(tokenizer: Tokenizer) -> None:
    adjective = relations_of(planted(tokenizer, causal=True), language="en").relations[2]
    assert adjective.title == "noun → adjective, English"
    adjective = relations_of(planted(tokenizer, causal=False), language="en").relations[2]
    assert adjective.title == "adjective → noun, English"


def test_rates_are_those_of_the_strongest_key(tokenizer: Tokenizer) -> None:
    """Counted again from the traces, head by head and link by link."""
    torch.manual_seed(0)
    size = tokenizer.vocab_size
    model = sl.Model(
        sl.build(sl.gpt(width=16, layers=2, heads=4, vocab_size=size, max_positions=P)).eval(),
        tokenizer,
    )
    result = relations_of(model, language="en")
    kinds = len(RELATIONS)
    hits, counts, chances = np.zeros((kinds, 2, 4)), np.zeros(kinds), np.zeros(kinds)
    for sentence in sentences("en"):
        trace = model.trace(sentence.text)
        for one in token_links(
            trace.tokens, sentence.links, causal=True, unknown=tokenizer.unknown
        )[0]:
            kind = list(RELATIONS).index(one.relation)
            counts[kind] += 1
            chances[kind] += len(one.targets) / len(one.candidates)
            for layer in range(2):
                rows = trace.weights(layer)[:, one.query].numpy()
                for head in range(4):
                    hits[kind, layer, head] += (
                        max(one.candidates, key=lambda key, row=rows[head]: row[key]) in one.targets
                    )
    for kind, one in enumerate(result.relations):
        assert one.links == counts[kind]
        assert one.chance == pytest.approx(chances[kind] / counts[kind])
        np.testing.assert_allclose(one.rates.numpy(), hits[kind] / counts[kind], atol=1e-6)
        assert torch.equal(one.hits.mean(-1), one.rates)
        assert len(one.sentences) == len(one.guessed) == one.links
        assert one.mean == pytest.approx(one.rates.mean().item(), abs=1e-6)
        assert one.spread == pytest.approx(float(np.std(one.rates.numpy())), abs=1e-6)
        assert not any(head.is_significant for head in one.top)


def test_the_tail_of_the_binomial() -> None:
    stats = pytest.importorskip("scipy.stats")
    for count, hits, rate in ((20, 7, 0.2), (5, 0, 0.3), (12, 12, 0.5), (9, 4, 0.0), (9, 9, 1.0)):
        assert binomial_tail(count, hits, rate) == pytest.approx(
            float(stats.binom.sf(hits - 1, count, rate)), abs=1e-12
        )


def test_p_is_corrected_by_the_number_of_heads(tokenizer: Tokenizer) -> None:
    pronoun = relations_of(planted(tokenizer, causal=True), language="en").relations[0]
    best = pronoun.top[0]
    assert best.p_chance == pytest.approx(
        4 * binomial_tail(pronoun.links, best.hits, pronoun.chance)
    )
    assert best.p_offset == pytest.approx(
        4 * binomial_tail(pronoun.links, best.hits, pronoun.offset_rate)
    )


def test_the_best_offset_is_the_most_frequent() -> None:
    lookups = [
        TokenLink("verb", 9, frozenset({7}), (7, 8)),
        TokenLink("verb", 5, frozenset({3, 4}), (3, 4)),
        TokenLink("verb", 5, frozenset({1}), (1,)),
    ]
    assert best_offset(lookups) == (-2, pytest.approx(2 / 3))


def test_an_encoder_decoder_is_asked_for_its_encoder(tokenizer: Tokenizer) -> None:
    size = tokenizer.vocab_size
    model = sl.Model(
        sl.build(
            sl.encoder_decoder(width=16, layers=1, heads=2, vocab_size=size, max_positions=P)
        ).eval(),
        tokenizer,
    )
    result = relations_of(model, language="en")
    assert (result.stack, result.causal) == ("encoder", False)
    assert result.relations[0].rates.shape == (1, 2)


def test_progress_and_json(tokenizer: Tokenizer) -> None:
    seen = list[tuple[int, int]]()
    result = relations_of(
        planted(tokenizer, causal=True),
        language="en",
        progress=lambda done, total: seen.append((done, total)),
    )
    assert seen == [(n, len(sentences("en"))) for n in range(1, len(sentences("en")) + 1)]
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["relations"][0]["top"][0]["found"] is True
    assert plain["relations"][2]["looks"] == "noun"


def test_mistakes_say_the_fix(tokenizer: Tokenizer) -> None:
    model = planted(tokenizer, causal=True)
    with pytest.raises(InputError, match=r"cannot encode the sentences.*Fix: another language"):
        relations_of(model, language="ja")
    with pytest.raises(InputError, match="expected en or ja"):
        relations_of(model, language="de")
    bare: Subject = sl.Model(model.transformer)
    with pytest.raises(InputError, match=r"a model without tokenizer.*Fix"):
        relations_of(bare)
    small = sl.Model(
        sl.build(
            sl.gpt(width=8, layers=1, heads=1, vocab_size=tokenizer.vocab_size, max_positions=8)
        ).eval(),
        tokenizer,
    )
    with pytest.raises(InputError, match=r"for a model of 8.*Fix: take a larger model"):
        relations_of(small, language="en")
