"""Encoder–decoder families against transformers, with every option that they read varied."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.checkpoints.load import Loaded, load
from sightline.core.attention import attention_weights
from tests.families.oracle import BATCH, SOURCE, TIME, back, close, reference, source_of, tokens

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


@pytest.mark.parametrize("name", CASES)
def test_ours_is_the_reference(name: str) -> None:
    model, changes = example(*CASES[name])
    loaded = load(source_of(model, **changes))
    for padded in (False, True):
        _compare_forward(model, loaded, padded=padded)
    _compare_back(model, loaded)
    if isinstance(loaded.transformer.config.head, sl.LanguageHead):
        _compare_greedy(model, loaded)


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


def _paddings(*, padded: bool) -> tuple[Tensor | None, Tensor | None]:
    """Of the source, whose first row ends after six tokens, and of the decoder's tokens, whose
    second row ends after eight."""
    source, after = (
        torch.zeros(BATCH, SOURCE, dtype=torch.bool),
        torch.zeros(BATCH, TIME, dtype=torch.bool),
    )
    source[0, 6:], after[1, 8:] = True, True
    return (source, after) if padded else (None, None)


def _mask(padding: Tensor | None, time: int) -> Tensor:
    return torch.ones(BATCH, time, dtype=torch.long) if padding is None else (~padding).long()


@torch.no_grad()
def _compare_forward(model: Any, loaded: Loaded, *, padded: bool) -> None:
    """The answer, and the hidden states and attention weights of every layer of both stacks."""
    transformer, config = loaded.transformer, loaded.transformer.config
    source_padding, padding = _paddings(padded=padded)
    assert config.encoder is not None
    source, seen = tokens(config.encoder.embedding.vocab_size, SOURCE, seed=2), sl.Recorder(NAMES)
    theirs = {
        "input_ids": source,
        "attention_mask": _mask(source_padding, SOURCE),
        "output_hidden_states": True,
        "output_attentions": True,
    }
    if config.decoder is None:
        expected, found = model(**theirs), transformer(source, padding=source_padding, record=seen)
        real = _mask(source_padding, SOURCE).bool()
        close("output", expected.last_hidden_state[real], found[real])
        _compare_stack(loaded, "encoder", seen, real, expected.hidden_states, expected.attentions)
        return
    ids = tokens(config.decoder.embedding.vocab_size)
    expected = model(**theirs, decoder_input_ids=ids, decoder_attention_mask=_mask(padding, TIME))
    found = transformer(
        ids, padding=padding, source=source, source_padding=source_padding, record=seen
    )
    real = _mask(padding, TIME).bool()
    close("answer", _answer(expected)[real], found[real])
    encoded = _mask(source_padding, SOURCE).bool()
    close(
        "memory",
        expected.encoder_last_hidden_state[encoded],
        seen["encoder", None, "output"][encoded],
    )
    _compare_stack(
        loaded,
        "encoder",
        seen,
        encoded,
        expected.encoder_hidden_states,
        expected.encoder_attentions,
    )
    _compare_stack(
        loaded, "decoder", seen, real, expected.decoder_hidden_states, expected.decoder_attentions
    )
    _compare_maps(loaded, "decoder", seen, real, expected.cross_attentions, cross=True)


NAMES = {
    "residual",
    "output",
    "query",
    "key",
    "mask",
    "bias",
    "cross_query",
    "cross_key",
    "cross_mask",
    "cross_bias",
}


def _compare_stack(
    loaded: Loaded, name: str, seen: sl.Recorder, real: Tensor, states: Any, maps: Any
) -> None:
    for layer in range(loaded.transformer.config.stacks[name].layers):
        close(f"{name} residual {layer}", states[layer][real], seen[name, layer, "residual"][real])
    close(f"{name} output", states[-1][real], seen[name, None, "output"][real])
    _compare_maps(loaded, name, seen, real, maps, cross=False)


def _compare_maps(
    loaded: Loaded, name: str, seen: sl.Recorder, real: Tensor, maps: Any, *, cross: bool
) -> None:
    """The weights rebuilt from what was recorded, for each real query."""
    layers, prefix = loaded.transformer.config.stacks[name].layers, "cross_" if cross else ""
    assert len(maps) == layers
    for layer in range(layers):
        attention = loaded.transformer.get_submodule(f"{name}.{layer}.{prefix}attention")
        query, key, mask, bias = (
            seen[name, layer, prefix + what] for what in ("query", "key", "mask", "bias")
        )
        weights = attention_weights(query, key, attention.scoring(mask, bias))  # pyright: ignore
        close(
            f"{name} {prefix}attention {layer}",
            maps[layer].transpose(1, 2)[real],
            weights.transpose(1, 2)[real],
        )


def _answer(output: Any) -> Tensor:
    if hasattr(output, "start_logits"):
        return torch.stack((output.start_logits, output.end_logits), dim=-1)
    return output.logits if hasattr(output, "logits") else output.last_hidden_state


def _compare_back(model: Any, loaded: Loaded) -> None:
    """Every tensor that transformers would write comes back bit for bit, under its name; Marian's
    computed positions alone do not."""
    state, saved = source_of(model).tensors, back(loaded)
    assert set(saved) == {
        name for name in state if not (loaded.family.name == "marian" and "embed_positions" in name)
    }
    for name, tensor in saved.items():
        assert torch.equal(tensor, state[name].read()), name


@torch.no_grad()
def _compare_greedy(model: Any, loaded: Loaded, count: int = 32) -> None:
    """The same 32 tokens for a padded source: one by one with a cache on our side, all at once on
    theirs."""
    transformer, config = loaded.transformer, loaded.transformer.config
    assert config.encoder is not None
    padding, _ = _paddings(padded=True)
    source, generated = (
        tokens(config.encoder.embedding.vocab_size, SOURCE, seed=2),
        tokens(config.last.embedding.vocab_size, 4),
    )
    cache = sl.Cache.growing(config)
    logits = transformer(generated, source=source, source_padding=padding, cache=cache)
    for _ in range(count):
        chosen = logits[:, -1:].argmax(-1)
        generated = torch.cat((generated, chosen), dim=1)
        logits = transformer(chosen, cache=cache)
    expected = model(
        input_ids=source, attention_mask=_mask(padding, SOURCE), decoder_input_ids=generated
    ).logits
    assert torch.equal(expected[:, 3:-1].argmax(-1), generated[:, 4:])
    close("last logits", expected[:, -1], logits[:, -1])


@pytest.mark.parametrize("name", ["t5 buckets, epsilon", "t5 encoder", "marian"])
@torch.no_grad()
def test_far_positions_agree(name: str) -> None:
    """Distances past the last bucket, and sines of large angles."""
    class_name, options = CASES[name]
    model, _ = example(
        class_name, options | ({"max_position_embeddings": 300} if name == "marian" else {})
    )
    transformer = load(source_of(model)).transformer
    source, ids = tokens(39, 300, seed=2), tokens(39, 280)
    if transformer.decoder is None:
        close("states", model(input_ids=source).last_hidden_state, transformer(source))
    else:
        close(
            "logits",
            model(input_ids=source, decoder_input_ids=ids).logits,
            transformer(ids, source=source),
        )


@pytest.mark.parametrize(
    ("class_name", "labels"),
    [("BartForSequenceClassification", 5), ("BartForQuestionAnswering", 2)],
)
@torch.no_grad()
def test_bart_classifies_a_source_that_ends_its_text(class_name: str, labels: int) -> None:
    """transformers makes the decoder's tokens itself: the source moved one to the right. Given the
    same, `last` is its choice too."""
    model, _ = example(class_name, BART | UNEVEN | {"num_labels": labels})
    loaded = load(source_of(model))
    padding, _ = _paddings(padded=True)
    assert padding is not None
    source = tokens(40, SOURCE, seed=2)
    source[0, 5], source[1, 8] = 2, 2
    source = source.masked_fill(padding, 1)
    expected = _answer(model(input_ids=source, attention_mask=(~padding).long()))
    moved = torch.cat((torch.full((BATCH, 1), 2), source[:, :-1]), dim=1)
    found = loaded.transformer(moved, padding=padding, source=source, source_padding=padding)
    if class_name == "BartForQuestionAnswering":
        expected, found = expected[~padding], found[~padding]
    assert expected.shape[-1] == labels
    close("labels", expected, found)
    _compare_back(model, loaded)
