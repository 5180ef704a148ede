"""RoBERTa: BERT whose positions start after the padding id, with different heads. XLM-RoBERTa and
CamemBERT are the same model."""

from __future__ import annotations

from sightline.config import MaskedHead, ModelConfig, Pooler
from sightline.families.bert import (
    bert_norm,
    bert_stack,
    body_rules,
    encoder_classes,
    encoder_head,
    head_with_pooler,
    vocabulary_rules,
)
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, rename


def roberta_config(keys: Keys, head: str) -> ModelConfig:
    """RobertaConfig: `max_position_embeddings` counts the reserved rows; the masked head uses GELU
    regardless of `hidden_act`."""
    masked = MaskedHead(
        tied=keys.flag("tie_word_embeddings", default=True), activation="gelu", norm=bert_norm(keys)
    )
    stack = bert_stack(keys, reserved=keys.number("pad_token_id", default=1, least=0) + 1)
    return ModelConfig(encoder=stack, head=encoder_head(keys, head, masked=masked, sequence="tanh"))


def roberta_weights(config: ModelConfig, head: str) -> list[Rule]:
    """BERT's body, then the head's tensors."""
    head_rules: dict[str, list[Rule]] = {
        "sequence": [
            rename("^classifier.dense.{p}", "output.transform.{p}"),
            rename("^classifier.out_proj.{p}", "output.labels.{p}"),
        ],
        "tokens": [rename("^classifier.{p}", "output.labels.{p}")],
        "answers": [rename("^qa_outputs.{p}", "output.labels.{p}")],
    }
    if head == "masked":
        head_rules["masked"] = [
            rename("^lm_head.dense.{p}", "output.transform.{p}"),
            rename("^lm_head.layer_norm.{p}", "output.norm.{p}"),
            *vocabulary_rules(config, "lm_head.decoder", "lm_head.bias"),
        ]
    return [*body_rules(pooler=isinstance(config.head, Pooler)), *head_rules.get(head, [])]


def roberta_family(name: str, class_name: str) -> Family:
    """The same model under another name. All call the body `roberta`."""
    return Family(
        name=name,
        config=roberta_config,
        weights=roberta_weights,
        prefix="roberta.",
        heads=encoder_classes(class_name),
        choose=head_with_pooler,
    )


ROBERTA = roberta_family("roberta", "Roberta")
XLM_ROBERTA = roberta_family("xlm-roberta", "XLMRoberta")
CAMEMBERT = roberta_family("camembert", "Camembert")
