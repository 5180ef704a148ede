"""What a user calls a model, and where that is: a path, a name of the catalogue, or an id of the
hub.

Whatever exists on this disk under the words given is meant; only then the catalogue and the hub are
asked.
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
LONGEST = 4096
MOST_BESIDE = 10_000
EXPECTED = (
    "a folder, a .gguf, .bin or .npz file, a name of `sightline models`, or OWNER/NAME of the hub"
)
PATH_SIGNS = (".", "/", "~", "\\")


@dataclass(frozen=True, slots=True)
class Resolved:
    """A model found: how to read it ("folder", "gguf", "llama2c", "npz"), where it is, and what to
    call it."""

    kind: str
    path: Path
    name: str


def resolve(reference: str | Path, *, progress: Report | None = None) -> Resolved:
    """Find a model; one that is only in the catalogue or on the hub is fetched."""
    text = check_words(reference)
    place = Path(os.path.expanduser(text))
    if os.path.exists(place):
        return local(place)
    if isinstance(reference, str) and text in CATALOGUE:
        return replace(local(fetch.get(text, progress=progress)), name=text)
    where = hub.parse(text) if isinstance(reference, str) and not is_path(text) else None
    if where is None:
        raise unknown(text, path=isinstance(reference, Path) or is_path(text))
    try:
        return Resolved("folder", hub.snapshot(text, progress=progress), str(where))
    except CheckpointError as error:
        if not place.parent.is_dir():
            raise
        absent = missing(text)  # models/mistyped, where the folder models is there
        fix = absent.fix if absent.fix.startswith("did") else error.fix
        raise CheckpointError(
            f"{absent.seen}, and {error.seen}", expected=error.expected, fix=fix
        ) from error


def check_words(reference: str | Path) -> str:
    """The words themselves, before anything is looked up."""
    text = os.fspath(reference)
    if not text.strip():
        raise CheckpointError(
            "no model was named", expected=EXPECTED, fix="smollm2-135m-instruct, for example"
        )
    if len(text) > LONGEST:
        raise CheckpointError(
            f"a model's name of {len(text):,} characters",
            expected=EXPECTED,
            fix=f"{LONGEST:,} characters or fewer",
        )
    if not all(letter.isprintable() or "\udc80" <= letter <= "\udcff" for letter in text):
        raise CheckpointError(
            f"the model's name {short(text)} has control characters",
            expected=EXPECTED,
            fix="leave them out",
        )
    if text.startswith("-"):
        raise CheckpointError(
            f"the model's name {short(text)} begins like an option",
            expected=EXPECTED,
            fix=f"./{text[:100]} if it is a path",
        )
    if "://" in text:
        raise CheckpointError(
            f"{short(text)} is an address",
            expected=EXPECTED,
            fix="download it and give the path, or give OWNER/NAME",
        )
    return text


def short(text: str) -> str:
    return repr(text if len(text) <= 100 else f"{text[:99]}…")


def is_path(text: str) -> bool:
    """Whether the words can only be a path."""
    many_parts = text.count("/") > 1 and "@" not in text
    return (
        text.startswith(PATH_SIGNS)
        or "\\" in text
        or Path(text).suffix.lower() in FORMATS
        or many_parts
    )


def local(place: Path) -> Resolved:
    """Something on this disk, by what it is. A run of `sightline train` is the model that it handed
    out."""
    if (place / "run.json").is_file() and (place / "model").is_dir():
        return Resolved("folder", check_folder(place / "model"), place.absolute().name)
    if place.is_dir():
        return Resolved("folder", check_folder(place), place.absolute().name)
    kind = FORMATS.get(place.suffix.lower(), "")
    if not kind:
        fix = (
            f"give its folder: {place.parent}"
            if place.suffix.lower() in (".safetensors", ".json")
            else "convert it, or give its folder"
        )
        raise CheckpointError(
            f"{place} is no model's file",
            expected="a .gguf, .bin or .npz file, or a folder with config.json",
            fix=fix,
        )
    check_file(place, kind)
    return Resolved(kind, place, place.stem)


def check_folder(place: Path) -> Path:
    """A folder with config.json; if it holds a model's file instead, the error names that."""
    if (place / "config.json").is_file():
        return place
    try:
        inside = sorted(
            path
            for path in place.iterdir()
            if path.suffix.lower() in FORMATS and path.name != "tokenizer.bin"
        )
    except OSError as error:
        raise CheckpointError(
            f"cannot read {place}: {error.strerror}", fix="check its permissions"
        ) from error
    fix = (
        f"give the file: {inside[0]}"
        if inside
        else f"{hint(place.name)}check that this is the model's folder"
    )
    raise CheckpointError(
        f"the folder {place} has no config.json", expected="a Transformers model's folder", fix=fix
    )


