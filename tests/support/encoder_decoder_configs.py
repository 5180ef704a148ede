"""Hugging Face configs of BART, Marian and T5, and their variants."""

from __future__ import annotations

from typing import Any

import torch

from tests.families.oracle import reference

T5 = {
    "d_model": 24,
    "d_kv": 6,
    "d_ff": 40,
    "num_layers": 2,
    "num_heads": 4,
    "vocab_size": 40,
    "relative_attention_num_buckets": 8,
    "relative_attention_max_distance": 20,
}

BART = {
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 40,
    "vocab_size": 40,
    "max_position_embeddings": 48,
}

MARIAN = BART | {
    "pad_token_id": 39,
    "decoder_start_token_id": 39,
    "scale_embedding": True,
    "activation_function": "swish",
}

UNEVEN = {
    "encoder_layers": 1,
    "decoder_layers": 3,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 6,
    "encoder_ffn_dim": 20,
    "decoder_ffn_dim": 52,
}

V11 = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "t5": ("T5ForConditionalGeneration", T5),
    "t5 wide heads, uneven layers": (
        "T5ForConditionalGeneration",
        T5 | {"d_kv": 10, "num_layers": 1, "num_decoder_layers": 3},
    ),
    "t5 buckets, epsilon": (
        "T5ForConditionalGeneration",
        T5
        | {
            "relative_attention_num_buckets": 32,
            "relative_attention_max_distance": 128,
            "layer_norm_epsilon": 1e-2,
        },
    ),
    "t5 v1.1": ("T5ForConditionalGeneration", T5 | V11),
    "t5 gated silu, tied": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gated-silu"}),
    "t5 exact gelu": ("T5ForConditionalGeneration", T5 | {"feed_forward_proj": "gelu"}),
    "t5 old words win": (
        "T5ForConditionalGeneration",
        T5 | V11 | {"dense_act_fn": "silu", "is_gated_act": False},
    ),
    "t5 bare": ("T5Model", T5),
    "t5 bare v1.1": ("T5Model", T5 | V11),
    "t5 encoder": ("T5EncoderModel", T5 | {"num_decoder_layers": 1}),
    "t5 encoder v1.1": ("T5EncoderModel", T5 | V11),
    "mt5 as published, with a matrix of its own": (
        "MT5ForConditionalGeneration",
        T5 | {"tie_word_embeddings": False},
    ),
    "mt5 tied": ("MT5ForConditionalGeneration", T5),
    "mt5 bare": ("MT5Model", T5),
    "mt5 encoder": ("MT5EncoderModel", T5),
    "bart": ("BartForConditionalGeneration", BART),
    "bart uneven, scaled, relu": (
        "BartForConditionalGeneration",
        BART | UNEVEN | {"scale_embedding": True, "activation_function": "relu"},
    ),
    "bart untied": (
        "BartForConditionalGeneration",
        BART | {"tie_word_embeddings": False, "activation_function": "gelu_new"},
    ),
    "bart bare": ("BartModel", BART | {"activation_function": "silu"}),
    "bart answers": ("BartForQuestionAnswering", BART),
    "marian": ("MarianMTModel", MARIAN),
    "marian uneven, unscaled, gelu": (
        "MarianMTModel",
        MARIAN | UNEVEN | {"scale_embedding": False, "activation_function": "gelu"},
    ),
    "marian two vocabularies": (
        "MarianMTModel",
        MARIAN | {"share_encoder_decoder_embeddings": False, "decoder_vocab_size": 44},
    ),
    "marian two vocabularies, untied": (
        "MarianMTModel",
        MARIAN
        | {
            "share_encoder_decoder_embeddings": False,
            "decoder_vocab_size": 44,
            "tie_word_embeddings": False,
        },
    ),
    "marian untied": ("MarianMTModel", MARIAN | {"tie_word_embeddings": False}),
    "marian bare": ("MarianModel", MARIAN | {"activation_function": "relu"}),
}


def example(class_name: str, options: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A reference model as its files are found, and what their config.json says otherwise than
    transformers 5 would write it."""
    model = reference(class_name, options)
    untied = options.get("tie_word_embeddings") is False
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.normal_()
        for part in model.modules():
            if hasattr(
                part, "create_weight"
            ):  # Marian's sines, to which the noise was added as well
                part.weight.copy_(part.create_weight())
    body = getattr(model, "model", model)
    if untied and hasattr(body, "shared"):  # until version 5 the two embeddings are one even so
        for stack in (body.encoder, getattr(body, "decoder", body.encoder)):
            stack.embed_tokens.weight = body.shared.weight
    if not (untied and class_name.startswith(("T5", "MT5"))):
        return model, {}
    if hasattr(model, "lm_head"):  # version 5 ties it at the start, whatever one asks for
        model.lm_head.weight = torch.nn.Parameter(torch.randn_like(model.lm_head.weight))
    return model, {"tie_word_embeddings": False, "scale_decoder_outputs": None}
