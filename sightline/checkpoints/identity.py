"""The family, head and configuration of a checkpoint, from config.json or, where it lacks them,
from the tensors."""

from __future__ import annotations

from typing import Any

from sightline.checkpoints.source import Entry, Identity, Source
from sightline.checkpoints.tables import Pairing, find_mismatch, ignored_names, pairings
from sightline.config import ModelConfig
from sightline.core.model import without_weights
from sightline.errors import CheckpointError, ConfigError, short_repr
from sightline.families import FAMILIES, Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.spelling import OTHER_ARCHITECTURES, misspelling_of

QUANTIZATION_KEYS = ("quantization_config", "quantization", "compression_config")
QUANTIZATION_METHODS = {
    "gptq": "GPTQ",
    "awq": "AWQ",
    "bitsandbytes": "bitsandbytes",
    "bitsandbytes_4bit": "bitsandbytes",
    "bitsandbytes_8bit": "bitsandbytes",
    "fp8": "FP8",
    "fbgemm_fp8": "FP8",
    "mxfp4": "MXFP4",
}
SUPPORTED = ", ".join(name for name in FAMILIES if name != "sightline")


def identify(source: Source, *, strict: bool = False) -> Identity:
    """The family, head and configuration of a source: determined once, then stored in
    `source.identity`. Unknown keys of config.json are noted, or refused if `strict`."""
    if source.identity is None:
        source.identity = _work_out_identity(source)
    unknown = source.identity.unknown_keys
    if unknown and strict:
        raise CheckpointError(
            f"{source.where}: config.json has keys that are not known: {unknown}",
            fix="correct or remove them, or load without strict",
        )
    if unknown:
        add_note(source, f"config.json: ignored keys that are not known: {unknown}")
    return source.identity


def _work_out_identity(source: Source) -> Identity:
    family = source_family(source)
    refuse_quantized(source)
    head = source_head(source, family)
    keys, config = read_config(source, family, head)
    return Identity(family, head, config, keys.describe(keys.unknown()))


def read_config(source: Source, family: Family, head: str) -> tuple[Keys, ModelConfig]:
    """The configuration for one head, and the keys that it was read from."""
    keys = Keys(source.keys, f"{source.where}: config.json")
    variant = head if family.choose is None else family.choose(set(source.tensors), head)
    try:
        config = family.config(keys, variant)
    except ConfigError as error:
        raise CheckpointError(
            f"{source.where}: config.json: {error.seen}", expected=error.expected, fix=error.fix
        ) from None
    if config.decoder is not None:
        keys.only("is_causal", True)
        keys.ignore("is_decoder")  # decoder-only; families with an encoder have read it
    return keys, config


def add_note(source: Source, text: str) -> None:
    """Add a note unless the source has it already."""
    if text not in source.notes:
        source.notes.append(text)


# ----------------------------------------------------------------------------------------- family


def source_family(source: Source) -> Family:
    """The family that `model_type` names; without one, guessed from the class or the tensors."""
    kind = source.keys.get("model_type")
    if kind is None or kind == "":
        return _guess_family(source)
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    raise _unknown_family_error(source, kind)


def _unknown_family_error(source: Source, kind: Any) -> CheckpointError:
    where = f"{source.where}: model_type {short_repr(kind)}"
    suggestion = None if str(kind) in OTHER_ARCHITECTURES else misspelling_of(str(kind), FAMILIES)
    if suggestion is not None:
        return CheckpointError(f"{where} is not known", fix=f"did you mean {suggestion!r}?")
    return CheckpointError(
        f"{where} is an architecture that is not supported",
        expected=f"one of {SUPPORTED}",
        fix=(
            "use a model of one of these families: the same weights read as another one would give"
            " wrong results"
        ),
    )


def _guess_family(source: Source) -> Family:
    """Without a `model_type`: the family of the class in `architectures`, or the only one whose
    tensors these are."""
    name = _class_name(source)
    candidates = [
        family for family in FAMILIES.values() if name is not None and name in family.heads
    ]
    if len(candidates) == 1:
        add_note(
            source,
            f"config.json has no model_type: read as {candidates[0].name!r}, of which {name} is a"
            " class",
        )
        return candidates[0]
    fitting = {} if name is not None else _fitting_families(source)
    if len(fitting) == 1:
        (family,) = fitting.values()
        add_note(
            source,
            f"config.json has no model_type: read as {family.name!r}, whose tensors have these"
            " names",
        )
        return family
    kinds = " or ".join(f'"model_type": "{family.name}"' for family in reversed(fitting.values()))
    raise CheckpointError(
        f"{source.where}: config.json has no model_type",
        expected=f"one of {SUPPORTED}",
        fix=(
            f"write {kinds or 'it'} into config.json{', whichever the model is' if fitting else ''}"
        ),
    )


def _fitting_families(source: Source) -> dict[object, Family]:
    """The families that have these tensors, each configuration once."""
    return {
        family.config: family
        for family in reversed(FAMILIES.values())
        if _tensors_fit(source, family)
    }


def _tensors_fit(source: Source, family: Family) -> bool:
    """Whether some head of the family has exactly these tensors."""
    if family.name == "sightline":
        return False
    return any(
        mismatches(source, family, head) == (0, 0) for head in dict.fromkeys(family.heads.values())
    )


