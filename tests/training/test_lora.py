"""Adapters: nothing at first, the same merged or not, and under Hugging Face's names what Hugging
Face would compute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import sightline as sl
from sightline.checkpoints.formats.safetensors import open_safetensors
from sightline.checkpoints.save import tensors_of
from sightline.errors import CheckpointError, ConfigError
from sightline.families import FAMILIES
from sightline.training.config import AdamW
from sightline.training.data.batch import Batch
from sightline.training.lora import LowRank, adapters, add_adapters, merged, merged_tensors
from sightline.training.loss import Objective
from sightline.training.optimizers import make_optimizers, parameter_groups
from sightline.training.state.lora_files import load_adapters, save_adapters
from tests.families.oracle import ours, reference, tokens
from tests.support.tiny import SIZE

SMALL: dict[str, Any] = {
    "vocab_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "hidden_size": 32,
    "intermediate_size": 48,
}
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 64},
    "GPT2LMHeadModel": {
        "vocab_size": 40,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 64,
    },
    "GPTNeoXForCausalLM": SMALL | {"max_position_embeddings": 64},
    "BertForMaskedLM": SMALL | {"max_position_embeddings": 64},
    "Phi3ForCausalLM": SMALL
    | {"num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0},
    "T5ForConditionalGeneration": {
        "vocab_size": 40,
        "d_model": 32,
        "d_kv": 8,
        "d_ff": 48,
        "num_layers": 2,
        "num_heads": 4,
    },
}


def filled(transformer: sl.Transformer, seed: int = 0) -> sl.Transformer:
    """Adapters that do something."""
    generator = torch.Generator().manual_seed(seed)
    for part in adapters(transformer).values():
        part.lora_b.data.normal_(std=0.3, generator=generator)
    return transformer


def inputs(transformer: sl.Transformer) -> dict[str, torch.Tensor]:
    size = transformer.config.last.embedding.vocab_size
    both = transformer.config.encoder is not None and transformer.config.decoder is not None
    return {"tokens": tokens(size)} | ({"source": tokens(size, 9, seed=2)} if both else {})


@pytest.mark.parametrize("matrices", ["query_value", "attention", "all"])
def test_b_is_zero_so_nothing_changes(matrices: Any) -> None:
    torch.manual_seed(0)
    model = sl.build(sl.llama(**SIZE, kv_heads=2)).eval()
    with torch.no_grad():  # in training q, k and v are one product where they have no adapters, which rounds differently
        before = model(**inputs(model))
        add_adapters(model, rank=3, matrices=matrices)
        assert torch.equal(model(**inputs(model)), before)
    torch.testing.assert_close(model(**inputs(model)), before, rtol=0, atol=1e-6)
    assert len(adapters(model)) == 2 * {"query_value": 2, "attention": 4, "all": 7}[matrices]


def test_the_formula() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 5)
    made = LowRank(layer, rank=2, alpha=3.0)
    made.lora_b.data.normal_()
    x = torch.randn(4, 6)
    a, b, w = (
        value.detach().double().numpy() for value in (made.lora_a, made.lora_b, layer.weight)
    )
    expected = x.double().numpy() @ (w + 3.0 / 2 * b @ a).T + layer.bias.detach().double().numpy()
    torch.testing.assert_close(made(x).double(), torch.from_numpy(expected), atol=1e-5, rtol=1e-5)


def test_merged_is_unmerged_and_back_to_the_bit() -> None:
    torch.manual_seed(0)
    model = filled(
        add_adapters(sl.build(sl.encoder_decoder(**SIZE)).eval(), rank=4, matrices="all")
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    apart = model(**inputs(model))
    with merged(model):
        changed = [name for name, p in model.named_parameters() if not torch.equal(p, before[name])]
        assert sorted(changed) == sorted(f"{path}.weight" for path in adapters(model))
        torch.testing.assert_close(model(**inputs(model)), apart, atol=1e-5, rtol=1e-5)
    assert all(torch.equal(p, before[name]) for name, p in model.named_parameters())
    assert torch.equal(model(**inputs(model)), apart)
    plain = sl.build(model.config).eval()
    result = merged_tensors(model, before)
    assert result.keys() == dict(plain.named_parameters()).keys()
    plain.load_state_dict(result, strict=False)
    torch.testing.assert_close(plain(**inputs(model)), apart, atol=1e-5, rtol=1e-5)


def test_only_the_adapters_learn() -> None:
    torch.manual_seed(0)
    model = filled(add_adapters(sl.build(sl.gpt(**SIZE)), rank=4))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    assert [(group.name, len(group.parameters)) for group in parameter_groups(model)] == [
        ("hidden", 2 * 2 * SIZE["layers"])
    ]
    optimizers = make_optimizers(model, AdamW(lr=0.1))
    optimizers.set_factor(1.0)
    ids = tokens(SIZE["vocab_size"])
    Objective(model)(Batch(tokens=ids[:, :-1], targets=ids[:, 1:], count=22))[0].backward()
    learned = {name for name, p in model.named_parameters() if p.grad is not None}
    assert learned == {f"{path}.lora_{side}" for path in adapters(model) for side in "ab"}
    optimizers.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == learned


@pytest.mark.parametrize("matrices", ["query_value", "all"])
@pytest.mark.parametrize("name", MODELS)
def test_on_the_disk_as_hugging_face_names_it(name: str, matrices: Any, tmp_path: Path) -> None:
    """What the files say, added to Hugging Face's modules by hand, is what our adapters compute;
    and we read it back."""
    theirs = reference(name, MODELS[name])
    loaded = ours(theirs)
    model = filled(add_adapters(loaded.transformer, rank=2, alpha=5.0, matrices=matrices))
    expected = model(**inputs(model))
    save_adapters(model, loaded.family, loaded.head, tmp_path / "adapter", base="a/b")
    again = ours(theirs)
    load_adapters(again.transformer, again.family, again.head, tmp_path / "adapter")
    torch.testing.assert_close(again.transformer(**inputs(model)), expected, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(
        by_hand(theirs, tmp_path / "adapter", inputs(model)), expected, atol=1e-4, rtol=1e-4
    )


def by_hand(theirs: Any, folder: Path, given: dict[str, torch.Tensor]) -> torch.Tensor:
    """PEFT's rule: every module whose name is, or ends in, a target; its own rank and α where a
    pattern names it."""
    stated = json.loads((folder / "adapter_config.json").read_text())
    stored = {
        name: entry.read()
        for name, entry in open_safetensors(folder / "adapter_model.safetensors").items()
    }
    named = [
        name
        for name, module in theirs.named_modules()
        if hasattr(module, "weight")
        and any(
            name == target or name.endswith(f".{target}") for target in stated["target_modules"]
        )
    ]
    assert len(stored) == 2 * len(named)
    for name in named:
        a, b = (stored[f"base_model.model.{name}.lora_{side}.weight"] for side in "AB")
        rank, alpha = (
            stated["rank_pattern"].get(name, stated["r"]),
            stated["alpha_pattern"].get(name, stated["lora_alpha"]),
        )
        assert (a.shape[0], b.shape[1]) == (rank, rank)
        module = theirs.get_submodule(name)
        delta = alpha / rank * b @ a
        module.weight.data += delta.T if stated["fan_in_fan_out"] else delta
    both = (
        {"decoder_input_ids": given["tokens"], "input_ids": given["source"]}
        if "source" in given
        else {"input_ids": given["tokens"]}
    )
    with torch.no_grad():
        return theirs(**both).logits


def test_names_and_settings(tmp_path: Path) -> None:
    loaded = ours(reference("LlamaForCausalLM", MODELS["LlamaForCausalLM"]))
    add_adapters(loaded.transformer, rank=4)
    save_adapters(loaded.transformer, loaded.family, loaded.head, tmp_path, base="owner/model")
    stated = json.loads((tmp_path / "adapter_config.json").read_text())
    chosen = {
        name: stated[name]
        for name in (
            "peft_type",
            "task_type",
            "r",
            "lora_alpha",
            "target_modules",
            "base_model_name_or_path",
        )
    }
    assert chosen == {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "owner/model",
    }
    names = open_safetensors(tmp_path / "adapter_model.safetensors")
    assert names["base_model.model.model.layers.1.self_attn.v_proj.lora_A.weight"].shape == (4, 32)
    assert names["base_model.model.model.layers.1.self_attn.v_proj.lora_B.weight"].shape == (16, 4)


def test_a_new_head_is_saved_whole(tmp_path: Path) -> None:
    theirs = reference(
        "BertForSequenceClassification", MODELS["BertForMaskedLM"] | {"num_labels": 3}
    )
    loaded = ours(theirs)
    model = filled(add_adapters(loaded.transformer, rank=2, matrices="all"))
    assert model.output is not None
    model.output.requires_grad_()
    with torch.no_grad():
        for parameter in model.output.parameters():
            parameter.add_(0.5)
    save_adapters(model, loaded.family, loaded.head, tmp_path)
    stated = json.loads((tmp_path / "adapter_config.json").read_text())
    assert stated["modules_to_save"] == ["bert.pooler.dense", "classifier"]
    again = ours(theirs)
    load_adapters(again.transformer, again.family, again.head, tmp_path)
    torch.testing.assert_close(
        again.transformer(**inputs(model)), model(**inputs(model)), atol=1e-6, rtol=1e-5
    )
    assert {name for name, p in again.transformer.named_parameters() if p.requires_grad} == {
        name for name, p in model.named_parameters() if p.requires_grad
    }


def test_our_own_format(tmp_path: Path) -> None:
    model = filled(add_adapters(sl.build(sl.llama(**SIZE)).eval(), rank=2))
    family = FAMILIES["sightline"]
    save_adapters(model, family, "any", tmp_path)
    own = {name: p.detach() for name, p in model.named_parameters()}
    assert not [
        name
        for name, _ in tensors_of(model, family, "any", parameters=merged_tensors(model, own))
        if "lora" in name
    ]
    names = open_safetensors(tmp_path / "adapter_model.safetensors")
    assert "base_model.model.decoder.0.attention.query.lora_A.weight" in names


def test_refusals(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rank 0"):
        add_adapters(sl.build(sl.gpt(**SIZE)), rank=0)
    with pytest.raises(ConfigError, match="sphere"):
        add_adapters(sl.build(sl.ngpt(**SIZE)), rank=2)
    loaded = ours(reference("LlamaForCausalLM", MODELS["LlamaForCausalLM"]))
    add_adapters(loaded.transformer, rank=2)
    save_adapters(loaded.transformer, loaded.family, loaded.head, tmp_path)
    other = ours(reference("GPT2LMHeadModel", MODELS["GPT2LMHeadModel"]))
    with pytest.raises(
        CheckpointError,
        match=r"an adapter of model\.layers\.0\.self_attn\.q_proj, which this model does not have",
    ):
        load_adapters(other.transformer, other.family, other.head, tmp_path)
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"use_dora": True}))
    with pytest.raises(CheckpointError, match="use_dora is True"):
        load_adapters(loaded.transformer, loaded.family, loaded.head, tmp_path)
