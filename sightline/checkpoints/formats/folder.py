"""A model folder, opened: config.json and the weights beside it. Nothing in the folder is ever
imported or run."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

from sightline.checkpoints.formats.legacy import READABLE, convert
from sightline.checkpoints.formats.magic import CTRANSLATE2, file_kind
from sightline.checkpoints.formats.safetensors import (
    file_inside,
    open_safetensors,
    open_shards,
    read_index,
)
from sightline.checkpoints.formats.writing import INDEX, MANIFEST, VERSION
from sightline.checkpoints.source import Entry, Source
from sightline.errors import CheckpointError
from sightline.files.checkpoint_files import file_sha256, printable_name
from sightline.files.strict_json import read_json

SINGLE = "model.safetensors"
OLD = "pytorch_model.bin"
OLD_INDEX = "pytorch_model.bin.index.json"
CODE_KEYS = ("auto_map", "trust_remote_code", "custom_pipelines", "_target_")
AS_SAFETENSORS = "use the model's safetensors files, or save it again with save_pretrained"
ORIGINAL = "use the model that it was converted from"
UNSUPPORTED = {
    ".gguf": ("GGUF", "give the .gguf file itself to sightline"),
    ".pt2": ("torch.export", AS_SAFETENSORS),
    ".nemo": ("NeMo archive", AS_SAFETENSORS),
    ".keras": ("Keras", AS_SAFETENSORS),
    ".joblib": ("joblib pickle", AS_SAFETENSORS),
    ".pkl": ("pickle", AS_SAFETENSORS),
    ".h5": ("TensorFlow HDF5", AS_SAFETENSORS),
    ".msgpack": ("Flax msgpack", AS_SAFETENSORS),
    ".onnx": ("ONNX", AS_SAFETENSORS),
    ".tflite": ("TensorFlow Lite", AS_SAFETENSORS),
    ".ot": ("rust-bert", AS_SAFETENSORS),
    ".distcp": (
        "PyTorch distributed checkpoint",
        "save the model as safetensors in the program that trained it",
    ),
    ".metadata": (
        "PyTorch distributed checkpoint",
        "save the model as safetensors in the program that trained it",
    ),
    ".pt": ("torch pickle", AS_SAFETENSORS),
    ".pth": ("torch pickle", AS_SAFETENSORS),
    ".ckpt": ("torch pickle", AS_SAFETENSORS),
    ".bin": ("unknown binary", AS_SAFETENSORS),
    ".zip": ("archive", "unpack it yourself and give the folder"),
    ".tar": ("archive", "unpack it yourself and give the folder"),
    ".gz": ("archive", "unpack it yourself and give the folder"),
    ".tgz": ("archive", "unpack it yourself and give the folder"),
}


def read_folder(
    path: Path | str,
    *,
    verify: bool = False,
    allow_pickle_weights: bool = False,
    skip_pickles: bool = False,
) -> Source:
    """The model in a folder. `verify` holds every file read against the folder's checksums;
    `allow_pickle_weights` converts .bin files.

    `skip_pickles`: for pickled weights, return the config keys without tensors.
    """
    folder = Path(path)
    names = _names(folder)
    if "config.json" not in names:
        raise _no_model(folder, names)
    keys = read_json(file_inside(folder, "config.json"))
    if skip_pickles and (pickle := _pickle(folder, names)):
        note = (
            f"{printable_name(pickle)} is a pickle, which is not read here: {_conversion(folder)}"
        )
        return Source(
            folder, "pickle", keys, {}, tokenizer=folder, notes=[*_notes(folder, names, keys), note]
        )
    format, tensors, used = _weights(folder, names, allow_pickle_weights)
    sums = manifest_digests(folder)
    if verify:
        _verify(folder, ["config.json", *used], sums)
    return Source(
        folder, format, keys, tensors, tokenizer=folder, notes=_notes(folder, names, keys)
    )


def _names(folder: Path) -> list[str]:
    """The names in the folder."""
    try:
        names = sorted(os.listdir(folder))
    except NotADirectoryError:
        what = file_kind(folder)
        fix = (
            UNSUPPORTED[".zip"][1]
            if re.fullmatch(r"an? \w+ archive", what) and "torch" not in what.lower()
            else f"give the folder with config.json and {SINGLE} in it"
        )
        raise CheckpointError(
            f"{printable_name(folder)} is {what or 'a file'}, not a folder",
            expected="a model folder",
            fix=fix,
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise CheckpointError(
            f"{printable_name(folder)} cannot be opened: {why}",
            fix="check the path and its permissions",
        ) from None
    if not names:
        raise CheckpointError(
            f"{printable_name(folder)} is empty",
            expected=f"config.json and {SINGLE}",
            fix="download the model into it",
        )
    return names


def _weights(
    folder: Path, names: list[str], allow_pickle_weights: bool
) -> tuple[str, dict[str, Entry], list[str]]:
    """The format, the tensors, and the files they are in. Safetensors come before pickles, one file
    before shards."""
    single = [name for name in names if name.endswith(".safetensors")]
    if SINGLE in names:
        return _single_file(folder, SINGLE)
    if INDEX in names:
        tensors = open_shards(folder, file_inside(folder, INDEX))
        return "safetensors", tensors, _index_files(folder, INDEX)
    if len(single) == 1:
        return _single_file(folder, single[0])
    if single:
        seen = (
            f"{printable_name(folder)} has {len(single)} safetensors files"
            f" ({printable_name(', '.join(single[:3]))})"
            f" and no {INDEX}"
        )
        raise CheckpointError(
            seen, expected=f"one file, {SINGLE}, or an index", fix="download the index as well"
        )
    if OLD in names or OLD_INDEX in names:
        return _old(folder, OLD if OLD in names else OLD_INDEX, allow_pickle_weights)
    raise _no_model(folder, names)


def _pickle(folder: Path, names: list[str]) -> Path | None:
    """The pickle with the weights, if no other file has them."""
    if INDEX in names or any(name.endswith(".safetensors") for name in names):
        return None
    name = next((name for name in (OLD, OLD_INDEX) if name in names), None)
    path = None if name is None else file_inside(folder, name)
    return path if name == OLD_INDEX or (path is not None and file_kind(path) in READABLE) else None


def _conversion(folder: Path) -> str:
    return f"sightline convert {shlex.quote(printable_name(folder))} NEW --from-pickle"


def _single_file(folder: Path, name: str) -> tuple[str, dict[str, Entry], list[str]]:
    return "safetensors", open_safetensors(file_inside(folder, name)), [name]


def _old(folder: Path, name: str, allowed: bool) -> tuple[str, dict[str, Entry], list[str]]:
    """Pickled weights: converted in a sandboxed process, and only if the caller allows it. A .bin
    with safetensors in it is read directly."""
    path = file_inside(folder, name)
    if name == OLD and file_kind(path) == "safetensors":
        return _single_file(folder, name)
    if name == OLD and file_kind(path) not in READABLE:
        what = file_kind(path) or "no torch file"
        raise CheckpointError(
            f"{printable_name(path)} is {what}: unsupported format",
            expected="safetensors",
            fix=AS_SAFETENSORS,
        )
    if not allowed:
        seen = f"{printable_name(path)} is a pickle, which can run code when it is read"
        raise CheckpointError(seen, expected="safetensors", fix=_conversion(folder))
    if name == OLD:
        return "torch", open_safetensors(convert(path)), [name]
    tensors = open_shards(folder, path, open_shard=_converted, exact=False)
    return "torch", tensors, _index_files(folder, name)


def _index_files(folder: Path, name: str) -> list[str]:
    homes, _ = read_index(folder / name)
    return [name, *sorted(set(homes.values()))]


def _converted(path: Path) -> dict[str, Entry]:
    return open_safetensors(path if file_kind(path) == "safetensors" else convert(path))


def _no_model(folder: Path, names: list[str]) -> CheckpointError:
    """Why there is nothing to read: weights in a format we do not read, weights or config.json
    missing, or no model at all."""
    if any(name.endswith((".safetensors", INDEX, OLD_INDEX)) for name in names):
        return CheckpointError(
            f"{printable_name(folder)} has weights but no config.json",
            fix="download config.json into it",
        )
    for name in names:
        suffix = name if name == ".metadata" else os.path.splitext(name)[1].lower()
        if suffix in UNSUPPORTED and name not in (OLD, OLD_INDEX):
            what, fix = UNSUPPORTED[suffix]
            what = _by_content(folder, name) or what
            if what == CTRANSLATE2:
                return CheckpointError(
                    f"{printable_name(folder)} is {what} ({name})",
                    expected="safetensors",
                    fix=ORIGINAL,
                )
            return CheckpointError(
                f"{printable_name(folder / name)} is in an unsupported format ({what})",
                expected="safetensors",
                fix=fix,
            )
    missing = "weights" if "config.json" in names else "config.json"
    seen = (
        f"{printable_name(folder)} is not a model: it has no {missing}"
        f" ({printable_name(', '.join(names[:3]))} …)"
    )
    return CheckpointError(
        seen, expected=f"config.json and {SINGLE}", fix="give the folder that holds them"
    )


def _by_content(folder: Path, name: str) -> str:
    try:
        return file_kind(file_inside(folder, name))
    except CheckpointError:
        return ""


def _notes(folder: Path, names: list[str], keys: dict[str, Any]) -> list[str]:
    """Notes on what the folder has but is never used: custom code."""
    notes = [
        f"config.json: {key} is ignored; code from a model folder is never run"
        for key in CODE_KEYS
        if key in keys
    ]
    code = [name for name in names if name.endswith((".py", ".so", ".pyc"))]
    if code:
        notes.append(
            f"{printable_name(', '.join(code[:5]))}: ignored; code from a model folder is never run"
        )
    return notes


def manifest_digests(folder: Path) -> dict[str, Any] | None:
    """The manifest's digests by file, if there is a manifest of a known version."""
    if not os.path.lexists(folder / MANIFEST):
        return None
    path = file_inside(folder, MANIFEST)
    manifest = read_json(path)
    version = manifest.get("version", VERSION)
    sums = manifest.get("sha256")
    if type(version) is not int or version > VERSION:
        raise CheckpointError(
            f"{printable_name(path)} has version {printable_name(version)}, we read up to"
            f" {VERSION}",
            fix="needs a newer Sightline: upgrade it",
        )
    if not isinstance(sums, dict):
        raise CheckpointError(
            f"{printable_name(path)} has no sha256",
            expected='{"sha256": {file: digest}}',
            fix="write the folder again",
        )
    return sums


def _verify(folder: Path, used: list[str], sums: dict[str, Any] | None) -> None:
    """Check each opened file against its digest in the manifest. Changes after opening are detected
    when a tensor is read."""
    if sums is None:
        raise CheckpointError(
            f"{printable_name(folder)} has no {MANIFEST} to verify against",
            fix="load it without verify",
        )
    for name in sorted({*used, *sums}):
        if name not in sums:
            raise CheckpointError(
                f"{printable_name(folder / MANIFEST)} has no checksum for {printable_name(name)}",
                fix="write the folder again",
            )
        if file_sha256(file_inside(folder, name)) != sums[name]:
            raise CheckpointError(
                f"{printable_name(folder / name)} does not match its checksum in {MANIFEST}",
                fix="download or copy it again",
            )
