"""Changes of the keys, worked out again in NumPy one row at a time."""

from __future__ import annotations

import itertools
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.lens.interventions.edits import Edits, logits_with
from sightline.lens.interventions.keys import (
    HOWS,
    ORIGINS,
    PARTS,
    How,
    KeyChange,
    Origin,
    Part,
    change_keys,
    changed_weights,
    shuffled_in_rows,
)
from sightline.lens.trace.layer import Look
from sightline.lens.trace.trace import trace_of
from tests.support.tiny import ALL, inputs, make


def subject_of(name: str) -> SimpleNamespace:
    return SimpleNamespace(transformer=make(ALL[name]), tokenizer=None, name="tiny")


def ids_of(name: str) -> list[int]:
    return inputs(ALL[name], batch=1)["tokens"][0].tolist()


def look_of(name: str) -> Look:
    return trace_of(subject_of(name), ids_of(name)).look(1)


def weights_by_hand(look: Look, head: int, part: Part, origin: Origin, *, keep: bool) -> np.ndarray:
    """Row by row: means over the changed keys, then the layer's own softmax."""
    scoring = look.scoring
    scores = look.scores(head).double().numpy()
    query = look.query[0, head].double().numpy()
    keys = look.keys[0, head].double().numpy()
    result = np.zeros_like(scores)
    cap = scoring.softcap
    for i, q in enumerate(query):
        visible = [j for j in range(len(keys)) if scores[i, j] > -math.inf]
        changed = [j for j in visible if not (keep and j == 0)]
        centre = keys[changed].mean(0) if origin == "mean" and changed else np.zeros_like(q)
        lengths = {j: float(np.linalg.norm(keys[j] - centre)) for j in changed}
        cosines = {
            j: float(q @ (keys[j] - centre)) / float(np.linalg.norm(q)) / lengths[j]
            if lengths[j] > 1e-9
            else 0.0
            for j in changed
        }
        new = {}
        for j in visible:
            product = float(q @ keys[j])
            if j in changed:
                n = np.mean(list(lengths.values())) if part == "length" else lengths[j]
                c = np.mean(list(cosines.values())) if part == "direction" else cosines[j]
                product = float(np.linalg.norm(q) * n * c + q @ centre)
            before = float(q @ keys[j]) * scoring.scale
            after = product * scoring.scale
            if cap is not None:
                before, after = cap * math.tanh(before / cap), cap * math.tanh(after / cap)
            new[j] = after + scores[i, j] - before  # the bias
        sink = [] if scoring.sinks is None else [float(scoring.sinks[head])]
        top = max([*new.values(), *sink])
        total = sum(math.exp(x - top) for x in [*new.values(), *sink])
        for j, score in new.items():
            result[i, j] = math.exp(score - top) / total
    return result


@pytest.mark.parametrize(
    "name", ["rotary", "grouped", "alibi", "soft-cap", "sinks", "bert", "ngpt"]
)
def test_equal_keys_are_those_of_the_loops(name: str) -> None:
    look = look_of(name)
    for part, origin, keep in itertools.product(PARTS, ORIGINS, (False, True)):
        change = KeyChange(part, "equal", origin, keep)
        actual = changed_weights(look.query, look.key, look.scoring, change)[0, 3]
        wanted = weights_by_hand(look, 3, part, origin, keep=keep)
        np.testing.assert_allclose(actual.detach().numpy(), wanted, atol=2e-5)


def test_a_row_is_shuffled_among_what_it_may_see() -> None:
    visible = torch.ones(2, 6, 6, dtype=torch.bool).tril() & (torch.arange(6) > 0)
    values = torch.arange(72.0).reshape(2, 6, 6)
    actual = shuffled_in_rows(values, visible, 0)
    assert torch.equal(actual.masked_fill(visible, 0), values.masked_fill(visible, 0))
    for head, row in itertools.product(range(2), range(6)):
        seen = visible[head, row]
        assert sorted(actual[head, row][seen].tolist()) == values[head, row][seen].tolist()
    assert not torch.equal(actual, values)
    assert not torch.equal(actual, shuffled_in_rows(values, visible, 1))


@pytest.mark.parametrize("how", HOWS)
def test_in_cosine_attention_lengths_from_zero_change_nothing(how: How) -> None:
    model, ids = subject_of("cosine"), ids_of("cosine")
    intact = logits_with(model, ids, Edits())
    torch.testing.assert_close(
        logits_with(model, ids, change_keys(model, "length", how=how)), intact
    )
    assert not torch.allclose(
        logits_with(model, ids, change_keys(model, "direction", how=how)), intact
    )


def test_some_layers_only() -> None:
    model = subject_of("rotary")
    assert {place[1] for place in change_keys(model, "length", layers=[1])} == {1}
    assert {place[1] for place in change_keys(model, "length")} == {0, 1}


def test_a_misspelt_choice_is_named() -> None:
    with pytest.raises(sl.InputError, match=r"'lengths'; expected length or direction"):
        change_keys(subject_of("rotary"), "lengths")  # pyright: ignore[reportArgumentType]
