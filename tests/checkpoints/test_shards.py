"""Shard indices from untrusted files: paths outside the folder, missing and repeated tensors."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from sightline.checkpoints.formats.safetensors import open_shards
from sightline.errors import CheckpointError


@pytest.fixture
def shards(tmp_path: Path) -> Path:
    """A folder with two shards and an index that agrees with them."""
    folder = tmp_path / "model"
    folder.mkdir()
    save_file({"a": torch.ones(2), "b": torch.ones(3)}, folder / "model-00001-of-00002.safetensors")
    save_file({"c": torch.ones(4)}, folder / "model-00002-of-00002.safetensors")
    homes = {
        "a": "model-00001-of-00002.safetensors",
        "b": "model-00001-of-00002.safetensors",
        "c": "model-00002-of-00002.safetensors",
    }
    (folder / "index.json").write_text(
        json.dumps({"metadata": {"total_size": 36}, "weight_map": homes})
    )
    return folder


def change_index(folder: Path, name: str, home: Any) -> None:
    index = json.loads((folder / "index.json").read_text())
    index["weight_map"][name] = home
    (folder / "index.json").write_text(json.dumps(index))


def shard_refusal(folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_shards(folder, folder / "index.json")
    assert "\n" not in str(caught.value)
    assert "Fix: " in str(caught.value)
    return str(caught.value)


def test_shards_open_in_the_indexs_order(shards: Path) -> None:
    result = open_shards(shards, shards / "index.json")
    assert list(result) == ["a", "b", "c"]
    assert result["c"].read().sum() == 4


HOMES = [
    "../other.safetensors",
    "../../../etc/passwd",
    "/etc/passwd",
    "",
    ".",
    "..",
    "sub/x.safetensors",
    "..\\x",
    "nul\0",
    "new\nline",
    3,
    None,
    [],
]


@pytest.mark.parametrize("home", HOMES, ids=map(repr, HOMES))
def test_a_shard_has_a_plain_name(shards: Path, home: Any) -> None:
    save_file({"c": torch.ones(4)}, shards.parent / "other.safetensors")
    change_index(shards, "c", home)
    line = shard_refusal(shards)
    assert "weight_map" in line or "tensor c" in line


def test_a_shard_is_a_regular_file_in_the_folder(shards: Path) -> None:
    second = shards / "model-00002-of-00002.safetensors"
    outside = second.rename(shards.parent / "outside.safetensors")
    second.symlink_to(outside)
    assert "is a link out of the folder (the shard of tensor c)" in shard_refusal(shards)
    second.unlink()
    os.mkfifo(second)
    assert "not a regular file" in shard_refusal(shards)
    second.unlink()
    second.symlink_to("/dev/zero")
    assert "link out of the folder" in shard_refusal(shards)
    second.unlink()
    second.symlink_to(second.name)
    assert "tensor c" in shard_refusal(shards)


def test_links_of_the_hubs_cache_are_followed(shards: Path, tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "hub" / "snapshots" / "0123abcd", tmp_path / "hub" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for number, path in enumerate(sorted(shards.iterdir())):
        path.rename(blobs / str(number))
        (snapshot / path.name).symlink_to(Path("../../blobs") / str(number))
    assert open_shards(snapshot, snapshot / "index.json")["a"].read().sum() == 2
    (tmp_path / "hub" / "secret").write_bytes((blobs / "1").read_bytes())
    link = next(path for path in snapshot.iterdir() if path.name.startswith("model-00001"))
    link.unlink()
    link.symlink_to("../../secret")
    assert "link out of the folder" in shard_refusal(snapshot)


def test_index_and_shards_disagree(shards: Path) -> None:
    first, second = (
        shards / "model-00001-of-00002.safetensors",
        shards / "model-00002-of-00002.safetensors",
    )
    save_file({"c": torch.ones(4), "a": torch.ones(2)}, second)
    assert (
        "puts tensor a into model-00001-of-00002.safetensors, but model-00002-of-00002.safetensors holds it as well"
        in shard_refusal(shards)
    )
    save_file({"c": torch.ones(4), "d": torch.ones(2)}, second)
    assert "does not name tensor d" in shard_refusal(shards)
    save_file({"e": torch.ones(4)}, shards / "model-00003-of-00002.safetensors")
    save_file({"c": torch.ones(4)}, second)
    assert "does not name model-00003-of-00002.safetensors (first tensor: e)" in shard_refusal(
        shards
    )
    (shards / "model-00003-of-00002.safetensors").unlink()
    save_file({"c": torch.ones(5)}, second)
    assert "has total_size 36, the shards hold 40 bytes" in shard_refusal(shards)
    second.unlink()
    assert "is missing" in shard_refusal(shards)
    save_file({"c": torch.ones(4)}, second)
    save_file({"a": torch.ones(2)}, first)
    assert "puts tensor b into model-00001-of-00002.safetensors, which lacks it" in shard_refusal(
        shards
    )


INDICES = [
    "",
    "[]",
    "{}",
    '{"weight_map": {}}',
    '{"weight_map": []}',
    '{"weight_map": {"a": "x", "a": "y"}}',
    '{"weight_map": NaN}',
    "{",
    "\0" * 50,
]


@pytest.mark.parametrize("text", INDICES)
def test_an_index_that_is_none(shards: Path, text: str) -> None:
    (shards / "index.json").write_text(text)
    assert "index.json" in shard_refusal(shards)
