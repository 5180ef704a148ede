"""Hugging Face configs of GPT-2 and Llama, and their variants."""

from __future__ import annotations

from typing import Any

GPT2 = {
    "n_embd": 24,
    "n_layer": 2,
    "n_head": 4,
    "vocab_size": 40,
    "n_positions": 48,
    "initializer_range": 0.2,
}

LLAMA = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 40,
    "max_position_embeddings": 64,
}

YARN = {
    "rope_type": "yarn",
    "factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 10000.0,
}

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
    "rope_theta": 5e5,
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "gpt2 untied": ("GPT2LMHeadModel", GPT2 | {"tie_word_embeddings": False}),
    "gpt2 relu, inner, epsilon": (
        "GPT2LMHeadModel",
        GPT2 | {"activation_function": "relu", "n_inner": 20, "layer_norm_epsilon": 1e-3},
    ),
    "gpt2 exact gelu": ("GPT2LMHeadModel", GPT2 | {"activation_function": "gelu"}),
    "gpt2 bare": ("GPT2Model", GPT2),
    "gpt2 sequence": ("GPT2ForSequenceClassification", GPT2 | {"num_labels": 3, "pad_token_id": 0}),
    "gpt2 tokens": ("GPT2ForTokenClassification", GPT2 | {"num_labels": 5}),
    "gpt2 answers": ("GPT2ForQuestionAnswering", GPT2),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama all heads": (
        "LlamaForCausalLM",
        LLAMA | {"num_key_value_heads": 4, "tie_word_embeddings": True},
    ),
    "llama one kv head, biases, head_dim": (
        "LlamaForCausalLM",
        LLAMA
        | {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True, "head_dim": 10},
    ),
    "llama gelu, epsilon, base": (
        "LlamaForCausalLM",
        LLAMA
        | {
            "hidden_act": "gelu",
            "rms_norm_eps": 1e-3,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
        },
    ),
    "llama linear": (
        "LlamaForCausalLM",
        LLAMA | {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 10000.0}},
    ),
    "llama yarn": ("LlamaForCausalLM", LLAMA | {"rope_parameters": YARN}),
    "llama 3.1": ("LlamaForCausalLM", LLAMA | {"rope_parameters": LLAMA3}),
    "llama bare": ("LlamaModel", LLAMA),
    "llama sequence": (
        "LlamaForSequenceClassification",
        LLAMA | {"num_labels": 3, "pad_token_id": 0},
    ),
    "llama tokens": ("LlamaForTokenClassification", LLAMA | {"num_labels": 3}),
    "llama answers": ("LlamaForQuestionAnswering", LLAMA),
    "mistral answers": ("MistralForQuestionAnswering", LLAMA),
    "qwen2 answers": ("Qwen2ForQuestionAnswering", LLAMA),
    "qwen3 answers": ("Qwen3ForQuestionAnswering", LLAMA),
    "mistral": ("MistralForCausalLM", LLAMA | {"sliding_window": 5}),
    "mistral without window": (
        "MistralForCausalLM",
        LLAMA | {"sliding_window": None, "head_dim": 8},
    ),
    "qwen2": ("Qwen2ForCausalLM", LLAMA),
    "qwen2 windows": (
        "Qwen2ForCausalLM",
        LLAMA | {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    ),
    "qwen3": ("Qwen3ForCausalLM", LLAMA | {"head_dim": 10}),
    "qwen3 tied, biases": (
        "Qwen3ForCausalLM",
        LLAMA | {"head_dim": 6, "tie_word_embeddings": True, "attention_bias": True},
    ),
}
