"""Sightline's own format: the ModelConfig itself in config.json, parameters under their own names.
For nGPT and every model that no other family describes."""

from __future__ import annotations

from typing import Any

from sightline.config import ModelConfig
from sightline.config.values import from_plain, to_plain
from sightline.families.schema.family import Family
from sightline.families.schema.keys import Keys
from sightline.families.schema.rules import Rule, rename


def own_config(keys: Keys, head: str) -> ModelConfig:
    """The configuration that `own_keys` wrote."""
    keys.ignore("format")
    return from_plain(ModelConfig, keys.table("model"), where=f"{keys.where}: model")


def own_weights(config: ModelConfig, head: str) -> list[Rule]:
    """Every parameter under its own name."""
    return [rename("{path}", "{path}")]


def own_keys(config: ModelConfig) -> dict[str, Any]:
    """config.json for any configuration."""
    return {
        "model_type": "sightline",
        "architectures": ["Transformer"],
        "format": 1,
        "model": to_plain(config),
    }


OWN = Family(name="sightline", config=own_config, weights=own_weights, heads={"Transformer": "any"})
