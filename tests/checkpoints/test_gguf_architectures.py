"""Every architecture of GGUF that has a family here: read as transformers computes it, written as
llama.cpp's converter writes it."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from torch import Tensor

import sightline as sl
from sightline.checkpoints.formats.gguf import read as gguf_read
from sightline.checkpoints.formats.gguf import write as gguf_write
from sightline.checkpoints.formats.gguf.header import gguf_header
from sightline.checkpoints.identity import identify
from sightline.checkpoints.source import Entry
from sightline.errors import CheckpointError
from tests.checkpoints.tiny_gguf import MODELS, convert, make, tensors_of
from tests.support.gguf_architectures import START, TOKENS, truth, write


def computed(path: Path, name: str) -> Tensor:
    """What the file gives here."""
    model = sl.load(path, engine="torch", dtype="float32")
    with torch.no_grad():
        return (
            model.transformer(START, source=TOKENS)
            if name in ("t5", "t5 v1.1")
            else model.transformer(TOKENS)
        )


@pytest.mark.parametrize("name", MODELS)
def test_a_converted_file_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model = make(name)
    convert(model, name, tmp_path / "model.gguf")
    torch.testing.assert_close(
        computed(tmp_path / "model.gguf", name), truth(model, name), rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize("name", MODELS)
def test_our_file_holds_what_a_converted_one_holds(name: str, tmp_path: Path) -> None:
    model = make(name)
    convert(model, name, tmp_path / "theirs.gguf")
    write(model, tmp_path / "ours.gguf")
    ours, theirs = gguf_header(tmp_path / "ours.gguf"), gguf_header(tmp_path / "theirs.gguf")
    data = {path: path.read_bytes() for path in tmp_path.iterdir()}
    for tensor in theirs.tensors.values():
        mine = ours.tensors[tensor.name]
        assert (mine.shape, mine.kind) == (tensor.shape, tensor.kind), tensor.name
        first, second = data[tmp_path / "ours.gguf"], data[tmp_path / "theirs.gguf"]
        assert (
            first[mine.start : mine.start + mine.length]
            == second[tensor.start : tensor.start + tensor.length]
        ), tensor.name
    extra = set(ours.tensors) - set(theirs.tensors)
    assert not extra
    for key, value in theirs.metadata.items():
        if key not in (
            "phi3.rope.scaling.original_context_length",
            "t5encoder.decoder_block_count",
        ):
            assert ours.metadata[key] == value, key


@pytest.mark.parametrize("name", MODELS)
def test_our_file_gives_the_logits_of_transformers(name: str, tmp_path: Path) -> None:
    model = make(name)
    write(model, tmp_path / "model.gguf")
    torch.testing.assert_close(
        computed(tmp_path / "model.gguf", name), truth(model, name), rtol=2e-5, atol=2e-5
    )


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        (
            "llama",
            {"hidden_act": "gelu"},
            "layer 0's feed-forward activation in the decoder is gelu: it would be read as silu",
        ),
        (
            "gemma2",
            {"query_pre_attn_scalar": 100},
            "layer 0's attention kind in the decoder is Dot(scale=0.1)",
        ),
        (
            "gemma2",
            {"final_logit_softcapping": None},
            "the output's softcap is None: it would be read as 30.0",
        ),
        (
            "mistral",
            {"sliding_window": 8},
            "layer 0's attention window in the decoder is 8: it would be read as None",
        ),
        ("gptneox", {"hidden_act": "relu"}, "feed-forward activation in the decoder is relu"),
        ("bert", {"hidden_act": "relu"}, "feed-forward activation in the encoder is relu"),
        ("t5", {"relative_attention_max_distance": 64}, "max_distance=64"),
    ],
)
def test_what_gguf_has_no_word_for_is_not_written(
    name: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    model = make(name)
    entries = {
        name: Entry(name, tuple(x.shape), x.dtype, lambda x=x: x)
        for name, x in tensors_of(model).items()
    }
    with pytest.raises(CheckpointError) as caught:
        gguf_write.write_gguf(
            tmp_path / "model.gguf", model.config.to_dict() | changes, entries, None, "float32"
        )
    assert message in str(caught.value)
    assert not list(tmp_path.iterdir())


def with_tensor(source: Path, target: Path, name: str, values: list[float], **changes: Any) -> None:
    """A copy of a GGUF file with one more tensor and other integers in its metadata."""
    reader = gguf.GGUFReader(source)
    kind = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, kind)
    for key, value in gguf_header(source).metadata.items():
        if (
            isinstance(value, int | float)
            and key.startswith(f"{kind}.")
            and key.removeprefix(f"{kind}.") not in changes
        ):
            writer.add_key_value(key, value, gguf.GGUFValueType.get_type(value))
    for key, value in changes.items():
        writer.add_key_value(f"{kind}.{key}", value, gguf.GGUFValueType.get_type(value))
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data)
    writer.add_tensor(name, np.array(values, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.fixture(scope="module")
def phi3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("phi3") / "model.gguf"
    convert(make("phi3"), "phi3", path)
    return path


def test_longrope_factors_are_refused_unless_they_change_nothing(
    phi3: Path, tmp_path: Path
) -> None:
    with_tensor(phi3, tmp_path / "long.gguf", "rope_factors_long.weight", [1.5] * 16)
    with pytest.raises(
        CheckpointError, match=r"'rope_factors_long.weight' holds LongRoPE's factors"
    ):
        gguf_read.read_gguf(tmp_path / "long.gguf")
    with_tensor(phi3, tmp_path / "ones.gguf", "rope_factors_long.weight", [1.0] * 16)
    assert gguf_read.read_gguf(tmp_path / "ones.gguf").notes == [
        "rope_factors_long.weight is left out: its factors are all 1"
    ]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rope.scaling.attn_factor": 1.2}, "phi3.rope.scaling.attn_factor is set"),
        ({"attention.clamp_kqv": 8.0}, "phi3.attention.clamp_kqv is set"),
        ({"attention.causal": False}, "phi3.attention.causal is False"),
        (
            {"rope.dimension_count": 64},
            "phi3.rope.dimension_count is 64; expected at most the head's 32",
        ),
        ({"attention.sliding_window": -3}, "phi3.attention.sliding_window is -3"),
        ({"rope.scaling.attn_factor": 1.0}, ""),
    ],
)
def test_metadata_that_would_change_the_result_is_refused(
    phi3: Path, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with_tensor(phi3, tmp_path / "m.gguf", "rope_factors_long.weight", [1.0] * 16, **changes)
    if not message:
        gguf_read.read_gguf(tmp_path / "m.gguf")
        return
    with pytest.raises(CheckpointError, match=re.escape(message)):
        gguf_read.read_gguf(tmp_path / "m.gguf")


def test_rope_factors_that_fit_no_head_are_refused(tmp_path: Path) -> None:
    convert(make("bloom"), "bloom", tmp_path / "bloom.gguf")
    with_tensor(tmp_path / "bloom.gguf", tmp_path / "m.gguf", "rope_freqs.weight", [1.0])
    with pytest.raises(CheckpointError, match=r"'rope_freqs.weight' does not fit the model"):
        gguf_read.read_gguf(tmp_path / "m.gguf")


def test_olmo_3_is_not_taken_for_olmo_2(tmp_path: Path) -> None:
    convert(make("olmo2"), "olmo2", tmp_path / "olmo2.gguf")
    with_tensor(
        tmp_path / "olmo2.gguf",
        tmp_path / "m.gguf",
        "rope_freqs.weight",
        [1.0],
        **{"attention.sliding_window": 4096},
    )
    with pytest.raises(
        CheckpointError, match=r"olmo2.attention.sliding_window is 4096; expected none: OLMo 3"
    ):
        gguf_read.read_gguf(tmp_path / "m.gguf")


def test_tied_models_that_llama_cpp_wants_untied_are_read_as_tied(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.Olmo2ForCausalLM(
        transformers.Olmo2Config(**MODELS["olmo2"][2], tie_word_embeddings=True)
    ).eval()
    write(model, tmp_path / "model.gguf")
    assert "output.weight" in gguf_header(tmp_path / "model.gguf").tensors
    source = gguf_read.read_gguf(tmp_path / "model.gguf")
    assert source.keys["tie_word_embeddings"]
    assert "lm_head.weight" not in source.tensors
    torch.testing.assert_close(
        computed(tmp_path / "model.gguf", "olmo2"), truth(model, "olmo2"), rtol=2e-5, atol=2e-5
    )


def test_heads_of_encoders_are_left_out_by_name(tmp_path: Path) -> None:
    config = transformers.ModernBertConfig(**MODELS["modernbert"][2])
    notes = write(transformers.ModernBertForMaskedLM(config), tmp_path / "model.gguf")
    assert "head.dense.weight is left out: GGUF cannot store it" in notes
    assert sl.load(tmp_path / "model.gguf", engine="torch").head == "none"


@pytest.mark.parametrize(
    "name", ["phi3", "gemma2", "bloom", "gptneox", "t5", "modernbert", "distilbert"]
)
def test_damaged_heads_raise_no_other_error(name: str, tmp_path: Path) -> None:
    """Bytes of the metadata and of the tensors' places changed at random: an error of ours, or a
    file that can be understood."""
    convert(make(name), name, tmp_path / "whole.gguf")
    data = (tmp_path / "whole.gguf").read_bytes()
    end = min(tensor.start for tensor in gguf_header(tmp_path / "whole.gguf").tensors.values())
    random = np.random.default_rng(0)
    for _ in range(40):
        changed = bytearray(data)
        for place in random.integers(4, end, 3):
            changed[place] = random.integers(256)
        (tmp_path / "m.gguf").write_bytes(changed)
        with suppress(CheckpointError):
            identify(gguf_read.read_gguf(tmp_path / "m.gguf"))
