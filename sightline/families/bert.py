"""BERT: learned positions, token types, Post-LN, GELU, bidirectional attention."""

from __future__ import annotations

from collections.abc import Callable

from sightline.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    Classifier,
    EmbeddingConfig,
    FeedForwardConfig,
    Head,
    LayerNorm,
    Learned,
    MaskedHead,
    ModelConfig,
    NoHead,
    Pooler,
    StackConfig,
)
from sightline.errors import CheckpointError
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, rename, tie
from sightline.families.schema.shared import ACTIVATIONS, label_count


def bert_norm(keys: Keys) -> LayerNorm:
    """LayerNorm, with BERT's small ε."""
    return LayerNorm(eps=keys.real("layer_norm_eps", default=1e-12))


def bert_stack(keys: Keys, *, reserved: int = 0) -> StackConfig:
    """The stack of BERT and RoBERTa. The first `reserved` rows of the position table are
    unused."""
    keys.only("is_decoder", False)
    keys.only("position_embedding_type", "absolute")
    keys.ignore(
        "directionality",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
    )
    width = keys.number("hidden_size")
    count = keys.number("num_attention_heads")
    norm = bert_norm(keys)
    keys.only("embedding_size", width)
    dropout = keys.real("hidden_dropout_prob", default=0.1)
    block = BlockConfig(
        attention=AttentionConfig(
            heads=count,
            kv_heads=count,
            head_dim=width // count,
            dropout=keys.real("attention_probs_dropout_prob", default=0.1),
        ),
        feed_forward=FeedForwardConfig(
            hidden=keys.number("intermediate_size"),
            activation=keys.choice("hidden_act", of=ACTIVATIONS, default="gelu"),
        ),
        norm=norm,
        placement="post",
        dropout=dropout,
    )
    embedding = EmbeddingConfig(
        vocab_size=keys.number("vocab_size"),
        positions=Learned(offset=reserved),
        types=keys.number("type_vocab_size", default=2),
        norm=norm,
        dropout=dropout,
    )
    return StackConfig(
        width=width,
        layers=keys.number("num_hidden_layers"),
        causal=False,
        max_positions=keys.number("max_position_embeddings", default=512) - reserved,
        embedding=embedding,
        blocks=(block,),
    )


def encoder_head(keys: Keys, head: str, *, masked: MaskedHead, sequence: Activation) -> Head:
    """The heads of BERT-like families; `sequence` is the activation between the first token and the
    classes."""
    forms: dict[str, Callable[[], Head]] = {
        "masked": lambda: masked,
        "none": NoHead,
        "pooled": lambda: Pooler(how="tanh"),
        "sequence": lambda: Classifier(labels=label_count(keys), pool="first", activation=sequence),
        "tokens": lambda: Classifier(labels=label_count(keys), pool="tokens"),
        "answers": lambda: Classifier(labels=2, pool="tokens"),
    }
    return forms[head]()


def head_with_pooler(names: set[str], head: str) -> str:
    """A bare model has a pooler if its files have one: config.json does not record it."""
    return (
        "pooled"
        if head == "none" and any(name.endswith("pooler.dense.weight") for name in names)
        else head
    )


def bert_config(keys: Keys, head: str) -> ModelConfig:
    """BertConfig."""
    if head == "two":
        raise CheckpointError(
            f"{keys.where}: BertForPreTraining has two heads, for tokens and for the next sentence",
            expected="one head",
            fix='"architectures": ["BertForMaskedLM"] in config.json reads the one for tokens',
        )
    masked = MaskedHead(
        tied=keys.flag("tie_word_embeddings", default=True),
        activation=keys.choice("hidden_act", of=ACTIVATIONS, default="gelu"),
        norm=bert_norm(keys),
    )
    return ModelConfig(
        encoder=bert_stack(keys), head=encoder_head(keys, head, masked=masked, sequence="tanh")
    )


