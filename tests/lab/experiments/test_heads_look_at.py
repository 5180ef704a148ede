"""A relation counts as found only by heads that other sentences chose, beyond chance and any fixed
place; the meaning of "it" only where the adjective decides."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sightline as sl
from sightline.lab.experiments import heads_look_at as lab
from sightline.lens.heads.links import RELATIONS, sentences
from sightline.lens.heads.referents import Referents, referent_pairs
from sightline.text.tokenizer import Tokenizer
from tests.support.planted_links import planted, word_tokenizer

PAIRS = referent_pairs()


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [sentence.text for sentence in sentences("en")]
    return word_tokenizer(tmp_path_factory.mktemp("words"), texts)


def numbers_of(subject: sl.Model, margins: torch.Tensor) -> dict[str, Any]:
    """What the parts would measure if this were both models, with these margins."""
    rows = lab.relation_rows(subject, 100)
    referents = lab.judged_referents(Referents("planted", False, PAIRS, margins))
    roles = lab.role_counts(subject, 100)
    return {
        f"{name}.{part}": row
        for name in ("causal", lab.ENCODER)
        for part, row in (("relations.folds-5.seed-100", rows), ("roles.seed-100", roles))
    } | {
        f"{lab.ENCODER}.referents.from-it": referents,
        "causal.referents.from-adjective": referents,
    }


def margins_of(moved: float, preferred: float) -> torch.Tensor:
    """Two layers of two heads; one head's margin is moved by the adjective, with noise."""
    noise = torch.randn(2, 2, len(PAIRS), 2, generator=torch.Generator().manual_seed(0))
    margins = 0.3 * noise + preferred
    margins[1, 0] += moved * torch.tensor([1.0, -1.0])
    return margins


def test_a_head_that_knows_a_relation_is_found(tokenizer: Tokenizer) -> None:
    subject = planted(tokenizer, causal=True, knows=("synonym",))
    result = numbers_of(subject, margins_of(1.0, 3.0))
    holds = {name: lab.relation_check(result, name).holds for name in lab.KINDS}
    assert [name for name, held in holds.items() if held] == ["synonym"]
    assert len(lab.judge_heads_look_at(result)) == len(lab.KINDS) + 5
    assert set(lab.draw_heads_look_at(result)) == {"heads-look-at"}
    assert "understanding" in lab.summarize_heads_look_at(result).en


def test_heads_of_fixed_places_find_nothing(tokenizer: Tokenizer) -> None:
    """One looks back by one, one ahead, two everywhere."""
    result = numbers_of(planted(tokenizer, causal=True, knows=()), margins_of(0.0, 0.0))
    holds = [lab.relation_check(result, name).holds for name in lab.KINDS]
    assert True not in holds
    assert False in holds


def test_a_head_is_judged_on_sentences_that_did_not_choose_it(tokenizer: Tokenizer) -> None:
    """Random heads: the best one looks better on the sentences that chose it."""
    torch.manual_seed(0)
    config = sl.gpt(width=64, layers=4, heads=16, vocab_size=tokenizer.vocab_size, max_positions=40)
    rows = lab.relation_rows(sl.Model(sl.build(config).eval(), tokenizer), 100)
    best = sum(row["best"]["hits"] for row in rows)
    assert sum(row["hits"] for row in rows) < 0.8 * best
    assert [row["relation"] for row in rows] == list(RELATIONS)


@pytest.mark.parametrize(
    ("moved", "preferred", "expected"),
    [
        (1.0, 3.0, [True, True]),  # the adjective moves it, but never far enough
        (5.0, 0.0, [True, False]),  # it decides
        (0.0, 3.0, [None, True]),  # it does nothing
        (-1.0, 3.0, [False, True]),  # it moves it the wrong way
    ],
)
def test_what_the_adjective_does(
    moved: float, preferred: float, expected: list[bool | None]
) -> None:
    margins = margins_of(moved, preferred)
    if moved < 0:
        margins[1, 0, :24] *= -1  # right on the pairs that choose the head
    row = lab.judged_referents(Referents("planted", False, PAIRS, margins))
    numbers = {
        f"{lab.ENCODER}.referents.from-it": row,
        "causal.referents.from-adjective": row,
    }
    shifts, resolves, adjective = lab.referent_checks(numbers)
    assert [shifts.holds, resolves.holds] == expected
    assert adjective.holds == shifts.holds


def test_a_model_whose_heads_are_all_alike_has_one_role(tokenizer: Tokenizer) -> None:
    subject = planted(tokenizer, causal=True, knows=())
    with torch.no_grad():
        for parameter in subject.transformer.parameters():
            parameter.zero_()
    counts = {"a.roles.seed-100": lab.role_counts(subject, 100)}
    assert [check.holds for check in lab.role_checks(counts)] == [False, False]
    mixed = {"a.roles.seed-100": lab.role_counts(planted(tokenizer, causal=True), 100)}
    assert [check.holds for check in lab.role_checks(mixed)] == [True, True]
