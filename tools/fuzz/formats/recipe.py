"""Settings of recipes and configurations of models in TOML and JSON. The references are tomllib and
json."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import tomli_w

import sightline as sl
from sightline.cli.commands.train.train import read_toml
from sightline.config import ModelConfig
from sightline.config.values import read, to_plain, write
from sightline.recipes import RECIPES
from tools.fuzz.formats.tensors import reference_of
from tools.fuzz.outcome import require

SETTINGS = {"steps": 500, "width": 64, "lr": 0.01, "seed": 3, "context": 32}


def make(place: Path) -> None:
    sizes: dict[str, Any] = {
        "width": 16,
        "layers": 2,
        "heads": 2,
        "vocab_size": 30,
        "max_positions": 16,
    }
    for name, config in (("gpt", sl.gpt(**sizes)), ("llama", sl.llama(**sizes))):
        for ending in ("json", "toml"):
            (place / f"{name}-{ending}").mkdir()
            write(config, place / f"{name}-{ending}" / f"config.{ending}")
    (place / "settings").mkdir()
    (place / "settings" / "recipe.toml").write_text(tomli_w.dumps(SETTINGS))


def check(case: Path, sample: Path) -> None:
    [path] = case.iterdir()
    if path.name == "recipe.toml":
        recipe = RECIPES["shakespeare"].from_settings(read_toml(path))
        for name, value in reference_of(
            lambda: tomllib.loads(path.read_bytes().decode("utf-8-sig"))
        ).items():
            require(
                str(getattr(recipe, name)) == str(value) or float(getattr(recipe, name)) == value,
                f"another {name}",
            )
        return
    config = read(ModelConfig, path)
    load = tomllib.loads if path.suffix == ".toml" else json.loads
    require_within(
        reference_of(lambda: load(path.read_text(encoding="utf-8"))), to_plain(config), "config"
    )


def require_within(written: Any, read: Any, where: str) -> None:
    """Require every value of the file in the configuration; missing ones have defaults."""
    if isinstance(written, dict) and isinstance(read, dict):
        for name, value in written.items():
            require(name in read or value is None, f"{where}.{name} is lost")
            require_within(value, read.get(name), f"{where}.{name}")
    elif not isinstance(written, str) or not isinstance(read, dict):
        require(
            written == read or (isinstance(written, list) and list(read) == written),
            f"{where} is {read!r:.60}, not {written!r:.60}",
        )
