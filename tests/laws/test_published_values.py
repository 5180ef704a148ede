"""Where the source notes print a wrong value (SPEC, section Z): the right one, computed by this
software."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.core.attention import masked_softmax
from sightline.core.norms import make_norm
from sightline.core.positions import sinusoidal
from tests.support import numpy_reference as reference

KERNELS = pytest.mark.parametrize("kernel", ["fused", "equation"])
SMALL = {"width": 16, "layers": 2, "heads": 4, "vocab_size": 30}


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@KERNELS
def test_three_words(kernel: str) -> None:
    """ "I", "love", "Transformers" look at each other; the notes print 0.348 0.325 0.327 / 0.32
    0.36 0.32 / 0.309 0.314 0.377."""
    words = torch.tensor([[1.0, 0.5, 0.2, 0.1], [0.3, 1.0, 0.4, 0.2], [0.2, 0.3, 1.0, 0.5]])
    x = words[None, None]
    output, weights = sl.attention(x, x, x, kernel=kernel, return_weights=True)
    right = [[0.396, 0.324, 0.279], [0.313, 0.380, 0.307], [0.277, 0.315, 0.408]]
    np.testing.assert_allclose(weights[0, 0].numpy(), right, atol=5.1e-4)
    np.testing.assert_allclose(
        output[0, 0].numpy(), weights[0, 0].numpy() @ words.numpy(), atol=1e-6
    )


SOFTMAX = [0.0900, 0.2447, 0.0, 0.6652]  # of 1, 2, −∞, 3; the notes print 0.0116 0.0315 0 0.8569


@KERNELS
@pytest.mark.parametrize("hidden_by", ["padding", "infinity"])
def test_softmax_with_a_hidden_score(hidden_by: str, kernel: str) -> None:
    query, key, value = (
        torch.ones(1, 1, 1, 1),
        torch.tensor([1.0, 2.0, 9.0, 3.0]).view(1, 1, 4, 1),
        torch.eye(4)[None, None],
    )
    third = torch.tensor([[False, False, True, False]])
    how = (
        {"key_padding": third}
        if hidden_by == "padding"
        else {"bias": torch.zeros(1, 1, 1, 4).masked_fill(third, -math.inf)}
    )
    output, weights = sl.attention(
        query, key, value, scale=1.0, kernel=kernel, return_weights=True, **how
    )
    for seen in (output, weights):
        np.testing.assert_allclose(seen.flatten().numpy(), SOFTMAX, atol=5e-5)
        assert seen.flatten()[2] == 0


def test_masked_softmax() -> None:
    allowed = torch.tensor([True, True, False, True]).view(1, 1, 1, 4)
    weights = masked_softmax(torch.tensor([1.0, 2.0, 9.0, 3.0]).view(1, 1, 1, 4), allowed)
    np.testing.assert_allclose(weights.flatten().numpy(), SOFTMAX, atol=5e-5)


def test_sinusoidal_positions() -> None:
    """Width 8, position 1; the notes print 0.841 0.541 0.01 1 0 1 0 1."""
    right = [0.841, 0.540, 0.100, 0.995, 0.010, 1.000, 0.001, 1.000]
    np.testing.assert_allclose(
        sinusoidal(torch.tensor(1), 8, sl.Sinusoidal()).numpy(), right, atol=5.1e-4
    )
    model = sl.build(sl.gpt(width=8, layers=1, heads=2, vocab_size=5, positions="sinusoidal"))
    model.decoder.embedding.tokens.weight.data.zero_()
    seen = sl.Recorder({"embedding"})
    model(torch.tensor([[3, 4]]), record=seen)
    np.testing.assert_allclose(
        seen["decoder", None, "embedding"][0, 1].detach().numpy(), right, atol=5.1e-4
    )


@KERNELS
def test_attention_is_equivariant_and_not_invariant(kernel: str) -> None:
    """Without positions, permuted inputs give permuted outputs, which are not the outputs as they
    were."""
    order = torch.tensor([3, 0, 4, 1, 2])
    layer, x = sl.MultiHeadAttention(16, heads=4), normal(2, 5, 16)
    y, weights = layer(x, kernel=kernel, return_weights=True)
    z, permuted = layer(x[:, order], kernel=kernel, return_weights=True)
    torch.testing.assert_close(z, y[:, order], atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(permuted, weights[:, :, order][:, :, :, order], atol=1e-6, rtol=1e-5)
    assert (z - y).abs().max() > 0.01


@pytest.mark.parametrize(
    ("positions", "equivariant"),
    [("none", True), ("learned", False), ("rotary", False), ("alibi", False)],
)
def test_positions_are_what_breaks_the_equivariance(positions: str, equivariant: bool) -> None:
    order = torch.tensor([3, 0, 4, 1, 2])
    model, tokens = (
        sl.build(sl.bert(**SMALL, positions=positions, head="none")).eval(),
        torch.tensor([[5, 9, 2, 7, 11]]),
    )
    difference = (model(tokens[:, order]) - model(tokens)[:, order]).abs().max()
    assert (difference < 1e-5) == equivariant, difference


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_multi_head_parameters_do_not_depend_on_the_heads(heads: int) -> None:
    """4d² whatever h, not O(d²/h)."""
    layer = sl.MultiHeadAttention(64, heads=heads, bias=False)
    assert sum(p.numel() for p in layer.parameters()) == 4 * 64**2
    biased = sl.MultiHeadAttention(64, heads=heads)
    assert sum(p.numel() for p in biased.parameters()) == 4 * 64**2 + 4 * 64


def test_gpt_and_bert_learn_their_positions() -> None:
    """The notes say sinusoidal; that is the model of 2017."""
    for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl", "bert-base", "bert-large"):
        assert isinstance(sl.PUBLISHED[name]().last.embedding.positions, sl.Learned), name
    assert sl.build(sl.gpt(**SMALL)).decoder.embedding.positions.weight.shape == (1024, 16)
    assert sl.build(sl.bert(**SMALL)).encoder.embedding.positions.weight.shape == (512, 16)
    assert isinstance(sl.PUBLISHED["transformer-base"]().last.embedding.positions, sl.Sinusoidal)


def test_swiglu_has_a_third_matrix() -> None:
    """W₂ (silu(W_g x) ⊙ W₁ x): the product alone would leave the vector `hidden` numbers wide."""
    config = sl.llama(**SMALL, hidden=40)
    layer = sl.build(config).decoder[0].feed_forward
    matrices = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert matrices == {"up.weight": (40, 16), "gate.weight": (40, 16), "down.weight": (16, 40)}
    x = normal(2, 3, 16)
    y = layer(x)
    assert y.shape == x.shape
    params = {name: value.double().numpy() for name, value in layer.state_dict().items()}
    wanted = reference.feed_forward(
        config.decoder.blocks[0].feed_forward, params, x.double().numpy()
    )
    np.testing.assert_allclose(y.detach().numpy(), wanted, atol=1e-6)


def test_layer_norm_has_epsilon_inside_the_root() -> None:
    """√(variance + ε) with the biased variance: of 1 2 3 4 it is 1.25. The notes divide by (std +
    ε)."""
    x, eps = torch.tensor([[1.0, 2.0, 3.0, 4.0]]), 1.0
    right = [(n - 2.5) / math.sqrt(1.25 + eps) for n in (1, 2, 3, 4)]
    notes = [(n - 2.5) / (math.sqrt(1.25) + eps) for n in (1, 2, 3, 4)]
    unbiased = [(n - 2.5) / math.sqrt(5 / 3 + eps) for n in (1, 2, 3, 4)]
    seen = make_norm(sl.LayerNorm(eps=eps), 4)(x)[0].tolist()
    assert seen == pytest.approx(right, abs=1e-6)
    assert seen != pytest.approx(notes, abs=1e-2)
    assert seen != pytest.approx(unbiased, abs=1e-2)
    rms = make_norm(sl.RMSNorm(eps=eps), 4)(x)[0].tolist()
    assert rms == pytest.approx([n / math.sqrt(7.5 + eps) for n in (1, 2, 3, 4)], abs=1e-6)


@KERNELS
def test_cross_attention_has_the_keys_own_length(kernel: str) -> None:
    """The notes' sample takes one `seq_len` for q, k and v."""
    layer = sl.MultiHeadAttention(16, heads=4)
    y, weights = layer(
        normal(2, 3, 16), normal(2, 7, 16, seed=1), kernel=kernel, return_weights=True
    )
    assert y.shape == (2, 3, 16)
    assert weights.shape == (2, 4, 3, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 3))
    model = sl.build(sl.encoder_decoder(**SMALL))
    assert model(torch.ones(2, 3).long(), source=torch.ones(2, 7).long(), kernel=kernel).shape == (
        2,
        3,
        30,
    )


