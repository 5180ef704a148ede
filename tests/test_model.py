"""Folders in and out: transformers writes, we load and write, transformers loads again."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline import laws
from sightline.checkpoints.defaults import Defaults
from sightline.core import packed_weights as packing
from sightline.text.tokenizer import Tokenizer
from tests.families.oracle import reference, tokens, transformers
from tests.support.decoder_configs import GPT2, LLAMA
from tests.support.tiny import ALL, ENCODER_DECODERS, inputs, make

ENDS = {"bos_token_id": 1, "eos_token_id": 2}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("GPT2LMHeadModel", GPT2 | ENDS),
    "llama": ("LlamaForCausalLM", LLAMA),
    "llama sequence": (
        "LlamaForSequenceClassification",
        LLAMA | {"num_labels": 3, "pad_token_id": 0},
    ),
    "qwen3 bare": ("Qwen3Model", LLAMA | {"head_dim": 6}),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A tiny Llama, as transformers writes it."""
    reference("LlamaForCausalLM", LLAMA).save_pretrained(tmp_path / "llama")
    return tmp_path / "llama"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", CASES)
def test_the_circle(name: str, dtype: str, tmp_path: Path) -> None:
    class_name, options = CASES[name]
    theirs = reference(class_name, options).to(getattr(torch, dtype))
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size="20KB")
    assert len(list((tmp_path / "theirs").glob("*.safetensors"))) > 1, "in shards"
    ours = sl.load(tmp_path / "theirs")
    again = type(theirs).from_pretrained(ours.save(tmp_path / "ours"), dtype=torch.float32).eval()
    ids = tokens(40)
    with torch.no_grad():
        expected = again(ids)
        result = ours.transformer(ids)
    expected = expected.logits if hasattr(expected, "logits") else expected.last_hidden_state
    torch.testing.assert_close(result, expected, atol=1e-4, rtol=1e-4)
    for key, tensor in theirs.state_dict().items():
        assert torch.equal(again.state_dict()[key], tensor.float()), key


def test_save_load_is_the_identity(folder: Path, tmp_path: Path) -> None:
    model = sl.load(folder)
    again = sl.load(model.save(tmp_path / "again"), verify=True)
    assert again.config == model.config
    assert all(
        torch.equal(a, b)
        for a, b in zip(model.transformer.parameters(), again.transformer.parameters(), strict=True)
    )
    half = sl.load(model.save(tmp_path / "half", dtype="bfloat16"), dtype="bfloat16")
    assert next(half.transformer.parameters()).dtype == torch.bfloat16


