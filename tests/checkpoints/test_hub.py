"""Models of the hub: from its cache without a network, and what its library raises as one line."""

from __future__ import annotations

import errno
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from sightline.checkpoints.sources import hub
from sightline.checkpoints.sources.reference import Resolved, resolve
from sightline.terminal.progress import silent
from tests.checkpoints.tiny_hub import COMMIT, FILES, cache, fails, prepare


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return prepare(tmp_path, monkeypatch)


def test_a_cached_model_needs_no_network(place: Path) -> None:
    folder = cache(place)
    assert resolve("owner/name") == Resolved("folder", folder, "owner/name")
    assert resolve(f"owner/name@{COMMIT}").path == folder
    fails(
        "owner/other",
        "owner/other is not in the hub cache and HF_HUB_OFFLINE disables the network",
        "copy the model's folder",
    )


def test_a_cached_revision(place: Path) -> None:
    folder = cache(place, ref="refs/pr/1", commit="f" * 40)
    assert resolve("owner/name@refs/pr/1") == Resolved("folder", folder, "owner/name@refs/pr/1")
    fails("owner/name", "is not in the hub cache")


def test_a_cached_model_with_a_shard_missing_is_not_used(place: Path) -> None:
    index = json.dumps(
        {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    ).encode()
    files = {
        "config.json": b"{}",
        "model.safetensors.index.json": index,
        "model-1.safetensors": b"x",
        "tokenizer.json": b"{}",
    }
    folder = cache(place, files=files)
    fails("owner/name", "is not in the hub cache")
    (folder / "model-2.safetensors").write_bytes(b"x")
    assert resolve("owner/name").path == folder


@pytest.mark.parametrize("index", [b"", b"[]", b'{"weight_map": 3}', b"[" * 100_000])
def test_an_index_of_rubbish(place: Path, index: bytes) -> None:
    cache(place, files={**FILES, "model.safetensors.index.json": index})
    fails("owner/name", "is not in the hub cache")


def test_a_ref_that_leads_elsewhere_is_not_followed(place: Path) -> None:
    cache(place, commit="../../../mine")
    fails("owner/name", "is not in the hub cache")


def test_hf_home_is_honoured_by_a_real_process(place: Path) -> None:
    folder = cache(place)
    code = "from sightline.checkpoints.sources.reference import resolve; print(resolve('owner/name').path)"
    clean = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=clean | {"HF_HOME": str(place), "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == f"{folder}\n"


def pretend(monkeypatch: pytest.MonkeyPatch, answer: Callable[..., str]) -> None:
    """The library's download, without a network."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)


def test_a_download_asks_for_no_code_and_no_pickles(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub.utils import filter_repo_objects

    there = [
        "config.json",
        "model.safetensors",
        "a.py",
        "vocab.pkl",
        "pytorch_model.bin",
        "tokenizer.json",
        "merges.txt",
        "vocab.txt",
    ]
    there += [
        "1_Pooling/config.json",
        "onnx/model.safetensors",
        "consolidated.safetensors",
        "spiece.model",
        "chat_template.jinja",
        "training_args.bin",
    ]
    asked: list[str] = []

    def answer(
        repository: str,
        *,
        revision: str,
        allow_patterns: list[str],
        ignore_patterns: list[str],
        library_name: str,
    ) -> str:
        asked.extend(
            filter_repo_objects(
                there, allow_patterns=allow_patterns, ignore_patterns=ignore_patterns
            )
        )
        assert (repository, revision) == ("owner/name", "v1")
        return str(cache(place, ref="v1"))

    pretend(monkeypatch, answer)
    assert hub.snapshot("owner/name@v1", progress=silent).name == COMMIT
    refused = {
        "a.py",
        "vocab.pkl",
        "pytorch_model.bin",
        "onnx/model.safetensors",
        "consolidated.safetensors",
        "training_args.bin",
    }
    assert set(asked) == set(there) - refused


def test_pickles_when_they_are_asked_for(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = cache(place, files={"config.json": b"{}", "tokenizer.json": b"{}"})

    def answer(repository: str, *, allow_patterns: list[str], **_: object) -> str:
        if "pytorch_model*.bin" in allow_patterns:
            (folder / "pytorch_model.bin").write_bytes(b"x")
        return str(folder)

    pretend(monkeypatch, answer)
    fails(
        "owner/name",
        "has no config.json with safetensors weights",
        "sightline models get owner/name --pickles",
    )
    assert hub.snapshot("owner/name", pickles=True, progress=silent) == folder
    assert resolve("owner/name").path == folder


def response(code: int) -> object:
    """What huggingface_hub raises its errors with: 1.x talks through httpx, 2.x through httpx2."""
    httpx = importlib.import_module("httpx2" if importlib.util.find_spec("httpx2") else "httpx")
    return httpx.Response(code, request=httpx.Request("GET", "http://hub/x"))


RAISED = {
    "is gated. Fix: accept its terms": lambda: errors.GatedRepoError(
        "x\ny", response=response(403)
    ),
    "the hub has no model owner/name": lambda: errors.RepositoryNotFoundError(
        "x", response=response(404)
    ),
    "has no revision 'main'": lambda: errors.RevisionNotFoundError("x", response=response(404)),
    "the hub cannot be reached": lambda: errors.LocalEntryNotFoundError("x\ny"),
    "hub cannot be reached. Fix": lambda: ConnectionError("x"),
    "no space left for owner/name": lambda: OSError(errno.ENOSPC, "full"),
    "HfHubHTTPError: 500": lambda: errors.HfHubHTTPError("500\nserver", response=response(500)),
    "RuntimeError: strange": lambda: RuntimeError("strange\nthing " * 1000),
}


@pytest.mark.parametrize("seen", RAISED)
def test_what_the_library_raises_becomes_one_line(
    seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(*_: object, **__: object) -> str:
        raise RAISED[seen]()

    pretend(monkeypatch, answer)
    fails("owner/name", seen)


def test_weights_without_a_tokenizer_are_completed_if_the_hub_answers(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cache(place, files={"config.json": b"{}", "model.safetensors": b"x"})
    assert resolve("owner/name").path == folder  # no network: what there is

    def gone(*_: object, **__: object) -> str:
        raise ConnectionError

    pretend(monkeypatch, gone)
    assert resolve("owner/name", progress=silent).path == folder
    pretend(
        monkeypatch, lambda *_, **__: str((folder / "tokenizer.json").write_bytes(b"{}") and folder)
    )
    assert (resolve("owner/name", progress=silent).path / "tokenizer.json").exists()


def test_control_c_is_not_an_error_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: object, **__: object) -> str:
        raise KeyboardInterrupt

    pretend(monkeypatch, answer)
    with pytest.raises(KeyboardInterrupt):
        resolve("owner/name", progress=silent)


def test_one_line_in_a_pipe(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pretend(monkeypatch, lambda *_, **__: str(cache(place)))
    resolve("owner/name")
    assert capsys.readouterr().err == "downloading owner/name from the hub\n"
