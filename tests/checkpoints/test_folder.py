"""Untrusted model folders: what is read, in which order, and what is refused."""

from __future__ import annotations

import errno
import json
import os
import struct
import zipfile
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import save, save_file

from sightline.checkpoints.formats import folder
from sightline.checkpoints.formats import writing as write
from sightline.checkpoints.sources.reference import resolve
from sightline.errors import CheckpointError

WEIGHTS = {"a": torch.arange(6.0).reshape(2, 3)}
EVIL = b"cposix\nsystem\n(S'touch canary'\ntR."


def refusal(path: Path, **options: Any) -> str:
    with pytest.raises(CheckpointError) as caught:
        folder.read_folder(path, **options)
    line = str(caught.value)
    assert "\n" not in line
    assert line.isprintable()
    assert "Fix: " in line
    return line


@pytest.fixture
def model(tmp_path: Path) -> Path:
    where = tmp_path / "model"
    where.mkdir()
    (where / "config.json").write_text('{"model_type": "gpt2", "n_layer": 2}')
    save_file(WEIGHTS, where / "model.safetensors")
    return where


def test_one_file(model: Path) -> None:
    source = folder.read_folder(str(model))
    assert (source.where, source.format, source.tokenizer, source.notes) == (
        model,
        "safetensors",
        model,
        [],
    )
    assert source.keys == {"model_type": "gpt2", "n_layer": 2}
    assert torch.equal(source.tensors["a"].read(), WEIGHTS["a"])


def test_the_order_of_formats(model: Path) -> None:
    (model / "pytorch_model.bin").write_bytes(EVIL)
    (model / "other.safetensors").write_bytes(save({"b": torch.ones(1)}))
    assert list(folder.read_folder(model).tensors) == ["a"]
    (model / "model.safetensors").unlink()
    assert list(folder.read_folder(model).tensors) == ["b"]
    (model / write.INDEX).write_text(json.dumps({"weight_map": {"b": "other.safetensors"}}))
    (model / "third.safetensors").write_bytes(save({"c": torch.ones(1)}))
    assert list(folder.read_folder(model).tensors) == ["b"]
    (model / write.INDEX).unlink()
    assert "has 2 safetensors files" in refusal(model)


