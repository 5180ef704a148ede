"""BART: an encoder and a decoder with learned positions, Post-LN, a norm after the embedding, GELU,
one embedding matrix."""

from __future__ import annotations

import math

from sightline.config import (
    AttentionConfig,
    BlockConfig,
    Classifier,
    EmbeddingConfig,
    EmbeddingPosition,
    FeedForwardConfig,
    Head,
    LanguageHead,
    LayerNorm,
    Learned,
    ModelConfig,
    NoHead,
    Norm,
    StackConfig,
)
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, rename, tie
from sightline.families.schema.shared import ACTIVATIONS, label_count


def bart_config(keys: Keys, head: str) -> ModelConfig:
    """BartConfig."""
    keys.only("normalize_embedding", True)
    keys.only("static_position_embeddings", False)
    keys.only("extra_pos_embeddings", 2)
    encoder, decoder = (
        bart_stack(keys, name, positions=Learned(offset=2), norm=LayerNorm())
        for name in ("encoder", "decoder")
    )
    return ModelConfig(
        encoder=encoder, decoder=decoder, head=_bart_head(keys, head), share_embeddings=True
    )


def bart_stack(
    keys: Keys,
    name: str,
    *,
    positions: EmbeddingPosition,
    norm: Norm,
    vocab_size: int | None = None,
) -> StackConfig:
    """The encoder or the decoder of BART and Marian, both Post-LN; `norm` is the embedding's."""
    keys.only("is_decoder", False)
    keys.only("normalize_before", False)
    keys.only("add_final_layer_norm", False)
    keys.only("do_blenderbot_90_layernorm", False)
    keys.ignore(
        "encoder_layerdrop",
        "decoder_layerdrop",
        "classif_dropout",
        "add_bias_logits",
        "force_bos_token_to_be_generated",
    )
    keys.ignore("num_hidden_layers", "_num_labels", "unk_token_id", "save_step")
    width = keys.number("d_model", "hidden_size")
    dropout = keys.real("dropout", default=0.1)
    count = keys.number(f"{name}_attention_heads")
    if name == "encoder":
        keys.only("num_attention_heads", count)  # another name of the same key
    attention = AttentionConfig(
        heads=count,
        kv_heads=count,
        head_dim=width // count,
        dropout=keys.real("attention_dropout", default=0.0),
    )
    feed_forward = FeedForwardConfig(
        hidden=keys.number(f"{name}_ffn_dim"),
        activation=keys.choice("activation_function", of=ACTIVATIONS, default="gelu"),
        dropout=keys.real("activation_dropout", default=0.0),
    )
    block = BlockConfig(
        attention=attention,
        cross_attention=attention if name == "decoder" else None,
        feed_forward=feed_forward,
        placement="post",
        dropout=dropout,
    )
    embedding = EmbeddingConfig(
        vocab_size=keys.number("vocab_size") if vocab_size is None else vocab_size,
        positions=positions,
        scale=math.sqrt(width) if keys.flag("scale_embedding", default=False) else 1.0,
        norm=norm,
        dropout=dropout,
    )
    return StackConfig(
        width=width,
        layers=keys.number(f"{name}_layers"),
        causal=name == "decoder",
        max_positions=keys.number("max_position_embeddings", default=1024),
        embedding=embedding,
        blocks=(block,),
    )


def _bart_head(keys: Keys, head: str) -> Head:
    """The head on the decoder.

    "sequence": Hugging Face pools the decoder at the position of the source's last end-of-text
    token, and feeds the decoder with the source shifted right by one. Our `last` is the decoder's
    last real token. Both are the same if the source ends with that token and the decoder gets the
    shifted source with its padding.
    """
    tied = keys.flag("tie_word_embeddings", default=True)
    if head == "language":
        return LanguageHead(tied=tied, bias=True)
    if head == "sequence":
        has_labels = keys.has("id2label") or keys.has("num_labels")
        return Classifier(
            labels=label_count(keys) if has_labels else 3, pool="last", activation="tanh"
        )
    return Classifier(labels=2, pool="tokens") if head == "answers" else NoHead()


def bart_weights(config: ModelConfig, head: str) -> list[Rule]:
    """`encoder.layers.3.self_attn.q_proj.weight` → `encoder.3.attention.query.weight`, …"""
    embedding = "encoder.embedding.tokens.weight"
    head_rules = {
        "sequence": [
            rename("^classification_head.dense.{p}", "output.transform.{p}"),
            rename("^classification_head.out_proj.{p}", "output.labels.{p}"),
        ],
        "answers": [rename("^qa_outputs.{p}", "output.labels.{p}")],
    }
    return [
        rename("shared.weight", embedding),
        tie("encoder.embed_tokens.weight", embedding),
        tie("decoder.embed_tokens.weight", embedding),
        *stack_rules("encoder"),
        *stack_rules("decoder"),
        *language_rules(config, embedding),
        *head_rules.get(head, []),
        ignore("encoder.version", because="the number of fairseq's format"),
        ignore("decoder.version", because="the number of fairseq's format"),
    ]


def stack_rules(stack: str) -> list[Rule]:
    """The tensor names of one stack of BART and Marian."""
    theirs = f"{stack}.layers.{{n}}"
    ours = f"{stack}.{{n}}"
    return [
        rename(f"{stack}.embed_positions.weight", f"{stack}.embedding.positions.weight"),
        rename(f"{stack}.layernorm_embedding.{{p}}", f"{stack}.embedding.norm.{{p}}"),
        *_bart_attention_rules(f"{theirs}.self_attn", f"{ours}.attention"),
        rename(f"{theirs}.self_attn_layer_norm.{{p}}", f"{ours}.attention_residual.after.{{p}}"),
        *_bart_attention_rules(f"{theirs}.encoder_attn", f"{ours}.cross_attention"),
        rename(f"{theirs}.encoder_attn_layer_norm.{{p}}", f"{ours}.cross_residual.after.{{p}}"),
        rename(f"{theirs}.fc1.{{p}}", f"{ours}.feed_forward.up.{{p}}"),
        rename(f"{theirs}.fc2.{{p}}", f"{ours}.feed_forward.down.{{p}}"),
        rename(f"{theirs}.final_layer_norm.{{p}}", f"{ours}.feed_forward_residual.after.{{p}}"),
    ]


def _bart_attention_rules(theirs: str, ours: str) -> list[Rule]:
    names = {"q_proj": "query", "k_proj": "key", "v_proj": "value", "out_proj": "output"}
    return [
        rename(f"{theirs}.{short}.{{p}}", f"{ours}.{name}.{{p}}") for short, name in names.items()
    ]


def language_rules(config: ModelConfig, embedding: str) -> list[Rule]:
    """The language head's matrix (the decoder's embedding when tied) and its bias, stored as
    [1, vocab_size]."""
    if not isinstance(config.head, LanguageHead):
        return []
    matrix = (
        tie("^lm_head.weight", embedding)
        if config.head.tied
        else rename("^lm_head.weight", "output.vocabulary.weight")
    )
    return [
        matrix,
        rename("^final_logits_bias", "output.vocabulary.bias", flat=True, zero_if_absent=True),
    ]


BART = Family(
    name="bart",
    config=bart_config,
    weights=bart_weights,
    prefix="model.",
    heads={
        "BartForConditionalGeneration": "language",
        "BartModel": "none",
        "BartForSequenceClassification": "sequence",
        "BartForQuestionAnswering": "answers",
    },
)