@pytest.mark.parametrize(
    "name",
    [
        "ngpt",
        "soft-cap",
        "window-alternating",
        "cosine",
        "bert-mean",
        "transformer",
        "t5",
        "classifier",
    ],
)
def test_what_has_no_other_home_is_kept_in_our_own_format(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = sl.Model(sl.build(ALL[name]).eval())
    again = sl.load(model.save(tmp_path / "own"))
    assert again.config == ALL[name]
    assert torch.equal(
        model.transformer(**inputs(ALL[name])), again.transformer(**inputs(ALL[name]))
    )


@pytest.mark.parametrize("name", CASES)
def test_the_laws_hold_and_are_measured(name: str, tmp_path: Path) -> None:
    class_name, options = CASES[name]
    reference(class_name, options).save_pretrained(tmp_path / "theirs")
    result = {measured.law: measured for measured in laws.check_laws(sl.load(tmp_path / "theirs"))}
    assert all(measured.holds for measured in result.values()), result
    assert result["reference"].note == f"transformers {transformers.__version__}"
    assert result["saved = loaded"].difference == 0


def test_a_broken_model_breaks_a_law(folder: Path) -> None:
    model = sl.load(folder)
    with torch.no_grad():
        model.transformer.decoder[0].attention.query.weight[0, 0] = float("nan")
    assert not all(measured.holds for measured in laws.check_laws(model, reference=False))


def edit(folder: Path, **changes: Any) -> Path:
    keys = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in keys.items() if value != "DELETE"})
    )
    return folder


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an unsupported option": (
        {"pretraining_tp": 2},
        "pretraining_tp is 2, which is not supported; expected 1",
    ),
    "an unknown family": ({"model_type": "lama"}, "did you mean 'llama'?"),
    "an unknown class": (
        {"architectures": ["LlamaForCausaLM"]},
        "did you mean 'LlamaForCausalLM'?",
    ),
    "an unknown activation": ({"hidden_act": "sliu"}, "did you mean 'silu'?"),
    "an unknown rope": (
        {"rope_scaling": {"type": "dynamic", "factor": 2.0}},
        "rope type 'dynamic' is not supported",
    ),
    "half a rotation": ({"partial_rotary_factor": 0.5}, "this family rotates whole heads"),
    "a billion layers": ({"num_hidden_layers": 10**9}, "1,000,000,000 layers"),
    "more layers than there are": ({"num_hidden_layers": 3}, "tensors missing: model.layers.2"),
    "a negative width": ({"hidden_size": -1}, "hidden_size is -1; expected an integer"),
    "heads that do not divide": ({"num_key_value_heads": 3}, "heads divisible by kv_heads"),
    "no vocabulary": ({"vocab_size": 0}, "vocab_size is 0"),
    "a missing key": ({"hidden_size": "DELETE"}, "lacks 'hidden_size'"),
    "another width": (
        {"intermediate_size": 39},
        "mlp.gate_proj.weight has shape [40, 24]; expected what fills",
    ),
    "a word for a number": ({"hidden_size": "24"}, "hidden_size is '24'"),
    "epsilon zero": ({"rms_norm_eps": 0.0}, "eps is 0.0"),
    "a base that is no number": (
        {"rope_parameters": {"rope_type": "default", "rope_theta": 0}},
        "base",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_is_not_understood_is_refused_in_one_line(what: str, folder: Path) -> None:
    changes, words = REFUSED[what]
    with pytest.raises(sl.CheckpointError) as refusal:
        sl.load(edit(folder, **changes))
    assert words in str(refusal.value)
    assert "\n" not in str(refusal.value)


def test_a_misspelt_tensor_is_named_with_the_nearest(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.gate_prj.weight"] = tensors.pop(
        "model.layers.0.mlp.gate_proj.weight"
    )
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(
        sl.CheckpointError,
        match=r"1 tensor missing: .*; 1 tensor unexpected: .*gate_prj.weight a misspelling of model.layers.0.mlp.gate_proj.weight",
    ):
        sl.load(folder)


def test_nan_weights_are_said_loudly_and_refused_when_strict(folder: Path) -> None:
    from safetensors.torch import load_file, save_file

    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][3] = float("nan")
    save_file(tensors, folder / "model.safetensors")
    assert any("model.norm.weight holds NaN" in note for note in sl.load(folder).notes)
    with pytest.raises(sl.CheckpointError, match="NaN"):
        sl.load(folder, strict=True)


def test_a_tied_copy_must_be_equal(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    reference("GPT2LMHeadModel", GPT2 | ENDS).save_pretrained(tmp_path / "gpt2")
    file = tmp_path / "gpt2" / "model.safetensors"
    tensors = load_file(file)
    save_file(tensors | {"lm_head.weight": tensors["transformer.wte.weight"].clone()}, file)
    assert sl.load(tmp_path / "gpt2").config.head.tied
    save_file(tensors | {"lm_head.weight": tensors["transformer.wte.weight"] + 1}, file)
    with pytest.raises(sl.CheckpointError, match="differs from the embedding"):
        sl.load(tmp_path / "gpt2")


def test_an_unknown_dtype(folder: Path) -> None:
    with pytest.raises(sl.InputError, match="did you mean 'float16'"):
        sl.load(folder, dtype="flot16")


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ({"temperature": -1}, "temperature is -1"),
        ({"top_p": 2.0}, "top_p is 2.0"),
        ({"eos_token_id": [1, "x"]}, "eos_token_id is 'x'"),
        ({"top_k": "all"}, "top_k is 'all'"),
    ],
)
def test_a_generation_config_that_no_sampler_could_obey(
    output: dict[str, Any], words: str, folder: Path
) -> None:
    (folder / "generation_config.json").write_text(json.dumps(output))
    with pytest.raises(sl.CheckpointError) as refusal:
        sl.load(folder)
    assert words in str(refusal.value)


def test_an_id_that_a_small_copy_cannot_have_is_left_out_and_said(tmp_path: Path) -> None:
    reference("GPT2LMHeadModel", GPT2).save_pretrained(tmp_path / "gpt2")
    (tmp_path / "gpt2" / "generation_config.json").unlink()
    model = sl.load(tmp_path / "gpt2")
    assert model.defaults.end == ()
    assert any("eos_token_id 50256 is not in the vocabulary of 40" in note for note in model.notes)