def test_the_contents_decide_not_the_name(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")
    assert list(folder.read_folder(model).tensors) == ["a"]
    (model / "pytorch_model.bin").write_bytes(b"GGUF\3\0\0\0" + bytes(99))
    assert "is a GGUF file: unsupported format" in refusal(model, allow_pickle_weights=True)


@pytest.mark.parametrize(
    "name", ["model.safetensors", "pytorch_model.bin", "model.pt", "model.ckpt"]
)
def test_a_pickle_under_any_name_does_not_run(
    model: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(EVIL)
    assert "a pickle" in refusal(model)
    assert not (model / "canary").exists()


def test_pickles_need_permission_and_the_error_says_how(model: Path) -> None:
    (model / "model.safetensors").unlink()
    torch.save(WEIGHTS, model / "pytorch_model.bin")
    line = refusal(model)
    assert "can run code" in line
    assert f"sightline convert {model} NEW --from-pickle" in line


UNSUPPORTED = [
    "m.pt2",
    "m.nemo",
    "m.keras",
    "m.joblib",
    "m.h5",
    "tf_model.h5",
    "flax_model.msgpack",
    "m.onnx",
    "m.pkl",
    "m.ckpt",
    "m.gguf",
    "m.zip",
    "m.tar",
]


@pytest.mark.parametrize("name", UNSUPPORTED, ids=UNSUPPORTED)
@pytest.mark.parametrize("with_config", [True, False])
def test_unsupported_formats_are_named(model: Path, name: str, with_config: bool) -> None:
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(b"\x0a" * 100)
    if not with_config:
        (model / "config.json").unlink()
    line = refusal(model)
    assert "unsupported format" in line
    assert name in line


def test_torchscript_is_named_by_its_contents(model: Path) -> None:
    (model / "model.safetensors").unlink()
    for name in ("pytorch_model.bin", "model.pt"):
        with zipfile.ZipFile(model / name, "w") as archive:
            archive.writestr("model/data.pkl", b"\x80\x02}.")
            archive.writestr("model/code/__torch__.py", b"pass")
        assert "a TorchScript archive" in refusal(model, allow_pickle_weights=True)
        (model / name).unlink()


@pytest.mark.parametrize("name", [".metadata", "__0_0.distcp"], ids=[".metadata pickle", "distcp"])
def test_a_distributed_checkpoint_is_not_opened(model: Path, name: str) -> None:
    (model / "model.safetensors").unlink()
    (model / name).write_bytes(EVIL)
    assert "unsupported format" in refusal(model)


def test_archives_are_not_unpacked(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "model.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("../evil", b"0" * 10_000_000)
    (tmp_path / "model.tar").write_bytes(bytes(257) + b"ustar\x0000" + bytes(1000))
    (tmp_path / "model.tgz").write_bytes(b"\x1f\x8b" + bytes(100))
    for name in ("model.zip", "model.tar", "model.tgz"):
        assert "unpack it yourself" in refusal(tmp_path / name)
    assert not (tmp_path.parent / "evil").exists()


def test_a_single_bit_flip_is_detected(tmp_path: Path) -> None:
    write.save_folder(
        tmp_path / "m", {"a": torch.ones(100)}, keys={"n": 1}, files={"tokenizer.json": b"{}"}
    )
    folder.read_folder(tmp_path / "m", verify=True)
    for name, offset in (
        ("model.safetensors", -1),
        ("model.safetensors", -200),
        ("config.json", 5),
        ("tokenizer.json", 0),
    ):
        path = tmp_path / "m" / name
        data = path.read_bytes()
        damaged = bytearray(data)
        damaged[offset] ^= 4
        path.write_bytes(damaged)
        assert name in refusal(tmp_path / "m", verify=True)
        path.write_bytes(data)
    folder.read_folder(tmp_path / "m", verify=True)


MANIFESTS = {
    "newer version": ({"version": 2, "sha256": {}}, "needs a newer Sightline"),
    "no digests": ({"version": 1}, "has no sha256"),
    "file without a digest": ({"sha256": {}}, "has no checksum for config.json"),
    "path out of the folder": ({"sha256": {"../x": "0"}}, "plain name"),
    "digest of another type": (
        {"sha256": {"config.json": [1], "model.safetensors": 3}},
        "does not match",
    ),
    "a file that is not there": ({"sha256": {"a": "0"}}, "missing"),
}


@pytest.mark.parametrize(("manifest", "words"), MANIFESTS.values(), ids=MANIFESTS)
def test_manifests(model: Path, manifest: dict[str, Any], words: str) -> None:
    assert "no sightline.json to verify against" in refusal(model, verify=True)
    (model / "sightline.json").write_text(json.dumps(manifest))
    assert words in refusal(model, verify=True)
    if "sha256" not in manifest or "version" in manifest:
        assert words in refusal(model)
    else:
        folder.read_folder(model)


def test_code_in_the_folder_is_noted_and_left_alone(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(model)
    (model / "config.json").write_text(
        '{"auto_map": {"AutoModel": "modeling_x.Model"}, "trust_remote_code": true}'
    )
    for name in ("modeling_x.py", "__init__.py", "sitecustomize.py", "torch.py"):
        (model / name).write_text("open('canary', 'w')")
    notes = folder.read_folder(model).notes
    assert any("auto_map is ignored" in note for note in notes)
    assert any("modeling_x.py" in note for note in notes)
    assert not (model / "canary").exists()


CONFIGS = {
    "empty": (b"", "not JSON"),
    "a list": (b"[]", "expected a JSON object"),
    "duplicate keys": (b'{"n_layer": 1, "n_layer": 2}', "key n_layer twice"),
    "duplicate keys inside": (b'{"a": {"b": 1, "b": 2}}', "key b twice"),
    "NaN": (b'{"eps": NaN}', "NaN"),
    "infinity": (b'{"eps": -Infinity}', "Infinity"),
    "1e999": (b'{"eps": 1e999}', "not finite"),
    "65 levels": (b'{"a":' + b"[" * 65 + b"]" * 65 + b"}", "nested deeper than 64"),
    "100,000 levels": (b'{"a":' * 100_000, "nested deeper than 64"),
    "long number": (b'{"a":' + b"1" * 50_000 + b"}", "50,000 digits"),
    "over 10 MB": (b'{"a":"' + b"x" * 10_000_000 + b'"}', "larger than 10,000,000 bytes"),
    "UTF-16": ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
    "cut short": (b'{"a": 1, "b', "not JSON at character"),
    "escape sequences in a key": (b'{"a\\u001b[31m\\n":1,"a\\u001b[31m\\n":1}', "twice"),
}


@pytest.mark.parametrize(("data", "words"), CONFIGS.values(), ids=CONFIGS)
def test_config_json(model: Path, data: bytes, words: str) -> None:
    (model / "config.json").write_bytes(data)
    line = refusal(model)
    assert "config.json" in line
    assert words in line


def test_what_is_not_a_model(model: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "is empty" in refusal(tmp_path / "empty")
    assert "cannot be opened" in refusal(tmp_path / "missing")
    assert "cannot be opened" in refusal(Path("nul\0l"))
    assert "cannot be opened" in refusal(Path("new\nline"))
    assert "is safetensors, not a folder" in refusal(model / "model.safetensors")
    (model / "config.json").unlink()
    assert "has weights but no config.json" in refusal(model)
    (model / "model.safetensors").unlink()
    (model / "notes.txt").write_text("x")
    assert "is not a model" in refusal(model)
    (model / "config.json").write_text("{}")
    assert "it has no weights" in refusal(model)


@pytest.mark.long
def test_what_transformers_saves_is_read(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100)
    )
    for name, most in (("one", "1GB"), ("shards", "40KB")):
        theirs.save_pretrained(tmp_path / name, max_shard_size=most)
        source = folder.read_folder(tmp_path / name)
        assert source.keys["model_type"] == "gpt2"
        state = theirs.state_dict()
        assert set(source.tensors) == set(state) - {"lm_head.weight"}
        assert all(torch.equal(entry.read(), state[key]) for key, entry in source.tensors.items())
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1


@pytest.mark.parametrize("name", ["config.json", "model.safetensors"])
def test_links_and_pipes_in_the_folder(model: Path, name: str) -> None:
    outside = (model / name).rename(model.parent / "outside")
    (model / name).symlink_to(outside)
    assert "link out of the folder" in refusal(model)
    (model / name).unlink()
    os.mkfifo(model / name)
    assert "not a regular file" in refusal(model)


@pytest.mark.parametrize(
    "code",
    [errno.EACCES, errno.ESTALE, errno.EIO],
    ids=["unreadable", "stale handle", "disk error"],
)
@pytest.mark.parametrize("call", ["listdir", "open", "pread"])
def test_disks_that_fail(
    model: Path, monkeypatch: pytest.MonkeyPatch, call: str, code: int
) -> None:
    def fail(*_: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as patch:
        patch.setattr(os, call, fail)
        line = refusal(model)
    assert os.strerror(code) in line


def ctranslate2() -> bytes:
    """The beginning of a model.bin of CTranslate2: version, specification with its length,
    revision, number of tensors."""
    name = b"TransformerSpec\0"
    return struct.pack("<IH", 6, len(name)) + name + struct.pack("<II", 7, 100) + bytes(200)


def test_a_ctranslate2_folder_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"add_source_bos": false, "bos_token": "<s>"}')
    (tmp_path / "shared_vocabulary.json").write_text("[]")
    (tmp_path / "model.bin").write_bytes(ctranslate2())
    assert (
        "is a CTranslate2 model (model.bin); expected safetensors. Fix: use the model that it was converted from"
        in refusal(tmp_path)
    )
    with pytest.raises(CheckpointError, match=r"model\.bin is a CTranslate2 model"):
        resolve(tmp_path / "model.bin")


def test_what_a_pickle_folder_says_of_itself_can_be_read_without_the_pickle(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(EVIL)
    source = folder.read_folder(model, skip_pickles=True)
    assert (source.format, source.tensors, source.keys["model_type"]) == ("pickle", {}, "gpt2")
    assert source.notes == [
        f"{model / 'pytorch_model.bin'} is a pickle, which is not read here: sightline convert {model} NEW --from-pickle"
    ]
    save_file(WEIGHTS, model / "model.safetensors")
    assert folder.read_folder(model, skip_pickles=True).format == "safetensors"
