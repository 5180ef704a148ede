"""Download a model from the Hugging Face hub, through the standard hub cache.

Only weights, configuration and tokenizer are downloaded: never code, and pickles only on request.
HF_HOME, HF_TOKEN and HF_HUB_OFFLINE have their usual meaning; an interrupted download resumes.
"""

from __future__ import annotations

import errno
import json
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sightline.checkpoints.sources.directories import offline_variable
from sightline.errors import CheckpointError
from sightline.files.regular import read_regular_file, read_text_file
from sightline.terminal.progress import Report, reporting

ALLOW_PATTERNS = (
    *("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json"),
    *(
        "tokenizer*.json",
        "special_tokens_map.json",
        "added_tokens.json",
        "*.model",
        "vocab*",
        "merges.txt",
        "chat_template*",
    ),
    *("1_Pooling/config.json", "modules.json", "sentence_bert_config.json", "LICENSE", "README.md"),
)
PICKLES = ("pytorch_model*.bin", "pytorch_model.bin.index.json")
IGNORE_PATTERNS = (
    "*.py",
    "*.pkl",
    "*.pickle",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "consolidated*",
    "original/*",
    "onnx/*",
    "openvino/*",
    "coreml/*",
)
PART = r"[A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,94}[A-Za-z0-9_])?"
HUB_ID = re.compile(
    rf"(?P<owner>{PART})/(?P<name>{PART})(?:@(?P<revision>[A-Za-z0-9_.][A-Za-z0-9_./+-]{{0,199}}))?"
)
COMMIT = re.compile(r"[0-9a-f]{40}")
TOKENIZERS = ("tokenizer*.json", "vocab*", "*.model")


@dataclass(frozen=True, slots=True)
class HubId:
    """`owner/name` and a branch, tag or commit."""

    repository: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.repository if self.revision == "main" else f"{self.repository}@{self.revision}"


def parse(text: str) -> HubId | None:
    """Parse a hub id; None if the hub would not accept it."""
    match = HUB_ID.fullmatch(text) if len(text) <= 400 else None
    if (
        match is None
        or ".." in text
        or "--" in text.partition("@")[0]
        or match["name"].endswith(".git")
    ):
        return None
    return HubId(f"{match['owner']}/{match['name']}", match["revision"] or "main")


def snapshot(text: str, *, pickles: bool = False, progress: Report | None = None) -> Path:
    """The local folder of `owner/name[@revision]`; downloads only if the cache is incomplete."""
    hub_id = parse(text)
    if hub_id is None:
        raise CheckpointError(
            f"{text[:100]!r} is not a hub id",
            expected="OWNER/NAME or OWNER/NAME@REVISION",
            fix="check the spelling",
        )
    folder = find_cached(hub_id)
    variable = offline_variable()
    if folder is not None and (variable or has_tokenizer(folder)):
        return folder
    if variable:
        fix = f"unset {variable}, or copy the model's folder to this machine and give its path"
        raise CheckpointError(
            f"{hub_id} is not in the hub cache and {variable} disables the network", fix=fix
        )
    try:
        downloaded = download(hub_id, pickles=pickles, progress=progress)
    except HubUnreachableError:
        if folder is not None:
            return folder
        raise
    return check_complete(downloaded, hub_id)


def find_cached(hub_id: HubId) -> Path | None:
    """Its folder in the hub cache, if the configuration and all weights are present."""
    from huggingface_hub import constants

    storage = Path(constants.HF_HUB_CACHE) / f"models--{hub_id.repository.replace('/', '--')}"
    commit = hub_id.revision
    if not COMMIT.fullmatch(commit):
        try:
            commit = read_text_file(storage / "refs" / commit, max_bytes=1000).strip()
        except (OSError, UnicodeDecodeError):
            return None
    folder = storage / "snapshots" / commit
    return folder if COMMIT.fullmatch(commit) and is_complete(folder) else None


def is_complete(folder: Path) -> bool:
    """Whether a folder has config.json and every shard of the weights."""
    if not (folder / "config.json").is_file():
        return False
    for index in (folder / "model.safetensors.index.json", folder / "pytorch_model.bin.index.json"):
        if index.is_file():
            return all((folder / shard).is_file() for shard in shard_names(index))
    return any(
        path.is_file()
        for pattern in ("*.safetensors", "pytorch_model.bin")
        for path in folder.glob(pattern)
    )


def shard_names(index: Path) -> set[str]:
    """The files that an index names; an unreadable index yields a name that never exists."""
    try:
        return {str(name) for name in json.loads(read_regular_file(index))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"an unreadable index"}


def has_tokenizer(folder: Path) -> bool:
    """Whether tokenizer files are cached: other programs may have cached only the weights."""
    return any(True for pattern in TOKENIZERS for _ in folder.glob(pattern))


def check_complete(folder: Path, hub_id: HubId) -> Path:
    if is_complete(folder):
        return folder
    fix = (
        f"sightline models get {hub_id} --pickles, if you trust its owner and it has"
        " pytorch_model.bin; otherwise choose another model"
    )
    raise CheckpointError(
        f"{hub_id} has no config.json with safetensors weights",
        expected="a Transformers model",
        fix=fix,
    )


# ---------------------------------------------------------------------------------------- network


class HubUnreachableError(CheckpointError):
    """The hub did not answer."""


def download(hub_id: HubId, *, pickles: bool, progress: Report | None) -> Path:
    """Download the files of one revision."""
    import huggingface_hub

    patterns = [*ALLOW_PATTERNS, *(PICKLES if pickles else ())]
    with show_progress(f"downloading {hub_id} from the hub", progress):
        try:
            return Path(
                huggingface_hub.snapshot_download(
                    hub_id.repository,
                    revision=hub_id.revision,
                    allow_patterns=patterns,
                    ignore_patterns=list(IGNORE_PATTERNS),
                    library_name="sightline",
                )
            )
        except Exception as error:  # the library and its dependencies raise dozens of types
            raise translate_error(error, hub_id) from error


@contextmanager
def show_progress(what: str, progress: Report | None) -> Generator[None]:
    """The library's progress bars on a terminal; otherwise one line or the caller's callback."""
    from huggingface_hub.utils import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    if (progress is None and sys.stderr.isatty()) or are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        with reporting(progress) as report:
            report(what, 0, 0)
            yield
    finally:
        enable_progress_bars()


def translate_error(error: Exception, hub_id: HubId) -> CheckpointError:
    """The library's error as one line with a fix."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{hub_id} is gated", fix="accept its terms on its page, then run: hf auth login"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        fix = "check the spelling; if it is private, run: hf auth login"
        return CheckpointError(
            f"the hub has no model {hub_id.repository}, or you have no access to it", fix=fix
        )
    if isinstance(error, errors.RevisionNotFoundError):
        fix = f"remove @{hub_id.revision}, or give an existing branch, tag or commit"
        return CheckpointError(f"{hub_id.repository} has no revision {hub_id.revision!r}", fix=fix)
    if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError | TimeoutError):
        fix = "check the network, or copy the model's folder to this machine and give its path"
        return HubUnreachableError(
            f"{hub_id} is not in the hub cache and the hub cannot be reached", fix=fix
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointError(
            f"no space left for {hub_id}",
            fix="free some space, or set HF_HOME to a folder on a larger disk",
        )
    seen = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return HubUnreachableError(
        f"downloading {hub_id} failed: {seen}",
        fix="try again (the download resumes), or give the path of a local folder",
    )
