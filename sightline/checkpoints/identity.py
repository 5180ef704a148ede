"""What a checkpoint is: its family, its head and its configuration, from config.json and, where
that is silent, from the tensors."""

from __future__ import annotations

from typing import Any

import torch

from sightline.checkpoints.source import Entry, Source
from sightline.checkpoints.tables import Pairing, ignored, mismatch, pairings
from sightline.config import ModelConfig
from sightline.core.model import Transformer
from sightline.errors import CheckpointError, ConfigError, short
from sightline.families import FAMILIES, Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.spelling import OTHER_ARCHITECTURES, misspelling_of

QUANTISED = ("quantization_config", "quantization", "compression_config")
METHODS = {
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


def understand(source: Source, *, strict: bool = False) -> tuple[Family, str, ModelConfig]:
    """Which family, which head, which configuration. Keys that nobody knows are noted, or refused
    if `strict`."""
    family = family_of(source)
    refuse_quantised(source)
    head = head_of(source, family)
    keys, config = read_config(source, family, head)
    unknown = keys.unknown()
    if unknown and strict:
        raise CheckpointError(
            f"{keys.where} has keys that are not known: {keys.listed(unknown)}",
            fix="correct or remove them, or load without strict",
        )
    if unknown:
        note(source, f"config.json: ignored keys that are not known: {keys.listed(unknown)}")
    return family, head, config


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
        keys.ignore("is_decoder")  # of a decoder alone; families with an encoder have read it
    return keys, config


def note(source: Source, text: str) -> None:
    """Noted once, however often a source is looked at."""
    if text not in source.notes:
        source.notes.append(text)


# ----------------------------------------------------------------------------------------- family


def family_of(source: Source) -> Family:
    """The family that `model_type` names; where there is none, the class or the tensors tell."""
    kind = source.keys.get("model_type")
    if kind is None or kind == "":
        return _guessed_family(source)
    if isinstance(kind, str) and kind in FAMILIES:
        return FAMILIES[kind]
    raise _unknown_family(source, kind)


def _unknown_family(source: Source, kind: Any) -> CheckpointError:
    where = f"{source.where}: model_type {short(kind)}"
    meant = None if str(kind) in OTHER_ARCHITECTURES else misspelling_of(str(kind), FAMILIES)
    if meant is not None:
        return CheckpointError(f"{where} is not known", fix=f"did you mean {meant!r}?")
    return CheckpointError(
        f"{where} is an architecture that is not supported",
        expected=f"one of {SUPPORTED}",
        fix=(
            "use a model of one of these families: the same weights read as another one would give"
            " wrong results"
        ),
    )


def _guessed_family(source: Source) -> Family:
    """Without a `model_type`: the family of the class in `architectures`, or the only one whose
    tensors these are."""
    name = _class_name(source)
    named = [family for family in FAMILIES.values() if name is not None and name in family.heads]
    if len(named) == 1:
        note(
            source,
            f"config.json has no model_type: read as {named[0].name!r}, of which {name} is a class",
        )
        return named[0]
    fitting = (
        {}
        if name is not None
        else {
            family.config: family for family in reversed(FAMILIES.values()) if _fits(source, family)
        }
    )
    if len(fitting) == 1:
        (family,) = fitting.values()
        note(
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


def _fits(source: Source, family: Family) -> bool:
    """Whether some head of the family has exactly these tensors."""
    if family.name == "sightline":
        return False
    return any(
        mismatches(source, family, head) == (0, 0) for head in dict.fromkeys(family.heads.values())
    )


# ------------------------------------------------------------------------------------------- head


def head_of(source: Source, family: Family) -> str:
    """The head that `architectures` names; where it is silent, the one that the tensors are of."""
    name = _class_name(source)
    if name is None:
        return _head_of_tensors(source, family)
    if name in family.heads:
        return family.heads[name]
    meant = misspelling_of(name, family.heads)
    classes = ", ".join(family.heads)
    raise CheckpointError(
        f"{source.where}: architecture {short(name)} is not a class of {family.name} that is"
        " supported",
        expected=f"one of {classes}",
        fix=(
            "use a checkpoint of one of these classes"
            if meant is None
            else f"did you mean {meant!r}?"
        ),
    )


def _class_name(source: Source) -> str | None:
    names = source.keys.get("architectures")
    if not names:
        return None
    return str(names[0] if isinstance(names, list) else names)


def _head_of_tensors(source: Source, family: Family) -> str:
    """The head that lacks nothing and leaves least over; the family's first where that does not
    decide."""
    heads = list(dict.fromkeys(family.heads.values()))
    if len(heads) == 1 or not source.tensors:
        return heads[0]
    found = {head: mismatches(source, family, head) for head in heads}
    complete = [head for head, counts in found.items() if counts is not None and counts[0] == 0]
    return min(complete, key=lambda head: found[head] or (0, 0), default=heads[0])


def mismatches(source: Source, family: Family, head: str) -> tuple[int, int] | None:
    """How many tensors a model with this head would miss, and how many it would leave over; None if
    it could not be made."""
    try:
        _, config = read_config(source, family, head)
        check_budget(source, config)
    except CheckpointError:
        return None
    tensors = renamed(source, family)
    table = table_of(family, head, config, shapes_of(config), tensors)
    missing, unexpected = mismatch(table, set(tensors), ignored(family, config, head, tensors))
    return len(missing), len(unexpected)


def shapes_of(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """The parameters that a model has, without making any."""
    with torch.device("meta"):
        return {
            name: tuple(parameter.shape)
            for name, parameter in Transformer(config).named_parameters()
        }


def table_of(
    family: Family,
    head: str,
    config: ModelConfig,
    shapes: dict[str, tuple[int, ...]],
    tensors: dict[str, Entry],
) -> list[Pairing]:
    """Which of these tensors is which parameter. A bare model's names lack the family's prefix."""
    prefix = family.prefix_of(head)
    prefixed = prefix != "" and any(name.startswith(prefix) for name in tensors)
    return pairings(family, config, head, shapes, prefixed=prefixed)


def renamed(source: Source, family: Family) -> dict[str, Entry]:
    """The tensors with old spellings (`gamma`, `beta`) in the new one."""
    found: dict[str, Entry] = {}
    for stored_name, entry in source.tensors.items():
        name = new_spelling(stored_name, family)
        if name in found:
            raise CheckpointError(
                f"{source.where}: {name} is there twice, in an old and a new spelling",
                fix="remove one",
            )
        found[name] = entry
    return found


def new_spelling(name: str, family: Family) -> str:
    for old, new in family.aliases.items():
        name = name.replace(old, new)
    return name


# --------------------------------------------------------------------------------------- refusals


def refuse_quantised(source: Source) -> None:
    """Weights in the format of another program's quantisation: one line for all of them."""
    name = next((name for name in QUANTISED if source.keys.get(name)), None)
    if name is None:
        return
    raise CheckpointError(
        f"{source.where} is quantised ({_method(name, source.keys[name])}): such weights are not"
        " read",
        expected="float32, float16 or bfloat16 weights",
        fix="use the original weights or a GGUF",
    )


def _method(name: str, said: Any) -> str:
    if name == "quantization":
        bits = said.get("bits") if isinstance(said, dict) else None
        return f"MLX, {bits} bits" if isinstance(bits, int) else "MLX"
    method = said.get("quant_method") if isinstance(said, dict) else None
    if (
        method is None
        and isinstance(said, dict)
        and (said.get("load_in_4bit") or said.get("load_in_8bit"))
    ):
        method = "bitsandbytes"
    return METHODS.get(str(method).lower(), short(str(method))[1:-1]) if method else name


def check_budget(source: Source, config: ModelConfig) -> None:
    """A configuration that asks for more than the file holds is refused before anything is made."""
    held = sum(entry.numbers for entry in source.tensors.values())
    for stack in config.stacks.values():
        asked = stack.layers * stack.width + stack.width * stack.embedding.vocab_size
        asked += stack.layers * stack.width * stack.blocks[0].feed_forward.hidden
        if stack.layers > len(source.tensors) or asked > held:
            raise CheckpointError(
                f"{source.where}: config.json asks for {stack.layers:,} layers of width"
                f" {stack.width:,}; the file holds {held:,} numbers",
                fix="the weights and config.json do not belong together: fetch the folder again",
            )
