"""RoBERTa: BERT whose positions start after the padding id, with heads of its own. XLM-RoBERTa and
CamemBERT are the same model."""

from __future__ import annotations

from sightline.config import MaskedHead, ModelConfig, Pooler
from sightline.families.bert import (
    body_rules,
    classes,
    encoder,
    encoder_head,
    norm_of,
    pooled,
    vocabulary_rules,
)
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, rename


def config(keys: Keys, head: str) -> ModelConfig:
    """RobertaConfig: `max_position_embeddings` counts the reserved rows; the masked head has GELU
    whatever `hidden_act` is."""
    masked = MaskedHead(
        tied=keys.flag("tie_word_embeddings", default=True), activation="gelu", norm=norm_of(keys)
    )
    stack = encoder(keys, reserved=keys.number("pad_token_id", default=1, least=0) + 1)
    return ModelConfig(encoder=stack, head=encoder_head(keys, head, masked=masked, sequence="tanh"))


def weights(config: ModelConfig, head: str) -> list[Rule]:
    """BERT's body, then the head's own tensors."""
    own: dict[str, list[Rule]] = {
        "sequence": [
            rename("^classifier.dense.{p}", "output.transform.{p}"),
            rename("^classifier.out_proj.{p}", "output.labels.{p}"),
        ],
        "tokens": [rename("^classifier.{p}", "output.labels.{p}")],
        "answers": [rename("^qa_outputs.{p}", "output.labels.{p}")],
    }
    if head == "masked":
        own["masked"] = [
            rename("^lm_head.dense.{p}", "output.transform.{p}"),
            rename("^lm_head.layer_norm.{p}", "output.norm.{p}"),
            *vocabulary_rules(config, "lm_head.decoder", "lm_head.bias"),
        ]
    return [*body_rules(pooler=isinstance(config.head, Pooler)), *own.get(head, [])]


def family(name: str, class_name: str) -> Family:
    """The same model under another name. All call the body `roberta`."""
    return Family(
        name=name,
        config=config,
        weights=weights,
        prefix="roberta.",
        heads=classes(class_name),
        choose=pooled,
    )


ROBERTA = family("roberta", "Roberta")
XLM_ROBERTA = family("xlm-roberta", "XLMRoberta")
CAMEMBERT = family("camembert", "Camembert")
