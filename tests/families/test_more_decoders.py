"""GPT-NeoX, BLOOM, Gemma, OLMo 2 and Phi-3 against transformers, with every option that they read
varied."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sightline.checkpoints.load import LoadedWeights, load_weights
from sightline.checkpoints.source import Entry
from sightline.errors import CheckpointError
from sightline.families.gemma import gemma2_config
from sightline.families.schema.keys import Keys
from tests.families import oracle
from tests.families.oracle import back, compare, ours, reference, source_of, tokens, transformers
from tests.support.more_decoder_configs import (
    BLOOM,
    CASES,
    GEMMA2,
    LLAMA,
    NEOX,
    SIZES,
)


@pytest.fixture(autouse=True)
def names_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers calls GPT-NeoX's head `lm_head` in memory and `embed_out` in files; we write
    what files have."""

    def renamed(loaded: LoadedWeights) -> dict[str, torch.Tensor]:
        return {
            name.replace("embed_out", "lm_head"): tensor for name, tensor in back(loaded).items()
        }

    monkeypatch.setattr(oracle, "back", renamed)


@pytest.mark.parametrize("name", CASES)
def test_ours_is_the_reference(name: str) -> None:
    class_name, options = CASES[name]
    compare(reference(class_name, options))


# ---------------------------------------------------------------- config.json as it was published


