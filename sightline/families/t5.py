"""T5: an encoder and a decoder with relative biases, Pre-LN with RMSNorm, no biases, unscaled
scores, one embedding matrix.

v1.0 has ReLU, and logits by the embedding matrix scaled by 1/√width; v1.1, Flan and mT5 have a
gated tanh-GELU and a separate matrix, unscaled. All layers of a stack share one table of biases,
stored in its first block.
"""

from __future__ import annotations

from sightline.config import (
    Activation,
    AttentionConfig,
    BlockConfig,
    Dot,
    EmbeddingConfig,
    FeedForwardConfig,
    Head,
    LanguageHead,
    ModelConfig,
    NoHead,
    NoPosition,
    RelativeBias,
    RMSNorm,
    StackConfig,
)
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, ignore, rename, tie
from sightline.families.schema.shared import ACTIVATIONS

TIED = "tied language"
PROJECTIONS: dict[str, tuple[Activation, bool]] = {
    **{name: (activation, False) for name, activation in ACTIVATIONS.items()},
    **{f"gated-{name}": (activation, True) for name, activation in ACTIVATIONS.items()},
    "gated-gelu": ("gelu_tanh", True),  # Hugging Face reads this word as gated-gelu_new
}


def t5_config(keys: Keys, head: str) -> ModelConfig:
    """T5Config."""
    return _t5_model(keys, head, _t5_head(keys, head, keys.number("d_model", "hidden_size")))


def mt5_config(keys: Keys, head: str) -> ModelConfig:
    """MT5Config: the logits are never scaled, and the file decides whether the head has its own
    matrix."""
    keys.raw = {"feed_forward_proj": "gated-gelu", **keys.raw}
    keys.ignore(
        "tie_word_embeddings"
    )  # false in the published files, true in those that transformers 5 writes; never read
    return _t5_model(
        keys, head, LanguageHead(tied=head == TIED) if head in ("language", TIED) else NoHead()
    )


def _t5_model(keys: Keys, head: str, form: Head) -> ModelConfig:
    keys.only("is_decoder", False)
    layers = keys.number("num_layers", "num_hidden_layers")
    encoder = _stack(keys, layers, causal=False, cross=False)
    layers = keys.number("num_decoder_layers", default=layers)
    decoder = _stack(keys, layers, causal=True, cross=True)
    if head == "encoder":
        return ModelConfig(encoder=encoder, head=form)
    return ModelConfig(encoder=encoder, decoder=decoder, head=form, share_embeddings=True)


def _t5_head(keys: Keys, head: str, width: int) -> Head:
    """Until version 5 of transformers an untied head is the sign of v1.1, whose logits are not
    scaled. Version 5 writes `scale_decoder_outputs` instead, and always "tied"; so there an
    unscaled head counts as untied. A file without a head is tied, regardless of config.json."""
    tied = keys.flag("tie_word_embeddings", default=True)
    scaled = keys.flag("scale_decoder_outputs", default=tied)
    scale = width**-0.5 if scaled else 1.0
    if head == TIED:
        return LanguageHead(tied=True, scale=scale)
    return LanguageHead(tied=tied and scaled, scale=scale) if head == "language" else NoHead()


def tied_if_headless(names: set[str], head: str) -> str:
    """A language model whose file has no matrix for its logits uses the embedding, as in version 5
    of transformers."""
    headless = "shared.weight" in names and "lm_head.weight" not in names
    return TIED if head == "language" and headless else head


def _stack(keys: Keys, layers: int, *, causal: bool, cross: bool) -> StackConfig:
    width = keys.number("d_model", "hidden_size")
    dropout = keys.real("dropout_rate", default=0.1)
    norm = RMSNorm(eps=keys.real("layer_norm_epsilon", default=1e-6))
    relative = RelativeBias(
        buckets=keys.number("relative_attention_num_buckets", default=32),
        max_distance=keys.number("relative_attention_max_distance", default=128),
    )
    block = BlockConfig(
        attention=_t5_attention(keys, relative, dropout),
        cross_attention=_t5_attention(keys, NoPosition(), dropout) if cross else None,
        feed_forward=_feed_forward(keys, dropout),
        norm=norm,
        dropout=dropout,
    )
    return StackConfig(
        width=width,
        layers=layers,
        causal=causal,
        max_positions=keys.number("n_positions", default=512),
        embedding=EmbeddingConfig(vocab_size=keys.number("vocab_size"), dropout=dropout),
        blocks=(block,),
        final_norm=norm,
    )


