"""GGUF files. The reference is the gguf package; it has rotary rows in another order, so values are
compared sorted."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np

import sightline as sl
from sightline.checkpoints.formats.gguf import read as gguf_read
from sightline.checkpoints.formats.gguf.names import to_hugging_face
from tools.fuzz.formats.samples import LLAMA, TEMPLATE, byte_pieces, save_model
from tools.fuzz.formats.tensors import read_all, reference_of
from tools.fuzz.outcome import require

Arrays = dict[str, np.ndarray]


def make(place: Path) -> None:
    folder = place / "llama"
    save_model("LlamaForCausalLM", LLAMA | {"hidden_size": 32, "num_hidden_layers": 1}, folder)
    byte_pieces().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE})
    )
    model = sl.load(folder)
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    for dtype in ("float32", "float16", "q8_0"):
        (place / dtype).mkdir()
        model.save(place / dtype / "model.gguf", dtype=dtype)


def check(case: Path, sample: Path) -> None:
    source = gguf_read.read_gguf(case / "model.gguf")
    ours = read_all(source.tensors)
    theirs = reference_of(lambda: reference(case / "model.gguf"))
    for name, tensor in ours.items():
        require(name in theirs, f"{name} is missing")
        numbers = np.sort(tensor.float().numpy(), axis=None)
        require(
            np.array_equal(numbers, np.sort(theirs[name], axis=None), equal_nan=True),
            f"{name} has other values",
        )


def reference(path: Path) -> Arrays:
    reader = gguf.GGUFReader(path)
    field = reader.get_field("general.architecture")
    kind = field.contents() if field is not None else ""
    tensors = {
        to_hugging_face(kind, tensor.name) or tensor.name: tensor for tensor in reader.tensors
    }
    return {
        name: gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        for name, tensor in tensors.items()
    }
