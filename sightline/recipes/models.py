"""Models that recipes start from: an existing checkpoint with the head that a task needs, or a
small ModernBERT from scratch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from sightline.checkpoints.identity import identify
from sightline.checkpoints.load import load_weights
from sightline.checkpoints.open import open_source
from sightline.checkpoints.source import Source
from sightline.checkpoints.sources.reference import resolve
from sightline.checkpoints.tokenizer_files import tokenizer_files, tokenizer_of
from sightline.config import Classifier, ModelConfig, Pooler
from sightline.core.model import Transformer, build
from sightline.errors import InputError
from sightline.families import FAMILIES, Family
from sightline.families.own import OWN, own_keys
from sightline.families.schema.keys import Keys
from sightline.text.tokenizer import Tokenizer
from sightline.training.state.export import Export


@dataclass(frozen=True, slots=True)
class Base:
    """An opened checkpoint whose weights are not read yet. `keys` is the config.json of the result;
    `fresh`: the head is new."""

    name: str
    source: Source
    family: Family
    head: str
    config: ModelConfig
    keys: dict[str, Any]
    tokenizer: Tokenizer
    fresh: bool = False

    def transformer(self) -> Transformer:
        """The model with its weights, ready for training."""
        loaded = load_weights(self.source).transformer
        if not self.fresh:
            return loaded
        model = build(self.config)
        model.encoder = loaded.encoder
        model.decoder = loaded.decoder
        if (
            isinstance(loaded.config.head, (Pooler, Classifier))
            and loaded.output is not None
            and model.output is not None
        ):
            copy_matching_weights(model, loaded)
        return model

    def export(self) -> Export:
        """The result in the same family, with the same tokenizer."""
        files = tokenizer_files(self.source, self.tokenizer)
        return Export(
            family=self.family.name, head=self.head, keys=self.keys, files=files, base=self.name
        )


def open_base(reference: str) -> Base:
    """Any reference that `load` accepts: a folder, a .gguf file, a name of the catalogue, a hub
    id."""
    resolved = resolve(reference)
    source = open_source(resolved)
    identity = identify(source)
    tokenizer = tokenizer_of(source)
    if tokenizer is None:
        raise InputError(
            f"{reference}: a model without tokenizer",
            expected="one that reads text",
            fix="add the tokenizer's files",
        )
    return Base(
        reference,
        source,
        identity.family,
        identity.head,
        identity.config,
        source.keys,
        tokenizer,
    )


def copy_matching_weights(model: Transformer, loaded: Transformer) -> None:
    """The weights that a pooler or an older classifier shares with the new one: BERT's dense
    layer."""
    assert model.output is not None
    assert loaded.output is not None
    own = dict(model.output.named_parameters())
    for name, parameter in loaded.output.named_parameters():
        if (
            name.startswith(("transform.", "norm."))
            and name in own
            and own[name].shape == parameter.shape
        ):
            own[name].data.copy_(parameter.data)


def with_labels(base: Base, names: list[str]) -> Base:
    """The same body with a classifier for these labels: a new one, unless the model already has
    it."""
    if base.config.encoder is not None and base.config.decoder is not None:
        raise InputError(
            f"{base.name}: an encoder–decoder, for labels",
            expected="an encoder or a decoder",
            fix="use another model",
        )
    label_keys = {
        "id2label": {str(n): name for n, name in enumerate(names)},
        "label2id": {name: n for n, name in enumerate(names)},
    }
    if base.head == "sequence" and base.keys.get("id2label") == label_keys["id2label"]:
        return base
    if base.family is OWN:
        pool = "first" if base.config.decoder is None else "last"
        config = replace(base.config, head=Classifier(labels=len(names), pool=pool))
        return replace(base, config=config, keys={**own_keys(config), **label_keys}, fresh=True)
    kind = next((name for name, head in base.family.heads.items() if head == "sequence"), None)
    if kind is None:
        raise InputError(
            f"{base.name}: a {base.family.name}, which has no classifier of texts",
            fix="use another model",
        )
    remaining = {
        name: value
        for name, value in base.keys.items()
        if name not in ("num_labels", "problem_type")
    }
    keys = {**remaining, **label_keys, "architectures": [kind]}
    if keys.get("pad_token_id") is None:
        keys["pad_token_id"] = pad_of(base.tokenizer)
    return replace(
        base,
        head="sequence",
        config=base.family.config(Keys(keys), "sequence"),
        keys=keys,
        fresh=True,
    )


def pad_of(tokenizer: Tokenizer) -> int:
    """The padding token; padded positions are masked."""
    return next(
        (id for id in (tokenizer.pad, tokenizer.eos, tokenizer.unknown) if id is not None), 0
    )


def encode_with_specials(tokenizer: Tokenizer, text: str, longest: int) -> list[int]:
    """A text's tokens with the special tokens that the model expects; truncation removes text,
    never special tokens."""
    before, after = tokenizer.engine.around
    return [*before, *tokenizer.encode(text)[: max(0, longest - len(before) - len(after))], *after]


def encoder_keys(
    architecture: str,
    *,
    width: int,
    layers: int,
    heads: int,
    vocab_size: int,
    context: int,
    dropout: float,
    pad: int,
) -> dict[str, Any]:
    """config.json of a small ModernBERT with full attention in every layer. (BERT itself, Post-LN
    with learned positions, learns several times more slowly at this size.)"""
    return {
        "model_type": "modernbert",
        "architectures": [architecture],
        "vocab_size": vocab_size,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": max(8, 8 * width // 3 // 8 * 8),
        "hidden_activation": "gelu",
        "embedding_dropout": dropout,
        "attention_dropout": dropout,
        "mlp_dropout": dropout,
        "max_position_embeddings": context,
        "global_attn_every_n_layers": 1,
        "global_rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "pad_token_id": pad,
    }


def encoder_config(keys: dict[str, Any]) -> ModelConfig:
    """The model that these keys describe, read back as when the result is loaded."""
    family = FAMILIES["modernbert"]
    return family.config(Keys(keys), family.heads[keys["architectures"][0]])