OLD_ROTARY = {"rope_theta": 500.0, "rope_scaling": None}
PUBLISHED: dict[str, tuple[str, dict[str, Any]]] = {
    "pythia": (
        "GPTNeoXForCausalLM",
        SIZES
        | {
            "hidden_act": "gelu",
            "intermediate_size": 40,
            "max_position_embeddings": 64,
            "rotary_emb_base": 500,
            "rotary_pct": 0.67,
        }
        | {
            "layer_norm_eps": 1e-05,
            "tie_word_embeddings": False,
            "use_cache": True,
            "use_parallel_residual": True,
        },
    ),
    "gpt-neox-20b": (
        "GPTNeoXForCausalLM",
        SIZES
        | {
            "attention_probs_dropout_prob": 0,
            "hidden_dropout_prob": 0,
            "hidden_act": "gelu_fast",
            "intermediate_size": 40,
        }
        | {
            "max_position_embeddings": 64,
            "rotary_emb_base": 10000,
            "rotary_pct": 0.34,
            "use_parallel_residual": True,
        },
    ),
    "neox linear, version 4": (
        "GPTNeoXForCausalLM",
        SIZES
        | {
            "intermediate_size": 40,
            "max_position_embeddings": 64,
            "rotary_pct": 0.5,
            "rotary_emb_base": 10000,
            "hidden_size": 32,
        }
        | {"rope_scaling": {"type": "linear", "factor": 2.0}},
    ),
    "bloom-560m": (
        "BloomForCausalLM",
        {
            "apply_residual_connection_post_layernorm": False,
            "attention_dropout": 0.0,
            "attention_softmax_in_fp32": True,
        }
        | {
            "bias_dropout_fusion": True,
            "hidden_dropout": 0.0,
            "layer_norm_epsilon": 1e-05,
            "masked_softmax_fusion": True,
        }
        | {
            "n_embed": 24,
            "n_inner": None,
            "n_layer": 2,
            "num_attention_heads": 4,
            "offset_alibi": 100,
            "pretraining_tp": 2,
        }
        | {
            "seq_length": 64,
            "skip_bias_add": True,
            "skip_bias_add_qkv": False,
            "unk_token_id": 0,
            "vocab_size": 40,
        },
    ),
    "gemma-2b": (
        "GemmaForCausalLM",
        SIZES
        | {
            "attention_bias": False,
            "attention_dropout": 0.0,
            "head_dim": 10,
            "hidden_act": "gelu",
            "hidden_activation": "gelu_pytorch_tanh",
        }
        | {
            "intermediate_size": 40,
            "max_position_embeddings": 64,
            "num_key_value_heads": 1,
            "rms_norm_eps": 1e-06,
        }
        | OLD_ROTARY,
    ),
    "gemma-2-9b": (
        "Gemma2ForCausalLM",
        GEMMA2
        | {
            "cache_implementation": "hybrid",
            "hidden_act": "gelu_pytorch_tanh",
            "hidden_activation": "gelu_pytorch_tanh",
        }
        | {"rms_norm_eps": 1e-06, "sliding_window_size": 5, "rope_theta": 500.0},
    ),
    "OLMo-2-1124-7B": (
        "Olmo2ForCausalLM",
        LLAMA | {"attention_bias": False, "rms_norm_eps": 1e-06, "hidden_act": "silu"} | OLD_ROTARY,
    ),
    "Phi-3-mini-4k": (
        "Phi3ForCausalLM",
        LLAMA
        | {
            "attention_bias": False,
            "auto_map": {},
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
            "sliding_window": 5,
        }
        | {"original_max_position_embeddings": 64, "rms_norm_eps": 1e-05}
        | OLD_ROTARY,
    ),
    "Phi-4": (
        "Phi3ForCausalLM",
        LLAMA | {"sliding_window": None, "partial_rotary_factor": 0.67} | OLD_ROTARY,
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_keys_are_read_as_transformers_reads_them(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class_name, keys = PUBLISHED[name]
    model = reference(class_name, deepcopy(keys))  # which transformers changes
    raw = keys | {"model_type": model.config.model_type, "architectures": [class_name]}
    monkeypatch.setattr(oracle, "keys_of", lambda model: raw)
    compare(model)


DEFAULTS: dict[str, tuple[str, dict[str, Any]]] = {
    "neox": ("GPTNeoXForCausalLM", SIZES | {"intermediate_size": 40, "hidden_size": 32}),
    "bloom": ("BloomForCausalLM", BLOOM),
    "gemma": (
        "GemmaForCausalLM",
        SIZES | {"num_attention_heads": 16, "hidden_size": 32, "intermediate_size": 40},
    ),
    "gemma2": ("Gemma2ForCausalLM", SIZES | {"intermediate_size": 40}),
    "olmo2": ("Olmo2ForCausalLM", SIZES | {"intermediate_size": 40}),
    "phi3": ("Phi3ForCausalLM", SIZES | {"intermediate_size": 40, "pad_token_id": 0}),
}


@pytest.mark.parametrize("name", DEFAULTS)
def test_keys_that_are_not_there_mean_what_they_mean_to_transformers(name: str) -> None:
    class_name, options = DEFAULTS[name]
    model = reference(class_name, options)
    output, silent = ours(model), source_of(model)
    silent.keys = options | {"model_type": model.config.model_type}
    assert load_weights(silent).transformer.config == output.transformer.config


def test_dropout_is_kept_for_training() -> None:
    neox = ours(
        reference("GPTNeoXForCausalLM", NEOX | {"hidden_dropout": 0.2, "attention_dropout": 0.3})
    ).transformer.config.last
    assert (neox.embedding.dropout, neox.blocks[0].dropout, neox.blocks[0].attention.dropout) == (
        0.2,
        0.2,
        0.3,
    )
    bloom = ours(
        reference("BloomForCausalLM", BLOOM | {"hidden_dropout": 0.2, "attention_dropout": 0.3})
    ).transformer.config.last
    assert (
        bloom.embedding.dropout,
        bloom.blocks[0].dropout,
        bloom.blocks[0].attention.dropout,
    ) == (0.0, 0.2, 0.3)
    phi3 = ours(
        reference("Phi3ForCausalLM", LLAMA | {"resid_pdrop": 0.2, "embd_pdrop": 0.1})
    ).transformer.config.last
    assert (phi3.embedding.dropout, phi3.blocks[0].dropout) == (0.0, 0.2)


# ----------------------------------------------------------------------------- names in the files


def test_neox_is_written_as_files_have_it(tmp_path: Path) -> None:
    model = reference("GPTNeoXForCausalLM", NEOX)
    loaded = ours(model)
    saved = back(loaded)
    assert "embed_out.weight" in saved
    save_file(saved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    model.config.save_pretrained(tmp_path)
    again = transformers.GPTNeoXForCausalLM.from_pretrained(tmp_path).eval()
    ids = tokens(40)
    with torch.no_grad():
        oracle.close("logits", again(input_ids=ids).logits, loaded.transformer(ids))


def test_old_buffers_are_known_and_not_needed() -> None:
    source = source_of(reference("GPTNeoXForCausalLM", NEOX))
    for name in ("bias", "masked_bias", "rotary_emb.inv_freq"):
        name = f"gpt_neox.layers.1.attention.{name}"
        source.tensors[name] = Entry(name, (1,), torch.float32, lambda: torch.zeros(1))
    load_weights(source)


def test_bloom_without_its_prefix() -> None:
    """bigscience's files hold the body's names alone."""
    model = reference("BloomForCausalLM", BLOOM)
    source = source_of(model)
    source.tensors = {
        name.removeprefix("transformer."): entry for name, entry in source.tensors.items()
    }
    ids = tokens(40)
    with torch.no_grad():
        oracle.close("logits", model(input_ids=ids).logits, load_weights(source).transformer(ids))


@pytest.mark.parametrize("scalar", [0, -4, 0.0])
def test_gemma2_scores_divided_by_the_root_of_no_positive_number_are_refused(scalar: float) -> None:
    """transformers divides by zero, or makes complex scores."""
    keys = Keys({"model_type": "gemma2", **GEMMA2, "query_pre_attn_scalar": scalar})
    with pytest.raises(
        CheckpointError, match=rf"query_pre_attn_scalar is {scalar:g}; expected a number above 0"
    ):
        gemma2_config(keys, "language")
