"""A model is itself, a permuted head is found again, and what was changed is what is reported."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.lens.heads.matching import HeadChange
from sightline.lens.interventions.diff import Diff, LayerChange, diff
from sightline.lens.interventions.edits import (
    Edits,
    ablate,
    logits_with,
    mask_cell,
    patch,
    scale,
    steer,
)
from sightline.lens.trace.trace import trace_of
from sightline.text.tokenizer import Tokenizer
from tests.support.diff_model import IDS, OTHER, SOURCE, Tiny
from tests.support.tiny import ALL, SIZE, distance, make


def changed(
    subject: Tiny, change: Callable[[sl.Transformer], object], name: str = "changed"
) -> Tiny:
    """A copy with other weights."""
    twin = copy.deepcopy(subject.transformer)
    with torch.no_grad():
        change(twin)
    return Tiny(twin, subject.tokenizer, name)


def began(result: Diff) -> list[tuple[str, int, int]]:
    """The heads where the difference begins."""
    assert isinstance(result.begins, list)
    return [(head.stack, head.layer, head.head) for head in result.begins]


# --------------------------------------------------------------------------------------- the same


@pytest.mark.parametrize(
    "name",
    [
        "rotary",
        "grouped",
        "sinks",
        "parallel",
        "ngpt",
        "value-dim",
        "bert",
        "bert-pooled",
        "transformer",
        "t5",
        "tagger",
    ],
)
def test_a_model_against_itself_is_nothing(name: str) -> None:
    subject = Tiny(make(ALL[name]))
    for other in (subject, changed(subject, lambda _: None)):
        result = diff(subject, other)
        assert result.same
        assert result.begins is None
        assert all(head.divergence == 0 == head.answer and not head.moved for head in result.heads)
        assert all(
            (layer.cosine, layer.norm_ratio, layer.distance) == (1, 1, 0) for layer in result.layers
        )
        assert all(bits == 0 for text in result.predictions for bits in text)
        assert set(result.weights.values()) == {0.0}
        assert result.summary()[1] == "no difference"
    stacks = ALL[name].stacks.values()
    sites = sum(
        stack.layers * (1 + (stack.block(0).cross_attention is not None)) for stack in stacks
    )
    assert len(result.heads) == 4 * sites
    assert len(result.predictions) == (0 if name in ("bert-pooled", "tagger") else 3)


def permute(layer: Any, order: list[int]) -> None:
    """The heads of an attention layer in another order."""
    for part in (layer.query, layer.key, layer.value):
        for weight in (part.weight, *([part.bias] if part.bias is not None else [])):
            weight.copy_(weight.unflatten(0, (4, -1))[order].flatten(0, 1))
    layer.output.weight.copy_(layer.output.weight.unflatten(1, (4, -1))[:, order].flatten(1))


@pytest.mark.parametrize(
    ("name", "where"),
    [
        ("rotary", lambda model: model.decoder[1].attention),
        ("bert", lambda model: model.encoder[0].attention),
        ("transformer", lambda model: model.decoder[1].cross_attention),
    ],
)
def test_permuted_heads_are_found_again(name: str, where: Callable[[Any], Any]) -> None:
    order = [2, 0, 3, 1]  # head n of the copy is head order[n] of the model
    subject = Tiny(make(ALL[name]))
    other = changed(subject, lambda model: permute(where(model), order))
    source = SOURCE if name == "transformer" else None
    assert distance(*(logits_with(x, IDS, Edits(), source=source) for x in (subject, other))) < 1e-5
    result = diff(subject, other)
    moved = {head.head: head.to_head for head in result.heads if head.moved}
    assert moved == {head: place for place, head in enumerate(order) if place != head}
    assert all(head.size < 1e-5 for head in result.heads)
    assert result.begins is None
    assert not result.same, "the weights are others"
    assert "4 matched at another place" in " ".join(result.summary())


# ------------------------------------------------------------------------------------ the changed


@pytest.mark.parametrize("name", ["rotary", "bert", "transformer"])
def test_the_head_whose_queries_were_changed_is_the_one_reported(name: str) -> None:
    subject = Tiny(make(ALL[name]))
    stack = next(iter(ALL[name].stacks))

    def change(model: sl.Transformer) -> None:
        getattr(model, stack)[0].attention.query.weight[12:18] *= -8  # head 2

    result = diff(subject, changed(subject, change))
    assert began(result) == [(stack, 0, 2)]
    most = result.changed(1)[0]
    assert (most.stack, most.layer, most.head) == (stack, 0, 2)
    assert most.divergence > 1e-3
    assert {name for name, far in result.weights.items() if far > 0} == {
        f"{stack}.0.attention.query.weight"
    }
    assert result.summary()[1] == f"begins at {stack} layer 0 head 2"


@pytest.mark.parametrize(
    ("edits", "stack", "layer", "head"),
    [
        (ablate(1, 3), "decoder", 1, 3),
        (scale(0, 1, 0.5), "decoder", 0, 1),
        (ablate(0, 2, stack="encoder"), "encoder", 0, 2),
        (ablate(1, 0, cross=True), "decoder", 1, 0),
        (mask_cell(0, 3, 4, 2), "decoder", 0, 3),
        (mask_cell(1, 1, 4, 2, cross=True), "decoder", 1, 1),
    ],
)
def test_an_edited_head_is_the_one_reported(
    edits: Edits, stack: str, layer: int, head: int
) -> None:
    subject = Tiny(make(ALL["transformer"]))
    result = diff(subject, subject, [IDS], sources=[SOURCE], edits_b=edits)
    assert began(result) == [(stack, layer, head)]
    assert isinstance(result.begins, list)
    assert result.begins[0].cross == next(iter(edits))[2].startswith("cross_")
    assert (result.begins[0].divergence > 1e-4) == next(iter(edits))[2].endswith("weights"), (
        "only a masked cell changes the map itself"
    )
    assert result.b == "tiny, edited"
    assert set(result.weights.values()) == {0.0}


def test_an_ablated_head_says_nothing_and_a_halved_one_half() -> None:
    subject = Tiny(make(ALL["rotary"]))
    result = diff(subject, subject, [IDS], edits_b=ablate(0, 0) | scale(0, 2, 0.5))
    assert isinstance(result.begins, list)
    assert {head.head: head.answer for head in result.begins} == {
        0: pytest.approx(1.0),
        2: pytest.approx(0.5),
    }
    assert result.summary()[1] == "begins at decoder layer 0 heads 0, 2"


def test_a_difference_may_begin_elsewhere_than_in_a_head() -> None:
    subject = Tiny(make(ALL["rotary"]))
    other = changed(subject, lambda model: model.decoder[0].feed_forward.down.weight.mul_(1.5))
    fed, steered = (
        diff(subject, other).begins,
        diff(subject, subject, edits_b=steer(1, torch.randn(24))).begins,
    )
    assert isinstance(fed, LayerChange)
    assert (fed.layer, fed.name) == (0, "feed_forward")
    assert isinstance(steered, LayerChange)
    assert (steered.layer, steered.name) == (1, "residual")
    ends = diff(subject, subject, edits_b={("decoder", None, "output"): lambda x: 2 * x}).begins
    assert isinstance(ends, LayerChange)
    assert str(ends) == "decoder output: cosine 1.000, norm × 2.000"


def test_the_numbers_are_those_of_numpy() -> None:
    a, b = Tiny(make(ALL["rotary"])), Tiny(make(ALL["rotary"], seed=3))
    result = diff(a, b, [IDS, OTHER])
    logits = [
        [logits_with(x, ids, Edits()).double().numpy() for ids in (IDS, OTHER)] for x in (a, b)
    ]
    for n in range(2):
        p, q = (np.exp(side[n]) / np.exp(side[n]).sum(-1, keepdims=True) for side in logits)
        np.testing.assert_allclose(result.predictions[n], (p * np.log2(p / q)).sum(-1), rtol=1e-5)
    streams = [
        [
            trace_of(x, ids, what=("residual",))["residual", 1].double().numpy()
            for ids in (IDS, OTHER)
        ]
        for x in (a, b)
    ]
    x, y = (np.concatenate(side) for side in streams)
    lengths = np.linalg.norm(x, axis=-1), np.linalg.norm(y, axis=-1)
    change = next(layer for layer in result.layers if (layer.layer, layer.name) == (1, "residual"))
    assert change.cosine == pytest.approx(
        ((x * y).sum(-1) / (lengths[0] * lengths[1])).mean(), rel=1e-6
    )
    assert change.norm_ratio == pytest.approx(lengths[1].sum() / lengths[0].sum(), rel=1e-6)
    name = "decoder.0.attention.query.weight"
    weights = [dict(side.transformer.named_parameters())[name].detach().numpy() for side in (a, b)]
    far = np.linalg.norm(weights[1] - weights[0]) / max(
        np.linalg.norm(weight) for weight in weights
    )
    assert result.weights[name] == pytest.approx(float(far), rel=1e-5)


# -------------------------------------------------------------------------- shapes, texts, output


def test_models_of_other_shapes_are_compared_as_far_as_they_go() -> None:
    large, small = (
        Tiny(make(ALL["rotary"])),
        Tiny(make(sl.gpt(**(SIZE | {"layers": 3, "heads": 2}), positions=sl.Rotary()))),
    )
    result = diff(large, small)
    assert len(result.heads) == 6
    assert len(result.only_a) == 2
    assert not result.only_b
    assert not result.layers
    assert all(head.answer is None for head in result.heads), "vectors of 6 and of 12 numbers"
    assert result.begins is None
    assert len(result.predictions) == 3
    assert any(name.startswith("decoder.2.") for name in result.unmatched_weights)
    assert "heads without a counterpart: 2 of a, 0 of b" in result.summary()
    json.dumps(result.to_dict())


def test_texts_may_be_traces_and_the_tokens_are_shown() -> None:
    letters = Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy")
    subject = Tiny(make(ALL["transformer"]), letters)
    trace = trace_of(subject, IDS, source=SOURCE)
    result = diff(
        subject, subject, [trace], edits_b=patch(("decoder", 1, "residual"), torch.zeros(7, 24))
    )
    assert result.tokens == (("b", "f", "k", "<unk>", "s", "e", "n"),)
    assert result.summary()[0] == "tiny → tiny, edited: 1 text, 7 tokens"
    line = next(line for line in result.summary() if line.startswith("predictions"))
    assert line.split("after ")[1] in [repr(token) for token in result.tokens[0]]
    own = diff(subject, subject)
    assert own.same
    assert [len(text) for text in own.tokens] == [48, 48, 48], (
        "sentences of its own, cut to the 48 tokens that it can read"
    )


def test_everything_as_json() -> None:
    subject = Tiny(make(ALL["rotary"]))
    facts = json.loads(json.dumps(diff(subject, subject, [IDS], edits_b=ablate(0, 1)).to_dict()))
    assert facts["begins"][0]["head"] == 1
    assert not facts["same"]
    assert len(facts["heads"]) == 8
    assert len(facts["predictions"][0]) == 7
    assert isinstance(HeadChange(**facts["heads"][0]), HeadChange)


def test_mistakes_are_one_line_with_the_fix() -> None:
    one, two = (
        Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy"),
        Tokenizer.from_characters("bacdefghijklmnopqrstuvwxy"),
    )
    model = make(ALL["rotary"])
    subject, encoder = Tiny(model), Tiny(make(ALL["bert"]), name="bert")
    for mistake, message in (
        (
            lambda: diff(Tiny(model, one), Tiny(model, two, "two"), ["ab"]),
            r"'ab'.*2 tokens for tiny and 2 different ones for two.*Fix: ",
        ),
        (
            lambda: diff(Tiny(model, one), Tiny(model, two, "two")),
            "expected models that read the same tokens",
        ),
        (
            lambda: diff(subject, encoder),
            "tiny, which has decoder only, and bert, which has encoder only",
        ),
        (lambda: diff(subject, subject, "abc"), "texts='abc'; expected a list of texts"),
        (lambda: diff(subject, subject, []), r"texts=\[\]; expected a list"),
        (lambda: diff(subject, subject, ["abc"]), "for a model without tokenizer"),
        (lambda: diff(subject, subject, [[29]]), "token 29; expected 0 to 28"),
        (lambda: diff(subject, subject, [IDS, OTHER], sources=[SOURCE]), "2 texts and 1 sources"),
    ):
        with pytest.raises(sl.InputError, match=message):
            mistake()
    with pytest.raises(sl.RecordError, match="never computed it"):
        diff(subject, subject, edits_b=ablate(9, 0))


def test_a_map_of_one_token_can_be_compared() -> None:
    subject: Tiny = Tiny(make(ALL["rotary"]))
    result = diff(subject, subject, [[3]])
    assert result.same
    assert isinstance(result.heads[0].divergence, float)
    assert not isinstance(result.heads[0].divergence, Tensor)
