"""A head that knows which adjective fits which noun chooses the right one; one that knows it the
wrong way round, the wrong one; one that looks everywhere, none."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.errors import InputError
from sightline.lens.heads.referents import Pair, referent_pairs, referents_of
from sightline.text.tokenizer import Tokenizer
from tests.support.planted_links import planted_pairs, word_tokenizer

PAIRS = referent_pairs()[:6]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [text for pair in PAIRS for text in pair.sentences]
    return word_tokenizer(tmp_path_factory.mktemp("words"), texts)


def model_of(tokenizer: Tokenizer, pairs: list[Pair], *, turned: bool, causal: bool) -> sl.Model:
    links = [
        (adjective, noun)
        for pair in pairs
        for adjective, noun in zip(
            pair.adjectives, pair.nouns[::-1] if turned else pair.nouns, strict=True
        )
    ]
    return planted_pairs(tokenizer, links, causal=causal)


def test_the_pairs() -> None:
    pairs = referent_pairs()
    assert pairs[0].sentences[0].endswith("because it was too tired")
    assert pairs[1].nouns == ("trophy", "suitcase")
    assert len({pair.text for pair in pairs}) == len(pairs)
    assert min(sum(pair.fresh for pair in pairs), sum(not pair.fresh for pair in pairs)) >= 20


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("turned", [True, False])
def test_margins_follow_what_a_head_knows(tokenizer: Tokenizer, turned: bool, causal: bool) -> None:
    one = [PAIRS[0], PAIRS[1]]
    result = referents_of(
        model_of(tokenizer, one, turned=turned, causal=causal), one, look_from="adjective"
    )
    assert result.causal == causal
    assert result.margins.shape == (1, 4, 2, 2)
    chosen, other = (result.wrong, result.right) if turned else (result.right, result.wrong)
    assert chosen[0, 0].all()
    assert not other[0, 0].any()
    assert torch.equal(result.shifts[0, 0] > 0, torch.tensor([not turned] * 2))
    assert result.margins[0, 3].abs().max() < 1e-6  # looks everywhere alike


def test_a_causal_model_cannot_know_at_it(tokenizer: Tokenizer) -> None:
    torch.manual_seed(0)
    size = tokenizer.vocab_size
    shifts = {
        causal: referents_of(
            sl.Model(
                sl.build(
                    make(width=16, layers=2, heads=4, vocab_size=size, max_positions=40)
                ).eval(),
                tokenizer,
            ),
            PAIRS,
        ).shifts
        for causal, make in ((True, sl.gpt), (False, sl.bert))
    }
    assert shifts[True].abs().max() < 1e-5
    assert shifts[False].abs().max() > 1e-4


def test_a_model_without_tokenizer_is_refused(tokenizer: Tokenizer) -> None:
    model = model_of(tokenizer, [PAIRS[0]], turned=False, causal=True)
    with pytest.raises(InputError, match=r"without tokenizer.*Fix"):
        referents_of(sl.Model(model.transformer))