# ------------------------------------------------------------------------------------------- head


def source_head(source: Source, family: Family) -> str:
    """The head that `architectures` names; without one, the head that the tensors belong to."""
    name = _class_name(source)
    if name is None:
        return _head_of_tensors(source, family)
    if name in family.heads:
        return family.heads[name]
    suggestion = misspelling_of(name, family.heads)
    classes = ", ".join(family.heads)
    raise CheckpointError(
        f"{source.where}: architecture {short_repr(name)} is not a class of {family.name} that is"
        " supported",
        expected=f"one of {classes}",
        fix=(
            "use a checkpoint of one of these classes"
            if suggestion is None
            else f"did you mean {suggestion!r}?"
        ),
    )


def _class_name(source: Source) -> str | None:
    names = source.keys.get("architectures")
    if not names:
        return None
    return str(names[0] if isinstance(names, list) else names)


def _head_of_tensors(source: Source, family: Family) -> str:
    """The head with no missing and the fewest unexpected tensors; the family's first head if none
    fits."""
    heads = list(dict.fromkeys(family.heads.values()))
    if len(heads) == 1 or not source.tensors:
        return heads[0]
    counts_by_head = {head: mismatches(source, family, head) for head in heads}
    complete = [
        head for head, counts in counts_by_head.items() if counts is not None and counts[0] == 0
    ]
    return min(complete, key=lambda head: counts_by_head[head] or (0, 0), default=heads[0])


def mismatches(source: Source, family: Family, head: str) -> tuple[int, int] | None:
    """The numbers of missing and of unexpected tensors for a model with this head; None if its
    configuration is not valid."""
    try:
        _, config = read_config(source, family, head)
        check_budget(source, config)
    except CheckpointError:
        return None
    tensors = with_new_spellings(source, family)
    table = pairing_table(family, head, config, parameter_shapes(config), tensors)
    missing, unexpected = find_mismatch(
        table, set(tensors), ignored_names(family, config, head, tensors)
    )
    return len(missing), len(unexpected)


def parameter_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The shapes of a model's parameters, without allocating any."""
    parameters = without_weights(config).named_parameters()
    return {name: tuple(parameter.shape) for name, parameter in parameters}


def pairing_table(
    family: Family,
    head: str,
    config: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    tensors: dict[str, Entry],
) -> list[Pairing]:
    """Which tensor fills which parameters. A model without a head has no prefix in its names."""
    prefix = family.prefix_of(head)
    prefixed = prefix != "" and any(name.startswith(prefix) for name in tensors)
    return pairings(family, config, head, shapes, prefixed=prefixed)


def with_new_spellings(source: Source, family: Family) -> dict[str, Entry]:
    """The tensors, with old spellings (`gamma`, `beta`) replaced by the new ones."""
    tensors: dict[str, Entry] = {}
    for stored_name, entry in source.tensors.items():
        name = new_spelling(stored_name, family)
        if name in tensors:
            raise CheckpointError(
                f"{source.where}: {name} appears twice, in an old and a new spelling",
                fix="remove one",
            )
        tensors[name] = entry
    return tensors


def new_spelling(name: str, family: Family) -> str:
    for old, new in family.aliases.items():
        name = name.replace(old, new)
    return name


# --------------------------------------------------------------------------------------- refusals


def refuse_quantized(source: Source) -> None:
    """Refuse weights that another library quantized (GPTQ, AWQ, bitsandbytes, …)."""
    name = next((name for name in QUANTIZATION_KEYS if source.keys.get(name)), None)
    if name is None:
        return
    method = _quantization_method(name, source.keys[name])
    raise CheckpointError(
        f"{source.where} is quantized ({method}): such weights are not supported",
        expected="float32, float16 or bfloat16 weights",
        fix="use the original weights or a GGUF",
    )


def _quantization_method(name: str, value: Any) -> str:
    if name == "quantization":
        bits = value.get("bits") if isinstance(value, dict) else None
        return f"MLX, {bits} bits" if isinstance(bits, int) else "MLX"
    method = value.get("quant_method") if isinstance(value, dict) else None
    if (
        method is None
        and isinstance(value, dict)
        and (value.get("load_in_4bit") or value.get("load_in_8bit"))
    ):
        method = "bitsandbytes"
    if not method:
        return name
    return QUANTIZATION_METHODS.get(str(method).lower(), short_repr(str(method))[1:-1])


def check_budget(source: Source, config: ModelConfig) -> None:
    """Refuse a configuration that needs more weights than the file holds, before anything is
    allocated."""
    available = sum(entry.numbers for entry in source.tensors.values())
    for stack in config.stacks.values():
        needed = stack.layers * stack.width + stack.width * stack.embedding.vocab_size
        needed += stack.layers * stack.width * stack.blocks[0].feed_forward.hidden
        if stack.layers > len(source.tensors) or needed > available:
            raise CheckpointError(
                f"{source.where}: config.json describes {stack.layers:,} layers of width"
                f" {stack.width:,}; the file holds {available:,} numbers",
                fix="the weights and config.json do not belong together: fetch the folder again",
            )