@KERNELS
def test_a_row_with_nothing_to_look_at_is_zero(kernel: str) -> None:
    """−∞ everywhere makes softmax NaN; here the row is 0, and so are the gradients that pass
    through it."""
    query, key, value = (normal(2, 4, 3, 8, seed=seed).requires_grad_() for seed in range(3))
    padding = torch.tensor([[True, True, True], [False, True, False]])
    output, weights = sl.attention(
        query, key, value, key_padding=padding, kernel=kernel, return_weights=True
    )
    assert (output[0] == 0).all()
    assert (weights[0] == 0).all()
    torch.testing.assert_close(weights[1].sum(-1), torch.ones(4, 3))
    output.sum().backward()
    for x in (query, key, value):
        assert x.grad.isfinite().all()
        assert (x.grad[0] == 0).all()


@KERNELS
def test_a_sequence_of_padding_only_is_finite(kernel: str) -> None:
    for config in (
        sl.gpt(**SMALL),
        sl.llama(**SMALL),
        sl.bert(**SMALL),
        sl.bert(**SMALL, head="mean"),
        sl.ngpt(**SMALL),
    ):
        model, tokens = sl.build(config), torch.ones(2, 4).long()
        seen = model(tokens, padding=torch.tensor([[True] * 4, [False] * 4]), kernel=kernel)
        assert seen.isfinite().all()
        torch.testing.assert_close(seen[1:], model(tokens[1:]), atol=1e-5, rtol=1e-4)


@KERNELS
def test_a_row_that_a_bias_hides_is_zero(kernel: str) -> None:
    """The −∞ mask of the notes, handed over as a bias."""
    query, key, value = (normal(1, 2, 3, 8, seed=seed) for seed in range(3))
    bias = torch.zeros(1, 1, 3, 3)
    bias[..., 1, :] = -math.inf
    output, weights = sl.attention(query, key, value, bias=bias, kernel=kernel, return_weights=True)
    assert (output[:, :, 1] == 0).all()
    assert (weights[:, :, 1] == 0).all()
