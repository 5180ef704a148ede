"""ModernBERT: RoPE, Pre-LN without biases, GEGLU; sliding windows in most layers, full attention in
every third, each with another RoPE base."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sightline.config import (
    AttentionConfig,
    BlockConfig,
    Classifier,
    EmbeddingConfig,
    FeedForwardConfig,
    Head,
    LayerNorm,
    MaskedHead,
    ModelConfig,
    NoHead,
    NoNorm,
    Rotary,
    StackConfig,
)
from sightline.errors import CheckpointError
from sightline.families.bert import encoder_classes
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, qkv_names, rename, split, tie
from sightline.families.schema.shared import ACTIVATIONS, label_count, rotary_scaling

FULL = "full_attention"
LOCAL = "sliding_attention"


def modernbert_config(keys: Keys, head: str) -> ModelConfig:
    """ModernBertConfig, as version 5 of transformers writes it and as version 4 did."""
    keys.ignore(
        "deterministic_flash_attn",
        "reference_compile",
        "repad_logits_with_grad",
        "initializer_cutoff_factor",
        "cls_token_id",
    )
    keys.ignore(
        "sparse_prediction", "sparse_pred_ignore_index"
    )  # which rows of the loss are computed
    keys.ignore(
        "position_embedding_type", "layer_norm_eps"
    )  # left over from BERT in the published files, and never read
    norm = modernbert_norm(keys)
    stack = StackConfig(
        width=keys.number("hidden_size"),
        layers=keys.number("num_hidden_layers"),
        causal=False,
        max_positions=keys.number("max_position_embeddings", default=8192),
        embedding=EmbeddingConfig(
            vocab_size=keys.number("vocab_size"),
            norm=norm,
            dropout=keys.real("embedding_dropout", default=0.0),
        ),
        blocks=modernbert_blocks(keys, norm),
        final_norm=norm,
    )
    return ModelConfig(encoder=stack, head=modernbert_head(keys, head))


def modernbert_norm(keys: Keys) -> LayerNorm:
    """The norm of all layers."""
    return LayerNorm(
        eps=keys.real("norm_eps", default=1e-5), bias=keys.flag("norm_bias", default=False)
    )


def modernbert_blocks(keys: Keys, norm: LayerNorm) -> tuple[BlockConfig, ...]:
    """One block per layer. Layer 0 follows the embedding's norm and has no norm before
    attention."""
    width = keys.number("hidden_size")
    count = keys.number("num_attention_heads")
    bias = keys.flag("attention_bias", default=False)
    feed_forward = FeedForwardConfig(
        hidden=keys.number("intermediate_size"),
        activation=keys.choice("hidden_activation", of=ACTIVATIONS, default="gelu"),
        gated=True,
        bias=keys.flag("mlp_bias", default=False),
        dropout=keys.real("mlp_dropout", default=0.0),
    )
    full = AttentionConfig(
        heads=count,
        kv_heads=count,
        head_dim=width // count,
        bias=bias,
        output_bias=bias,
        dropout=keys.real("attention_dropout", default=0.0),
    )
    bases = modernbert_rotary(keys)
    forms = {
        FULL: replace(full, positions=bases[FULL]),
        LOCAL: replace(
            full,
            positions=bases[LOCAL],
            window=keys.number("local_attention", default=128) // 2 + 1,
        ),
    }
    by_kind = {
        kind: BlockConfig(attention=form, feed_forward=feed_forward, norm=norm)
        for kind, form in forms.items()
    }
    first, *rest = layer_kinds(keys)
    return (replace(by_kind[first], attention_norm=NoNorm()), *(by_kind[kind] for kind in rest))


def layer_kinds(keys: Keys) -> list[str]:
    """`layer_types` names each layer; without it, every n-th layer from the first on has full
    attention."""
    layers = keys.number("num_hidden_layers")
    every = keys.number("global_attn_every_n_layers", default=3)
    listed = keys.words("layer_types")
    kinds = (
        [LOCAL if n % every else FULL for n in range(min(layers, 100_000))]
        if listed is None
        else listed
    )
    unknown = sorted(set(kinds) - {FULL, LOCAL})
    if unknown or len(kinds) != layers:
        raise CheckpointError(
            f"{keys.where}: layer_types has {len(kinds)} entries, {unknown or 'all known'}",
            expected=f"{layers} of {LOCAL} or {FULL}",
            fix="correct config.json",
        )
    return kinds


def modernbert_rotary(keys: Keys) -> dict[str, Rotary]:
    """RoPE per kind of layer: `rope_parameters` has a table per kind, older files two bases."""
    tables = Keys(keys.table("rope_parameters") or {}, f"{keys.where}: rope_parameters")
    shared = keys.table("rope_scaling") or {}
    limit = keys.number("max_position_embeddings", default=8192)
    global_base = keys.real("global_rope_theta", default=160000.0)
    is_null = (
        "local_rope_theta" in keys.raw and keys.raw["local_rope_theta"] is None
    )  # version 4: as in the other layers
    local_base = keys.real("local_rope_theta", default=global_base if is_null else 10000.0)
    by_kind: dict[str, Rotary] = {}
    for kind, base in ((FULL, global_base), (LOCAL, local_base)):
        table = {**(tables.table(kind) or {}), **shared}
        base = Keys(table, tables.where).real("rope_theta", default=base)
        by_kind[kind] = Rotary(base=base, scaling=rotary_scaling(table, limit, keys.where))
    tables.finish()
    return by_kind


def modernbert_head(keys: Keys, head: str) -> Head:
    """Logits of tokens or classes, after the same small layer `norm(act(W x))`."""
    norm = modernbert_norm(keys)
    bias = keys.flag("classifier_bias", default=False)
    activation = keys.choice("classifier_activation", of=ACTIVATIONS, default="gelu")
    pool = keys.choice("classifier_pooling", of={"cls": "first", "mean": "mean"}, default="cls")
    count = 2 if head == "answers" else label_count(keys)
    tied = keys.flag("tie_word_embeddings", default=True)
    decoder_bias = keys.flag("decoder_bias", default=True)
    per_token = Classifier(
        labels=count, pool="tokens", activation=activation, norm=norm, transform_bias=bias
    )
    forms: dict[str, Callable[[], Head]] = {
        "masked": lambda: MaskedHead(
            tied=tied, bias=decoder_bias, activation=activation, norm=norm, transform_bias=bias
        ),
        "none": NoHead,
        "sequence": lambda: replace(per_token, pool=pool),
        "tokens": lambda: per_token,
        "answers": lambda: per_token,
    }
    return forms[head]()


def modernbert_weights(config: ModelConfig, head: str) -> list[Rule]:
    """`layers.3.attn.Wqkv.weight` → `encoder.3.attention.query.weight`, … The first half of Wi goes
    through the activation."""
    stack = config.last
    width = stack.width
    hidden = stack.blocks[0].feed_forward.hidden
    layer = "layers.{n}"
    ours = "encoder.{n}"
    tied = isinstance(config.head, MaskedHead) and config.head.tied
    return [
        rename("embeddings.tok_embeddings.weight", "encoder.embedding.tokens.weight"),
        rename("embeddings.norm.{p}", "encoder.embedding.norm.{p}"),
        rename(f"{layer}.attn_norm.{{p}}", f"{ours}.attention_residual.before.{{p}}"),
        split(
            f"{layer}.attn.Wqkv.{{p}}", *qkv_names(f"{ours}.attention"), sizes=(width, width, width)
        ),
        rename(f"{layer}.attn.Wo.{{p}}", f"{ours}.attention.output.{{p}}"),
        rename(f"{layer}.mlp_norm.{{p}}", f"{ours}.feed_forward_residual.before.{{p}}"),
        split(
            f"{layer}.mlp.Wi.{{p}}",
            f"{ours}.feed_forward.gate.{{p}}",
            f"{ours}.feed_forward.up.{{p}}",
            sizes=(hidden, hidden),
        ),
        rename(f"{layer}.mlp.Wo.{{p}}", f"{ours}.feed_forward.down.{{p}}"),
        rename("final_norm.{p}", "encoder.norm.{p}"),
        rename("^head.dense.{p}", "output.transform.{p}"),
        rename("^head.norm.{p}", "output.norm.{p}"),
        rename("^decoder.{p}", "output.vocabulary.{p}"),
        rename("^classifier.{p}", "output.labels.{p}"),
        *([tie("^decoder.weight", "encoder.embedding.tokens.weight")] if tied else []),
    ]


MODERNBERT = Family(
    name="modernbert",
    config=modernbert_config,
    weights=modernbert_weights,
    prefix="model.",
    heads=encoder_classes("ModernBert"),
)
