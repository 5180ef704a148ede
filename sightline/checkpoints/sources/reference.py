"""Resolve a model reference: a path, a name in the catalogue, or a Hugging Face hub id.

A path that exists takes precedence; then the catalogue, then the hub.
"""

from __future__ import annotations

import difflib
import os
from dataclasses import dataclass, replace
from pathlib import Path

from sightline.checkpoints.formats.magic import CTRANSLATE2
from sightline.checkpoints.formats.magic import file_kind as kind_of_file
from sightline.checkpoints.sources import fetch, hub
from sightline.checkpoints.sources.catalogue import CATALOGUE
from sightline.errors import CheckpointError, nearest
from sightline.terminal.progress import Report

FORMATS = {".gguf": "gguf", ".bin": "llama2c", ".npz": "npz"}
MAGIC = {"gguf": b"GGUF", "npz": b"PK\x03\x04"}
MAX_LENGTH = 4096
MAX_SIBLINGS = 10_000
EXPECTED = (
    "a folder, a .gguf, .bin or .npz file, a name from `sightline models`, or OWNER/NAME of the hub"
)
PATH_PREFIXES = (".", "/", "~", "\\")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A resolved model: its format ("folder", "gguf", "llama2c", "npz"), path and display name."""

    kind: str
    path: Path
    name: str


def resolve(reference: str | Path, *, progress: Report | None = None) -> Resolved:
    """Find a model; download it if it is only in the catalogue or on the hub."""
    text = check_reference(reference)
    path = Path(os.path.expanduser(text))
    if os.path.exists(path):
        return resolve_local(path)
    if isinstance(reference, str) and text in CATALOGUE:
        return replace(resolve_local(fetch.get(text, progress=progress)), name=text)
    hub_id = hub.parse(text) if isinstance(reference, str) and not is_path(text) else None
    if hub_id is None:
        raise unknown_model_error(text, path=isinstance(reference, Path) or is_path(text))
    try:
        return Resolved("folder", hub.snapshot(text, progress=progress), str(hub_id))
    except CheckpointError as error:
        if not path.parent.is_dir():
            raise
        path_error = missing_path_error(text)  # models/mistyped, where the folder models exists
        fix = path_error.fix if path_error.fix.startswith("did") else error.fix
        raise CheckpointError(
            f"{path_error.seen}, and {error.seen}", expected=error.expected, fix=fix
        ) from error


def check_reference(reference: str | Path) -> str:
    """Check the reference as a string, before any lookup."""
    text = os.fspath(reference)
    if not text.strip():
        raise CheckpointError(
            "no model was named", expected=EXPECTED, fix="smollm2-135m-instruct, for example"
        )
    if len(text) > MAX_LENGTH:
        raise CheckpointError(
            f"a model name of {len(text):,} characters",
            expected=EXPECTED,
            fix=f"{MAX_LENGTH:,} characters or fewer",
        )
    if not all(letter.isprintable() or "\udc80" <= letter <= "\udcff" for letter in text):
        raise CheckpointError(
            f"the model name {short_reference(text)} has control characters",
            expected=EXPECTED,
            fix="remove them",
        )
    if text.startswith("-"):
        raise CheckpointError(
            f"the model name {short_reference(text)} starts like an option",
            expected=EXPECTED,
            fix=f"./{text[:100]} if it is a path",
        )
    if "://" in text:
        raise CheckpointError(
            f"{short_reference(text)} is a URL",
            expected=EXPECTED,
            fix="download it and give the path, or give OWNER/NAME",
        )
    return text


def short_reference(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:99]}…")


def is_path(text: str) -> bool:
    """Whether the text can only be a path."""
    many_parts = text.count("/") > 1 and "@" not in text
    return (
        text.startswith(PATH_PREFIXES)
        or "\\" in text
        or Path(text).suffix.lower() in FORMATS
        or many_parts
    )


def resolve_local(path: Path) -> Resolved:
    """A path on this disk. A run folder of `sightline train` resolves to the model it exported."""
    if (path / "run.json").is_file() and (path / "model").is_dir():
        return Resolved("folder", check_folder(path / "model"), path.absolute().name)
    if path.is_dir():
        return Resolved("folder", check_folder(path), path.absolute().name)
    kind = FORMATS.get(path.suffix.lower(), "")
    if not kind:
        fix = (
            f"give its folder: {path.parent}"
            if path.suffix.lower() in (".safetensors", ".json")
            else "convert it, or give its folder"
        )
        raise CheckpointError(
            f"{path} is not a model file",
            expected="a .gguf, .bin or .npz file, or a folder with config.json",
            fix=fix,
        )
    check_file(path, kind)
    return Resolved(kind, path, path.stem)


def check_folder(path: Path) -> Path:
    """Require config.json; if the folder has a model file instead, the error names it."""
    if (path / "config.json").is_file():
        return path
    try:
        inside = sorted(
            path
            for path in path.iterdir()
            if path.suffix.lower() in FORMATS and path.name != "tokenizer.bin"
        )
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}", fix="check its permissions"
        ) from error
    fix = (
        f"give the file: {inside[0]}"
        if inside
        else f"{catalogue_hint(path.name)}check that this is the model's folder"
    )
    raise CheckpointError(
        f"the folder {path} has no config.json", expected="a Transformers model's folder", fix=fix
    )


def catalogue_hint(name: str) -> str:
    """A hint for a local folder that happens to have the name of a catalogue model."""
    return (
        f"change to another directory if you mean {name} in the catalogue, or "
        if name in CATALOGUE
        else ""
    )


def check_file(path: Path, kind: str) -> None:
    """Check that the file starts with the magic bytes of its format."""
    try:
        if not path.is_file():
            raise CheckpointError(
                f"{path} is a device or a pipe", expected="a file", fix="check the path"
            )
        with path.open("rb") as stream:
            start = stream.read(4)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {path}: {error.strerror}", fix="check its permissions"
        ) from error
    if kind == "llama2c" and kind_of_file(path) == CTRANSLATE2:
        raise CheckpointError(
            f"{path} is {CTRANSLATE2}",
            expected=EXPECTED,
            fix="use the model that it was converted from",
        )
    if kind == "llama2c" and (start == MAGIC["npz"] or start[:1] == b"\x80"):
        fix = f"give its folder: {path.parent}"
        raise CheckpointError(
            f"{path} is a PyTorch pickle", expected="a llama2.c .bin file", fix=fix
        )
    if not start.startswith(MAGIC.get(kind, b"")) or len(start) < 4:
        raise CheckpointError(
            f"{path} does not have the magic bytes of a {path.suffix.lower()} file",
            expected=EXPECTED,
            fix="download it again",
        )


def missing_path_error(text: str) -> CheckpointError:
    """The error for a missing path: which part does not exist, and the closest match."""
    path = Path(os.path.expanduser(text))
    parts = [*reversed(path.parents), path]
    first = next((part for part in parts if not os.path.lexists(part)), path)
    seen = f"no file or folder is called {short_reference(text)}"
    if first != path:
        seen += f": there is no folder {short_reference(str(first))}"
    near = difflib.get_close_matches(first.name, sibling_names(first), n=1, cutoff=0.7)
    fix = (
        f"did you mean {short_reference(str(first.with_name(near[0])))}?"
        if near
        else "check the path"
    )
    return CheckpointError(seen, expected=EXPECTED, fix=fix)


def sibling_names(path: Path) -> list[str]:
    """The names in the folder that should contain the path."""
    try:
        return sorted(os.listdir(path.parent))[:MAX_SIBLINGS]
    except OSError:
        return []


HUB_OWNERS = {  # well-known checkpoints that are often named without their owner
    **dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), "openai-community"),
    **dict.fromkeys(
        ("bert-base-uncased", "bert-base-cased", "bert-large-uncased", "bert-large-cased"),
        "google-bert",
    ),
    **dict.fromkeys(("roberta-base", "roberta-large", "xlm-roberta-base"), "FacebookAI"),
    **dict.fromkeys(("distilbert-base-uncased", "distilbert-base-cased"), "distilbert"),
    **dict.fromkeys(("t5-small", "t5-base", "t5-large"), "google-t5"),
}


def unknown_model_error(text: str, *, path: bool) -> CheckpointError:
    """The error for a name that resolves to nothing, with the closest match."""
    if path:
        return missing_path_error(text)
    if "/" in text:
        return CheckpointError(
            f"{short_reference(text)} is neither a path that exists nor a hub id",
            expected=EXPECTED,
            fix="check the spelling",
        )
    owner = HUB_OWNERS.get(text.lower())
    if owner is not None:
        return CheckpointError(
            f"{text} is not bundled with Sightline: its weights are on the Hugging Face hub",
            fix=f"{owner}/{text.lower()}, which downloads them",
        )
    return CheckpointError(
        f"no model is called {short_reference(text)}",
        expected=EXPECTED,
        fix=nearest(text[:100].lower(), CATALOGUE),
    )
