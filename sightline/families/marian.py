"""Marian: the 2017 model as Opus-MT trained it, with BART's names. Sines first, then cosines;
Post-LN; scaled embeddings; Swish."""

from __future__ import annotations

from sightline.config import LanguageHead, ModelConfig, NoHead, NoNorm, Sinusoidal
from sightline.families.bart import bart_stack, language_rules, stack_rules
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, rename, tie


def marian_config(keys: Keys, head: str) -> ModelConfig:
    """MarianConfig. Without shared embeddings the decoder has another vocabulary."""
    keys.only("normalize_embedding", False)
    keys.only("static_position_embeddings", True)
    keys.ignore("extra_pos_embeddings")
    vocab_size = keys.number("vocab_size")
    shared = keys.flag("share_encoder_decoder_embeddings", default=True)
    if shared:
        keys.only("decoder_vocab_size", vocab_size)
    sizes = {
        "encoder": vocab_size,
        "decoder": keys.number("decoder_vocab_size", default=vocab_size),
    }
    encoder, decoder = (
        bart_stack(
            keys, name, positions=Sinusoidal(interleaved=False), norm=NoNorm(), vocab_size=size
        )
        for name, size in sizes.items()
    )
    tied = keys.flag("tie_word_embeddings", default=True)
    form = LanguageHead(tied=tied, bias=True) if head == "language" else NoHead()
    return ModelConfig(encoder=encoder, decoder=decoder, head=form, share_embeddings=shared)


def marian_weights(config: ModelConfig, head: str) -> list[Rule]:
    """BART's names; the positions are computed."""
    encoder, decoder = (f"{name}.embedding.tokens.weight" for name in ("encoder", "decoder"))
    because = "sines and cosines, which follow from the position"
    return [
        *(
            _shared_embedding(encoder)
            if config.share_embeddings
            else _separate_embeddings(encoder, decoder)
        ),
        *stack_rules("encoder"),
        *stack_rules("decoder"),
        *language_rules(config, encoder if config.share_embeddings else decoder),
        ignore("encoder.embed_positions.weight", because=because),
        ignore("decoder.embed_positions.weight", because=because),
    ]


def _shared_embedding(embedding: str) -> list[Rule]:
    """One matrix, which some files store three times."""
    copies = [tie(f"{name}.embed_tokens.weight", embedding) for name in ("encoder", "decoder")]
    return [rename("shared.weight", embedding), *copies]


def _separate_embeddings(encoder: str, decoder: str) -> list[Rule]:
    return [
        rename("encoder.embed_tokens.weight", encoder),
        rename("decoder.embed_tokens.weight", decoder),
    ]


MARIAN = Family(
    name="marian",
    config=marian_config,
    weights=marian_weights,
    prefix="model.",
    heads={"MarianMTModel": "language", "MarianModel": "none"},
)
