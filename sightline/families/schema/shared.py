"""What several families share: activation names, RoPE's keys, heads and their class names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sightline.config import (
    Activation,
    Classifier,
    Head,
    LanguageHead,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    NoHead,
    Rotary,
    RotaryScaling,
    StackConfig,
    YaRNScaling,
)
from sightline.errors import CheckpointError, short_repr
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, rename, tie

ACTIVATIONS: dict[str, Activation] = {
    "relu": "relu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "silu": "silu",
    "swish": "silu",
    "relu2": "relu_squared",
    "tanh": "tanh",
}


def rotary(
    keys: Keys,
    *,
    head_dim: int,
    max_positions: int,
    base: float = 10000.0,
    fraction: float | None = None,
) -> Rotary:
    """RoPE in the old spelling (rope_theta, rope_scaling) and in the new one (rope_parameters).
    Without `fraction`, the family rotates all dimensions."""
    parameters = dict(keys.table("rope_parameters") or {})
    scaling = dict(keys.table("rope_scaling") or {})
    base = _rope_number(
        parameters, "rope_theta", keys.where, default=keys.real("rope_theta", default=base)
    )
    rotated = keys.real("partial_rotary_factor", default=1.0 if fraction is None else fraction)
    rotated = _rope_number(parameters, "partial_rotary_factor", keys.where, default=rotated)
    if fraction is None and rotated != 1.0:
        raise CheckpointError(
            f"{keys.where}: partial_rotary_factor is {rotated}",
            expected="1: this family rotates whole heads",
            fix="check the model_type",
        )
    dim = int(head_dim * rotated)
    scaled = rotary_scaling(scaling or parameters, max_positions, keys.where)
    if scaled is None:
        keys.ignore("original_max_position_embeddings")  # belongs to a scaling, and there is none
    return Rotary(base=base, dim=None if dim == head_dim else dim, scaling=scaled)


def rotary_scaling(table: dict[str, Any], max_positions: int, where: str) -> RotaryScaling | None:
    """The scaling that the table describes; every key in it must be known."""
    table = {name: value for name, value in table.items() if value is not None}
    kind = table.pop("rope_type", None) or table.pop("type", None) or "default"
    table.pop("type", None)
    table.pop("rope_theta", None)
    scaling_config: RotaryScaling | None
    if kind == "default":
        scaling_config = None
    elif kind == "linear":
        scaling_config = LinearScaling(factor=_rope_number(table, "factor", where))
    elif kind == "llama3":
        scaling_config = Llama3Scaling(
            factor=_rope_number(table, "factor", where),
            original_positions=int(_rope_number(table, "original_max_position_embeddings", where)),
            low_frequency_factor=_rope_number(table, "low_freq_factor", where),
            high_frequency_factor=_rope_number(table, "high_freq_factor", where),
        )
    elif kind == "yarn":
        scaling_config = _yarn_scaling(table, max_positions, where)
    else:
        raise CheckpointError(
            f"{where}: rope type {short_repr(kind)} is not supported",
            expected="default, linear, llama3 or yarn",
            fix="use a checkpoint without it",
        )
    if table:
        raise CheckpointError(
            f"{where}: rope scaling {kind!r} has keys that are not known:"
            f" {', '.join(str(name)[:80] for name in sorted(table))[:200]}",
            fix="remove them if they change nothing",
        )
    return scaling_config


def _yarn_scaling(table: dict[str, Any], max_positions: int, where: str) -> YaRNScaling:
    """YaRN, with the options that Hugging Face's table may hold."""
    for name in ("mscale", "mscale_all_dim"):
        if name in table:
            raise CheckpointError(
                f"{where}: rope scaling 'yarn' with {name!r} is not supported",
                fix="use a checkpoint without it",
            )
    truncate = bool(table.pop("truncate", True))
    original = int(
        _rope_number(table, "original_max_position_embeddings", where, default=float(max_positions))
    )
    factor = _rope_number(table, "factor", where)
    attention_factor = table.pop("attention_factor", None)
    return YaRNScaling(
        factor=factor,
        original_positions=original,
        beta_fast=_rope_number(table, "beta_fast", where, default=32.0),
        beta_slow=_rope_number(table, "beta_slow", where, default=1.0),
        attention_factor=None if attention_factor is None else float(attention_factor),
        truncate=truncate,
    )


