"""`sightline info` as a user meets it, and `--strict`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from sightline.cli.main import main
from tests.families.oracle import reference
from tests.support.decoder_configs import LLAMA


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "llama"
    reference("LlamaForCausalLM", LLAMA).save_pretrained(place)
    return place


def add_keys(folder: Path, **keys: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | keys))


def test_a_pickle_folder_is_described_and_the_note_says_how_to_convert_it(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    assert main(["info", str(folder), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["family"], facts["layers"], facts["format"], facts["dtype"]) == (
        "llama",
        2,
        "pickle",
        None,
    )
    assert f"sightline convert {folder} NEW --from-pickle" in facts["notes"][0]
    assert list(facts)[:2] == ["name", "family"]


def test_the_family_of_a_pickle_folder_is_named_before_its_pickle(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"a": torch.ones(1)}, folder / "pytorch_model.bin")
    add_keys(folder, model_type="mamba")
    assert main(["info", str(folder)]) == 2
    assert "model_type 'mamba' is an architecture that is not supported" in capsys.readouterr().err


def test_unknown_keys_are_noted_and_strict_refuses_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_keys(folder, condition_on_chain=True)
    assert main(["info", str(folder)]) == 0
    assert "ignored keys that are not known: condition_on_chain" in capsys.readouterr().out
    assert main(["info", str(folder), "--strict"]) == 2
    assert "keys that are not known: condition_on_chain" in capsys.readouterr().err


def test_strict_reaches_the_model_that_a_command_loads(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_keys(folder, condition_on_chain=True)
    assert main(["convert", str(folder), str(tmp_path / "refused"), "--strict"]) == 2
    assert "keys that are not known: condition_on_chain" in capsys.readouterr().err
    assert main(["convert", str(folder), str(tmp_path / "written")]) == 0
    assert (
        "note: config.json: ignored keys that are not known: condition_on_chain"
        in capsys.readouterr().err
    )
