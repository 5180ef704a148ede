"""Tensors that wrappers renamed, and tensors that a model does not need."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import sightline as sl
from sightline.cli.main import COMMANDS, main
from sightline.errors import CheckpointError, InputError
from tests.families.oracle import close, reference, tokens
from tests.support.decoder_configs import GPT2, LLAMA
from tests.support.encoder_configs import BERT

ENDS = {"bos_token_id": 1, "eos_token_id": 2}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama tied": ("LlamaForCausalLM", LLAMA | {"tie_word_embeddings": True}),
    "llama bare": ("LlamaModel", LLAMA),
    "gpt2": ("GPT2LMHeadModel", GPT2 | ENDS),
    "gpt2 bare": ("GPT2Model", GPT2 | ENDS),
    "bert": ("BertForMaskedLM", BERT),
}
PREFIXES = (
    "module.",
    "_orig_mod.",
    "model.",
    "module._orig_mod.",
    "_orig_mod.module.",
    "module.model.",
    "model._orig_mod.module.",
)


def write(
    folder: Path, model: Any, rename: Callable[[str], str] = str, **extra: torch.Tensor
) -> Path:
    """The model as transformers saves it, then with other names and more tensors."""
    model.save_pretrained(folder)
    file = folder / "model.safetensors"
    renamed = {rename(name): tensor for name, tensor in load_file(file).items()}
    save_file(renamed | {name.replace("__", "."): tensor for name, tensor in extra.items()}, file)
    return folder


def check_equal(model: Any, loaded: sl.Model) -> None:
    ids = tokens(40)
    with torch.no_grad():
        theirs = model(ids)
        close(
            "logits",
            theirs.logits if hasattr(theirs, "logits") else theirs.last_hidden_state,
            loaded.transformer(ids),
        )


@pytest.mark.parametrize("prefix", PREFIXES)
@pytest.mark.parametrize("name", MODELS)
def test_a_wrappers_prefix_before_every_name_is_seen_through(
    name: str, prefix: str, tmp_path: Path
) -> None:
    model = reference(*MODELS[name])
    loaded = sl.load(write(tmp_path, model, lambda name: prefix + name))
    check_equal(model, loaded)
    output = [note for note in loaded.notes if "prefix of a wrapper" in note]
    assert output or (name, prefix) == ("llama bare", "model."), (
        "which is how LlamaForCausalLM spells it"
    )


@pytest.mark.parametrize("name", MODELS)
def test_names_without_a_wrapper_stay_as_they_are(name: str, tmp_path: Path) -> None:
    model = reference(*MODELS[name])
    loaded = sl.load(write(tmp_path, model))
    check_equal(model, loaded)
    assert loaded.notes == []


def test_the_integers_of_a_buffer_are_no_reason_to_speak_of_a_cast(tmp_path: Path) -> None:
    model = reference("BertForMaskedLM", BERT)
    folder = write(tmp_path, model, bert__embeddings__position_ids=torch.arange(48)[None])
    assert sl.load(folder).notes == []
    assert sl.load(folder, dtype="float16").notes == ["stored as float32, held as float16"]


def test_a_compiled_part_of_a_model_is_seen_through(tmp_path: Path) -> None:
    model = reference("LlamaForCausalLM", LLAMA)
    loaded = sl.load(
        write(
            tmp_path, model, lambda name: name.replace("model.layers.", "model.layers._orig_mod.")
        )
    )
    check_equal(model, loaded)


def test_one_tensor_under_two_names_is_refused(tmp_path: Path) -> None:
    extra = {"_orig_mod__model__norm__weight": torch.ones(24)}
    with pytest.raises(CheckpointError, match=r"model.norm.weight appears twice"):
        sl.load(write(tmp_path, reference("LlamaForCausalLM", LLAMA), **extra))


@pytest.fixture
def with_value_head(tmp_path: Path) -> tuple[Any, Path]:
    model = reference("LlamaForCausalLM", LLAMA)
    heads = {
        "v_head__summary__weight": torch.ones(1, 24),
        "v_head__summary__bias": torch.ones(1),
        "model__layers__0__probe": torch.ones(2),
    }
    return model, write(tmp_path / "trained", model, **heads)


def test_extra_tensors_are_refused_with_the_globs_that_leave_them_out(
    with_value_head: tuple[Any, Path],
) -> None:
    _, folder = with_value_head
    with pytest.raises(CheckpointError) as refusal:
        sl.load(folder)
    assert (
        "3 tensors unexpected: model.layers.0.probe, v_head.summary.bias, v_head.summary.weight"
        in str(refusal.value)
    )
    assert (
        "Fix: leave them out with --ignore-tensors model.layers.0.probe --ignore-tensors 'v_head.*'"
        in str(refusal.value)
    )


def test_ignored_tensors_are_left_out_and_named_in_a_note(
    with_value_head: tuple[Any, Path], tmp_path: Path
) -> None:
    model, folder = with_value_head
    loaded = sl.load(folder, ignore_tensors=["v_head.*", "*.probe"])
    check_equal(model, loaded)
    (note,) = loaded.notes
    assert all(
        name in note
        for name in ("v_head.summary.weight", "v_head.summary.bias", "model.layers.0.probe")
    )
    assert sl.load(loaded.save(tmp_path / "clean")).notes == []


@pytest.mark.parametrize("glob", ["v_head.*", "module.v_head.*"])
def test_a_glob_is_held_against_the_wrapped_and_the_plain_name(glob: str, tmp_path: Path) -> None:
    model = reference("LlamaForCausalLM", LLAMA)
    folder = write(
        tmp_path, model, lambda name: f"module.{name}", module__v_head__weight=torch.ones(1)
    )
    check_equal(model, sl.load(folder, ignore_tensors=[glob]))


def test_a_glob_never_loses_a_tensor_that_the_model_needs(tmp_path: Path) -> None:
    folder = write(tmp_path, reference("LlamaForCausalLM", LLAMA))
    with pytest.raises(
        CheckpointError,
        match=r"matches model\.layers\.0\.mlp\.up_proj\.weight, which the model needs\. Fix: give a narrower",
    ):
        sl.load(folder, ignore_tensors=["*up_proj*"])


def test_a_glob_never_turns_a_stored_bias_into_zeros(tmp_path: Path) -> None:
    model = reference("MarianMTModel", {"vocab_size": 40, "d_model": 24, "encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32, "pad_token_id": 39,
        "decoder_start_token_id": 39})  # fmt: skip
    with pytest.raises(CheckpointError, match="matches final_logits_bias, which the model needs"):
        sl.load(write(tmp_path, model), ignore_tensors=["final_*"])


def test_a_glob_that_matches_nothing_is_noted(tmp_path: Path) -> None:
    loaded = sl.load(
        write(tmp_path, reference("LlamaForCausalLM", LLAMA)), ignore_tensors=["value_head.*"]
    )
    assert loaded.notes == ["ignore_tensors matches no tensor: value_head.*"]
    with pytest.raises(InputError, match=r"Fix: ignore_tensors=\['v_head"):
        sl.load(tmp_path, ignore_tensors="v_head.*")


def test_every_command_that_loads_a_model_takes_the_option(
    capsys: pytest.CaptureFixture[str],
) -> None:
    without = {
        "models",
        "info",
        "explain",
        "lab",
        "train",
        "compare",
        "data",
        "tokenizer",
        "doctor",
        "bench",
    }
    for command in set(COMMANDS) - without:
        assert main([command, "--help"]) == 0
        assert "--ignore-tensors" in capsys.readouterr().out, command


def test_the_command_line_leaves_tensors_out(
    with_value_head: tuple[Any, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, folder = with_value_head
    line = [
        "convert",
        str(folder),
        str(tmp_path / "out"),
        "--ignore-tensors",
        "v_head.*",
        "--ignore-tensors",
        "*.probe",
    ]
    assert main(line) == 0
    assert "v_head.summary.weight" in capsys.readouterr().err
    sl.load(tmp_path / "out")
