"""How scores become a word."""

from __future__ import annotations

import math

import pytest
import torch

from sightline.lens.heads.roles import (
    MEANING,
    PATTERN_THRESHOLD,
    PATTERNS,
    ROLES,
    choose_role,
    combine_evidence,
    is_punctuation,
    layer_tokens,
    offsets_within,
)
from sightline.lens.trace.subject import Token


def test_the_surest_pattern_is_the_role() -> None:
    assert choose_role({"previous": 0.5, "self": 0.7, "sink": 0.9, "broad": 0.8}) == ("self", 0.7)


def test_sink_and_breadth_come_after_the_patterns() -> None:
    assert choose_role({"previous": PATTERN_THRESHOLD - 0.01, "sink": 0.6, "broad": 0.9}) == (
        "sink",
        0.6,
    )
    assert choose_role({"previous": 0.1, "sink": 0.45, "broad": 0.4}) == ("broad", 0.4)
    assert choose_role({"previous": 0.1, "sink": 0.45, "broad": 0.2}) == (
        "unclear",
        pytest.approx(0.55),
    )
    assert choose_role({"previous": math.nan}) == ("unclear", 1.0)


def test_a_repetition_counts_as_its_worse_probe_and_others_as_their_mean() -> None:
    by_text = {"text": 0.1, "probe": 0.9, "short probe": 0.2}
    assert combine_evidence("induction", by_text) == 0.2
    assert combine_evidence("punctuation", by_text) == 0.1
    assert combine_evidence("previous", by_text) == pytest.approx(0.4)
    assert combine_evidence("punctuation", {"text": math.nan, "probe": 0.5}) == 0.5
    assert math.isnan(combine_evidence("self", {"text": math.nan}))


def test_sinks_of_a_text_and_of_a_source() -> None:
    tokens = [Token(9, "[CLS]"), Token(4, "a"), Token(5, "##,"), Token(8, "[SEP]")]
    scene = layer_tokens(tokens, tokens, frozenset({8, 9}), cross=False)
    assert scene.sink.tolist() == [True, False, False, True]
    assert scene.is_query.tolist() == [False, True, True, False]
    assert scene.punctuation.tolist() == [False, False, True, False]
    assert layer_tokens(tokens[1:], tokens[1:], frozenset(), cross=False).sink.tolist() == [
        True,
        False,
        False,
    ]
    assert layer_tokens(tokens[1:], tokens[1:], frozenset(), cross=True).sink.tolist() == [
        False,
        False,
        False,
    ]
    assert scene.ids.dtype == torch.int64


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        (",", True),
        (" .", True),
        ("。", True),
        ("「", True),
        ("##;", True),
        ("a.", False),
        ("  ", False),
    ],
)
def test_punctuation(text: str, is_one: bool) -> None:
    assert is_punctuation(text) is is_one


def test_offsets_stay_clear_of_a_probes_period() -> None:
    assert offsets_within([80, 58], causal=True) == list(range(-2, -17, -1))
    assert max(offsets_within([12, 10], causal=False)) == 3
    assert offsets_within([6, 6], causal=True) == []


def test_every_role_is_explained() -> None:
    assert set(MEANING) == set(ROLES)
    assert set(PATTERNS) < set(ROLES)
