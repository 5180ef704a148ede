"""A trained model as a folder that `load` opens: weights, config.json, tokenizer, and how it wants
to be run."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from sightline.checkpoints.formats.writing import save_folder
from sightline.checkpoints.save import keys_for, tensors_of
from sightline.families import FAMILIES
from sightline.families.own import own_keys
from sightline.training.loop import Trainee
from sightline.training.lora import adapters, merged_tensors
from sightline.training.state.lora_files import save_adapters

ADAPTER = "adapter"


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What surrounds the weights. `keys` is config.json where the model came from a family that has
    one, `base` what it was called."""

    family: str = "sightline"
    head: str = "any"
    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    defaults: dict[str, Any] = field(default_factory=dict[str, Any])
    dtype: torch.dtype = torch.float32
    base: str = ""


def export(learner: Trainee, how: Export, folder: Path) -> None:
    """The averaged weights where there are any, else the last. Everyone helps to put them together,
    the first writes. Adapters are merged into them, and written alone into a folder beside."""
    transformer = learner.transformer
    own = {name: learner.ema.get(name, p.detach()) for name, p in transformer.named_parameters()}
    parameters = learner.crew.full(own)
    if not learner.crew.leads:
        return
    family = FAMILIES[how.family]
    keys = keys_for(
        how.keys or own_keys(transformer.config), how.dtype, family=family, head=how.head
    )
    files = dict(how.files)
    if how.defaults:
        files["generation_config.json"] = json.dumps(how.defaults, indent=1).encode()
    merged = merged_tensors(transformer, parameters)
    tensors = dict(tensors_of(transformer, family, how.head, dtype=how.dtype, parameters=merged))
    save_folder(folder, tensors, keys=keys, files=files, overwrite=True)
    if adapters(transformer):
        save_adapters(
            transformer,
            family,
            how.head,
            folder.with_name(ADAPTER),
            base=how.base,
            parameters=parameters,
        )
