"""Keys of config.json: those of public files load, those that change the result are refused,
unknown ones are noted."""

from __future__ import annotations

import json
from typing import Any

import pytest

import sightline as sl
from sightline.checkpoints.identity import identify
from sightline.checkpoints.load import load_weights
from sightline.families import FAMILIES
from sightline.families.schema.keys import BOOKKEEPING, Keys
from sightline.families.schema.spelling import edits, misspelling_of
from sightline.families.schema.unsupported import NEUTRAL
from tests.families.oracle import close, ours, reference, source_of, tokens, transformers
from tests.support.decoder_configs import GPT2, LLAMA
from tests.support.encoder_configs import BERT, ROBERTA

QWEN2 = LLAMA | {"use_sliding_window": False, "sliding_window": 64}
PUBLIC: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "smollm2": (
        "LlamaForCausalLM",
        LLAMA,
        {
            "is_llama_config": True,
            "rope_interleaved": False,
            "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
        },
    ),
    "unsloth": (
        "LlamaForCausalLM",
        LLAMA,
        {"unsloth_version": "2025.1", "unsloth_fixed": True, "pretraining_tp": 1},
    ),
    "llama from qwen": (
        "LlamaForCausalLM",
        LLAMA,
        {
            "sliding_window": 4096,
            "use_sliding_window": False,
            "max_window_layers": 28,
            "use_mrope": False,
        },
    ),
    "llama with a window as long as its context": (
        "LlamaForCausalLM",
        LLAMA,
        {"sliding_window": 64},
    ),
    "llama as a decoder": ("LlamaForCausalLM", LLAMA, {"is_decoder": True, "is_causal": True}),
    "dense llama with expert counts": (
        "LlamaForCausalLM",
        LLAMA,
        {"num_local_experts": 0, "num_experts_per_tok": 0},
    ),
    "llama, granite's multipliers at one": (
        "LlamaForCausalLM",
        LLAMA,
        {"embedding_multiplier": 1.0, "residual_multiplier": 1, "logits_scaling": 1.0},
    ),
    "qwen2": ("Qwen2ForCausalLM", QWEN2, {"use_mrope": False, "attention_bias": True}),
    "gpt2": (
        "GPT2LMHeadModel",
        GPT2,
        {"is_decoder": False, "n_ctx": 48, "gradient_checkpointing": False},
    ),
    "bert multilingual": (
        "BertForMaskedLM",
        BERT,
        {
            "directionality": "bidi",
            "pooler_type": "first_token_transform",
            "pooler_fc_size": 768,
            "is_decoder": False,
        },
    ),
    "roberta": ("RobertaForMaskedLM", ROBERTA, {"is_decoder": False, "pruned_heads": {}}),
}
NOTED: dict[str, Any] = {
    "language": "en",
    "name": "mine",
    "condition_on_chain": False,
    "eos_token_ids": [2],
}


@pytest.mark.parametrize("name", PUBLIC)
def test_keys_of_public_files_that_change_nothing_load_without_a_word(name: str) -> None:
    class_name, options, extra = PUBLIC[name]
    theirs = reference(class_name, options)
    result = ours(theirs, **extra)
    assert result.source.notes == []
    ids = tokens(40)
    close("logits", theirs(ids).logits.detach(), result.transformer(ids).detach())


def test_unknown_keys_are_listed_in_one_note_and_the_model_loads() -> None:
    theirs = reference("LlamaForCausalLM", LLAMA)
    result = ours(theirs, **NOTED, rope_thetaa=3.0)
    assert result.source.notes == [
        "config.json: ignored keys that are not known: condition_on_chain, eos_token_ids (did you mean 'eos_token_id'?), language, name, "
        "rope_thetaa (did you mean 'rope_theta'?)"
    ]
    ids = tokens(40)
    close("logits", theirs(ids).logits.detach(), result.transformer(ids).detach())


def test_strict_refuses_unknown_keys() -> None:
    theirs = reference("LlamaForCausalLM", LLAMA)
    load_weights(source_of(theirs), strict=True)
    with pytest.raises(
        sl.CheckpointError,
        match=r"keys that are not known: condition_on_chain, .*load without strict",
    ):
        load_weights(source_of(theirs, **NOTED), strict=True)


def test_a_note_is_given_once_and_stays_short_and_printable() -> None:
    source = source_of(
        reference("LlamaForCausalLM", LLAMA),
        **{f"own_{n}": n for n in range(1000)},
        **{"a\x1b[31m" + "x" * 999: 1},
    )
    for _ in range(3):
        identify(source)
    (note,) = source.notes
    assert note.isprintable()
    assert "a\\x1b[31mxxx" in note
    assert note.endswith("and 951 more")
    assert len(note) < 2000


