"""ModernBERT: RoPE, Pre-LN without biases, GEGLU; most layers see a window, every third sees all,
each kind with its own RoPE base."""

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
from sightline.families.bert import classes
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, heads, rename, split, tie
from sightline.families.schema.shared import ACTIVATIONS, labels, rotary_scaling

FULL = "full_attention"
LOCAL = "sliding_attention"


def config(keys: Keys, head: str) -> ModelConfig:
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
    )  # left from BERT in the published files, and never read
    norm = norm_of(keys)
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
        blocks=blocks(keys, norm),
        final_norm=norm,
    )
    return ModelConfig(encoder=stack, head=head_of(keys, head))


def norm_of(keys: Keys) -> LayerNorm:
    """The one norm used everywhere."""
    return LayerNorm(
        eps=keys.real("norm_eps", default=1e-5), bias=keys.flag("norm_bias", default=False)
    )


def blocks(keys: Keys, norm: LayerNorm) -> tuple[BlockConfig, ...]:
    """One block per layer. Layer 0 follows the embedding's norm and has none of its own before
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
    bases = rotations(keys)
    forms = {
        FULL: replace(full, positions=bases[FULL]),
        LOCAL: replace(
            full,
            positions=bases[LOCAL],
            window=keys.number("local_attention", default=128) // 2 + 1,
        ),
    }
    made = {
        kind: BlockConfig(attention=form, feed_forward=feed_forward, norm=norm)
        for kind, form in forms.items()
    }
    first, *rest = layer_kinds(keys)
    return (replace(made[first], attention_norm=NoNorm()), *(made[kind] for kind in rest))


def layer_kinds(keys: Keys) -> list[str]:
    """`layer_types` names each layer; without it, every n-th layer from the first on sees
    everything."""
    layers = keys.number("num_hidden_layers")
    every = keys.number("global_attn_every_n_layers", default=3)
    named = keys.words("layer_types")
    kinds = (
        [LOCAL if n % every else FULL for n in range(min(layers, 100_000))]
        if named is None
        else named
    )
    unknown = sorted(set(kinds) - {FULL, LOCAL})
    if unknown or len(kinds) != layers:
        raise CheckpointError(
            f"{keys.where}: layer_types has {len(kinds)} entries, {unknown or 'all known'}",
            expected=f"{layers} of {LOCAL} or {FULL}",
            fix="correct config.json",
        )
    return kinds


def rotations(keys: Keys) -> dict[str, Rotary]:
    """RoPE for each kind of layer: `rope_parameters` has a table per kind; before that, there were
    two bases."""
    tables = Keys(keys.table("rope_parameters") or {}, f"{keys.where}: rope_parameters")
    shared = keys.table("rope_scaling") or {}
    limit = keys.number("max_position_embeddings", default=8192)
    whole = keys.real("global_rope_theta", default=160000.0)
    nulled = (
        "local_rope_theta" in keys.raw and keys.raw["local_rope_theta"] is None
    )  # version 4: as in the other layers
    local = keys.real("local_rope_theta", default=whole if nulled else 10000.0)
    found: dict[str, Rotary] = {}
    for kind, base in ((FULL, whole), (LOCAL, local)):
        table = {**(tables.table(kind) or {}), **shared}
        base = Keys(table, tables.where).real("rope_theta", default=base)
        found[kind] = Rotary(base=base, scaling=rotary_scaling(table, limit, keys.where))
    tables.finish()
    return found


def head_of(keys: Keys, head: str) -> Head:
    """The same small layer, `norm(act(W x))`, stands before the words and before the classes."""
    norm = norm_of(keys)
    bias = keys.flag("classifier_bias", default=False)
    activation = keys.choice("classifier_activation", of=ACTIVATIONS, default="gelu")
    pool = keys.choice("classifier_pooling", of={"cls": "first", "mean": "mean"}, default="cls")
    count = 2 if head == "answers" else labels(keys)
    tied = keys.flag("tie_word_embeddings", default=True)
    decoder_bias = keys.flag("decoder_bias", default=True)
    plain = Classifier(
        labels=count, pool="tokens", activation=activation, norm=norm, transform_bias=bias
    )
    forms: dict[str, Callable[[], Head]] = {
        "masked": lambda: MaskedHead(
            tied=tied, bias=decoder_bias, activation=activation, norm=norm, transform_bias=bias
        ),
        "none": NoHead,
        "sequence": lambda: replace(plain, pool=pool),
        "tokens": lambda: plain,
        "answers": lambda: plain,
    }
    return forms[head]()


def weights(config: ModelConfig, head: str) -> list[Rule]:
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
        split(f"{layer}.attn.Wqkv.{{p}}", *heads(f"{ours}.attention"), sizes=(width, width, width)),
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
    name="modernbert", config=config, weights=weights, prefix="model.", heads=classes("ModernBert")
)
