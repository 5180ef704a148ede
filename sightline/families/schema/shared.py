"""What several families say in the same words: activations, rotary scaling, Llama's block and
names."""

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
    YaRNScaling,
)
from sightline.errors import CheckpointError, short
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
    """RoPE in the old spelling (rope_theta, rope_scaling) and in the new one (rope_parameters). A
    family without `fraction` turns all."""
    parameters = dict(keys.table("rope_parameters") or {})
    scaling = dict(keys.table("rope_scaling") or {})
    base = _number(
        parameters, "rope_theta", keys.where, default=keys.real("rope_theta", default=base)
    )
    said = keys.real("partial_rotary_factor", default=1.0 if fraction is None else fraction)
    said = _number(parameters, "partial_rotary_factor", keys.where, default=said)
    if fraction is None and said != 1.0:
        raise CheckpointError(
            f"{keys.where}: partial_rotary_factor is {said}",
            expected="1: this family rotates whole heads",
            fix="check the model_type",
        )
    dim = int(head_dim * said)
    form = rotary_scaling(scaling or parameters, max_positions, keys.where)
    if form is None:
        keys.ignore("original_max_position_embeddings")  # of a scaling that is not there
    return Rotary(base=base, dim=None if dim == head_dim else dim, scaling=form)


def rotary_scaling(table: dict[str, Any], max_positions: int, where: str) -> RotaryScaling | None:
    """The table's type, and every number in it."""
    table = {name: value for name, value in table.items() if value is not None}
    kind = table.pop("rope_type", None) or table.pop("type", None) or "default"
    table.pop("type", None)
    table.pop("rope_theta", None)
    form: RotaryScaling | None
    if kind == "default":
        form = None
    elif kind == "linear":
        form = LinearScaling(factor=_number(table, "factor", where))
    elif kind == "llama3":
        form = Llama3Scaling(
            factor=_number(table, "factor", where),
            original_positions=int(_number(table, "original_max_position_embeddings", where)),
            low_frequency_factor=_number(table, "low_freq_factor", where),
            high_frequency_factor=_number(table, "high_freq_factor", where),
        )
    elif kind == "yarn":
        form = _yarn(table, max_positions, where)
    else:
        raise CheckpointError(
            f"{where}: rope type {short(kind)} is not supported",
            expected="default, linear, llama3 or yarn",
            fix="use a checkpoint without it",
        )
    if table:
        raise CheckpointError(
            f"{where}: rope scaling {kind!r} has keys that are not known:"
            f" {', '.join(str(name)[:80] for name in sorted(table))[:200]}",
            fix="remove them if they change nothing",
        )
    return form


def _yarn(table: dict[str, Any], max_positions: int, where: str) -> YaRNScaling:
    """YaRN, with the options that Hugging Face's table may hold."""
    for name in ("mscale", "mscale_all_dim"):
        if name in table:
            raise CheckpointError(
                f"{where}: rope scaling 'yarn' with {name!r} is not supported",
                fix="use a checkpoint without it",
            )
    truncate = bool(table.pop("truncate", True))
    original = int(
        _number(table, "original_max_position_embeddings", where, default=float(max_positions))
    )
    factor = _number(table, "factor", where)
    attention_factor = table.pop("attention_factor", None)
    return YaRNScaling(
        factor=factor,
        original_positions=original,
        beta_fast=_number(table, "beta_fast", where, default=32.0),
        beta_slow=_number(table, "beta_slow", where, default=1.0),
        attention_factor=None if attention_factor is None else float(attention_factor),
        truncate=truncate,
    )


def _number(table: dict[str, Any], name: str, where: str, *, default: float | None = None) -> float:
    value = default if table.get(name) is None else table[name]
    table.pop(name, None)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise CheckpointError(
            f"{where}: rope scaling's {name} is {short(value)}",
            expected="a number",
            fix="correct config.json",
        )
    return float(value)


# ------------------------------------------------------------------------------------------ heads


def labels(keys: Keys) -> int:
    """How many classes: num_labels, else as many as id2label names, else two. Transformers reads
    them in this order too."""
    named = keys.raw.get("id2label")
    return keys.number("num_labels", default=len(named) if isinstance(named, dict) and named else 2)


def causal_head(keys: Keys, head: str, *, tied: bool, softcap: float | None = None) -> Head:
    """The heads that decoder-only families have in Hugging Face."""
    forms: dict[str, Callable[[], Head]] = {
        "language": lambda: LanguageHead(tied=tied, softcap=softcap),
        "none": NoHead,
        "sequence": lambda: Classifier(labels=labels(keys), pool="last", bias=False),
        "tokens": lambda: Classifier(labels=labels(keys), pool="tokens"),
        "answers": lambda: Classifier(labels=2, pool="tokens"),
    }
    return forms[head]()


def causal_head_rules(
    config: ModelConfig, head: str, *, language: str = "lm_head", tokens: str = "score"
) -> list[Rule]:
    """The head's own tensors, under the names that a family gives them. A tied copy in the file
    must be equal."""
    if isinstance(config.head, LanguageHead) and config.head.tied:
        return [tie(f"^{language}.weight", "decoder.embedding.tokens.weight")]
    names = {"language": language, "sequence": "score", "tokens": tokens, "answers": "qa_outputs"}
    ours = "output.vocabulary.{p}" if head == "language" else "output.labels.{p}"
    return [rename(f"^{names[head]}.{{p}}", ours)] if head in names else []


def layer_windows(keys: Keys) -> list[int | None]:
    """Which layers have a sliding window: `layer_types` says it, or `use_sliding_window` from
    `max_window_layers` on."""
    layers = keys.number("num_hidden_layers")
    switched = keys.flag("use_sliding_window", default=False)
    window = (
        keys.number("sliding_window", default=None) if switched or keys.has("layer_types") else None
    )
    first = keys.number("max_window_layers", default=28, least=0)
    keys.ignore("sliding_window")
    kinds = keys.words("layer_types") or [
        "sliding_attention" if switched and n >= first else "full_attention" for n in range(layers)
    ]
    unknown = sorted(set(kinds) - {"sliding_attention", "full_attention"})
    if unknown or len(kinds) != layers:
        raise CheckpointError(
            f"{keys.where}: layer_types has {len(kinds)} entries, {unknown or 'all known'}",
            expected=f"{layers} of sliding_attention or full_attention",
            fix="correct config.json",
        )
    found = [window if kind == "sliding_attention" else None for kind in kinds]
    return found if len(set(found)) > 1 else found[:1]