def _rope_number(
    table: dict[str, Any], name: str, where: str, *, default: float | None = None
) -> float:
    value = default if table.get(name) is None else table[name]
    table.pop(name, None)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CheckpointError(
            f"{where}: rope scaling's {name} is {short_repr(value)}",
            expected="a number",
            fix="correct config.json",
        )
    return float(value)


# ------------------------------------------------------------------------------------------ heads


def label_count(keys: Keys) -> int:
    """Number of classes: num_labels, else the length of id2label, else two, in transformers'
    order."""
    table = keys.raw.get("id2label")
    return keys.number("num_labels", default=len(table) if isinstance(table, dict) and table else 2)


def causal_head(keys: Keys, head: str, *, tied: bool, softcap: float | None = None) -> Head:
    """The heads of decoder-only families in Hugging Face."""
    forms: dict[str, Callable[[], Head]] = {
        "language": lambda: LanguageHead(tied=tied, softcap=softcap),
        "none": NoHead,
        "sequence": lambda: Classifier(labels=label_count(keys), pool="last", bias=False),
        "tokens": lambda: Classifier(labels=label_count(keys), pool="tokens"),
        "answers": lambda: Classifier(labels=2, pool="tokens"),
    }
    return forms[head]()


def causal_model(keys: Keys, head: str, stack: StackConfig, *, tied: bool) -> ModelConfig:
    """A decoder-only model; `tied` is the family's default for the language head."""
    tied = keys.flag("tie_word_embeddings", default=tied)
    return ModelConfig(decoder=stack, head=causal_head(keys, head, tied=tied))


def decoder_classes(name: str, *, without: tuple[str, ...] = ()) -> dict[str, str]:
    """Hugging Face's class names for the heads of a decoder-only family."""
    heads = {
        f"{name}ForCausalLM": "language",
        f"{name}Model": "none",
        f"{name}ForSequenceClassification": "sequence",
        f"{name}ForTokenClassification": "tokens",
        f"{name}ForQuestionAnswering": "answers",
    }
    return {name: head for name, head in heads.items() if head not in without}


def causal_head_rules(
    config: ModelConfig, head: str, *, language: str = "lm_head", tokens: str = "score"
) -> list[Rule]:
    """The head's tensors, under the family's names. A tied copy in the file must be equal."""
    if isinstance(config.head, LanguageHead) and config.head.tied:
        return [tie(f"^{language}.weight", "decoder.embedding.tokens.weight")]
    names = {"language": language, "sequence": "score", "tokens": tokens, "answers": "qa_outputs"}
    ours = "output.vocabulary.{p}" if head == "language" else "output.labels.{p}"
    return [rename(f"^{names[head]}.{{p}}", ours)] if head in names else []


def layer_windows(keys: Keys) -> list[int | None]:
    """The sliding window of each layer, None for full attention: from `layer_types`, or
    `use_sliding_window` from layer `max_window_layers` on. One entry if all are equal."""
    layers = keys.number("num_hidden_layers")
    is_enabled = keys.flag("use_sliding_window", default=False)
    window = (
        keys.number("sliding_window", default=None)
        if is_enabled or keys.has("layer_types")
        else None
    )
    first = keys.number("max_window_layers", default=28, least=0)
    keys.ignore("sliding_window")
    kinds = keys.words("layer_types") or [
        "sliding_attention" if is_enabled and n >= first else "full_attention"
        for n in range(layers)
    ]
    unknown = sorted(set(kinds) - {"sliding_attention", "full_attention"})
    if unknown or len(kinds) != layers:
        raise CheckpointError(
            f"{keys.where}: layer_types has {len(kinds)} entries, {unknown or 'all known'}",
            expected=f"{layers} of sliding_attention or full_attention",
            fix="correct config.json",
        )
    windows = [window if kind == "sliding_attention" else None for kind in kinds]
    return windows if len(set(windows)) > 1 else windows[:1]
