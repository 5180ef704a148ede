"""The cache directories and the offline setting, from environment variables that are read on each
call.

SIGHTLINE_HOME        the cache folder; else XDG_CACHE_HOME/sightline, else ~/.cache/sightline
  models/NAME           a model from the catalogue, verified
  packed                weights packed for the native engine; may be deleted at any time
  converted             safetensors converted from pickled weights; may be deleted at any time
  archives              packages that the user put there, for machines without a network
  downloads             packages being downloaded
  texts                 training texts of the recipes
  data                  the same texts, tokenized
  locks                 file locks
SIGHTLINE_ARCHIVES    another folder of packages, searched first
SIGHTLINE_OFFLINE=1   no network (HF_HUB_OFFLINE=1 has the same effect)
"""

from __future__ import annotations

import os
from pathlib import Path

from sightline.errors import CheckpointError

OFFLINE_VARIABLES = ("SIGHTLINE_OFFLINE", "HF_HUB_OFFLINE")
TRUE_VALUES = ("1", "on", "yes", "true")


def home() -> Path:
    """The cache folder; it may not exist yet."""
    folder = os.environ.get("SIGHTLINE_HOME")
    if folder:
        return Path(os.path.expanduser(folder)).absolute()
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
    """The folder of the catalogue models."""
    return home() / "models"


def packed() -> Path:
    """The folder of weights packed for the native engine."""
    return home() / "packed"


def archive_folders() -> list[Path]:
    """Folders to search for packages, in order; nothing in them is ever deleted."""
    folder = os.environ.get("SIGHTLINE_ARCHIVES")
    return [*([Path(os.path.expanduser(folder))] if folder else []), home() / "archives"]


def offline_variable() -> str:
    """The environment variable that disables the network, or ""."""
    return next(
        (name for name in OFFLINE_VARIABLES if os.environ.get(name, "").lower() in TRUE_VALUES), ""
    )
