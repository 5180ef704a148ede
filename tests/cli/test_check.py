"""`sightline check --verify`, and what `sightline info` says of checksums."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import sightline as sl
from sightline.cli.main import main
from tests.families.oracle import reference
from tests.support.decoder_configs import LLAMA


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of transformers, without checksums."""
    folder = tmp_path_factory.mktemp("theirs")
    reference("LlamaForCausalLM", LLAMA).save_pretrained(folder)
    return folder


def test_check_verifies_the_checksums_when_asked(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = sl.load(theirs).save(tmp_path / "ours")
    assert main(["check", str(folder), "--verify"]) == 0
    data = bytearray((folder / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (folder / "model.safetensors").write_bytes(data)
    capsys.readouterr()
    assert main(["check", str(folder), "--verify"]) == 2
    assert (
        "model.safetensors does not match its checksum in sightline.json" in capsys.readouterr().err
    )


def test_checksums_that_are_not_there_cannot_be_verified(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(theirs), "--verify"]) == 2
    assert "has no sightline.json to verify against" in capsys.readouterr().err
    (tmp_path / "a.gguf").write_bytes(b"GGUF" + bytes(60))
    with pytest.raises(
        sl.CheckpointError, match=r"is one file, without checksums; .*Fix: leave verify out"
    ):
        sl.load(tmp_path / "a.gguf", verify=True)


def test_info_says_whether_there_are_checksums(
    theirs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(theirs), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["checksums"] is None
    folder = sl.load(theirs).save(tmp_path / "ours")
    assert main(["info", str(folder)]) == 0
    assert "sha256 of 3 files in sightline.json" in capsys.readouterr().out