def hint(name: str) -> str:
    """A folder may lie here by accident under a name of the catalogue."""
    return (
        f"change to another folder if you mean {name} of the catalogue, or "
        if name in CATALOGUE
        else ""
    )


def check_file(place: Path, kind: str) -> None:
    """A file that begins as its kind does."""
    try:
        if not place.is_file():
            raise CheckpointError(
                f"{place} is a device or a pipe", expected="a file", fix="check the path"
            )
        with place.open("rb") as stream:
            start = stream.read(4)
    except OSError as error:
        raise CheckpointError(
            f"cannot read {place}: {error.strerror}", fix="check its permissions"
        ) from error
    if kind == "llama2c" and kind_of_file(place) == CTRANSLATE2:
        raise CheckpointError(
            f"{place} is {CTRANSLATE2}",
            expected=EXPECTED,
            fix="use the model that it was converted from",
        )
    if kind == "llama2c" and (start == MAGIC["npz"] or start[:1] == b"\x80"):
        fix = f"give its folder: {place.parent}"
        raise CheckpointError(
            f"{place} is a pickle of PyTorch", expected="a llama2.c .bin file", fix=fix
        )
    if not start.startswith(MAGIC.get(kind, b"")) or len(start) < 4:
        raise CheckpointError(
            f"{place} does not begin as a {place.suffix.lower()} file does",
            expected=EXPECTED,
            fix="fetch it again",
        )


def missing(text: str) -> CheckpointError:
    """A path that is not there: up to where it is, and what was perhaps meant."""
    place = Path(os.path.expanduser(text))
    parts = [*reversed(place.parents), place]
    first = next((part for part in parts if not os.path.lexists(part)), place)
    seen = f"no file or folder is called {short(text)}"
    if first != place:
        seen += f": there is no folder {short(str(first))}"
    near = difflib.get_close_matches(first.name, beside(first), n=1, cutoff=0.7)
    fix = f"did you mean {short(str(first.with_name(near[0])))}?" if near else "check the path"
    return CheckpointError(seen, expected=EXPECTED, fix=fix)


def beside(place: Path) -> list[str]:
    """What lies where a missing file or folder was looked for."""
    try:
        return sorted(os.listdir(place.parent))[:MOST_BESIDE]
    except OSError:
        return []


HUB_OWNERS = {  # well-known checkpoints that people name without their owner
    **dict.fromkeys(("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"), "openai-community"),
    **dict.fromkeys(
        ("bert-base-uncased", "bert-base-cased", "bert-large-uncased", "bert-large-cased"),
        "google-bert",
    ),
    **dict.fromkeys(("roberta-base", "roberta-large", "xlm-roberta-base"), "FacebookAI"),
    **dict.fromkeys(("distilbert-base-uncased", "distilbert-base-cased"), "distilbert"),
    **dict.fromkeys(("t5-small", "t5-base", "t5-large"), "google-t5"),
}


def unknown(text: str, *, path: bool) -> CheckpointError:
    """Nothing of that name: say what it was taken for, and what was near."""
    if path:
        return missing(text)
    if "/" in text:
        return CheckpointError(
            f"{short(text)} is neither a path that exists nor a hub id",
            expected=EXPECTED,
            fix="check the spelling",
        )
    owner = HUB_OWNERS.get(text.lower())
    if owner is not None:
        return CheckpointError(
            f"{text} does not come with Sightline: its weights are on the Hugging Face hub",
            fix=f"{owner}/{text.lower()}, which downloads them",
        )
    return CheckpointError(
        f"no model is called {short(text)}",
        expected=EXPECTED,
        fix=nearest(text[:100].lower(), CATALOGUE),
    )
