"""Hugging Face configs of Bloom, Gemma, GPT-NeoX and further decoders, and their variants."""

from __future__ import annotations

from typing import Any

LARGE = {"initializer_range": 0.2}  # weights large enough to tell the two forms of GELU apart

SIZES = LARGE | {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 40,
}

BLOOM = LARGE | {"hidden_size": 24, "n_layer": 2, "n_head": 4, "vocab_size": 40}

NEOX = SIZES | {
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "rope_parameters": {"partial_rotary_factor": 0.34},
}

LLAMA = SIZES | {
    "intermediate_size": 40,
    "max_position_embeddings": 64,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
}

GEMMA = LLAMA | {"head_dim": 10}

GEMMA2 = GEMMA | {
    "sliding_window": 5,
    "query_pre_attn_scalar": 7,
    "attn_logit_softcapping": 0.5,
    "final_logit_softcapping": 2.0,
}

PLAIN = {"attn_logit_softcapping": None, "final_logit_softcapping": None}

ROTARY = {"rope_type": "default", "rope_theta": 500.0}

LINEAR = {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}

FULL, SLIDING = "full_attention", "sliding_attention"

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "neox": ("GPTNeoXForCausalLM", NEOX),
    "neox one after the other": ("GPTNeoXForCausalLM", NEOX | {"use_parallel_residual": False}),
    "neox without attention biases, tied": (
        "GPTNeoXForCausalLM",
        NEOX | {"attention_bias": False, "tie_word_embeddings": True},
    ),
    "neox fast gelu, epsilon, dropout": (
        "GPTNeoXForCausalLM",
        NEOX
        | {
            "hidden_act": "gelu_fast",
            "layer_norm_eps": 1e-2,
            "hidden_dropout": 0.2,
            "attention_dropout": 0.3,
        },
    ),
    "neox relu": ("GPTNeoXForCausalLM", NEOX | {"hidden_act": "relu"}),
    "neox whole heads, base": (
        "GPTNeoXForCausalLM",
        NEOX | {"rope_parameters": ROTARY | {"partial_rotary_factor": 1.0}},
    ),
    "neox linear": (
        "GPTNeoXForCausalLM",
        NEOX | {"rope_parameters": LINEAR | {"partial_rotary_factor": 0.67}},
    ),
    "neox yarn": (
        "GPTNeoXForCausalLM",
        NEOX | {"rope_parameters": YARN | {"partial_rotary_factor": 0.67}},
    ),
    "neox bare": ("GPTNeoXModel", NEOX),
    "neox sequence": (
        "GPTNeoXForSequenceClassification",
        NEOX | {"num_labels": 3, "pad_token_id": 0},
    ),
    "neox tokens": ("GPTNeoXForTokenClassification", NEOX | {"num_labels": 5}),
    "neox answers": ("GPTNeoXForQuestionAnswering", NEOX),
    "bloom": ("BloomForCausalLM", BLOOM),
    "bloom untied, epsilon, dropout": (
        "BloomForCausalLM",
        BLOOM
        | {
            "tie_word_embeddings": False,
            "layer_norm_epsilon": 1e-2,
            "hidden_dropout": 0.2,
            "attention_dropout": 0.3,
        },
    ),
    "bloom six heads": ("BloomForCausalLM", BLOOM | {"n_head": 6}),
    "bloom bare": ("BloomModel", BLOOM),
    "bloom sequence": (
        "BloomForSequenceClassification",
        BLOOM | {"num_labels": 3, "pad_token_id": 0},
    ),
    "bloom tokens": ("BloomForTokenClassification", BLOOM | {"num_labels": 5}),
    "bloom answers": ("BloomForQuestionAnswering", BLOOM),
    "gemma": ("GemmaForCausalLM", GEMMA),
    "gemma untied, biases, all heads": (
        "GemmaForCausalLM",
        GEMMA
        | {
            "tie_word_embeddings": False,
            "attention_bias": True,
            "num_key_value_heads": 4,
            "head_dim": 6,
        },
    ),
    "gemma silu, epsilon, one kv head": (
        "GemmaForCausalLM",
        GEMMA | {"hidden_act": "silu", "rms_norm_eps": 1e-2, "num_key_value_heads": 1},
    ),
    "gemma gelu": ("GemmaForCausalLM", GEMMA | {"hidden_act": "gelu"}),
    "gemma base": ("GemmaForCausalLM", GEMMA | {"rope_parameters": ROTARY}),
    "gemma yarn": ("GemmaForCausalLM", GEMMA | {"rope_parameters": YARN}),
    "gemma bare": ("GemmaModel", GEMMA),
    "gemma sequence": ("GemmaForSequenceClassification", GEMMA | {"num_labels": 3}),
    "gemma tokens": ("GemmaForTokenClassification", GEMMA | {"num_labels": 5}),
    "gemma2": ("Gemma2ForCausalLM", GEMMA2),
    "gemma2 three layers": ("Gemma2ForCausalLM", GEMMA2 | {"num_hidden_layers": 3}),
    "gemma2 without caps": ("Gemma2ForCausalLM", GEMMA2 | PLAIN),
    "gemma2 scores capped": ("Gemma2ForCausalLM", GEMMA2 | {"final_logit_softcapping": None}),
    "gemma2 logits capped": (
        "Gemma2ForCausalLM",
        GEMMA2 | {"attn_logit_softcapping": None, "query_pre_attn_scalar": 10},
    ),
    "gemma2 full, then sliding": ("Gemma2ForCausalLM", GEMMA2 | {"layer_types": [FULL, SLIDING]}),
    "gemma2 all sliding": ("Gemma2ForCausalLM", GEMMA2 | {"layer_types": [SLIDING, SLIDING]}),
    "gemma2 all full": ("Gemma2ForCausalLM", GEMMA2 | {"layer_types": [FULL, FULL]}),
    "gemma2 exact gelu, untied, biases, one kv head": (
        "Gemma2ForCausalLM",
        GEMMA2
        | {
            "hidden_activation": "gelu",
            "tie_word_embeddings": False,
            "attention_bias": True,
            "num_key_value_heads": 1,
        },
    ),
    "gemma2 epsilon, linear": (
        "Gemma2ForCausalLM",
        GEMMA2 | {"rms_norm_eps": 1e-2, "rope_parameters": LINEAR},
    ),
    "gemma2 bare": ("Gemma2Model", GEMMA2),
    "gemma2 sequence": ("Gemma2ForSequenceClassification", GEMMA2 | {"num_labels": 3}),
    "gemma2 tokens": ("Gemma2ForTokenClassification", GEMMA2 | {"num_labels": 5}),
    "olmo2": ("Olmo2ForCausalLM", LLAMA),
    "olmo2 all heads, tied": (
        "Olmo2ForCausalLM",
        LLAMA | {"num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "olmo2 biases, one kv head, head_dim": (
        "Olmo2ForCausalLM",
        LLAMA | {"attention_bias": True, "num_key_value_heads": 1, "head_dim": 10},
    ),
    "olmo2 gelu, epsilon, base": (
        "Olmo2ForCausalLM",
        LLAMA | {"hidden_act": "gelu", "rms_norm_eps": 1e-2, "rope_parameters": ROTARY},
    ),
    "olmo2 yarn": ("Olmo2ForCausalLM", LLAMA | {"rope_parameters": YARN}),
    "olmo2 bare": ("Olmo2Model", LLAMA),
    "olmo2 sequence": ("Olmo2ForSequenceClassification", LLAMA | {"num_labels": 3}),
    "phi3": ("Phi3ForCausalLM", LLAMA),
    "phi3 window, all heads, tied": (
        "Phi3ForCausalLM",
        LLAMA | {"sliding_window": 5, "num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "phi3 partial rotary": (
        "Phi3ForCausalLM",
        LLAMA | {"rope_parameters": ROTARY | {"partial_rotary_factor": 0.67}},
    ),
    "phi3 gelu, epsilon, dropout": (
        "Phi3ForCausalLM",
        LLAMA
        | {
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-2,
            "resid_pdrop": 0.2,
            "embd_pdrop": 0.1,
            "attention_dropout": 0.3,
        },
    ),
    "phi3 one kv head, head_dim": (
        "Phi3ForCausalLM",
        LLAMA | {"num_key_value_heads": 1, "head_dim": 10},
    ),
    "phi3 bare": ("Phi3Model", LLAMA),
    "phi3 sequence": ("Phi3ForSequenceClassification", LLAMA | {"num_labels": 3}),
    "phi3 tokens": ("Phi3ForTokenClassification", LLAMA | {"num_labels": 5}),
}
