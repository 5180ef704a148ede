"""Export a trained model as a folder for `load`: weights, config.json, tokenizer and generation
defaults."""

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
from sightline.training.loop import TrainState
from sightline.training.lora import adapters, merged_tensors
from sightline.training.state.lora_files import save_adapters

ADAPTER = "adapter"


@dataclass(frozen=True, kw_only=True, slots=True)
class Export:
    """What is written beside the weights. `keys` is config.json if the model's family has one,
    `base` the name of the model it was trained from."""

    family: str = "sightline"
    head: str = "any"
    keys: dict[str, Any] = field(default_factory=dict[str, Any])
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    defaults: dict[str, Any] = field(default_factory=dict[str, Any])
    dtype: torch.dtype = torch.float32
    base: str = ""


def export_model(state: TrainState, export: Export, folder: Path) -> None:
    """Write the averaged weights, or the last ones if there is no average. All processes gather
    them, the first one writes. Adapters are merged, and also written unmerged into a separate
    folder."""
    transformer = state.transformer
    own = {name: state.ema.get(name, p.detach()) for name, p in transformer.named_parameters()}
    parameters = state.group.gather(own)
    if not state.group.is_main:
        return
    family = FAMILIES[export.family]
    keys = keys_for(
        export.keys or own_keys(transformer.config), export.dtype, family=family, head=export.head
    )
    files = dict(export.files)
    if export.defaults:
        files["generation_config.json"] = json.dumps(export.defaults, indent=1).encode()
    merged = merged_tensors(transformer, parameters)
    tensors = dict(
        tensors_of(transformer, family, export.head, dtype=export.dtype, parameters=merged)
    )
    save_folder(folder, tensors, keys=keys, files=files, overwrite=True)
    if adapters(transformer):
        save_adapters(
            transformer,
            family,
            export.head,
            folder.with_name(ADAPTER),
            base=export.base,
            parameters=parameters,
        )
