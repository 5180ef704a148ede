"""What a checkpoint is, where config.json is silent, stale, or of something else."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.checkpoints import identity, packed_cache
from sightline.checkpoints.identity import SUPPORTED, identify, read_config, source_family
from sightline.checkpoints.info import checkpoint_info
from sightline.checkpoints.load import load_weights
from sightline.checkpoints.source import Source
from sightline.config import ModelConfig
from sightline.families import FAMILIES, Family
from sightline.families.schema.keys import Keys
from sightline.kernels import library as kernels
from tests.families.oracle import close, ours, reference, source_of, tokens, transformers
from tests.support.decoder_configs import GPT2, LLAMA
from tests.support.encoder_configs import BERT, DISTIL, ROBERTA
from tests.support.encoder_decoder_configs import BART, T5
from tests.support.scored_folder import SIZE, saved


def refusal(source: Source) -> str:
    with pytest.raises(sl.CheckpointError) as error:
        load_weights(source)
    line = str(error.value)
    assert "\n" not in line
    assert "Fix: " in line
    return line


# ---------------------------------------------------------------------------- other architectures

KNOWN = sorted(
    set(transformers.models.auto.configuration_auto.CONFIG_MAPPING_NAMES) - set(FAMILIES)
)


def test_no_other_architecture_is_taken_for_one_of_ours() -> None:
    """mixtral is no misspelt mistral, nor gpt_neo a misspelt gpt_neox: of all that transformers
    knows."""
    source = source_of(reference("LlamaForCausalLM", LLAMA))
    assert len(KNOWN) > 100
    for kind in [*KNOWN, "qwen4", "gemma5", "phi3_v", "bort"]:
        source.keys["model_type"] = kind
        with pytest.raises(sl.CheckpointError) as error:
            source_family(source)
        assert (
            f"model_type {kind!r} is an architecture that is not supported; expected one of {SUPPORTED}"
            in str(error.value)
        )
        assert "did you mean" not in str(error.value)


@pytest.mark.parametrize("kind", [["llama"], {"a": 1}, 3, True])
def test_a_model_type_that_is_no_word(kind: Any) -> None:
    assert "is an architecture that is not supported" in refusal(
        source_of(reference("LlamaForCausalLM", LLAMA), model_type=kind)
    )


def test_a_class_of_another_kind_is_not_taken_for_a_misspelt_one() -> None:
    source = source_of(reference("BertForMaskedLM", BERT), architectures=["BertForMultipleChoice"])
    assert "expected one of BertForMaskedLM, " in refusal(source)
    assert "did you mean" not in refusal(source)


# -------------------------------------------------------------------------------------- quantised

QUANTISED: dict[str, tuple[dict[str, Any], str]] = {
    "gptq": ({"quantization_config": {"quant_method": "gptq", "bits": 4}}, "quantized (GPTQ)"),
    "awq": ({"quantization_config": {"quant_method": "awq"}}, "quantized (AWQ)"),
    "bitsandbytes": (
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}},
        "quantized (bitsandbytes)",
    ),
    "old bitsandbytes": (
        {"quantization_config": {"load_in_8bit": True}},
        "quantized (bitsandbytes)",
    ),
    "fp8": ({"quantization_config": {"quant_method": "fp8"}}, "quantized (FP8)"),
    "mxfp4": ({"quantization_config": {"quant_method": "mxfp4"}}, "quantized (MXFP4)"),
    "another": ({"quantization_config": {"quant_method": "hqq"}}, "quantized (hqq)"),
    "no method": ({"quantization_config": {"bits": 4}}, "quantized (quantization_config)"),
    "mlx": ({"quantization": {"group_size": 64, "bits": 4}}, "quantized (MLX, 4 bits)"),
    "hostile": ({"quantization_config": {"quant_method": ["a\x1b"] * 999}}, "quantized ("),
}


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_weights_are_named_in_one_line(name: str) -> None:
    extra, words = QUANTISED[name]
    line = refusal(source_of(reference("LlamaForCausalLM", LLAMA), **extra))
    assert words in line
    assert "use the original weights or a GGUF" in line
    assert line.isprintable()


def test_an_empty_quantisation_is_none() -> None:
    assert ours(reference("LlamaForCausalLM", LLAMA), quantization_config=None).source.notes == []


# -------------------------------------------------------------------------- silent configurations

HEADS = {
    "bare bert": ("BertModel", BERT, "none"),
    "bert words": ("BertForMaskedLM", BERT, "masked"),
    "bert texts": ("BertForSequenceClassification", BERT | {"num_labels": 3}, "sequence"),
    "bert tokens": ("BertForTokenClassification", BERT | {"num_labels": 3}, "tokens"),
    "bert answers": ("BertForQuestionAnswering", BERT, "answers"),
    "bare distilbert": ("DistilBertModel", DISTIL, "none"),
    "roberta texts": ("RobertaForSequenceClassification", ROBERTA | {"num_labels": 3}, "sequence"),
    "bare llama": ("LlamaModel", LLAMA, "none"),
    "llama": ("LlamaForCausalLM", LLAMA, "language"),
    "llama texts": (
        "LlamaForSequenceClassification",
        LLAMA | {"num_labels": 3, "pad_token_id": 0},
        "sequence",
    ),
    "gpt2": ("GPT2LMHeadModel", GPT2, "language"),
    "t5 encoder": ("T5EncoderModel", T5, "encoder"),
    "bart": ("BartForConditionalGeneration", BART, "language"),
}


@pytest.mark.parametrize("architectures", [None, []])
@pytest.mark.parametrize("name", HEADS)
def test_without_architectures_the_tensors_tell_the_head(name: str, architectures: Any) -> None:
    class_name, options, head = HEADS[name]
    theirs = reference(class_name, options)
    named, unnamed = ours(theirs), ours(theirs, architectures=architectures)
    assert unnamed.head == head
    assert unnamed.transformer.config == named.transformer.config


def test_a_silent_configuration_that_asks_for_a_billion_layers_is_refused_at_once() -> None:
    source = source_of(reference("BertModel", BERT), architectures=None, num_hidden_layers=10**9)
    assert "1,000,000,000 layers" in refusal(source)


@pytest.mark.parametrize(
    "class_name", ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM"]
)
def test_without_model_type_the_class_tells_the_family(class_name: str) -> None:
    theirs = reference(class_name, LLAMA)
    result = ours(theirs, model_type=None)
    assert result.family.name == theirs.config.model_type
    assert result.source.notes == [
        f"config.json has no model_type: read as {result.family.name!r}, of which {class_name} is a class"
    ]


UNTYPED = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "bert": ("BertForMaskedLM", BERT),
    "distilbert": ("DistilBertModel", DISTIL),
    "bart": ("BartModel", BART),
}


@pytest.mark.parametrize("kind", UNTYPED)
def test_without_model_type_and_class_the_tensors_tell_the_family(kind: str) -> None:
    theirs = reference(*UNTYPED[kind])
    result = ours(theirs, model_type=None, architectures=None)
    assert result.family.name == kind
    assert result.source.notes == [
        f"config.json has no model_type: read as {kind!r}, whose tensors have these names"
    ]


def test_for_tensors_of_several_families_the_fix_names_the_key() -> None:
    line = refusal(
        source_of(reference("LlamaForCausalLM", LLAMA), model_type=None, architectures=None)
    )
    assert 'write "model_type": "llama" or "model_type": "mistral"' in line
    assert "into config.json, whichever the model is" in line
    line = refusal(Source(source_of(reference("LlamaForCausalLM", LLAMA)).where, "state", {}, {}))
    assert "config.json has no model_type; expected one of gpt2, llama, " in line


# ----------------------------------------------------------------------------------------- labels


@pytest.mark.parametrize("count", [2, 3, 5])
def test_num_labels_counts_more_than_stale_names_as_in_transformers(count: int) -> None:
    stale = {
        "id2label": {"0": "good", "1": "bad", "2": "ugly"},
        "label2id": {"good": 0, "bad": 1, "ugly": 2},
    }
    theirs = reference("BertForSequenceClassification", BERT | {"num_labels": count})
    result = ours(theirs, **stale, num_labels=count)
    read = transformers.BertConfig.from_dict({**BERT, **stale, "num_labels": count})
    assert read.num_labels == count
    model = sl.Model(
        result.transformer, None, "bert", "sequence", result.source.keys, result.source
    )
    assert model.labels == [read.id2label[n] for n in range(count)]
    ids = tokens(40)
    with torch.no_grad():
        close("logits", theirs(ids).logits, result.transformer(ids))


def test_a_second_look_adds_no_second_note() -> None:
    source = source_of(reference("GPT2LMHeadModel", GPT2), model_type=None, own=1)
    identify(source)
    once = list(source.notes)
    identify(source)
    assert source.notes == once
    assert len(once) == 2


@pytest.mark.parametrize("engine", ["torch", "native", "auto"])
def test_a_load_works_out_the_identity_once(engine, tmp_path, monkeypatch) -> None:
    """Choosing the engine, loading, packing and a second read of the weights share one result."""
    if engine != "torch" and not kernels.available():
        pytest.skip(kernels.missing)
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(packed_cache, "SMALLEST_CACHED", 0)
    reference("LlamaForCausalLM", LLAMA).save_pretrained(tmp_path / "model")
    calls = list[str]()

    def counted(source: Source, family: Family, head: str) -> tuple[Keys, ModelConfig]:
        calls.append(family.name)
        return read_config(source, family, head)

    monkeypatch.setattr(identity, "read_config", counted)
    for _ in range(2):  # the second time, the native engine's weights come from the cache
        calls.clear()
        model = sl.load(tmp_path / "model", engine=engine)
        assert model.transformer.config == model.config
        assert calls == ["llama"]
    calls.clear()
    assert checkpoint_info(tmp_path / "model")["family"] == "llama"
    assert calls == ["llama"]


def test_save_writes_gguf_by_the_suffix_or_the_format(tmp_path) -> None:
    reference("LlamaForCausalLM", LLAMA).save_pretrained(tmp_path / "model")
    model = sl.load(tmp_path / "model")
    for path in (
        model.save(tmp_path / "one.gguf", dtype="float32"),
        model.save(tmp_path / "two.bin.gguf", dtype="float32", format="gguf"),
    ):
        again = sl.load(path)
        assert again.source is not None
        assert again.source.format == "gguf"
        ids = tokens(40)
        with torch.no_grad():
            close("logits", model.transformer(ids), again.transformer(ids))
    with pytest.raises(sl.InputError, match="exists"):
        model.save(tmp_path / "one.gguf")
    model.save(tmp_path / "one.gguf", overwrite=True)


def test_loading_imports_no_compiler(tmp_path: Path) -> None:
    """Torch imports it to fill random weights on the device `meta`: 1.5 seconds for nothing."""
    folder = saved(tmp_path, sl.gpt(**SIZE))
    code = (
        "import sys, sightline as sl;"
        f"sl.load({str(folder)!r}).generate([1, 2], max_tokens=2);"
        "assert 'torch._dynamo' not in sys.modules and 'sympy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
