"""A family's weight table for one model: which tensor fills which parameters, and the reverse.

For every load, each tensor is claimed once, each parameter is filled once, and the table is
reversible.
"""

from __future__ import annotations

import difflib
import glob
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.config import ModelConfig
from sightline.errors import CheckpointError
from sightline.families.schema.family import Family
from sightline.families.schema.rules import Rule

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Pairing:
    """One checkpoint tensor (theirs) and the parameters (ours) that it fills."""

    theirs: str
    ours: tuple[str, ...]
    rule: Rule

    def split(self, tensor: Tensor) -> list[Tensor]:
        """Split a checkpoint tensor into parameters."""
        rule = self.rule
        if rule.flat:
            tensor = tensor.reshape(-1)
        if rule.transpose and tensor.dim() == 2:
            tensor = tensor.T
        if rule.interleaved is not None:
            parts = tensor.unflatten(0, (rule.interleaved.heads, len(self.ours), -1))
            return [parts[:, n].flatten(0, 1) for n in range(len(self.ours))]
        return [tensor] if rule.sizes is None else list(tensor.split(list(rule.sizes), dim=0))

    def join(self, tensors: list[Tensor]) -> Tensor:
        """Join parameters into a checkpoint tensor."""
        rule = self.rule
        if rule.interleaved is not None:
            parts = [tensor.unflatten(0, (rule.interleaved.heads, -1)) for tensor in tensors]
            return torch.stack(parts, dim=1).flatten(0, 2)
        tensor = tensors[0] if len(tensors) == 1 else torch.cat(tensors, dim=0)
        if rule.transpose and tensor.dim() == 2:
            tensor = tensor.T
        return (tensor[None] if rule.flat else tensor).contiguous()


def pairings(
    family: Family, config: ModelConfig, head: str, shapes: Shapes, *, prefixed: bool
) -> list[Pairing]:
    """Every rule with its names filled in, for the model's parameters."""
    layers = {name: stack.layers for name, stack in config.stacks.items()}
    table: list[Pairing] = []
    for rule in family.weights(config, head):
        for theirs, ours in _rule_names(rule, shapes, layers):
            table.append(
                Pairing(
                    _with_prefix(theirs, family.prefix_of(head) if prefixed else ""), ours, rule
                )
            )
    return table


def _with_prefix(name: str, prefix: str) -> str:
    return name[1:] if name.startswith("^") else prefix + name


def _rule_names(
    rule: Rule, shapes: Shapes, layers: dict[str, int]
) -> Iterable[tuple[str, tuple[str, ...]]]:
    """The rule's names with {path}, {n} and {p} filled in."""
    if rule.theirs == "{path}":
        yield from ((name, (name,)) for name in shapes)
        return
    if rule.is_ignored:
        return
    stack = rule.ours[0].split(".")[0]
    for n in range(layers.get(stack, 0)) if "{n}" in rule.ours[0] else [0]:
        for p in ("weight", "bias") if "{p}" in rule.ours[0] else [""]:
            ours = tuple(name.replace("{n}", str(n)).replace("{p}", p) for name in rule.ours)
            if all(name in shapes for name in ours):
                yield rule.theirs.replace("{n}", str(n)).replace("{p}", p), ours


def ignored_names(family: Family, config: ModelConfig, head: str, names: Iterable[str]) -> set[str]:
    """The names of tensors that the family knows but does not need."""
    patterns = [
        _name_pattern(rule.theirs, family.prefix_of(head))
        for rule in family.weights(config, head)
        if rule.is_ignored
    ]
    return {name for name in names if any(pattern.fullmatch(name) for pattern in patterns)}


def _name_pattern(template: str, prefix: str) -> re.Pattern[str]:
    text = (
        re.escape(template.lstrip("^"))
        .replace(re.escape("{n}"), r"\d+")
        .replace(re.escape("{p}"), "(weight|bias)")
    )
    return re.compile(f"({re.escape(prefix)})?{text}")


def check_claims(
    where: str, table: list[Pairing], present: set[str], shapes: Shapes, unneeded: set[str]
) -> None:
    """Refuse missing and unexpected tensors; the error names the first five of each, and their
    number."""
    claimed = [pair.theirs for pair in table if not pair.rule.optional]
    filled = [name for pair in table if not pair.rule.optional for name in pair.ours]
    twice = sorted(
        name for names in (claimed, filled) for name, count in Counter(names).items() if count > 1
    )
    assert not twice, f"the family's table names twice: {twice[:5]}"
    missing, unexpected = find_mismatch(table, present, unneeded)
    unfilled = sorted(set(shapes) - set(filled))
    assert not unfilled, f"the family's table never fills: {unfilled[:5]}"
    if missing or unexpected:
        known = {pair.theirs for pair in table} | unneeded
        raise CheckpointError(
            f"{where}: {_list_mismatches(missing, unexpected)}",
            fix=_mismatch_fix(missing, unexpected, known),
        )


def find_mismatch(
    table: list[Pairing], present: set[str], unneeded: set[str]
) -> tuple[list[str], list[str]]:
    """The missing tensors, and those that no rule claims."""
    needed = {
        pair.theirs for pair in table if not pair.rule.optional and not pair.rule.zero_if_absent
    }
    known = {pair.theirs for pair in table}
    return sorted(needed - present), sorted(present - known - unneeded)


def _list_mismatches(missing: list[str], unexpected: list[str]) -> str:
    parts: list[str] = []
    for what, names in (("missing", missing), ("unexpected", unexpected)):
        if names:
            shown = ", ".join(_printable(name) for name in names[:5])
            parts.append(
                f"{len(names)} tensor{'s' if len(names) > 1 else ''} {what}:"
                f" {shown}{' …' if len(names) > 5 else ''}"
            )
    return "; ".join(parts)


def _mismatch_fix(missing: list[str], unexpected: list[str], known: set[str]) -> str:
    if missing and unexpected:
        close = difflib.get_close_matches(unexpected[0], missing, n=1, cutoff=0.5)
        if close:
            return f"is {_printable(unexpected[0])} a misspelling of {close[0]}?"
    if missing:
        return "the weights and config.json do not belong together: fetch the folder again"
    globs = _ignore_globs(unexpected, known)
    shell = " ".join(f"--ignore-tensors {shlex.quote(_printable(name))}" for name in globs)
    return (
        f"leave them out with {shell} (in Python:"
        f" ignore_tensors={[_printable(name) for name in globs]})"
    )


def _ignore_globs(unexpected: list[str], known: set[str]) -> list[str]:
    """Up to three globs such as `v_head.*` that match unexpected names and no known one."""
    prefixes = {name[:end] for name in known for end in _part_ends(name)}
    globs: dict[str, None] = {}
    for name in unexpected:
        start = next((name[:end] for end in _part_ends(name) if name[:end] not in prefixes), None)
        globs[glob.escape(name) if start is None else f"{glob.escape(start)}*"] = None
    return list(globs)[:3]


def _part_ends(name: str) -> list[int]:
    """The end of each part of a dotted name, including its dot."""
    return [place + 1 for place, letter in enumerate(name) if letter == "."]


def _printable(name: str) -> str:
    name = name if len(name) <= 120 else name[:117] + "…"
    return name if name.isprintable() else ascii(name)
