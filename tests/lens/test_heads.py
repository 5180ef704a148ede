"""Every detector finds the head that was planted for it, and nothing in a model that has learned
nothing."""

from __future__ import annotations

import json
import math
from collections import Counter

import pytest
import torch

import sightline as sl
from sightline.checkpoints.sources.packages import UnreachableError
from sightline.errors import InputError
from sightline.lens.heads.probes import probes_for
from sightline.lens.heads.profile import HeadMap, heads_of
from sightline.lens.trace.trace import trace_of
from tests.lens import planted as p
from tests.support import tiny

TEXT = "a cat, a dog. the cow, the hen, the pig. we saw it, so did you."
IDS = [5, 9, 7, 20, 11, 8, 6, 28, 12, 9, 10, 22]


@pytest.fixture(scope="module")
def decoder() -> HeadMap:
    first = [
        p.previous_that_writes(),
        p.offset(0),
        p.offset(-3),
        p.duplicate(),
        p.sink(),
        p.diffuse(),
        p.punctuation(),
    ]
    second = [p.induction(), *(p.diffuse() for _ in range(6))]
    return heads_of(p.planted(sl.gpt, first, second), TEXT)


def test_each_head_of_a_decoder_is_what_was_planted(decoder: HeadMap) -> None:
    roles = [head.role for head in decoder.heads]
    assert roles[:7] == ["previous", "self", "offset", "duplicate", "sink", "broad", "punctuation"]
    assert roles[7:] == ["induction"] + ["broad"] * 6
    assert all(head.confidence > 0.9 for head in decoder.heads)
    assert decoder.heads[2].offset == -3


def test_scores_are_near_one_where_they_should_be(decoder: HeadMap) -> None:
    for place, role in (
        (0, "previous"),
        (1, "self"),
        (2, "offset"),
        (3, "duplicate"),
        (4, "sink"),
        (5, "broad"),
        (6, "punctuation"),
    ):
        assert decoder.score(decoder.heads[place], role) > 0.95
        assert decoder.top(role, 1)[0] == decoder.heads[place]
    assert decoder.top("induction", 1) == [decoder.heads[7]]
    assert decoder.top("next") == []


def test_a_broad_head_scores_as_chance_has_it(decoder: HeadMap) -> None:
    row = decoder.confidences[5]
    for role in ("previous", "self", "duplicate", "induction", "punctuation", "sink"):
        assert float(row[decoder.column(role)]) == pytest.approx(0, abs=1e-5)


def test_an_encoder_looks_ahead_too() -> None:
    heads = [p.offset(1), p.offset(2), p.duplicate(), p.offset(-1)]
    result = heads_of(p.planted(sl.bert, heads), TEXT)
    assert [head.role for head in result.heads] == ["next", "offset", "duplicate", "previous"]
    assert result.heads[1].offset == 2


def test_cross_attention_that_walks_stands_or_spreads() -> None:
    model = p.planted(
        sl.encoder_decoder, [p.offset(-1)] * 3, cross=[[p.offset(0), p.diffuse(), p.sink()]]
    )
    ids = p.tokenizer().encode(TEXT[:50])
    result = heads_of(model, trace_of(model, [1, *ids], source=ids))
    assert [head.role for head in result.grid("encoder")[0]] == ["previous"] * 3
    assert [head.role for head in result.grid("decoder")[0]] == ["previous"] * 3
    walks, spreads, stands = result.grid("decoder", cross=True)[0]
    assert walks.role == "monotone"
    assert walks.confidence > 0.8
    assert spreads.role == "broad"
    assert stands.role == "unclear"
    assert result.confidence(stands, "monotone") < 0.1


def test_a_sink_hides_no_pattern_and_is_stated() -> None:
    rested = p.with_sink(p.offset(-1, 10.0), 11.0)  # e^11 against e^10: 73 % on the first token
    bare, half = heads_of(p.planted(sl.gpt, [p.offset(-1, 10.0), rested]), TEXT).heads
    assert (bare.role, half.role) == ("previous", "previous")
    assert half.confidence == pytest.approx(bare.confidence, abs=0.02)
    assert half.sink == pytest.approx(math.e / (1 + math.e), abs=0.03)
    assert bare.sink < 0.05


def test_a_fixed_offset_of_the_probes_length_is_no_repetition() -> None:
    model = p.planted(sl.gpt, [p.diffuse()])
    probes = probes_for(model)
    heads = [p.offset(by) for probe in probes.values() for by in (-probe.period, 1 - probe.period)]
    for head in heads_of(p.planted(sl.gpt, heads)).heads:
        assert head.role not in ("induction", "duplicate")


