"""DistilBERT: half of BERT's layers, without token types and without pooler."""

from __future__ import annotations

from sightline.config import (
    AttentionConfig,
    BlockConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    LayerNorm,
    Learned,
    MaskedHead,
    ModelConfig,
    StackConfig,
)
from sightline.families.bert import encoder_classes, encoder_head
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, rename, tie
from sightline.families.schema.shared import ACTIVATIONS

NORM = LayerNorm(eps=1e-12)


def distilbert_config(keys: Keys, head: str) -> ModelConfig:
    """DistilBertConfig. A sinusoidal table is stored, and read, like a learned one."""
    keys.ignore("sinusoidal_pos_embds", "qa_dropout", "seq_classif_dropout")
    keys.only("tie_weights_", True)
    keys.only("layer_norm_eps", NORM.eps)
    width = keys.number("dim", "hidden_size")
    count = keys.number("n_heads", "num_attention_heads")
    dropout = keys.real("dropout", default=0.1)
    activation = keys.choice("activation", of=ACTIVATIONS, default="gelu")
    block = BlockConfig(
        attention=AttentionConfig(
            heads=count,
            kv_heads=count,
            head_dim=width // count,
            dropout=keys.real("attention_dropout", default=0.1),
        ),
        feed_forward=FeedForwardConfig(hidden=keys.number("hidden_dim"), activation=activation),
        norm=NORM,
        placement="post",
        dropout=dropout,
    )
    stack = StackConfig(
        width=width,
        layers=keys.number("n_layers", "num_hidden_layers"),
        causal=False,
        max_positions=keys.number("max_position_embeddings", default=512),
        embedding=EmbeddingConfig(
            vocab_size=keys.number("vocab_size"), positions=Learned(), norm=NORM, dropout=dropout
        ),
        blocks=(block,),
    )
    masked = MaskedHead(
        tied=keys.flag("tie_word_embeddings", default=True), activation=activation, norm=NORM
    )
    return ModelConfig(encoder=stack, head=encoder_head(keys, head, masked=masked, sequence="relu"))


def distilbert_weights(config: ModelConfig, head: str) -> list[Rule]:
    """`transformer.layer.3.attention.q_lin.weight` → `encoder.3.attention.query.weight`, …"""
    layer = "transformer.layer.{n}"
    ours = "encoder.{n}"
    return [
        rename("embeddings.word_embeddings.weight", "encoder.embedding.tokens.weight"),
        rename("embeddings.position_embeddings.weight", "encoder.embedding.positions.weight"),
        rename("embeddings.LayerNorm.{p}", "encoder.embedding.norm.{p}"),
        rename(f"{layer}.attention.q_lin.{{p}}", f"{ours}.attention.query.{{p}}"),
        rename(f"{layer}.attention.k_lin.{{p}}", f"{ours}.attention.key.{{p}}"),
        rename(f"{layer}.attention.v_lin.{{p}}", f"{ours}.attention.value.{{p}}"),
        rename(f"{layer}.attention.out_lin.{{p}}", f"{ours}.attention.output.{{p}}"),
        rename(f"{layer}.sa_layer_norm.{{p}}", f"{ours}.attention_residual.after.{{p}}"),
        rename(f"{layer}.ffn.lin1.{{p}}", f"{ours}.feed_forward.up.{{p}}"),
        rename(f"{layer}.ffn.lin2.{{p}}", f"{ours}.feed_forward.down.{{p}}"),
        rename(f"{layer}.output_layer_norm.{{p}}", f"{ours}.feed_forward_residual.after.{{p}}"),
        *head_rules(config, head),
        ignore("embeddings.position_ids", because="0, 1, 2, …"),
    ]


def head_rules(config: ModelConfig, head: str) -> list[Rule]:
    """The head's tensors."""
    if isinstance(config.head, MaskedHead):
        tied = (
            [tie("^vocab_projector.weight", "encoder.embedding.tokens.weight")]
            if config.head.tied
            else []
        )
        return [
            rename("^vocab_transform.{p}", "output.transform.{p}"),
            rename("^vocab_layer_norm.{p}", "output.norm.{p}"),
            rename("^vocab_projector.{p}", "output.vocabulary.{p}"),
            *tied,
        ]
    rules_of_head = {
        "sequence": [
            rename("^pre_classifier.{p}", "output.transform.{p}"),
            rename("^classifier.{p}", "output.labels.{p}"),
        ],
        "tokens": [rename("^classifier.{p}", "output.labels.{p}")],
        "answers": [rename("^qa_outputs.{p}", "output.labels.{p}")],
    }
    return rules_of_head.get(head, [])


DISTILBERT = Family(
    name="distilbert",
    config=distilbert_config,
    weights=distilbert_weights,
    prefix="distilbert.",
    heads=encoder_classes("DistilBert"),
)