def body_rules(*, pooler: bool) -> list[Rule]:
    """`encoder.layer.3.attention.self.query.weight` → `encoder.3.attention.query.weight`, …, and
    the pooler where one is used."""
    layer = "encoder.layer.{n}"
    ours = "encoder.{n}"
    return [
        rename("embeddings.word_embeddings.weight", "encoder.embedding.tokens.weight"),
        rename("embeddings.position_embeddings.weight", "encoder.embedding.positions.weight"),
        rename("embeddings.token_type_embeddings.weight", "encoder.embedding.types.weight"),
        rename("embeddings.LayerNorm.{p}", "encoder.embedding.norm.{p}"),
        rename(f"{layer}.attention.self.query.{{p}}", f"{ours}.attention.query.{{p}}"),
        rename(f"{layer}.attention.self.key.{{p}}", f"{ours}.attention.key.{{p}}"),
        rename(f"{layer}.attention.self.value.{{p}}", f"{ours}.attention.value.{{p}}"),
        rename(f"{layer}.attention.output.dense.{{p}}", f"{ours}.attention.output.{{p}}"),
        rename(
            f"{layer}.attention.output.LayerNorm.{{p}}", f"{ours}.attention_residual.after.{{p}}"
        ),
        rename(f"{layer}.intermediate.dense.{{p}}", f"{ours}.feed_forward.up.{{p}}"),
        rename(f"{layer}.output.dense.{{p}}", f"{ours}.feed_forward.down.{{p}}"),
        rename(f"{layer}.output.LayerNorm.{{p}}", f"{ours}.feed_forward_residual.after.{{p}}"),
        rename("pooler.dense.{p}", "output.transform.{p}")
        if pooler
        else ignore("pooler.dense.{p}", because="the pooler, which this head does not use"),
        ignore("embeddings.position_ids", because="0, 1, 2, …"),
    ]


def vocabulary_rules(config: ModelConfig, decoder: str, bias: str) -> list[Rule]:
    """The last matrix of a masked head and its bias, which some files store twice."""
    assert isinstance(config.head, MaskedHead)
    weight = (
        tie(f"^{decoder}.weight", "encoder.embedding.tokens.weight")
        if config.head.tied
        else rename(f"^{decoder}.weight", "output.vocabulary.weight")
    )
    return [
        weight,
        rename(f"^{bias}", "output.vocabulary.bias"),
        tie(f"^{decoder}.bias", "output.vocabulary.bias"),
    ]


def bert_weights(config: ModelConfig, head: str) -> list[Rule]:
    """The body, then the head's tensors."""
    body = body_rules(pooler=head == "sequence" or isinstance(config.head, Pooler))
    if head == "masked":
        return [
            *body,
            rename("^cls.predictions.transform.dense.{p}", "output.transform.{p}"),
            rename("^cls.predictions.transform.LayerNorm.{p}", "output.norm.{p}"),
            *vocabulary_rules(config, "cls.predictions.decoder", "cls.predictions.bias"),
            ignore(
                "^cls.seq_relationship.{p}",
                because="next-sentence prediction, a second head that this class does not have",
            ),
        ]
    names = {"sequence": "classifier", "tokens": "classifier", "answers": "qa_outputs"}
    return [*body, rename(f"^{names[head]}.{{p}}", "output.labels.{p}")] if head in names else body


def encoder_classes(name: str) -> dict[str, str]:
    """Hugging Face's class names for the heads of an encoder-only family."""
    return {
        f"{name}ForMaskedLM": "masked",
        f"{name}Model": "none",
        f"{name}ForSequenceClassification": "sequence",
        f"{name}ForTokenClassification": "tokens",
        f"{name}ForQuestionAnswering": "answers",
    }


BERT = Family(
    name="bert",
    config=bert_config,
    weights=bert_weights,
    prefix="bert.",
    heads=encoder_classes("Bert") | {"BertForPreTraining": "two"},
    aliases={"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"},
    choose=head_with_pooler,
)
