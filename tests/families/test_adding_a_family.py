"""docs/adding-a-family.md, run block by block."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from sightline.checkpoints.load import load_weights
from sightline.checkpoints.source import Entry, Source
from sightline.checkpoints.tables import check_claims, pairings
from sightline.errors import CheckpointError
from sightline.families import FAMILIES, Family
from tests.families.oracle import reference

PAGE = Path(__file__).parents[2] / "docs" / "adding-a-family.md"


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Everything that the page's Python defines, with Pigeon listed for the length of one test."""
    assert "pigeon" not in FAMILIES
    names: dict[str, Any] = {}
    for block in re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        exec(compile(block, str(PAGE), "exec"), names)
    monkeypatch.setitem(FAMILIES, "pigeon", names["PIGEON"])
    return names


@pytest.fixture
def source(page: dict[str, Any]) -> Source:
    make: Callable[[Any], Source] = page["pigeon"]
    return make(reference("LlamaForCausalLM", page["LLAMA"] | {"vocab_size": 40}))


def test_the_page_proves_itself(page: dict[str, Any]) -> None:
    page["test_pigeon_is_the_reference"]()


def test_the_page_lists_it_right(page: dict[str, Any]) -> None:
    _, line = re.findall(r"^\+(.*)$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert eval("{" + line + "}", dict(page)) == {"pigeon": page["PIGEON"]}
    assert page["PIGEON"].name == "pigeon"


def test_it_fits_a_page() -> None:
    assert len(PAGE.read_text(encoding="utf-8").splitlines()) < 170


def test_each_tensor_is_claimed_once(source: Source) -> None:
    source.tensors["body.bird.0.attn.mask"] = Entry(
        "mask", (1,), torch.float32, lambda: torch.zeros(1)
    )
    load_weights(source)
    source.tensors["body.bird.0.beak.weight"] = source.tensors["body.preen.weight"]
    with pytest.raises(CheckpointError, match=r"1 tensor unexpected: body\.bird\.0\.beak\.weight"):
        load_weights(source)


def test_each_parameter_is_filled_once(source: Source) -> None:
    source.tensors["body.bird.1.preen_3.weight"] = source.tensors.pop("body.bird.1.preen_2.weight")
    with pytest.raises(
        CheckpointError,
        match=r"is body\.bird\.1\.preen_3\.weight a misspelling of body\.bird\.1\.preen_2\.weight\?",
    ):
        load_weights(source)


@pytest.mark.parametrize(
    ("change", "message"), [("hole", "never fills"), ("double", "names twice")]
)
def test_a_wrong_table_is_an_assertion_for_its_author(
    source: Source, page: dict[str, Any], change: str, message: str
) -> None:
    family: Family = page["PIGEON"]
    loaded = load_weights(source)
    shapes = {
        name: tuple(parameter.shape) for name, parameter in loaded.transformer.named_parameters()
    }
    table = pairings(family, loaded.transformer.config, loaded.head, shapes, prefixed=True)
    check_claims("pigeon", table, set(source.tensors), shapes, set())
    with pytest.raises(AssertionError, match=message):
        check_claims(
            "pigeon",
            table[1:] if change == "hole" else [*table, table[0]],
            set(source.tensors),
            shapes,
            set(),
        )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("wing_span", 24, r"keys that are not known: wing_span \(did you mean 'wingspan'\?\)"),
        ("migrates", True, r"migrates is True, which is not supported; expected False"),
        ("act", "sillu", r"act is 'sillu'\. Fix: did you mean 'silu'\?"),
        ("flock", 0, r"flock is 0; expected an integer, 1 or more"),
        ("wings", None, r"lacks 'wings'"),
    ],
)
def test_keys_are_read_or_refused(source: Source, key: str, value: Any, message: str) -> None:
    source.keys[key] = value
    with pytest.raises(CheckpointError, match=message):
        load_weights(source, strict=True)
