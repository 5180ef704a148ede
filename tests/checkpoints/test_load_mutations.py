"""The whole way from a damaged folder to a model: it loads, or one line says why not. Nothing else
may happen."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from tests.families.oracle import reference
from tests.support.decoder_configs import GPT2, LLAMA

STRANGE: list[Any] = [
    None, True, -1, 0, 1, 3, 2**31, 10**9, 10**18, 2**70, 1e308, -0.0, 1e-30, "", "silu", "__class__", "../../x", [], [None], {}, {"rope_type": "yarn"},
    {"rope_type": "llama3", "factor": -1}, "\u202e", "a" * 5000, [[[[]]]], ["LlamaModel"], ["GPT2Model"], "float16",
]  # fmt: skip
SMALL = {
    "GPT2LMHeadModel": GPT2 | {"bos_token_id": 1, "eos_token_id": 2},
    "LlamaForCausalLM": LLAMA,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    place = tmp_path_factory.mktemp("models")
    for name, options in SMALL.items():
        reference(name, options).save_pretrained(place / name)
    return [place / name for name in SMALL]


def damage(folder: Path, dice: random.Random) -> None:
    """One to three strange values, removed or renamed keys in config.json, or bytes flipped in the
    weights."""
    path = folder / "config.json"
    keys = json.loads(path.read_text())
    for _ in range(dice.randint(1, 3)):
        name = dice.choice(sorted(keys))
        how = dice.random()
        if how < 0.7:
            keys[name] = dice.choice(STRANGE)
        elif how < 0.85:
            del keys[name]
        else:
            keys[name[:-1] + dice.choice("aeiou_")] = keys.pop(name)
    path.write_text(json.dumps(keys))
    if dice.random() < 0.3:
        weights = bytearray((folder / "model.safetensors").read_bytes())
        for _ in range(dice.randint(1, 8)):
            weights[dice.randrange(min(len(weights), 4000))] = dice.randrange(256)
        (folder / "model.safetensors").write_bytes(weights)


def survive(folders: list[Path], place: Path, seeds: range) -> int:
    """How many damaged folders were refused."""
    refused = 0
    for seed in seeds:
        dice = random.Random(seed)
        folder = place / "damaged"
        shutil.copytree(dice.choice(folders), folder)
        damage(folder, dice)
        output = ""
        try:
            model = sl.load(folder)
            assert model.transformer(torch.zeros(1, 2, dtype=torch.long)).shape[1:] in (
                (2, 40),
                (2, 24),
            )
        except sl.SightlineError as error:
            output, refused = str(error), refused + 1
        finally:
            shutil.rmtree(folder)
        assert "\n" not in output, f"seed {seed}"
        assert len(output) < 2000, f"seed {seed}"
    return refused


def test_damaged_folders(folders: list[Path], tmp_path: Path) -> None:
    assert survive(folders, tmp_path, range(300)) > 100


@pytest.mark.long
def test_many_damaged_folders(folders: list[Path], tmp_path: Path) -> None:
    assert survive(folders, tmp_path, range(1000, 3000)) > 700