@pytest.mark.parametrize(
    "name",
    [
        "learned",
        "rotary",
        "alibi",
        "grouped",
        "window",
        "sinks",
        "ngpt",
        "bert",
        "transformer",
        "t5",
    ],
)
def test_an_untrained_model_does_nothing_in_particular(name: str) -> None:
    transformer = tiny.make(tiny.ALL[name])
    given = None
    if len(transformer.config.stacks) == 2:
        given = trace_of(sl.Model(transformer), [1, *IDS], source=IDS)
    result = heads_of(sl.Model(transformer), given)
    counts = Counter(head.role for head in result.heads)
    assert counts["unclear"] + counts["broad"] >= 0.7 * len(result.heads)
    assert all(0 <= head.confidence <= 1 for head in result.heads)


def test_without_tokenizer_the_probes_are_enough() -> None:
    model = p.planted(
        sl.gpt, [p.previous_that_writes(), p.diffuse()], [p.induction(), p.duplicate()]
    )
    model.tokenizer = None
    result = heads_of(model)
    assert list(result.texts) == ["probe", "short probe"]
    assert [head.role for head in result.heads] == ["previous", "broad", "induction", "duplicate"]
    assert [head.role for head in heads_of(model, IDS).heads] == [
        "previous",
        "broad",
        "induction",
        "duplicate",
    ]


def test_a_seed_draws_other_tokens_and_the_same_seed_the_same() -> None:
    model = sl.Model(tiny.make(tiny.ALL["learned"]))
    first, again, other = (heads_of(model, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.scores.nan_to_num(), again.scores.nan_to_num())
    assert not torch.equal(first.scores.nan_to_num(), other.scores.nan_to_num())


def test_json_has_every_number(decoder: HeadMap) -> None:
    plain = json.loads(json.dumps(decoder.to_dict(), allow_nan=False))
    assert plain["texts"]["text"] == TEXT
    assert len(plain["heads"]) == 14
    head = plain["heads"][7]
    assert (head["stack"], head["layer"], head["head"], head["cross"], head["role"]) == (
        "decoder",
        1,
        0,
        False,
        "induction",
    )
    assert head["scores"]["induction"]["probe"] == pytest.approx(
        float(decoder.scores[7, 4, 1]), abs=1e-6
    )
    assert head["scores"]["next"]["probe"] is None


def test_mistakes_say_the_fix(decoder: HeadMap) -> None:
    model = p.planted(sl.gpt, [p.diffuse()])
    with pytest.raises(InputError, match=r"an empty text.*Fix"):
        heads_of(model, "  ")
    with pytest.raises(InputError, match=r"an empty text.*Fix"):
        heads_of(model, [])
    with pytest.raises(
        InputError, match=r"a text of 100 tokens; expected at most 64\. Fix: give a part"
    ):
        heads_of(model, "a" * 100)
    with pytest.raises(InputError, match="did you mean 'induction'"):
        decoder.top("inductoin")
    with pytest.raises(InputError, match="no cross-attention in 'decoder'"):
        decoder.grid("decoder", cross=True)
    two = p.planted(sl.gpt, [p.diffuse()], [p.diffuse()])
    with pytest.raises(InputError, match=r"a part of the model.*Fix: model\.trace\(text\)"):
        heads_of(two, two.trace(TEXT, layers=[1]))
    both = p.planted(sl.encoder_decoder, [p.diffuse()], cross=[[p.diffuse()]])
    subject = type(
        "Bare", (), {"transformer": both.transformer, "tokenizer": both.tokenizer, "name": ""}
    )()
    with pytest.raises(InputError, match=r"Fix: heads_of\(model, model\.trace\(text\)\)"):
        heads_of(subject, TEXT[:30])


@pytest.mark.long
def test_real_models_have_the_heads_they_are_known_for() -> None:
    try:
        smol, mini = (heads_of(sl.load(name)) for name in ("smollm2-135m-instruct", "minilm"))
    except UnreachableError as error:
        pytest.skip(str(error))
    inductions = smol.top("induction", 3)
    assert all(smol.score(head, "induction") > 0.8 for head in inductions)
    assert all(head.layer >= 10 for head in inductions)
    assert smol.score(smol.top("previous", 1)[0], "previous") > 0.8
    assert mini.score(mini.top("previous", 1)[0], "previous") > 0.9
    assert mini.score(mini.top("next", 1)[0], "next") > 0.7
    assert Counter(head.role for head in mini.heads)["induction"] == 0
