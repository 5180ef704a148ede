"""Encoder families against transformers, with every option that they read varied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.checkpoints.load import load_weights
from sightline.checkpoints.source import Entry, Source
from sightline.errors import CheckpointError
from tests.families.oracle import (
    BATCH,
    TIME,
    back,
    close,
    compare,
    ours,
    reference,
    source_of,
    tokens,
)
from tests.support.encoder_configs import (
    BERT,
    CASES,
    MODERN,
    ROBERTA,
)

BARE = {
    "bert": ("BertModel", BERT),
    "roberta": ("RobertaModel", ROBERTA),
    "xlm-roberta": ("XLMRobertaModel", ROBERTA),
    "camembert": ("CamembertModel", ROBERTA),
}
MASKED = {name: CASES[name] for name in ("bert", "roberta", "distilbert", "modernbert")}


@pytest.mark.parametrize("name", CASES)
def test_ours_is_the_reference(name: str) -> None:
    class_name, options = CASES[name]
    compare(reference(class_name, options))


# ------------------------------------------------------------------------------------- the pooler


@pytest.mark.parametrize("name", BARE)
def test_a_bare_model_pools_and_its_hidden_states_are_reachable(name: str) -> None:
    model = reference(*BARE[name])
    loaded = ours(model)
    assert loaded.transformer.config.head == sl.Pooler(how="tanh")
    with torch.no_grad():
        ids = tokens(40)
        close("hidden", model(ids).last_hidden_state, loaded.transformer.hidden(ids))
    forward = model.forward

    def pooled(**inputs: Any) -> Any:
        output = forward(**inputs)
        output.logits = output.pooler_output
        return output

    model.forward = pooled
    compare(model)


@pytest.mark.parametrize("name", BARE)
def test_a_bare_model_without_pooler_gives_hidden_states(name: str) -> None:
    model = reference(*BARE[name])
    model.pooler = None
    loaded, ids = ours(model), tokens(40)
    assert loaded.transformer.config.head == sl.NoHead()
    with torch.no_grad():
        close("hidden", model(ids).last_hidden_state, loaded.transformer(ids))
    saved, state = back(loaded), model.state_dict()
    assert saved.keys() == state.keys()
    assert all(torch.equal(saved[name], state[name]) for name in state)


@pytest.mark.parametrize("name", BARE)
def test_a_bare_model_may_carry_the_prefix(name: str) -> None:
    """Files written by a class with a head, whose config.json names the bare class; written again
    as transformers does."""
    source = source_of(reference(*BARE[name]))
    prefix = "bert." if name == "bert" else "roberta."
    loaded = load_weights(renamed(source, lambda tensor: prefix + tensor))
    assert set(back(loaded)) == set(source.tensors)


# ------------------------------------------------------------------------ padding and token types


def left_padding() -> Tensor:
    """The second row starts after four paddings."""
    padding = torch.zeros(BATCH, TIME, dtype=torch.bool)
    padding[1, :4] = True
    return padding


@pytest.mark.parametrize("name", MASKED)
def test_padding_on_the_left(name: str) -> None:
    """BERT and DistilBERT must be told the positions; the others count real tokens or see distances
    only."""
    model, padding = reference(*MASKED[name]), left_padding()
    ids = tokens(40).masked_fill(padding, model.config.pad_token_id)
    positions = ((~padding).cumsum(-1) - 1).clamp(min=0)
    positional = {"position_ids": positions} if name in ("bert", "distilbert") else {}
    with torch.no_grad():
        expected = model(input_ids=ids, attention_mask=(~padding).long(), **positional).logits
        close("logits", expected[~padding], ours(model).transformer(ids, padding=padding)[~padding])


@pytest.mark.parametrize("name", [name for name in CASES if "sequence" in name])
def test_padding_changes_no_class(name: str) -> None:
    """Alone, padded on the left or on the right: the same logits."""
    transformer = ours(reference(*CASES[name])).transformer
    ids, pads = tokens(40)[:1, :8], torch.zeros(1, 4, dtype=torch.long)
    real, off = torch.zeros(1, 8, dtype=torch.bool), torch.ones(1, 4, dtype=torch.bool)
    with torch.no_grad():
        alone = transformer(ids)
        close(
            "left", alone, transformer(torch.cat((pads, ids), 1), padding=torch.cat((off, real), 1))
        )
        close(
            "right",
            alone,
            transformer(torch.cat((ids, pads), 1), padding=torch.cat((real, off), 1)),
        )


@pytest.mark.parametrize("name", ["bert", "roberta relu, two types, padding id 2"])
def test_token_types(name: str) -> None:
    model = reference(*CASES[name])
    ids, types = tokens(40), tokens(5, seed=3) % 2
    with torch.no_grad():
        expected = model(input_ids=ids, token_type_ids=types).logits
        close("logits", expected, ours(model).transformer(ids, types=types))
        assert not torch.allclose(expected, model(input_ids=ids).logits)


@pytest.mark.parametrize(("name", "positions"), [("bert", 20), ("roberta", 18), ("distilbert", 20)])
def test_the_whole_position_table_is_usable_and_no_more(name: str, positions: int) -> None:
    model = reference(*MASKED[name])
    transformer, ids = ours(model).transformer, tokens(40, time=positions)
    assert transformer.config.last.max_positions == positions
    with torch.no_grad():
        close("logits", model(ids).logits, transformer(ids))
    with pytest.raises(sl.InputError, match="the end of the learned table"):
        transformer(tokens(40, time=positions + 1))


# ------------------------------------------------------------------------ what files also contain


def renamed(source: Source, spell: Any) -> Source:
    return Source(
        source.where,
        source.format,
        source.keys,
        {spell(n): replace(e, name=spell(n)) for n, e in source.tensors.items()},
    )


def with_tensors(source: Source, **tensors: Tensor) -> Source:
    more = {
        n.replace("__", "."): Entry(n, tuple(t.shape), t.dtype, lambda t=t: t)
        for n, t in tensors.items()
    }
    return Source(source.where, source.format, source.keys, source.tensors | more)


def test_old_names_of_the_norms() -> None:
    """bert-base-uncased as it is published: gamma and beta, and heads that its class does not
    have."""
    model, dense, two = reference("BertForMaskedLM", BERT), torch.ones(24, 24), torch.ones(2, 24)
    old = renamed(
        source_of(model),
        lambda n: n.replace("LayerNorm.weight", "LayerNorm.gamma").replace(
            "LayerNorm.bias", "LayerNorm.beta"
        ),
    )
    old = with_tensors(
        old,
        bert__pooler__dense__weight=dense,
        bert__pooler__dense__bias=dense[0],
        cls__seq_relationship__weight=two,
    )
    old = with_tensors(old, bert__embeddings__position_ids=torch.arange(20)[None])
    ids = tokens(40)
    with torch.no_grad():
        close("logits", model(ids).logits, load_weights(old).transformer(ids))


@pytest.mark.parametrize(
    ("name", "embedding", "decoder", "bias"),
    [
        (
            "bert",
            "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder",
            "cls.predictions.bias",
        ),
        ("roberta", "roberta.embeddings.word_embeddings.weight", "lm_head.decoder", "lm_head.bias"),
    ],
)
def test_second_copies_must_be_equal(name: str, embedding: str, decoder: str, bias: str) -> None:
    source = source_of(reference(*MASKED[name]))
    copies = {
        f"{decoder}.weight": source.tensors[embedding].read(),
        f"{decoder}.bias": source.tensors[bias].read(),
    }
    load_weights(with_tensors(source, **copies))
    for copy, tensor in copies.items():
        with pytest.raises(CheckpointError, match=f"{copy} differs"):
            load_weights(with_tensors(source, **{copy: tensor + 1}))


@pytest.mark.parametrize(("name", "options"), [("Bert", BERT), ("Roberta", ROBERTA)])
def test_an_untied_decoder(name: str, options: dict[str, Any]) -> None:
    """The matrix is its own, the bias one of two names for the same numbers."""
    model = reference(f"{name}ForMaskedLM", options | {"tie_word_embeddings": False})
    part = model.cls.predictions if name == "Bert" else model.lm_head
    part.decoder.bias = part.bias
    compare(model)


def test_the_old_spelling_of_modernbert() -> None:
    """config.json as version 4 wrote it, without layer_types and rope_parameters."""
    options = {
        "global_attn_every_n_layers": 2,
        "global_rope_theta": 500.0,
        "local_rope_theta": 50.0,
    }
    model, ids = reference("ModernBertForMaskedLM", MODERN | options), tokens(40)
    source = source_of(model)
    left = {
        "position_embedding_type": "absolute",
        "layer_norm_eps": 1e-5,
        "reference_compile": None,
        "repad_logits_with_grad": False,
    }
    new = ("layer_types", "rope_parameters")
    source.keys = (
        {key: value for key, value in source.keys.items() if key not in new} | options | left
    )
    with torch.no_grad():
        close("logits", model(ids).logits, load_weights(source).transformer(ids))


@pytest.mark.parametrize("name", MASKED)
def test_what_config_leaves_out_is_as_in_transformers(name: str) -> None:
    class_name, options = MASKED[name]
    model = reference(class_name, options)
    source = source_of(model)
    source.keys = options | {key: source.keys[key] for key in ("architectures", "model_type")}
    assert load_weights(source).transformer.config == ours(model).transformer.config


def test_the_first_layer_of_modernbert_has_no_norm_before_attention() -> None:
    loaded = ours(reference("ModernBertModel", MODERN))
    blocks = loaded.transformer.config.last.blocks
    assert [block.attention_norm for block in blocks] == [sl.NoNorm(), None, None, None]
    assert [block.attention.window for block in blocks] == [None, 4, 4, None]


# --------------------------------------------------------------------------------------- refusals

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "bert relative positions": (
        "bert",
        {"position_embedding_type": "relative_key"},
        "position_embedding_type is 'relative_key'",
    ),
    "bert as decoder": ("bert", {"is_decoder": True}, "is_decoder is True"),
    "bert narrow embedding": ("bert", {"embedding_size": 12}, "embedding_size is 12"),
    "bert unknown activation": ("bert", {"hidden_act": "mish"}, "hidden_act is 'mish'"),
    "bert for pretraining": (
        "bert",
        {"architectures": ["BertForPreTraining"]},
        "BertForPreTraining has two heads",
    ),
    "bert wrong types": ("bert", {"type_vocab_size": 3}, "token_type_embeddings.weight has shape"),
    "bert without width": ("bert", {"hidden_size": None}, "lacks 'hidden_size'"),
    "roberta relative positions": (
        "roberta",
        {"position_embedding_type": "relative_key_query"},
        "relative_key_query",
    ),
    "roberta as decoder": ("roberta", {"is_decoder": True}, "is_decoder is True"),
    "roberta no room": ("roberta", {"max_position_embeddings": 2}, "max_positions is 0"),
    "distilbert untied in the old spelling": (
        "distilbert",
        {"tie_weights_": False},
        "tie_weights_ is False",
    ),
    "distilbert epsilon": ("distilbert", {"layer_norm_eps": 1e-5}, "layer_norm_eps is 1e-05"),
    "modernbert pooling": (
        "modernbert",
        {"classifier_pooling": "max"},
        "classifier_pooling is 'max'",
    ),
    "modernbert layer types": (
        "modernbert",
        {"layer_types": ["full_attention"]},
        "layer_types has 1 entries",
    ),
    "modernbert layer kind": ("modernbert", {"layer_types": ["chunked"] * 4}, "chunked"),
    "modernbert one table for both": (
        "modernbert",
        {"rope_parameters": {"rope_theta": 5.0}},
        "rope_theta",
    ),
    "modernbert rope type": (
        "modernbert",
        {"rope_parameters": {"full_attention": {"rope_type": "longrope"}}},
        "longrope",
    ),
    "modernbert base": (
        "modernbert",
        {"rope_parameters": {"full_attention": {"rope_theta": "x"}}},
        "rope_theta is 'x'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    family, changes, message = REFUSED[name]
    with pytest.raises(CheckpointError, match=message):
        ours(reference(*MASKED[family]), **changes)


def test_a_missing_and_an_unknown_tensor_are_named() -> None:
    source = source_of(reference("BertForMaskedLM", BERT))
    entry = source.tensors.pop("bert.encoder.layer.1.output.dense.bias")
    source.tensors["bert.encoder.layer.1.output.dense.bia"] = entry
    with pytest.raises(
        CheckpointError, match=r"is bert.encoder.layer.1.output.dense.bia a misspelling of"
    ):
        load_weights(source)
