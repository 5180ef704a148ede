"""Hugging Face configs of BERT and its relatives, and their variants."""

from __future__ import annotations

from typing import Any

BERT = {
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": 40,
    "max_position_embeddings": 20,
}

ROBERTA = BERT | {"type_vocab_size": 1, "layer_norm_eps": 1e-5}

DISTIL = {
    "dim": 24,
    "hidden_dim": 40,
    "n_layers": 2,
    "n_heads": 4,
    "vocab_size": 40,
    "max_position_embeddings": 20,
}

MODERN = BERT | {"num_hidden_layers": 4, "local_attention": 6, "pad_token_id": 0}

BIASES = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "classifier_bias": True}

LABELS = {"num_labels": 3}

BASES = {
    "full_attention": {"rope_type": "default", "rope_theta": 500.0},
    "sliding_attention": {"rope_type": "linear", "factor": 2.0, "rope_theta": 100.0},
}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", BERT),
    "bert tanh gelu, epsilon": (
        "BertForMaskedLM",
        BERT | {"hidden_act": "gelu_new", "layer_norm_eps": 1e-2},
    ),
    "bert relu, one type": ("BertForMaskedLM", BERT | {"hidden_act": "relu", "type_vocab_size": 1}),
    "bert sequence": ("BertForSequenceClassification", BERT | LABELS),
    "bert one number": ("BertForSequenceClassification", BERT | {"num_labels": 1}),
    "bert tokens": ("BertForTokenClassification", BERT | LABELS),
    "bert answers": ("BertForQuestionAnswering", BERT),
    "roberta": ("RobertaForMaskedLM", ROBERTA),
    "roberta relu, two types, padding id 2": (
        "RobertaForMaskedLM",
        BERT | {"hidden_act": "relu", "type_vocab_size": 2, "pad_token_id": 2},
    ),
    "roberta sequence": ("RobertaForSequenceClassification", ROBERTA | LABELS),
    "roberta tokens": ("RobertaForTokenClassification", ROBERTA | LABELS),
    "roberta answers": ("RobertaForQuestionAnswering", ROBERTA),
    "xlm-roberta": ("XLMRobertaForMaskedLM", ROBERTA),
    "xlm-roberta padding id 2": ("XLMRobertaForMaskedLM", ROBERTA | {"pad_token_id": 2}),
    "xlm-roberta sequence": ("XLMRobertaForSequenceClassification", ROBERTA | LABELS),
    "xlm-roberta tokens": ("XLMRobertaForTokenClassification", ROBERTA | LABELS),
    "camembert": ("CamembertForMaskedLM", ROBERTA),
    "camembert sequence": ("CamembertForSequenceClassification", ROBERTA | LABELS),
    "distilbert": ("DistilBertForMaskedLM", DISTIL),
    "distilbert untied, relu": (
        "DistilBertForMaskedLM",
        DISTIL | {"tie_word_embeddings": False, "activation": "relu"},
    ),
    "distilbert sinusoidal": ("DistilBertForMaskedLM", DISTIL | {"sinusoidal_pos_embds": True}),
    "distilbert bare": ("DistilBertModel", DISTIL),
    "distilbert sequence": ("DistilBertForSequenceClassification", DISTIL | LABELS),
    "distilbert tokens": ("DistilBertForTokenClassification", DISTIL | LABELS),
    "distilbert answers": ("DistilBertForQuestionAnswering", DISTIL),
    "modernbert": ("ModernBertForMaskedLM", MODERN),
    "modernbert biases, epsilon": ("ModernBertForMaskedLM", MODERN | BIASES | {"norm_eps": 1e-2}),
    "modernbert untied, no decoder bias": (
        "ModernBertForMaskedLM",
        MODERN | {"tie_word_embeddings": False, "decoder_bias": False},
    ),
    "modernbert activations": (
        "ModernBertForMaskedLM",
        MODERN | {"hidden_activation": "silu", "classifier_activation": "relu"},
    ),
    "modernbert every second layer, odd window": (
        "ModernBertForMaskedLM",
        MODERN | {"global_attn_every_n_layers": 2, "local_attention": 5},
    ),
    "modernbert old bases": (
        "ModernBertForMaskedLM",
        MODERN | {"global_rope_theta": 500.0, "local_rope_theta": 50.0},
    ),
    "modernbert layer types, bases, scaling": (
        "ModernBertForMaskedLM",
        MODERN
        | {"layer_types": ["sliding_attention", "full_attention"] * 2, "rope_parameters": BASES},
    ),
    "modernbert bare": ("ModernBertModel", MODERN),
    "modernbert sequence": ("ModernBertForSequenceClassification", MODERN | LABELS),
    "modernbert sequence mean": (
        "ModernBertForSequenceClassification",
        MODERN | LABELS | BIASES | {"classifier_pooling": "mean"},
    ),
    "modernbert tokens": ("ModernBertForTokenClassification", MODERN | LABELS),
    "modernbert answers": ("ModernBertForQuestionAnswering", MODERN),
}
