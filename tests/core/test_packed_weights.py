"""The packed twin: the same logits to rounding, the same parameters, made anew when a weight
changes."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.core import packed_weights as packing
from sightline.core.cache.kv_cache import Cache
from sightline.core.linear import FEW, BlockedLinear
from sightline.core.multi_head import Attention
from sightline.core.packed_weights import PackedLinear, can_pack, pack
from sightline.text.tokenizer import Tokenizer
from tests.support.tiny import ALL, distance, inputs, make

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="no oneDNN here")


@pytest.fixture(autouse=True)
def pack_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "SMALLEST", 1)


@pytest.mark.parametrize("name", ALL)
@torch.inference_mode()
def test_the_packed_copy_computes_the_same(name: str) -> None:
    model = make(ALL[name])
    twin = pack(model)
    assert any(isinstance(part, BlockedLinear) for part in twin.modules())
    for batch in (1, 3, FEW):  # few vectors, then many
        given = inputs(model.config, batch=batch)
        assert distance(model(**given), twin(**given)) < 1e-5


@pytest.mark.parametrize(
    "name", ["rotary", "grouped", "qk-norm-joined", "ngpt", "transformer-rotary"]
)
@torch.inference_mode()
def test_the_packed_copy_decodes_the_same(name: str) -> None:
    model = make(ALL[name])
    twin, given = pack(model), inputs(model.config, batch=1)
    tokens = given.pop("tokens")
    a, b = Cache.growing(model.config), Cache.growing(model.config)
    for n in range(tokens.shape[1]):
        step = tokens[:, n : n + 1]
        assert (
            distance(
                model(step, cache=a, **(given if n == 0 else {})),
                twin(step, cache=b, **(given if n == 0 else {})),
            )
            < 1e-5
        )


def test_joined_is_one_product_and_shares_the_parameters() -> None:
    model = make(ALL["grouped"])
    twin = pack(model)
    attention = next(part for part in twin.modules() if isinstance(part, Attention))
    assert isinstance(attention.fused_qkv, BlockedLinear)
    assert isinstance(attention.output, PackedLinear)
    assert attention.query.weight is model.decoder[0].attention.query.weight  # pyright: ignore
    assert all(part.fused_qkv is None for part in model.modules() if isinstance(part, Attention))
    assert sorted(model.state_dict()) == sorted(make(ALL["grouped"]).state_dict())


def test_a_model_repacks_when_a_weight_changes() -> None:
    model = sl.Model(make(ALL["rotary"]), Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy"))
    first = model.runner
    assert model.runner is first
    assert first.transformer is not model.transformer
    before = model.generate([5, 6, 7], max_tokens=8).tokens
    with torch.no_grad():
        for parameter in model.transformer.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.3)
    assert model.runner is not first
    after = model.generate([5, 6, 7], max_tokens=8).tokens
    assert after != before
    assert (
        after
        == sl.Model(model.transformer, model.tokenizer).generate([5, 6, 7], max_tokens=8).tokens
    )


def test_what_gains_nothing_is_not_packed() -> None:
    model = sl.Model(make(ALL["rotary"]).bfloat16())
    assert not can_pack(model.transformer)
    assert model.runner.transformer is model.transformer
