"""What `sightline info` says of a checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest

from sightline.checkpoints.info import checkpoint_info, percent_of
from sightline.cli.main import main
from tests.checkpoints.tiny_gguf import make
from tests.support.gguf_architectures import write


def mixed(path: Path) -> Path:
    """A Llama whose matrices are Q4_1, except the embedding in Q8_0 and the norms in F32."""
    write(make("llama"), path.with_name("plain.gguf"))
    reader = gguf.GGUFReader(path.with_name("plain.gguf"))
    writer = gguf.GGUFWriter(path, "llama")
    for field in reader.fields.values():
        if field.name.startswith(("llama.", "tokenizer.")):
            writer.add_key_value(field.name, field.contents(), field.types[0])
    for tensor in reader.tensors:
        kinds = gguf.GGMLQuantizationType
        kind = (
            kinds.F32
            if len(tensor.shape) == 1
            else kinds.Q8_0
            if tensor.name == "token_embd.weight"
            else kinds.Q4_1
        )
        values = np.array(tensor.data)
        writer.add_tensor(
            tensor.name,
            values if kind == kinds.F32 else gguf.quantize(values, kind),
            raw_dtype=kind,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_quantised_file_is_called_what_it_stores(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not float32, which is what it is decoded to."""
    path = mixed(tmp_path / "model.gguf")
    assert main(["info", str(path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["dtype"] == "Q4_1 (96%), Q8_0 (3%), F32 (<1%)"
    assert main(["info", str(path)]) == 0
    assert "Q4_1 (96%), Q8_0 (3%), F32 (<1%)" in capsys.readouterr().out


def test_one_kind_needs_no_share(tmp_path: Path) -> None:
    write(make("llama"), tmp_path / "model.gguf")
    assert checkpoint_info(tmp_path / "model.gguf")["dtype"] == "F32"


def test_shares_are_never_rounded_to_nothing_or_to_all() -> None:
    assert [percent_of(part, 1000) for part in (1, 5, 500, 999, 1000)] == [
        "<1%",
        "<1%",
        "50%",
        ">99%",
        "100%",
    ]


def test_an_untrusted_tensor_name_never_gets_into_the_notes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It was printed as markup: a MarkupError, or colours of the file's choosing."""
    write(make("llama"), tmp_path / "plain.gguf")
    data = (tmp_path / "plain.gguf").read_bytes()
    name = b"blk.0.attn_norm.weight"
    assert data.count(name) == 1
    (tmp_path / "model.gguf").write_bytes(
        data.replace(name, b"[/x]\x1b.attn_rot_embd".ljust(len(name), b"d"))
    )
    assert main(["info", str(tmp_path / "model.gguf")]) == 2
    output = capsys.readouterr()
    assert "is not known" in output.err
    assert "\x1b" not in output.err + output.out
