"""Full models: config.json and weights to logits. The reference is transformers, if it loads the
same folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import sightline as sl
from tools.fuzz.formats.samples import GEMMA2, GPT2, LLAMA, save_model
from tools.fuzz.outcome import require

IDS = torch.tensor([[1, 5, 7, 3, 9, 11]])
MOST = 1e-3


def make(place: Path) -> None:
    save_model("LlamaForCausalLM", LLAMA, place / "llama")
    save_model("GPT2LMHeadModel", GPT2, place / "gpt2")
    save_model("Gemma2ForCausalLM", GEMMA2, place / "gemma2")


def check(case: Path, sample: Path) -> None:
    model = sl.load(case)
    with torch.no_grad():
        ours = model.transformer(IDS)
    theirs = reference(case)
    if theirs is None:
        return
    require(
        ours.shape == theirs.shape,
        f"logits are {list(ours.shape)}, the reference's {list(theirs.shape)}",
    )
    require(
        torch.allclose(ours, theirs, atol=MOST, rtol=MOST, equal_nan=True),
        f"logits differ by {(ours - theirs).abs().max():.3g}",
    )


def reference(case: Path) -> Tensor | None:
    """None if transformers cannot load it, or initializes missing weights."""
    from transformers import AutoModelForCausalLM

    try:
        options: dict[str, Any] = {
            "output_loading_info": True,
            "dtype": torch.float32,
            "attn_implementation": "eager",
        }
        loaded: Any = AutoModelForCausalLM.from_pretrained(case, **options)
        model, loading = loaded
        with torch.no_grad():
            logits = model.eval()(IDS).logits
    except Exception:
        return None
    return None if loading["missing_keys"] or loading["mismatched_keys"] else logits
