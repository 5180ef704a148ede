"""What the theory says of positions, angles and the sphere."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import sightline as sl
from sightline.core.attention import Scoring, attention_scores
from sightline.core.hypersphere import SphereBlock
from sightline.core.masks import Mask
from sightline.core.positions import ALiBiBias, alibi_slopes, rotate, rotation, sinusoidal
from tests.support.tiny import DECODERS, ENCODERS, distance, inputs, make


def test_without_positions_attention_is_permutation_equivariant() -> None:
    torch.manual_seed(0)
    layer, x = sl.MultiHeadAttention(32, heads=4), torch.randn(2, 9, 32)
    order = torch.randperm(9)
    torch.testing.assert_close(layer(x[:, order]), layer(x)[:, order], atol=1e-6, rtol=1e-5)
    assert not torch.allclose(layer(x[:, order]), layer(x)), "equivariant, not invariant"


@pytest.mark.parametrize("positions", ["learned", "rotary", "alibi", "relative", "sinusoidal"])
def test_with_positions_order_matters(positions: str) -> None:
    size = {
        "width": 24,
        "layers": 2,
        "heads": 4,
        "vocab_size": 29,
        "max_positions": 48,
        "head": "none",
    }
    order = torch.arange(11).roll(4)  # a reversal would not do: distances are symmetric
    tokens = inputs(ENCODERS["bert"])["tokens"]
    plain, placed = (
        make(sl.bert(**size, positions="none")),
        make(sl.bert(**size, positions=positions)),
    )
    assert distance(plain(tokens)[:, order], plain(tokens[:, order])) < 1e-5
    assert distance(placed(tokens)[:, order], placed(tokens[:, order])) > 1e-3


@settings(max_examples=30, deadline=None)
@given(shift=st.integers(0, 5000), seed=st.integers(0, 99))
def test_rotary_scores_depend_on_distance_only(shift: int, seed: int) -> None:
    torch.manual_seed(seed)
    query, key = torch.randn(1, 2, 7, 16), torch.randn(1, 2, 7, 16)
    at = torch.arange(7)[None]
    forms = [
        sl.Rotary(),
        sl.Rotary(dim=8),
        sl.Rotary(scaling=sl.YaRNScaling(factor=4.0, original_positions=32)),
    ]
    for form in forms:
        here, there = (rotation(form, 16, at + s) for s in (0, shift))
        scores = [rotate(query, by) @ rotate(key, by).transpose(-1, -2) for by in (here, there)]
        torch.testing.assert_close(
            scores[0], scores[1], atol=2e-2 if shift > 500 else 2e-3, rtol=1e-3
        )


def test_rotation_keeps_length() -> None:
    x = torch.randn(2, 3, 50, 16)
    turned = rotate(x, rotation(sl.Rotary(), 16, torch.arange(50)[None]))
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    torch.testing.assert_close(turned[:, :, 0], x[:, :, 0])


@pytest.mark.parametrize("name", ["rotary", "rotary-partial", "rotary-yarn", "alibi", "relative"])
def test_relative_positions_see_only_distance(name: str) -> None:
    """The same tokens further along, with nothing before them: the same logits."""
    model, tokens = make(DECODERS[name]), inputs(DECODERS[name])["tokens"]
    padding = torch.zeros(3, 20, dtype=torch.bool)
    padding[:, :9] = True
    shifted = torch.cat((torch.zeros(3, 9, dtype=torch.long), tokens), dim=1)
    positions = torch.arange(20)[None] - 4  # start at 5, not at 0
    hidden = model.decoder(shifted, positions.masked_fill(padding, -1), None)
    assert distance(model(tokens), model.head(hidden[:, 9:])) < 1e-5


def test_alibi_slopes_for_any_number_of_heads() -> None:
    assert alibi_slopes(8) == [2**-n for n in range(1, 9)]
    assert alibi_slopes(1) == [2**-8]
    eight, sixteen = alibi_slopes(8), alibi_slopes(16)
    assert alibi_slopes(12) == eight + sixteen[0:8:2]
    bias = ALiBiBias(tuple(alibi_slopes(6)))(torch.arange(5)[None], torch.arange(5)[None])
    assert bias.shape == (1, 6, 5, 5)
    assert float(bias[0, 0, 4, 1]) == pytest.approx(-alibi_slopes(6)[0] * 3)


@settings(max_examples=20, deadline=None)
@given(shift=st.integers(0, 200))
def test_a_sinusoidal_shift_is_one_linear_map(shift: int) -> None:
    """PE(p + k) = A(k) PE(p), with one A(k) for all p."""
    form, width, at = sl.Sinusoidal(), 16, torch.arange(64)
    angle = shift * form.base ** (-torch.arange(0, width, 2) / width)
    turn = torch.zeros(width, width)
    for pair in range(width // 2):
        c, s = angle[pair].cos(), angle[pair].sin()
        turn[2 * pair : 2 * pair + 2, 2 * pair : 2 * pair + 2] = torch.tensor([[c, s], [-s, c]])
    torch.testing.assert_close(
        sinusoidal(at + shift, width, form),
        sinusoidal(at, width, form) @ turn.T,
        atol=1e-4,
        rtol=1e-4,
    )


@pytest.mark.parametrize("name", ["cosine", "cosine-fixed"])
def test_cosine_scores_lie_within_the_scale(name: str) -> None:
    model = make(DECODERS[name])
    seen = sl.Recorder({"query", "key", "mask"})
    model(**inputs(DECODERS[name]), record=seen)
    for layer in range(2):
        query, key, mask = (seen["decoder", layer, what] for what in ("query", "key", "mask"))
        scale = model.decoder[layer].attention.measure.scale.abs()
        scores = attention_scores(query, key, Scoring(mask, 1.0))
        assert bool((scores.abs() <= scale[:, None, None] * (1 + 1e-5)).all())
        torch.testing.assert_close(key.norm(dim=-1), torch.ones_like(key[..., 0]))


def test_ngpt_stays_on_the_sphere_through_training() -> None:
    model = sl.build(DECODERS["ngpt"])
    tokens = inputs(DECODERS["ngpt"])["tokens"]
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, weight_decay=0.0)
    for _ in range(5):
        torch.nn.functional.cross_entropy(
            model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten()
        ).backward()
        optimizer.step()
        optimizer.zero_grad()
        model.normalize_weights()
    seen = sl.Recorder({"residual", "output", "embedding"})
    model(tokens, record=seen)
    for x in seen.kept.values():
        torch.testing.assert_close(x.norm(dim=-1), torch.ones(x.shape[:-1]), atol=1e-5, rtol=1e-5)
    for block in (part for part in model.modules() if isinstance(part, SphereBlock)):
        for layer, axis in (
            (block.attention.query, 1),
            (block.attention.output, 0),
            (block.feed_forward.up, 1),
            (block.feed_forward.down, 0),
        ):
            length = layer.weight.norm(dim=axis)
            torch.testing.assert_close(length, torch.ones_like(length), atol=1e-5, rtol=1e-5)
    rows = model.decoder.embedding.tokens.weight.norm(dim=1)
    torch.testing.assert_close(rows, torch.ones_like(rows), atol=1e-5, rtol=1e-5)


def test_a_mask_is_its_predicate() -> None:
    """Brute force over positions, for every combination."""
    query_at, key_at = (
        torch.tensor([[-1, 0, 1, 5], [2, 3, 4, 5]]),
        torch.tensor([[-1, 0, 1, 2, 5], [0, 3, -1, 4, 9]]),
    )
    for causal in (False, True):
        for window in (None, 1, 2, 4):
            allowed = Mask(query_at, key_at, causal, window).allowed()[:, 0]
            for b in range(2):
                for i in range(4):
                    for j in range(5):
                        q, k = int(query_at[b, i]), int(key_at[b, j])
                        expected = (
                            k >= 0
                            and (not causal or k <= q)
                            and (window is None or abs(q - k) < window)
                        )
                        assert bool(allowed[b, i, j]) == expected
