"""Encoder–decoder families: config.json as published, old files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import sightline as sl
from sightline.checkpoints.identity import identify
from sightline.checkpoints.load import load_weights
from sightline.checkpoints.source import Entry, Source
from sightline.errors import CheckpointError
from tests.families.oracle import close, reference, source_of, tokens, transformers
from tests.support.encoder_decoder_configs import BART, CASES, MARIAN, T5, V11, example


def with_tensors(source: Source, **extra: Tensor | None) -> Source:
    """The source with other tensors; None removes one. Dots are written as two underscores."""
    for name, tensor in extra.items():
        name = name.replace("__", ".")
        source.tensors.pop(name, None)
        if tensor is not None:
            source.tensors[name] = Entry(
                name, tuple(tensor.shape), tensor.dtype, lambda tensor=tensor: tensor
            )
    return source


def test_old_files_hold_copies_and_leftovers() -> None:
    """Copies of a tied matrix are checked and dropped; T5's stray table and fairseq's version
    numbers are ignored."""
    model, _ = example("T5ForConditionalGeneration", T5)
    matrix = model.shared.weight.detach()
    copies = {
        "encoder__embed_tokens__weight": matrix,
        "decoder__embed_tokens__weight": matrix,
        "lm_head__weight": matrix,
    }
    stray = {
        "decoder__block__0__layer__1__EncDecAttention__relative_attention_bias__weight": torch.ones(
            8, 4
        )
    }
    load_weights(with_tensors(source_of(model), **copies, **stray))
    model, _ = example("BartForConditionalGeneration", BART)
    matrix = model.model.shared.weight.detach()
    copies = {
        "model__encoder__embed_tokens__weight": matrix,
        "model__decoder__embed_tokens__weight": matrix,
        "lm_head__weight": matrix,
    }
    load_weights(
        with_tensors(
            source_of(model),
            **copies,
            model__encoder__version=torch.ones(1),
            model__decoder__version=torch.ones(1),
        )
    )
    model, _ = example(*CASES["marian two vocabularies"])
    load_weights(
        with_tensors(
            source_of(model), lm_head__weight=model.model.decoder.embed_tokens.weight.detach()
        )
    )


def test_t5_v11_saved_again_by_transformers_5() -> None:
    """It calls every T5 tied, and keeps a head of its own in the file."""
    model, old = example("T5ForConditionalGeneration", T5 | V11)
    assert source_of(model).keys["tie_word_embeddings"] is True
    config = load_weights(source_of(model)).transformer.config
    assert config == load_weights(source_of(model, **old)).transformer.config
    assert config.head == sl.LanguageHead(tied=False)


@pytest.mark.parametrize("tied", [True, False, None])
@pytest.mark.parametrize("scaled", [True, False, None])
def test_t5_v11_without_a_head_in_the_file_is_tied_as_in_transformers_5(
    tied: bool | None, scaled: bool | None, tmp_path: Path
) -> None:
    reference("T5ForConditionalGeneration", T5 | V11).save_pretrained(tmp_path)
    assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    keys = json.loads((tmp_path / "config.json").read_text()) | {
        "tie_word_embeddings": tied,
        "scale_decoder_outputs": scaled,
    }
    (tmp_path / "config.json").write_text(
        json.dumps({name: value for name, value in keys.items() if value is not None})
    )
    theirs = transformers.T5ForConditionalGeneration.from_pretrained(tmp_path).eval()
    ours = sl.load(tmp_path)
    source, ids = tokens(40), tokens(40, seed=2)
    with torch.no_grad():
        close(
            "logits",
            theirs(input_ids=source, decoder_input_ids=ids).logits,
            ours.transformer(ids, source=source),
        )
    assert any("tie_word_embeddings: false" in note for note in ours.notes) == (tied is False)


# What the published config.json of these models say, without token ids and generation settings.
T5_SMALL = {
    "model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64, "d_model": 512, "dropout_rate": 0.1,
    "initializer_factor": 1.0, "is_encoder_decoder": True, "layer_norm_epsilon": 1e-6, "n_positions": 512, "num_heads": 8, "num_layers": 6,
    "output_past": True, "relative_attention_num_buckets": 32, "task_specific_params": {}, "vocab_size": 32128,
}  # fmt: skip
FLAN_T5_SMALL = T5_SMALL | {
    "d_ff": 1024, "dense_act_fn": "gelu_new", "feed_forward_proj": "gated-gelu", "is_gated_act": True, "num_decoder_layers": 8,
    "num_heads": 6, "num_layers": 8, "relative_attention_max_distance": 128, "tie_word_embeddings": False, "use_cache": True,
}  # fmt: skip
BART_LARGE_MNLI = {
    "model_type": "bart", "architectures": ["BartForSequenceClassification"], "_num_labels": 3, "activation_dropout": 0.0,
    "activation_function": "gelu", "add_final_layer_norm": False, "attention_dropout": 0.0, "classif_dropout": 0.0,
    "classifier_dropout": 0.0, "d_model": 1024, "decoder_attention_heads": 16, "decoder_ffn_dim": 4096, "decoder_layerdrop": 0.0,
    "decoder_layers": 12, "dropout": 0.1, "encoder_attention_heads": 16, "encoder_ffn_dim": 4096, "encoder_layerdrop": 0.0,
    "encoder_layers": 12, "gradient_checkpointing": False, "id2label": {"0": "contradiction", "1": "neutral", "2": "entailment"},
    "init_std": 0.02, "is_encoder_decoder": True, "max_position_embeddings": 1024, "normalize_before": False, "num_hidden_layers": 12,
    "output_past": False, "scale_embedding": False, "use_cache": True, "vocab_size": 50265,
}  # fmt: skip
OPUS_MT = {
    "model_type": "marian", "architectures": ["MarianMTModel"], "activation_dropout": 0.0, "activation_function": "swish",
    "add_bias_logits": False, "add_final_layer_norm": False, "attention_dropout": 0.0, "bad_words_ids": [[58100]], "classif_dropout": 0.0,
    "d_model": 512, "decoder_attention_heads": 8, "decoder_ffn_dim": 2048, "decoder_layerdrop": 0.0, "decoder_layers": 6,
    "decoder_vocab_size": 58101, "dropout": 0.1, "encoder_attention_heads": 8, "encoder_ffn_dim": 2048, "encoder_layerdrop": 0.0,
    "encoder_layers": 6, "extra_pos_embeddings": 58101, "init_std": 0.02, "is_encoder_decoder": True, "max_position_embeddings": 512,
    "normalize_before": False, "normalize_embedding": False, "num_hidden_layers": 6, "scale_embedding": True,
    "share_encoder_decoder_embeddings": True, "static_position_embeddings": True, "vocab_size": 58101,
}  # fmt: skip


def understood(keys: dict[str, Any]) -> sl.ModelConfig:
    return identify(Source(Path("published"), "keys", keys, {})).config


def test_published_keys_are_understood() -> None:
    small = understood(T5_SMALL)
    assert small.head == sl.t5().head
    assert small.encoder is not None
    assert small.encoder.blocks[0].feed_forward.activation == "relu"
    flan = understood(FLAN_T5_SMALL)
    assert flan.head == sl.LanguageHead(tied=False)
    assert flan.last.blocks[0].feed_forward == sl.FeedForwardConfig(
        hidden=1024, activation="gelu_tanh", gated=True, bias=False, dropout=0.1
    )
    assert (
        understood(
            {
                name: value
                for name, value in FLAN_T5_SMALL.items()
                if name not in ("dense_act_fn", "is_gated_act")
            }
        )
        == flan
    )
    assert understood(BART_LARGE_MNLI).head == sl.Classifier(
        labels=3, pool="last", activation="tanh"
    )
    opus = understood(OPUS_MT)
    assert opus.share_embeddings
    assert opus.last.embedding == sl.EmbeddingConfig(
        vocab_size=58101, positions=sl.Sinusoidal(interleaved=False), scale=512**0.5, dropout=0.1
    )


SIZES = "encoder_layers decoder_layers encoder_ffn_dim decoder_ffn_dim encoder_attention_heads decoder_attention_heads d_model vocab_size"
NEEDED = {
    "T5ForConditionalGeneration": {
        name: T5[name] for name in ("d_model", "d_ff", "num_layers", "num_heads", "vocab_size")
    },
    "BartForSequenceClassification": {name: BART[name] for name in SIZES.split()},
    "MarianMTModel": {name: BART[name] for name in SIZES.split()},
}


@pytest.mark.parametrize("class_name", NEEDED)
def test_what_a_file_leaves_out_is_what_transformers_takes(class_name: str) -> None:
    kind = getattr(transformers, class_name).config_class
    written = json.loads(kind(**NEEDED[class_name]).to_json_string())
    names = {"model_type": kind.model_type, "architectures": [class_name]}
    assert understood(written | names) == understood(NEEDED[class_name] | names)


REFUSED_KEYS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "t5 buckets": (T5_SMALL, {"relative_attention_num_buckets": 3}, "buckets is 3"),
    "t5 distance": (T5_SMALL, {"relative_attention_max_distance": 16}, "max_distance"),
    "t5 activation": (
        T5_SMALL,
        {"feed_forward_proj": "gated-mish"},
        "feed_forward_proj is 'gated-mish'",
    ),
    "t5 old activation": (T5_SMALL, {"dense_act_fn": "mish"}, "dense_act_fn is 'mish'"),
    "t5 decoder alone": (T5_SMALL, {"is_decoder": True}, "is_decoder is True"),
    "t5 head": (
        T5_SMALL,
        {"architectures": ["T5ForTokenClassification"]},
        "architecture 'T5ForTokenClassification'",
    ),
    "t5 experts": (T5_SMALL, {"num_experts": 8}, "num_experts is 8"),
    "bart pre-norm": (BART_LARGE_MNLI, {"normalize_before": True}, "normalize_before is True"),
    "bart final norm": (
        BART_LARGE_MNLI,
        {"add_final_layer_norm": True},
        "add_final_layer_norm is True",
    ),
    "bart sines": (
        BART_LARGE_MNLI,
        {"static_position_embeddings": True},
        "static_position_embeddings is True",
    ),
    "bart without norm": (
        BART_LARGE_MNLI,
        {"normalize_embedding": False},
        "normalize_embedding is False",
    ),
    "bart offset": (BART_LARGE_MNLI, {"extra_pos_embeddings": 1}, "extra_pos_embeddings is 1"),
    "bart head": (
        BART_LARGE_MNLI,
        {"architectures": ["BartForCausalLM"]},
        "architecture 'BartForCausalLM'",
    ),
    "marian learned": (
        OPUS_MT,
        {"static_position_embeddings": False},
        "static_position_embeddings is False",
    ),
    "marian norm": (OPUS_MT, {"normalize_embedding": True}, "normalize_embedding is True"),
    "marian pre-norm": (OPUS_MT, {"normalize_before": True}, "normalize_before is True"),
    "marian vocabularies": (OPUS_MT, {"decoder_vocab_size": 100}, "decoder_vocab_size is 100"),
    "marian head": (
        OPUS_MT,
        {"architectures": ["MarianForCausalLM"]},
        "architecture 'MarianForCausalLM'",
    ),
}


@pytest.mark.parametrize("name", REFUSED_KEYS)
def test_keys_that_we_cannot_honour_are_refused(name: str) -> None:
    keys, change, message = REFUSED_KEYS[name]
    understood(keys)
    with pytest.raises(CheckpointError, match=message):
        understood(keys | change)


REFUSED_TENSORS: dict[str, tuple[str, dict[str, Any], dict[str, Tensor | None], str]] = {
    "t5 head differs": (
        "T5ForConditionalGeneration",
        T5,
        {"lm_head__weight": torch.ones(40, 24)},
        "lm_head.weight differs",
    ),
    "t5 without shared": ("T5Model", T5, {"shared__weight": None}, "missing: shared.weight"),
    "t5 encoder with a decoder": (
        "T5EncoderModel",
        T5,
        {"decoder__final_layer_norm__weight": torch.ones(24)},
        "unexpected: decoder.final",
    ),
    "bart copy differs": (
        "BartModel",
        BART,
        {"decoder__embed_tokens__weight": torch.ones(40, 24)},
        "decoder.embed_tokens.weight differs",
    ),
    "bart short positions": (
        "BartModel",
        BART,
        {"encoder__embed_positions__weight": torch.ones(48, 24)},
        r"encoder.embed_positions.weight has shape \[48, 24\]",
    ),
    "marian bias": (
        "MarianMTModel",
        MARIAN,
        {"final_logits_bias": torch.ones(1, 39)},
        "final_logits_bias has shape",
    ),
}


@pytest.mark.parametrize("name", REFUSED_TENSORS)
def test_tensors_that_do_not_fit_are_refused(name: str) -> None:
    class_name, options, change, message = REFUSED_TENSORS[name]
    model, keys = example(class_name, options)
    with pytest.raises(CheckpointError, match=message):
        load_weights(with_tensors(source_of(model, **keys), **change))


def test_marian_without_stored_positions() -> None:
    """transformers does not write them."""
    model, _ = example(*CASES["marian"])
    table = {f"model__{stack}__embed_positions__weight": None for stack in ("encoder", "decoder")}
    load_weights(with_tensors(source_of(model), **table))


def test_a_bart_without_a_bias_has_one_of_zeros() -> None:
    """transformers registers it as zeros; old files lack it."""
    model = reference("BartForConditionalGeneration", BART)
    source = source_of(model)
    del source.tensors["final_logits_bias"]
    assert bool((load_weights(source).transformer.output.vocabulary.bias == 0).all())
