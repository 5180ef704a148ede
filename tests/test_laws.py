"""The reference of `sightline check`, and the class that a saved folder names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline import laws
from tests.families.oracle import reference, transformers
from tests.support.decoder_configs import LLAMA
from tests.support.encoder_decoder_configs import T5

CASES: dict[str, tuple[str, dict[str, Any], Any]] = {
    "no architectures": ("LlamaForCausalLM", LLAMA, ...),
    "null": ("LlamaForCausalLM", LLAMA, None),
    "an empty list": ("LlamaForCausalLM", LLAMA, []),
    "a class that transformers 5 dropped": (
        "T5ForConditionalGeneration",
        T5,
        ["T5WithLMHeadModel"],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_folder_without_a_class_of_today_is_compared_and_saved_with_one(
    name: str, tmp_path: Path
) -> None:
    class_name, options, named = CASES[name]
    reference(class_name, options).save_pretrained(tmp_path / "theirs")
    path = tmp_path / "theirs" / "config.json"
    keys = {
        key: value for key, value in json.loads(path.read_text()).items() if key != "architectures"
    }
    path.write_text(json.dumps(keys if named is ... else keys | {"architectures": named}))
    model = sl.load(tmp_path / "theirs")
    folder = model.save(tmp_path / "ours")
    assert json.loads((folder / "config.json").read_text())["architectures"] == [class_name]
    with torch.no_grad():
        measured = laws.Case(model, 0).reference(folder)
    assert measured.holds
    assert measured.difference is not None
    auto = (
        transformers.AutoModelForSeq2SeqLM
        if class_name.startswith("T5")
        else transformers.AutoModelForCausalLM
    )
    assert type(auto.from_pretrained(folder)).__name__ == class_name


def test_a_class_that_this_transformers_does_not_have_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference("LlamaForCausalLM", LLAMA).save_pretrained(tmp_path / "theirs")
    model = sl.load(tmp_path / "theirs")
    monkeypatch.setattr(laws, "class_name_for", lambda *_: "LlamaForSomethingElse")
    with torch.no_grad():
        measured = laws.Case(model, 0).reference(tmp_path / "theirs")
    assert measured.difference is None
    assert "has no LlamaForSomethingElse" in measured.note
