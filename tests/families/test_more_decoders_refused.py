"""What the families of `test_more_decoders` refuse: unknown keys, options that are not supported,
tensors that do not fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sightline.checkpoints.load import load_weights
from sightline.checkpoints.source import Entry
from sightline.errors import CheckpointError
from tests.families.oracle import ours, reference, source_of
from tests.support.more_decoder_configs import BLOOM, GEMMA, GEMMA2, LLAMA, NEOX

ONE_EACH = {
    "gpt_neox": ("GPTNeoXForCausalLM", NEOX),
    "bloom": ("BloomForCausalLM", BLOOM),
    "gemma": ("GemmaForCausalLM", GEMMA),
    "gemma2": ("Gemma2ForCausalLM", GEMMA2),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "phi3": ("Phi3ForCausalLM", LLAMA),
}


@pytest.mark.parametrize("family", ONE_EACH)
def test_an_unknown_key_is_noted_with_the_nearest_known_one(family: str) -> None:
    result = ours(reference(*ONE_EACH[family]), atention_dropout=0.1, number_of_experts=8)
    assert result.source.notes[:1] == [
        "config.json: ignored keys that are not known: atention_dropout (did you mean 'attention_dropout'?), number_of_experts"
    ]


@pytest.mark.parametrize("family", ONE_EACH)
def test_a_misspelt_tensor_is_listed_with_its_neighbour(family: str) -> None:
    source = source_of(reference(*ONE_EACH[family]))
    name = next(name for name in source.tensors if ".1." in name and "attention" in name)
    wrong = name.replace("attention", "atention")
    source.tensors[wrong] = source.tensors.pop(name)
    with pytest.raises(CheckpointError) as error:
        load_weights(source)
    assert f"1 tensor missing: {name}; 1 tensor unexpected: {wrong}" in str(error.value)
    assert f"Fix: is {wrong} a misspelling of {name}?" in str(error.value)


@pytest.mark.parametrize("family", ONE_EACH)
def test_a_tensor_of_another_shape_is_refused(family: str) -> None:
    source = source_of(reference(*ONE_EACH[family]))
    name = next(
        name
        for name in source.tensors
        if "query_key_value.weight" in name or "qkv_proj" in name or "q_proj.weight" in name
    )
    source.tensors[name] = Entry(name, (5, 24), torch.float32, lambda: torch.zeros(5, 24))
    with pytest.raises(
        CheckpointError,
        match=r"has shape \[5, 24\]; expected what fills decoder\.0\.attention\.query\.weight \[",
    ):
        load_weights(source)


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        (
            "bloom",
            {"apply_residual_connection_post_layernorm": True},
            "post_layernorm is True, which is not supported",
        ),
        ("bloom", {"n_inner": 50}, "n_inner is 50, which is not supported; expected 96"),
        ("gpt_neox", {"hidden_act": "geluu"}, "hidden_act is 'geluu'. Fix: did you mean 'gelu'?"),
        (
            "gpt_neox",
            {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
            "rope type 'dynamic' is not supported",
        ),
        (
            "gpt_neox",
            {"rope_parameters": None, "rotary_pct": 0.5},
            "Rotary.dim is 3; expected an even number",
        ),
        (
            "gpt_neox",
            {"use_parallel_residual": "yes"},
            "use_parallel_residual is 'yes'; expected true or false",
        ),
        (
            "gemma",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention is True, which is not supported",
        ),
        (
            "gemma2",
            {"use_bidirectional_attention": True},
            "use_bidirectional_attention is True, which is not supported",
        ),
        (
            "gemma",
            {"hidden_activation": "silu"},
            "hidden_activation is 'silu', hidden_act is 'gelu_pytorch_tanh'; expected the same",
        ),
        (
            "gemma2",
            {"hidden_act": "silu"},
            "hidden_activation is 'gelu_pytorch_tanh', hidden_act is 'silu'; expected the same",
        ),
        ("gemma2", {"layer_types": ["sliding_attention"]}, "layer_types has 1 entries"),
        ("gemma2", {"layer_types": ["chunked_attention", "full_attention"]}, "chunked_attention"),
        ("gemma2", {"sliding_window": None}, "config.json lacks 'sliding_window'"),
        ("gemma2", {"attn_logit_softcapping": -1.0}, "AttentionConfig.softcap"),
        ("olmo2", {"num_key_value_heads": 3}, "4 heads cannot share 3 kv_heads evenly"),
        (
            "phi3",
            {"rope_parameters": {"rope_type": "longrope", "short_factor": [1.0]}},
            "rope type 'longrope' is not supported: LongRoPE",
        ),
        (
            "phi3",
            {"rope_scaling": {"type": "su", "long_factor": [1.0]}},
            "rope type 'su' is not supported: LongRoPE",
        ),
        ("phi3", {"attention_bias": True}, "attention_bias is True, which is not supported"),
        (
            "phi3",
            {"architectures": ["Phi3ForQuestionAnswering"]},
            "architecture 'Phi3ForQuestionAnswering' is not a class of phi3 that is supported; expected one of Phi3ForCausalLM, ",
        ),
    ],
)
def test_what_is_not_supported_says_so(family: str, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError) as error:
        ours(reference(*ONE_EACH[family]), **changes)
    assert message in str(error.value)


@pytest.mark.parametrize("family", ["gpt_neox", "bloom", "gemma", "gemma2"])
def test_a_tied_copy_must_be_equal(family: str) -> None:
    class_name, options = ONE_EACH[family]
    source = source_of(reference(class_name, options | {"tie_word_embeddings": True}))
    embedding = next(entry for name, entry in source.tensors.items() if "embed" in name)
    source.tensors["lm_head.weight"] = embedding
    load_weights(source)
    source.tensors["lm_head.weight"] = Entry(
        "lm_head.weight", embedding.shape, embedding.dtype, lambda: embedding.read() + 1
    )
    with pytest.raises(CheckpointError, match="differs from the embedding"):
        load_weights(source)