def test_the_makers_defaults_are_read(folder: Path) -> None:
    output = {
        "eos_token_id": [2, 5],
        "bos_token_id": 1,
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 50,
    }
    (folder / "generation_config.json").write_text(json.dumps(output))
    defaults = sl.load(folder).defaults
    assert (defaults.begin, defaults.end, defaults.sample) == (1, (2, 5), True)
    assert (defaults.temperature, defaults.top_p, defaults.top_k) == (0.6, 0.9, 50)


# --------------------------------------------------------------------------- seen while it writes

LETTERS = Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy")
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


def watched_model(name: str) -> sl.Model:
    return sl.Model(
        make(ALL[name]),
        Tokenizer(LETTERS.engine, ids={"bos": 1}, chat_template=TEMPLATE),
        defaults=Defaults(decoder_start=1),
    )


def seen_at_once(model: sl.Model, result: Any) -> None:
    """Every map of a generation's trace is that of one pass over the finished text."""
    ids = [token.id for token in result.trace.tokens]
    if result.trace.source is None:
        whole = model.trace(ids)
    else:
        whole = model.trace(ids[1:], source=[token.id for token in result.trace.source])
    assert result.trace.looks.keys() == whole.looks.keys()
    for site, look in whole.looks.items():
        torch.testing.assert_close(
            result.trace.looks[site].weights(), look.weights(), atol=1e-5, rtol=0
        )


WAYS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "sampled": {"temperature": 1.5, "seed": 3},
    "beams": {"beams": 3},
    "stop strings": {"temperature": 3.0, "seed": 1, "max_tokens": 8},
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", ["grouped", "alibi", "window", "transformer", "t5"])
def test_generate_with_trace_sees_the_whole_and_changes_nothing(
    name: str, way: str, packed: bool, monkeypatch: pytest.MonkeyPatch, as_users_run_it: None
) -> None:
    monkeypatch.setattr(packing, "SMALLEST", 1 if packed else 1 << 18)
    model, options = watched_model(name), {"max_tokens": 5, "ignore_eos": True} | WAYS[way]
    assert (model.runner.name == "torch, packed") == packed
    quiet = model.generate("abcab", **options)
    if way == "stop strings":
        options["stop"] = [quiet.text[2]]
        quiet = model.generate("abcab", **options)
        assert quiet.finish_reason == "stop"
    result = model.generate("abcab", **options, trace=True)
    assert (result.text, result.tokens, result.logprobs) == (
        quiet.text,
        quiet.tokens,
        quiet.logprobs,
    )
    assert quiet.trace is None
    seen_at_once(model, result)
    start = [1] if name in ENCODER_DECODERS else model.ids("abcab")
    assert [token.id for token in result.trace.tokens] == [*start, *result.tokens[:-1]]
    if name in ENCODER_DECODERS:
        assert [token.text for token in result.trace.source] == [*"abcab"]
        assert [token.start for token in result.trace.source] == [0, 1, 2, 3, 4]


def test_a_chat_can_be_watched_and_many_texts_cannot() -> None:
    model, messages = watched_model("rotary"), [{"role": "user", "content": "abcab"}]
    options = {"max_tokens": 4, "ignore_eos": True}
    result = model.chat(messages, **options, trace=True)
    assert result.tokens == model.chat(messages, **options).tokens
    seen_at_once(model, result)
    *_, last = model.stream_chat(messages, **options, trace=True)
    torch.testing.assert_close(
        last.trace.weights(1, rows=-1), result.trace.weights(1, rows=-1), atol=1e-5, rtol=0
    )
    with pytest.raises(
        sl.InputError,
        match=r"a trace of many texts at once; expected one text\. Fix: model.generate",
    ) as refusal:
        model.generate_many(["ab", "c"], trace=True)
    assert "\n" not in str(refusal.value)


def test_a_streamed_text_is_watched_from_a_cache_of_any_kind() -> None:
    model = watched_model("window")
    for cache, near in (
        (sl.Cache.growing, 1e-5),
        (sl.Cache.windowed, 1e-5),
        (sl.Cache.quantised, 5e-3),
    ):
        *_, last = model.stream(
            "abcabcab", max_tokens=4, ignore_eos=True, trace=True, cache=cache(model.config)
        )
        ids = [token.id for token in last.trace.tokens]
        torch.testing.assert_close(
            last.trace.weights(1, rows=-1), model.trace(ids).weights(1, rows=-1), atol=near, rtol=0
        )


def test_generating_imports_nothing_of_lens(folder: Path) -> None:
    program = (
        "import sys, sightline as sl\n"
        f"sl.load({str(folder)!r}).generate([5, 6, 7], max_tokens=2)\n"
        "print([name for name in sys.modules if name.startswith('sightline.lens')])\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert run.stdout == "[]\n"
