"""Folders of safetensors, in one file and in shards. The reference is the safetensors library."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor

from sightline.checkpoints.formats import folder
from sightline.checkpoints.formats import writing as write
from tools.fuzz.formats.tensors import read_all, reference_of, require_same
from tools.fuzz.outcome import require

KEYS = {"model_type": "gpt2", "n_layer": 2, "rope": {"a": [1, 2.5]}, "eos_token_id": [1, 2]}


def make(place: Path) -> None:
    kinds = [torch.float32, torch.bfloat16, torch.int8]
    tensors = {f"h.{n}.w": torch.full((2, n + 1), float(n)).to(kinds[n % 3]) for n in range(5)}
    for name, most in (("whole", 10**9), ("shards", 30)):
        write.save_folder(place / name, tensors, keys=KEYS, max_shard_bytes=most)
        # its checksums would refuse every case
        (place / name / "sightline.json").unlink(missing_ok=True)


def check(case: Path, sample: Path) -> None:
    source = folder.read_folder(case)
    ours = read_all(source.tensors)
    require_same(ours, reference_of(lambda: reference(case)))
    require(
        source.keys == json.loads((case / "config.json").read_bytes()),
        "config.json is read differently",
    )


def reference(case: Path) -> dict[str, Tensor]:
    index = case / "model.safetensors.index.json"
    if not index.exists():
        return load_file(case / "model.safetensors")
    places = json.loads(index.read_bytes())["weight_map"]
    files = {file: load_file(case / file) for file in set(places.values())}
    return {name: files[file][name] for name, file in places.items()}
