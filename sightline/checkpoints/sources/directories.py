"""Where models lie on this machine, and whether the network may be used: what the environment says
of both, read when asked.

SIGHTLINE_HOME        the cache folder; else XDG_CACHE_HOME/sightline, else ~/.cache/sightline
  models/NAME           a model of the catalogue, verified
  packed                weights packed for the native engine; may be deleted at any time
  converted             safetensors made from pickled weights; may be deleted at any time
  archives              packages put there by hand, for machines without a network
  downloads             packages on their way
  texts                 texts that recipes learn from
  data                  those texts as tokens
  locks                 one process at a time
SIGHTLINE_ARCHIVES    another folder of packages, looked into first
SIGHTLINE_OFFLINE=1   no network (HF_HUB_OFFLINE=1 says the same)
"""

from __future__ import annotations

import os
from pathlib import Path

from sightline.errors import CheckpointError

FORBIDDING = ("SIGHTLINE_OFFLINE", "HF_HUB_OFFLINE")
YES = ("1", "on", "yes", "true")


def home() -> Path:
    """The cache folder, which need not exist yet."""
    chosen = os.environ.get("SIGHTLINE_HOME")
    if chosen:
        return Path(os.path.expanduser(chosen)).absolute()
    cache = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(cache):
        return Path(cache) / "sightline"
    try:
        return Path.home() / ".cache" / "sightline"
    except RuntimeError as error:
        raise CheckpointError(
            "this user has no home folder", fix="set SIGHTLINE_HOME to a folder for models"
        ) from error


def models() -> Path:
    """The folder of the catalogue's models."""
    return home() / "models"


def packed() -> Path:
    """The folder of weights that were packed for the native engine."""
    return home() / "packed"


def archive_folders() -> list[Path]:
    """Folders in which a package may lie already, first choice first; nothing in them is ever
    deleted."""
    named = os.environ.get("SIGHTLINE_ARCHIVES")
    return [*([Path(os.path.expanduser(named))] if named else []), home() / "archives"]


def forbidden_by() -> str:
    """The variable that forbids the network, or ""."""
    return next((name for name in FORBIDDING if os.environ.get(name, "").lower() in YES), "")