REFUSED: dict[str, tuple[str, dict[str, Any], dict[str, Any], str]] = {
    "interleaved rotary": (
        "LlamaForCausalLM",
        LLAMA,
        {"rope_interleaved": True},
        "rope_interleaved is True",
    ),
    "nope layers": (
        "LlamaForCausalLM",
        LLAMA,
        {"no_rope_layers": [1, 0]},
        "no_rope_layers is [1, 0]",
    ),
    "both directions": ("LlamaForCausalLM", LLAMA, {"is_causal": False}, "is_causal is False"),
    "window": ("LlamaForCausalLM", LLAMA, {"sliding_window": 8}, "sliding_window is 8"),
    "window in some layers": (
        "LlamaForCausalLM",
        LLAMA,
        {"layer_types": ["full_attention", "sliding_attention"]},
        "layer_types is",
    ),
    "soft-capped scores": (
        "LlamaForCausalLM",
        LLAMA,
        {"attn_logit_softcapping": 50.0},
        "attn_logit_softcapping is 50.0",
    ),
    "soft-capped logits": (
        "LlamaForCausalLM",
        LLAMA,
        {"final_logit_softcapping": 30.0},
        "final_logit_softcapping is 30.0",
    ),
    "scaled residuals": (
        "LlamaForCausalLM",
        LLAMA,
        {"residual_multiplier": 0.2},
        "residual_multiplier is 0.2, which this family",
    ),
    "scaled embeddings": (
        "LlamaForCausalLM",
        LLAMA,
        {"embedding_multiplier": 12},
        "embedding_multiplier is 12",
    ),
    "scaled scores": (
        "LlamaForCausalLM",
        LLAMA,
        {"attention_multiplier": 1.0},
        "attention_multiplier is 1.0",
    ),
    "scaled logits": ("LlamaForCausalLM", LLAMA, {"logits_scaling": 8.0}, "logits_scaling is 8.0"),
    "norm of queries": ("LlamaForCausalLM", LLAMA, {"use_qk_norm": True}, "use_qk_norm is True"),
    "experts": ("LlamaForCausalLM", LLAMA, {"num_local_experts": 8}, "num_local_experts is 8"),
    "epsilon by another name": (
        "LlamaForCausalLM",
        LLAMA,
        {"rms_norm_eps": None, "layer_norm_eps": 1e-3},
        "has layer_norm_eps and no rms_norm_eps, which is what this family reads. Fix: rename it to rms_norm_eps if that is meant",
    ),
    "activation by another name": (
        "GPT2LMHeadModel",
        GPT2,
        {"activation_function": None, "hidden_act": "relu"},
        "has hidden_act and no activation_function",
    ),
    "gpt2 with rotary positions": (
        "GPT2LMHeadModel",
        GPT2,
        {"rope_theta": 10000.0},
        "rope_theta is 10000.0",
    ),
    "gpt2 with one key head": (
        "GPT2LMHeadModel",
        GPT2,
        {"multi_query": True},
        "multi_query is True",
    ),
    "bert as a decoder": ("BertForMaskedLM", BERT, {"is_decoder": True}, "is_decoder is True"),
    "bert with relative positions": (
        "BertForMaskedLM",
        BERT,
        {"position_embedding_type": "relative_key"},
        "position_embedding_type is",
    ),
    "pruned heads": ("BertForMaskedLM", BERT, {"pruned_heads": {"0": [1]}}, "pruned_heads is"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_keys_that_change_the_result_are_refused_without_strict_too(name: str) -> None:
    class_name, options, extra, message = REFUSED[name]
    with pytest.raises(sl.CheckpointError) as error:
        ours(reference(class_name, options), **extra)
    assert message in str(error.value)
    assert "Fix: " in str(error.value)


@pytest.mark.parametrize("kind", [name for name in FAMILIES if name != "sightline"])
def test_every_option_of_the_reference_s_configuration_is_known(kind: str) -> None:
    """Nothing that transformers would read from a file of this family can end in the note."""
    config = transformers.AutoConfig.for_model(kind)
    written = json.loads(config.to_json_string())
    keys = Keys(written | {"num_key_value_heads": None} if kind in ("gemma", "gemma2") else written)
    family = FAMILIES[kind]
    family.config(keys, next(iter(family.heads.values())))
    names = {name for name in vars(config) if not name.startswith("_")} | set(
        type(config).attribute_map
    )
    assert sorted(names - keys.read - BOOKKEEPING - set(NEUTRAL)) == []


MEANT = {
    "llama": ("lama", "llma", "Llama", "lllama"),
    "gpt2": ("GPT2", "gpt-2", "gtp2"),
    "xlm-roberta": ("xlm_roberta", "xlm-robreta"),
    "distilbert": ("ditilbert", "distill_bert"),
}


@pytest.mark.parametrize("meant", MEANT)
def test_typing_errors_are_recognised(meant: str) -> None:
    assert [misspelling_of(typed, FAMILIES) for typed in MEANT[meant]] == [meant] * len(
        MEANT[meant]
    )


@pytest.mark.parametrize(
    "name", ["mamba", "qwen4", "t4", "gpt3", "vbert", "albert", "", "l" * 100_000, "sightlin"]
)
def test_what_is_not_a_typing_error_is_left_alone(name: str) -> None:
    assert misspelling_of(name, [kind for kind in FAMILIES if kind != "sightline"]) is None


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [
        ("", "abc", 3),
        ("abc", "abc", 0),
        ("abc", "acb", 1),
        ("kitten", "sitting", 3),
        ("ab", "b", 1),
    ],
)
def test_edits(a: str, b: str, distance: int) -> None:
    assert edits(a, b) == edits(b, a) == distance