def _t5_attention(
    keys: Keys, positions: RelativeBias | NoPosition, dropout: float
) -> AttentionConfig:
    count = keys.number("num_heads", "num_attention_heads")
    return AttentionConfig(
        heads=count,
        kv_heads=count,
        head_dim=keys.number("d_kv", "head_dim", default=64),
        kind=Dot(scale=1.0),
        positions=positions,
        bias=False,
        output_bias=False,
        dropout=dropout,
    )


def _feed_forward(keys: Keys, dropout: float) -> FeedForwardConfig:
    """`feed_forward_proj`, unless `dense_act_fn` and `is_gated_act`, which follow from it, differ:
    they take precedence."""
    activation, gated = keys.choice("feed_forward_proj", of=PROJECTIONS, default="relu")
    if keys.has("dense_act_fn"):
        activation = keys.choice("dense_act_fn", of=ACTIVATIONS)
    gated = keys.flag("is_gated_act", default=gated)
    return FeedForwardConfig(
        hidden=keys.number("d_ff"), activation=activation, gated=gated, bias=False, dropout=dropout
    )


def t5_weights(config: ModelConfig, head: str) -> list[Rule]:
    """`encoder.block.3.layer.0.SelfAttention.q.weight` → `encoder.3.attention.query.weight`, …"""
    embedding = "encoder.embedding.tokens.weight"
    rules = [
        rename("shared.weight", embedding),
        tie("encoder.embed_tokens.weight", embedding),
        *_stack_rules("encoder", config),
    ]
    if config.decoder is not None:
        rules += [
            tie("decoder.embed_tokens.weight", embedding),
            *_stack_rules("decoder", config),
            ignore(
                "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight",
                because=(
                    "cross-attention has no positions; the first files had this table by mistake"
                ),
            ),
        ]
    if isinstance(config.head, LanguageHead):
        rules.append(
            tie("lm_head.weight", embedding)
            if config.head.tied
            else rename("lm_head.weight", "output.vocabulary.weight")
        )
    return rules


def _stack_rules(stack: str, config: ModelConfig) -> list[Rule]:
    """One stack: self-attention is layer 0 of a block, cross-attention 1 if there is any,
    feed-forward the last."""
    form = config.stacks[stack].blocks[0]
    cross = form.cross_attention is not None
    last = 2 if cross else 1
    theirs = f"{stack}.block.{{n}}.layer"
    ours = f"{stack}.{{n}}"
    return [
        rename(
            f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
            f"{stack}.relative.weight",
        ),
        *_t5_attention_rules(f"{theirs}.0.SelfAttention", f"{ours}.attention"),
        rename(f"{theirs}.0.layer_norm.{{p}}", f"{ours}.attention_residual.before.{{p}}"),
        *(
            _t5_attention_rules(f"{theirs}.1.EncDecAttention", f"{ours}.cross_attention")
            if cross
            else []
        ),
        *(
            [rename(f"{theirs}.1.layer_norm.{{p}}", f"{ours}.cross_residual.before.{{p}}")]
            if cross
            else []
        ),
        rename(f"{theirs}.{last}.DenseReluDense.wi_0.{{p}}", f"{ours}.feed_forward.gate.{{p}}"),
        rename(
            f"{theirs}.{last}.DenseReluDense.{'wi_1' if form.feed_forward.gated else 'wi'}.{{p}}",
            f"{ours}.feed_forward.up.{{p}}",
        ),
        rename(f"{theirs}.{last}.DenseReluDense.wo.{{p}}", f"{ours}.feed_forward.down.{{p}}"),
        rename(f"{theirs}.{last}.layer_norm.{{p}}", f"{ours}.feed_forward_residual.before.{{p}}"),
        rename(f"{stack}.final_layer_norm.{{p}}", f"{stack}.norm.{{p}}"),
    ]


def _t5_attention_rules(theirs: str, ours: str) -> list[Rule]:
    names = {"q": "query", "k": "key", "v": "value", "o": "output"}
    return [
        rename(f"{theirs}.{short}.{{p}}", f"{ours}.{name}.{{p}}") for short, name in names.items()
    ]


T5 = Family(
    name="t5",
    config=t5_config,
    weights=t5_weights,
    heads={
        "T5ForConditionalGeneration": "language",
        "T5WithLMHeadModel": "language",
        "T5Model": "none",
        "T5EncoderModel": "encoder",
    },
    choose=tied_if_headless,
)
MT5 = Family(
    name="mt5",
    config=mt5_config,
    weights=t5_weights,
    heads={
        "MT5ForConditionalGeneration": "language",
        "MT5Model": "none",
        "MT5EncoderModel": "encoder",
    },
    choose=tied_if_headless,
)
