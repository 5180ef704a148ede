"""Clean tensor names: remove the prefixes of training wrappers, and leave out the tensors that the
user ignores.

module.       DataParallel, DistributedDataParallel
_orig_mod.    torch.compile, anywhere in a name
model.        a training class around the full model, such as Lightning's; the `model.` prefix that
              most families have stays
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from sightline.checkpoints.source import Entry, Source
from sightline.errors import CheckpointError
from sightline.families import FAMILIES, Family
from sightline.files.checkpoint_files import printable_name

COMPILED = "_orig_mod."
PARALLEL = "module."
MODEL = "model."
SHOWN = 5


def clean_names(source: Source, ignore_tensors: Sequence[str] = ()) -> Source:
    """The source with unwrapped names, without the tensors that match a glob of `ignore_tensors`;
    both are noted.

    A glob is compared with the name in the file and with the unwrapped name.
    """
    kept = [name for name in source.tensors if not _matches(name, ignore_tensors)]
    unwrapped, wrappers = _unwrap(kept, FAMILIES.get(str(source.keys.get("model_type"))))
    tensors: dict[str, Entry] = {}
    for name, short in zip(kept, unwrapped, strict=True):
        if short in tensors:
            seen = (
                f"{source.where}: {printable_name(short)} appears twice, with and without a"
                " wrapper's prefix"
            )
            raise CheckpointError(seen, fix="remove one, or leave it out with --ignore-tensors")
        tensors[short] = source.tensors[name]
    if wrappers:
        source.notes.append(
            f"tensor names: without the prefix of a wrapper ({', '.join(wrappers)})"
        )
    dropped = {name for name in tensors if _matches(name, ignore_tensors)}
    matched = [name for name in source.tensors if _matches(name, ignore_tensors)]
    source.left_out = [_unwrapped(name, wrappers) for name in matched] + sorted(dropped)
    source.tensors = {name: entry for name, entry in tensors.items() if name not in dropped}
    _note_left_out(source, ignore_tensors)
    return source


def _matches(name: str, globs: Iterable[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def _unwrap(names: list[str], family: Family | None) -> tuple[list[str], list[str]]:
    """The names without wrappers, and the wrappers from the outside in."""
    wrappers: list[str] = []
    if any(_has_part(name, COMPILED) for name in names):
        names = [_without_part(name, COMPILED) for name in names]
        wrappers.append(COMPILED)
    while names:
        if all(name.startswith(PARALLEL) for name in names):
            prefix = PARALLEL
        elif all(name.startswith(MODEL) for name in names) and not _is_own_prefix(names, family):
            prefix = MODEL
        else:
            break
        names = [name.removeprefix(prefix) for name in names]
        wrappers.append(prefix)
    return names, wrappers


def _unwrapped(name: str, wrappers: list[str]) -> str:
    for wrapper in wrappers:
        name = _without_part(name, wrapper) if wrapper == COMPILED else name.removeprefix(wrapper)
    return name


def _has_part(name: str, part: str) -> bool:
    return f".{part}" in f".{name}"


def _without_part(name: str, part: str) -> str:
    return f".{name}".replace(f".{part}", ".")[1:]


def _is_own_prefix(names: list[str], family: Family | None) -> bool:
    """Whether `model.` is the family's own prefix: then neither another wrapper nor a complete
    model follows it."""
    families = FAMILIES.values() if family is None else (family,)
    prefixes = {
        prefix
        for known in families
        for prefix in (known.prefix, *known.prefixes.values())
        if prefix
    }
    inside = any(
        name.startswith(tuple(MODEL + prefix for prefix in (*prefixes, PARALLEL))) for name in names
    )
    return MODEL in prefixes and not inside


def _note_left_out(source: Source, globs: Sequence[str]) -> None:
    if source.left_out:
        names = ", ".join(printable_name(name) for name in source.left_out[:SHOWN])
        more = f" and {len(source.left_out) - SHOWN} more" if len(source.left_out) > SHOWN else ""
        source.notes.append(f"left out because of ignore_tensors: {names}{more}")
    elif globs:
        source.notes.append(
            f"ignore_tensors matches no tensor: {', '.join(map(printable_name, globs))}"
        )
