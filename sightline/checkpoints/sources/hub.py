"""A model of the hub, as a local folder: from Hugging Face's own cache, or into it.

Only weights, configuration and tokenizer are fetched: never code, and pickles only where they are
asked for. HF_HOME, HF_TOKEN and HF_HUB_OFFLINE mean what they mean everywhere; an interrupted
download goes on where it stopped.
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

from sightline.checkpoints.sources.directories import forbidden_by
from sightline.errors import CheckpointError
from sightline.files.regular import read_regular_file, read_text_file
from sightline.terminal.progress import Report, reporting

WANTED = (
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
NEVER = (
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
    """`owner/name`, and a branch, tag or commit of it."""

    repository: str
    revision: str = "main"

    def __str__(self) -> str:
        return self.repository if self.revision == "main" else f"{self.repository}@{self.revision}"


def parse(text: str) -> HubId | None:
    """A hub id, if the text is one as the hub allows them."""
    found = HUB_ID.fullmatch(text) if len(text) <= 400 else None
    if (
        found is None
        or ".." in text
        or "--" in text.partition("@")[0]
        or found["name"].endswith(".git")
    ):
        return None
    return HubId(f"{found['owner']}/{found['name']}", found["revision"] or "main")


def snapshot(text: str, *, pickles: bool = False, progress: Report | None = None) -> Path:
    """The folder of `owner/name[@revision]`: without the network if it lies in the cache whole."""
    where = parse(text)
    if where is None:
        raise CheckpointError(
            f"{text[:100]!r} is not a hub id",
            expected="OWNER/NAME or OWNER/NAME@REVISION",
            fix="check the spelling",
        )
    here = cached(where)
    variable = forbidden_by()
    if here is not None and (variable or has_tokenizer(here)):
        return here
    if variable:
        fix = f"unset {variable}, or copy the model's folder to this machine and give its path"
        raise CheckpointError(
            f"{where} is not in the cache of the hub and {variable} forbids the network", fix=fix
        )
    try:
        folder = download(where, pickles=pickles, progress=progress)
    except HubUnreachedError:
        if here is not None:
            return here
        raise
    return check_usable(folder, where)


def cached(where: HubId) -> Path | None:
    """Its folder in the hub's cache, if configuration and all weights are there."""
    from huggingface_hub import constants

    storage = Path(constants.HF_HUB_CACHE) / f"models--{where.repository.replace('/', '--')}"
    commit = where.revision
    if not COMMIT.fullmatch(commit):
        try:
            commit = read_text_file(storage / "refs" / commit, max_bytes=1000).strip()
        except (OSError, UnicodeDecodeError):
            return None
    folder = storage / "snapshots" / commit
    return folder if COMMIT.fullmatch(commit) and usable(folder) else None


def usable(folder: Path) -> bool:
    """Whether a folder has a configuration and every shard of its weights."""
    if not (folder / "config.json").is_file():
        return False
    for index in (folder / "model.safetensors.index.json", folder / "pytorch_model.bin.index.json"):
        if index.is_file():
            return all((folder / shard).is_file() for shard in shards(index))
    return any(
        path.is_file()
        for pattern in ("*.safetensors", "pytorch_model.bin")
        for path in folder.glob(pattern)
    )


def shards(index: Path) -> set[str]:
    """The files that an index names; one that cannot be read names one that is never there."""
    try:
        return {str(name) for name in json.loads(read_regular_file(index))["weight_map"].values()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {"an index that can be read"}


def has_tokenizer(folder: Path) -> bool:
    """Other programs may have cached the weights alone."""
    return any(True for pattern in TOKENIZERS for _ in folder.glob(pattern))


def check_usable(folder: Path, where: HubId) -> Path:
    if usable(folder):
        return folder
    fix = (
        f"sightline models get {where} --pickles, if you trust its owner and it has"
        " pytorch_model.bin; else choose another model"
    )
    raise CheckpointError(
        f"{where} has no config.json with safetensors weights",
        expected="a Transformers model",
        fix=fix,
    )


# ------------------------------------------------------------------------------------ the network


class HubUnreachedError(CheckpointError):
    """The hub did not answer."""


def download(where: HubId, *, pickles: bool, progress: Report | None) -> Path:
    """Everything that is wanted of one revision."""
    import huggingface_hub

    wanted = [*WANTED, *(PICKLES if pickles else ())]
    with announced(f"downloading {where} from the hub", progress):
        try:
            return Path(
                huggingface_hub.snapshot_download(
                    where.repository,
                    revision=where.revision,
                    allow_patterns=wanted,
                    ignore_patterns=list(NEVER),
                    library_name="sightline",
                )
            )
        except Exception as error:  # the library and what it stands on raise dozens of kinds
            raise explain(error, where) from error


@contextmanager
def announced(what: str, progress: Report | None) -> Generator[None]:
    """The library's own bars on a terminal; elsewhere one line, or the caller's report."""
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


def explain(error: Exception, where: HubId) -> CheckpointError:
    """What the library raised, as one line with the fix."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return CheckpointError(
            f"{where} is gated", fix="accept its terms on its page, then run: hf auth login"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        fix = "check the spelling; if it is private, run: hf auth login"
        return CheckpointError(
            f"the hub has no model {where.repository}, or does not show it to you", fix=fix
        )
    if isinstance(error, errors.RevisionNotFoundError):
        fix = f"leave @{where.revision} out, or name a branch, tag or commit that it has"
        return CheckpointError(f"{where.repository} has no revision {where.revision!r}", fix=fix)
    if isinstance(error, errors.LocalEntryNotFoundError | ConnectionError | TimeoutError):
        fix = "check the network, or copy the model's folder to this machine and give its path"
        return HubUnreachedError(
            f"{where} is not in the cache of the hub and the hub cannot be reached", fix=fix
        )
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return CheckpointError(
            f"no space left for {where}",
            fix="free some, or set HF_HOME to a folder on a larger disk",
        )
    seen = " ".join(f"{type(error).__name__}: {error}".split())[:200]
    return HubUnreachedError(
        f"downloading {where} failed: {seen}",
        fix="try again, it goes on where it stopped; or give the path of a local folder",
    )
