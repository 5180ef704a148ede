"""Views hold what NumPy computes by hand from q and k; the head that is shown first is the planted
one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from sightline.errors import InputError
from sightline.lens.draw.default_head import most_structured, structure
from sightline.lens.draw.view import bin_values, token_label
from sightline.lens.draw.views import VIEWS, project_to_sphere, view_of
from sightline.lens.trace.trace import Trace
from tests.support.drawn_trace import KINDS, traced


def attention_by_hand(trace: Trace, layer: int, head: int) -> np.ndarray:
    look = trace.look(layer)
    query, key = (
        look.query[0, head].numpy(),
        look.key[0, head * look.key.shape[1] // look.heads].numpy(),
    )
    scores = query @ key.T * look.scoring.scale
    scores = np.where(look.scoring.mask.allowed()[0, 0].numpy(), scores, -np.inf)
    exp = np.exp(scores - scores.max(1, keepdims=True))
    return exp / exp.sum(1, keepdims=True)


@pytest.mark.parametrize("name", KINDS)
def test_a_map_is_the_attention_and_nothing_where_none_may_be(name: str) -> None:
    _, trace = traced(name)
    view = view_of(trace, "map", layer=1, head=2)
    weights = attention_by_hand(trace, 1, 2)
    np.testing.assert_allclose(np.nan_to_num(view.values), weights, atol=1e-6)
    assert np.isnan(view.values).any() == (name != "encoder")
    assert (len(view.rows), len(view.columns)) == view.values.shape == (9, 9)
    assert "layer 1, head 2" in view.caption
    assert name in view.caption
    assert "some text" in view.caption


def test_a_layer_without_a_head_is_the_mean_of_its_heads() -> None:
    _, trace = traced("decoder")
    mean = np.mean([attention_by_hand(trace, 0, head) for head in range(4)], axis=0)
    view = view_of(trace, "map", layer=-2)
    np.testing.assert_allclose(np.nan_to_num(view.values), mean, atol=1e-6)
    assert "mean of all heads" in view.title


def test_what_a_trace_notes_stands_under_every_picture() -> None:
    model, trace = traced("decoder")
    noted = replace(trace, notes=("computed elsewhere",))
    for kind in VIEWS.keys() - {"alignment"}:
        assert "computed elsewhere" in view_of(noted, kind, subject=model).notes, kind


def test_a_smaller_map_keeps_every_row_a_distribution() -> None:
    _, trace = traced("decoder", time=21)
    view = view_of(trace, "map", layer=0, head=1, max_size=6)
    whole = attention_by_hand(trace, 0, 1)
    assert view.across == (4, 4)
    assert view.values.shape == (6, 6)
    np.testing.assert_allclose(np.nansum(view.values, axis=1), 1, atol=1e-5)
    np.testing.assert_allclose(view.values[2, 1], whole[8:12, 4:8].sum(1).mean(), atol=1e-6)
    assert np.isnan(view.values[0, 1:]).all()
    assert "4 tokens share a row" in view.notes[0]


def test_pooled_means_what_it_says() -> None:
    values = np.array([[1, 2, 3], [np.nan, 4, np.nan], [np.nan, np.nan, np.nan]], dtype=np.float32)
    np.testing.assert_allclose(bin_values(values, (2, 2)), [[3.5, 1.5], [np.nan, np.nan]])
    np.testing.assert_allclose(
        bin_values(values, (2, 2), add=False), [[7 / 3, 3], [np.nan, np.nan]]
    )


@pytest.mark.parametrize("name", KINDS)
def test_all_heads_beside_each_other(name: str) -> None:
    _, trace = traced(name)
    view = view_of(trace, "heads")
    assert view.values.shape == (2, 4, 9, 9)
    np.testing.assert_allclose(
        np.nan_to_num(view.values[1, 3]), attention_by_hand(trace, 1, 3), atol=1e-6
    )


def test_only_the_layers_that_were_kept_are_shown() -> None:
    _, trace = traced("decoder", layers=[1])
    assert view_of(trace, "heads").rows == ("1",)
    assert view_of(trace, "map").about["layer"] == 1


@pytest.mark.parametrize("name", KINDS)
def test_geometry_has_lengths_and_the_shares(name: str) -> None:
    _, trace = traced(name)
    view = view_of(trace, "geometry", layer=1, head=3)
    look = trace.look(1)
    np.testing.assert_allclose(
        view.extra["query"], np.linalg.norm(look.query[0, 3].numpy(), axis=1), rtol=1e-5
    )
    np.testing.assert_allclose(
        view.extra["key"],
        np.linalg.norm(look.key[0, 3 * look.key.shape[1] // 4].numpy(), axis=1),
        rtol=1e-5,
    )
    assert view.about["shares"]["direction"] + view.about["shares"]["length"] == pytest.approx(1)
    assert view.limits[0] == -view.limits[1]
    assert np.nanmax(np.abs(view.values)) <= 1


def test_geometry_from_another_origin_and_without_the_first_token() -> None:
    _, trace = traced("decoder")
    usual = view_of(trace, "geometry", layer=1, head=3)
    other = view_of(trace, "geometry", layer=1, head=3, origin="zero", sink=False)
    assert (usual.about["origin"], usual.about["sink"], usual.about["centred"]) == (
        "mean",
        True,
        True,
    )
    assert (other.about["origin"], other.about["sink"], other.about["centred"]) == (
        "zero",
        False,
        False,
    )
    wanted = trace.geometry(1, 3, origin="zero", sink=False)
    assert other.about["shares"]["direction"] == wanted.direction
    assert "without the first token, lengths from zero" in other.notes[0]
    assert bool(np.isnan(other.values[:, 0]).all())


def test_the_sphere_is_a_sphere_and_states_its_variance() -> None:
    _, trace = traced("decoder")
    view = view_of(trace, "sphere", layer=0, head=0)
    for points in view.extra.values():
        np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1, atol=1e-5)
    look = trace.look(0)
    query, key = look.query[0, 0].double().numpy(), look.key[0, 0].double().numpy()
    key = key - key.mean(0)
    both = np.concatenate([x / np.linalg.norm(x, axis=1, keepdims=True) for x in (query, key)])
    strength = np.sort(np.linalg.eigvalsh(both.T @ both))[::-1]
    assert view.about["kept"] == pytest.approx(strength[:3].sum() / strength.sum())
    assert f"{view.about['kept']:.0%}" in view.notes[0]


def test_directions_that_fit_three_axes_keep_their_angles() -> None:
    generator = torch.Generator().manual_seed(3)
    flat = torch.nn.functional.normalize(torch.randn(12, 3, generator=generator), dim=-1)
    axes = torch.linalg.qr(torch.randn(10, 3, generator=generator)).Q
    *points, kept = project_to_sphere(flat[:5] @ axes.T, flat[5:] @ axes.T)
    points = np.concatenate(points)
    assert kept == pytest.approx(1)
    np.testing.assert_allclose(points @ points.T, (flat @ flat.T).numpy(), atol=1e-5)


def test_the_logit_lens_ends_in_the_models_own_answer() -> None:
    model, trace = traced("decoder")
    view = view_of(trace, "logit-lens", subject=model)
    probability = trace.logits.softmax(-1)
    np.testing.assert_allclose(view.values[-1], probability.amax(-1).numpy(), atol=1e-5)
    assert view.cells[-1] == tuple(f"<{id}>" for id in probability.argmax(-1).tolist())
    assert view.rows == ("into 0", "into 1", "output")
    with pytest.raises(InputError, match="its model"):
        view_of(trace, "logit-lens")


def test_the_alignment_names_the_token_that_was_produced() -> None:
    _, trace = traced("both")
    view = view_of(trace, "alignment")
    np.testing.assert_allclose(view.values, trace.cross_weights(0).mean(0).numpy(), atol=1e-6)
    assert view.about["layer"] == 0  # the last but one of two
    assert view.rows == (*(f"<{token.id}>" for token in trace.tokens[1:]), "(next)")
    assert view.row_axis == "target token produced"
    assert view.columns == tuple(f"<{token.id}>" for token in trace.source or ())
    np.testing.assert_allclose(
        view_of(trace, "alignment", layer=1, head=2).values,
        trace.cross_weights(1, 2).numpy(),
        atol=1e-6,
    )


@pytest.mark.parametrize("name", ["decoder", "encoder"])
def test_the_rollout_is_the_product_of_the_layers(name: str) -> None:
    _, trace = traced(name)
    product = np.eye(9)
    for layer in range(2):
        product = (0.5 * np.eye(9) + 0.5 * trace.weights(layer).mean(0).numpy()) @ product
        np.testing.assert_allclose(
            np.nan_to_num(view_of(trace, "rollout", layer=layer).values), product, atol=1e-5
        )
    assert view_of(trace, "rollout").about["layer"] == 1


def test_both_stacks_can_be_seen() -> None:
    _, trace = traced("both")
    assert view_of(trace, "map", layer=0, head=0, stack="encoder").values.shape == (7, 7)
    assert view_of(trace, "map", layer=0, head=0).values.shape == (9, 9)


def test_the_head_with_most_to_show_is_the_planted_one() -> None:
    _, trace = traced("decoder", time=12)
    look = trace.look(1)
    query, key = torch.zeros_like(look.query), torch.zeros(1, 4, *look.key.shape[2:])
    key[0, :, 0, 0] = 1  # everyone's key of the first token
    query[..., 0] = 60  # three heads: a sink
    query[0, 2] = 0
    for row, seen in ((5, 1), (7, 3), (9, 2), (10, 6), (11, 4)):
        query[0, 2, row, 1 + row % 5] = 60
        key[0, 2, seen, 1 + row % 5] = 1
    planted = replace(look, query=query, key=key)
    plain = replace(trace.look(0), query=0 * trace.look(0).query)
    result = replace(trace, looks={look.site: planted, plain.site: plain})
    assert most_structured(result) == (1, 2)
    assert view_of(result, "lines").about["head"] == 2
    assert most_structured(result, head=0)[1] == 0
    assert most_structured(result, layer=0)[0] == 0


def test_sinks_and_diagonals_have_no_structure() -> None:
    at, causal = np.arange(24), np.tri(24, dtype=bool)
    first, late, linked = (np.zeros((24, 24), dtype=np.float32) for _ in range(3))
    first[:, 0] = 1
    late[3:, 3] = 1
    linked[at, np.random.default_rng(0).integers(0, at + 1)] = 1
    previous, offset = np.eye(24, k=-1, dtype=np.float32), np.eye(24, k=-5, dtype=np.float32)
    for map in (first, late, previous, offset):
        assert structure(map, at, causal) == 0
    assert structure(linked, at, causal) > 0.3
    assert structure(
        np.full((24, 24), 1 / 24, dtype=np.float32), at, np.ones((24, 24), dtype=bool)
    ) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "mapp"}, "did you mean 'map'"),
        ({"layer": 7}, "layer 7; expected 0 to 1"),
        ({"layer": 0, "head": 4}, "head 4; expected 0 to 3"),
        ({"head": 9}, "head 9; expected 0 to 3"),
        ({"kind": "heads", "head": 9}, "head 9; expected 0 to 3"),
        ({"kind": "rollout", "layer": 2}, "layer 2; expected 0 to 1"),
        ({"kind": "sphere", "layer": -3}, "layer -3; expected 0 to 1"),
        ({"kind": "alignment"}, "expected an encoder–decoder"),
        ({"stack": "encoder"}, "a stack named 'encoder'"),
    ],
)
def test_what_is_not_there_is_refused(options: dict[str, object], message: str) -> None:
    _, trace = traced("decoder")
    with pytest.raises(InputError) as error:
        view_of(trace, **options)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", VIEWS)
def test_one_token_is_enough(kind: str) -> None:
    model, trace = traced("both" if kind == "alignment" else "decoder", time=1)
    assert view_of(trace, kind, subject=model).values.shape[-2] in (1, 3)


def test_labels_show_what_cannot_be_seen() -> None:
    assert [token_label(text) for text in (" the", "  ", "", "\n", "a\x1b[0m", "吾", "▁the")] == [
        "the",
        "␣",
        "∅",
        "⏎",
        "a�[0m",
        "吾",
        "the",
    ]
