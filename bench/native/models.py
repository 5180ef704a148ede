"""The models that contestants run, each stored once on disk as a Hugging Face folder and, for
llama.cpp, as GGUF: the same weights for all.

smollm2     SmolLM2-135M-Instruct, real weights of the catalogue
gpt2        GPT-2 small's shape, random weights: speed only
llama-1b    TinyLlama-1.1B's shape, random weights, in float16 on disk: speed only
minilm      all-MiniLM-L6-v2, real weights
marian      Opus-MT's shape, random weights: speed only
trained     our recipe `stories` on Shakespeare's plays, trained for a few minutes when it is first
            needed: quality only
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.native.channel import ROOT

PLACE = ROOT / "build" / "peers-models"


@dataclass(frozen=True, slots=True)
class Prepared:
    """A model on disk. `unread`: the number of elements of an untied embedding, of which a token
    reads a single row."""

    name: str
    title: str
    real: bool
    folder: Path
    gguf: Path
    vocabulary: int
    unread: int = 0
    context: int = 0


def from_catalogue(name: str) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        import sightline as sl

        sl.load(name).save(folder, dtype="float32")

    return make


def random_model(form: str, *, dtype: str = "float32", **keys: Any) -> Callable[[Path], None]:
    """A transformers model with random weights."""

    def make(folder: Path) -> None:
        import torch
        import transformers

        torch.manual_seed(0)
        model = getattr(transformers, f"{form}Model" if form.endswith("MT") else form)
        config = getattr(
            transformers,
            form.removesuffix("LMHeadModel").removesuffix("ForCausalLM").removesuffix("MT")
            + "Config",
        )
        model(config(**keys)).to(getattr(torch, dtype)).save_pretrained(folder)

    return make


def trained(folder: Path) -> None:
    """Train with our own recipe on the plays that are not held out."""
    from sightline.recipes.plays import works

    run = folder.with_suffix(".run")
    text = folder.with_suffix(".txt")
    text.write_text(
        "\n".join(play.read_text(encoding="utf-8") for play in works()[0]), encoding="utf-8"
    )
    sizes = ["width=256", "layers=4", "vocab=2048", "steps=400"]
    command = ["train", "stories", "--out", str(run), "--set", f"text={text}", *sizes]
    subprocess.run([sys.executable, "-m", "sightline", *command], check=True, stdout=sys.stderr)
    (run / "model").rename(folder)
    shutil.rmtree(run)
    text.unlink()


TINY_LLAMA: dict[str, Any] = {
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2048,
    "tie_word_embeddings": False,
}
OPUS: dict[str, Any] = {
    "vocab_size": 58101,
    "d_model": 512,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
    "encoder_ffn_dim": 2048,
    "decoder_ffn_dim": 2048,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "max_position_embeddings": 512,
    "pad_token_id": 58100,
    "eos_token_id": 0,
    "decoder_start_token_id": 58100,
    "forced_eos_token_id": None,
    "scale_embedding": True,
    "activation_function": "swish",
}
MAKERS: dict[str, tuple[str, bool, Callable[[Path], None]]] = {
    "smollm2": ("SmolLM2-135M", True, from_catalogue("smollm2-135m-instruct")),
    "gpt2": ("GPT-2-124M shape", False, random_model("GPT2LMHeadModel")),
    "llama-1b": (
        "1.1B Llama shape",
        False,
        random_model("LlamaForCausalLM", dtype="float16", **TINY_LLAMA),
    ),
    "minilm": ("MiniLM-L6", True, from_catalogue("minilm")),
    "marian": ("Marian-base shape", False, random_model("MarianMT", **OPUS)),
    "trained": ("Shakespeare, trained here", True, trained),
}


def prepare_model(name: str) -> Prepared:
    """A model by its name, created if it does not exist."""
    title, real, make = MAKERS[name]
    folder = PLACE / name
    if not (folder / "config.json").is_file():
        PLACE.mkdir(parents=True, exist_ok=True)
        part = PLACE / f"{name}.part"
        shutil.rmtree(part, ignore_errors=True)
        make(part)
        part.rename(folder)
    keys = json.loads((folder / "config.json").read_text())
    tied = keys.get("tie_word_embeddings", True)
    width = keys.get("hidden_size") or keys.get("n_embd") or keys.get("d_model")
    vocabulary = keys["vocab_size"]
    context = keys.get("max_position_embeddings") or keys.get("n_positions") or 0
    return Prepared(
        name,
        title,
        real,
        folder,
        PLACE / f"{name}.gguf",
        vocabulary,
        0 if tied else vocabulary * width,
        context,
    )


def with_gguf(model: Prepared) -> Prepared:
    """The same model with its GGUF file, in the folder's precision."""
    if not model.gguf.is_file():
        import sightline as sl

        stored = json.loads((model.folder / "config.json").read_text())
        dtype = stored.get("dtype") or stored.get("torch_dtype") or "float32"
        sl.load(model.folder).save(model.gguf, dtype=dtype)
    return model
