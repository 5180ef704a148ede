"""A sharded checkpoint, written by all processes: for models that do not fit on a single machine.

    folder/    shard-00001-model-….safetensors  shard-00002-…    manifest.json (sha256 of each file)

torch.distributed.checkpoint shards and reassembles the tensors, so that the number of processes may
differ between saving and loading; its files are safetensors, and nothing is pickled. All processes
must see the folder. A run resumes from the ordinary checkpoints of `checkpoint.py`.
"""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from sightline.errors import CheckpointError
from sightline.files.atomic import sync_folder, write_text
from sightline.files.checkpoint_files import file_sha256
from sightline.files.strict_json import read_json
from sightline.training.loop import TrainState

MANIFEST = "manifest.json"


def save_parts(state: TrainState, folder: Path) -> None:
    """All processes write to a temporary folder; when all are done, the first renames it."""
    group = state.group
    if group.any(folder.exists()):
        raise CheckpointError(f"{folder} exists", expected="a new name", fix="choose another")
    temporary = folder.with_name(f".{folder.name}.partial")
    if group.is_main:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
    group.barrier()
    save(
        shards_of(state),
        storage_writer=HuggingFaceStorageWriter(str(temporary), save_distributed=True),
        no_dist=group.world_size == 1,
    )
    if group.is_main:
        sums = {path.name: file_sha256(path) for path in sorted(temporary.glob("*.safetensors"))}
        manifest = {
            "step": state.step,
            "seconds": state.seconds,
            "skip": sorted(state.skip),
            "sha256": sums,
        }
        write_text(temporary / MANIFEST, json.dumps(manifest, indent=1), durable=True)
        os.rename(temporary, folder)
        sync_folder(folder.parent)
    group.barrier()


def load_parts(state: TrainState, folder: Path) -> None:
    """Restore the saved state; each process reads its own shards."""
    group = state.group
    manifest, wrong = manifest_of(folder, verify=group.is_main)
    if group.any(bool(wrong)):
        raise CheckpointError(
            f"{folder}: {wrong or 'another process cannot use it'}", fix="an older one"
        )
    moments = empty_moments(state, folder)
    load(
        {
            **shards_of(state, moments=False),
            **{f"optimizer/{name}": t for name, t in moments.items()},
        },
        storage_reader=HuggingFaceStorageReader(str(folder)),
        no_dist=group.world_size == 1,
    )
    state.optimizers.restore(moments)
    state.step = manifest["step"]
    state.seconds = manifest["seconds"]
    state.skip = set(manifest["skip"])


def manifest_of(folder: Path, *, verify: bool) -> tuple[dict[str, Any], str]:
    """The manifest of a checkpoint, and what is wrong with it (empty if intact)."""
    try:
        manifest = read_json(folder / MANIFEST, max_bytes=100_000_000)
        for name, digest in manifest["sha256"].items() if verify else ():
            if file_sha256(folder / name) != digest:
                return manifest, f"{name} was changed or truncated"
        return {
            "step": int(manifest["step"]),
            "seconds": float(manifest["seconds"]),
            "skip": list(map(int, manifest["skip"])),
        }, ""
    except (CheckpointError, OSError, KeyError, TypeError, ValueError, AttributeError):
        return {}, "its manifest or a part is missing or broken"


def shards_of(state: TrainState, *, moments: bool = True) -> dict[str, Tensor]:
    """Every tensor of the state, as this process's shards."""
    tensors = {f"model/{name}": p.detach() for name, p in state.transformer.named_parameters()}
    tensors |= {f"ema/{name}": average for name, average in state.ema.items()}
    return (
        tensors | {f"optimizer/{name}": t for name, t in state.optimizers.tensors().items()}
        if moments
        else tensors
    )


def empty_moments(state: TrainState, folder: Path) -> dict[str, Tensor]:
    """Empty tensors for the optimiser state in the files, sharded like the parameters."""
    parameters = {
        f"optimizer/{name}": p.detach() for name, p in state.transformer.named_parameters()
    }
    moments: dict[str, Tensor] = {}
    for name, entry in (
        HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata.items()
    ):
        parameter = parameters.get(name.rsplit("/", 1)[0])
        if parameter is not None and isinstance(entry, TensorStorageMetadata):
            single = (
                torch.empty(entry.size, dtype=entry.properties.dtype, device=parameter.device)
                if not entry.size
                else None
            )
            moments[name.removeprefix("optimizer/")] = (
                torch.empty_like(parameter) if single is None else single
            )
    return moments
