"""Numbers read off the logits, and words that cannot be read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.lens.interventions.metrics import (
    evaluate_metric,
    logit_difference,
    metric_name,
    probability,
)
from sightline.text.tokenizer import Tokenizer
from tests.support.tiny import ALL, make

LETTERS = Tokenizer.from_characters(
    "abcdefghijklmnopqrstuvwxy"
)  # 4 special ids before them: 29 in all


@dataclass
class Tiny:
    transformer: sl.Transformer
    tokenizer: Any = None
    name: str = "tiny"


@pytest.fixture(scope="module")
def subject() -> Tiny:
    return Tiny(make(ALL["rotary"]), LETTERS)


def test_a_difference_of_logits(subject: Tiny) -> None:
    logits = torch.randn(5, 29)
    assert logit_difference(subject, "a", "c")(logits) == pytest.approx(
        float(logits[4, 4] - logits[4, 6])
    )
    assert logit_difference(subject, 7, "c", position=1)(logits) == pytest.approx(
        float(logits[1, 7] - logits[1, 6])
    )


def test_a_probability(subject: Tiny) -> None:
    logits = torch.randn(5, 29)
    exponent = np.exp(logits[2].double().numpy())
    assert probability(subject, "b", position=2)(logits) == pytest.approx(
        exponent[5] / exponent.sum(), rel=1e-5
    )
    assert probability(subject, "b", position=-3)(logits.bfloat16()) == pytest.approx(
        exponent[5] / exponent.sum(), rel=0.05
    )


def test_a_metric_has_a_description(subject: Tiny) -> None:
    assert metric_name(logit_difference(subject, "a", "b")) == "logit 'a' − logit 'b' at -1"
    assert metric_name(max) == "max"


def test_a_word_must_be_one_token(subject: Tiny) -> None:
    with pytest.raises(
        sl.InputError, match=r"'abc', which is 3 tokens: 'a', 'b', 'c'; expected one token. Fix: "
    ):
        logit_difference(subject, "abc", "c")
    with pytest.raises(sl.InputError, match="which is 0 tokens: none"):
        probability(subject, "")
    with pytest.raises(sl.InputError, match="'Z', which the tokenizer does not know"):
        probability(subject, "Z")
    with pytest.raises(sl.InputError, match="token 29; expected 0 to 28"):
        probability(subject, 29)


def test_a_model_must_have_words(subject: Tiny) -> None:
    with pytest.raises(sl.InputError, match="without tokenizer; expected a token id"):
        probability(Tiny(subject.transformer), "a")
    for name in ("bert-pooled", "bert-hidden", "classifier"):
        with pytest.raises(sl.InputError, match=r"no logits over a vocabulary.*metric=lambda"):
            probability(Tiny(make(ALL[name]), LETTERS), "a")


def test_a_metric_must_be_a_number(subject: Tiny) -> None:
    with pytest.raises(sl.InputError, match="position 5; expected 0 to 4"):
        probability(subject, "a", position=5)(torch.randn(5, 29))
    with pytest.raises(sl.InputError, match="a metric of nan; expected a finite number"):
        evaluate_metric(lambda _: float("nan"), torch.zeros(1, 1))
    assert evaluate_metric(lambda logits: logits.sum(), torch.ones(2, 3)) == 6.0  # pyright: ignore[reportArgumentType]
