"""`sightline convert`: a checkpoint in another format or precision."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from sightline.cli.ui.arguments import IgnoreTensors, Strict
from sightline.cli.ui.output import note, remark


def convert(
    source: str,
    target: Path,
    /,
    *,
    to: Literal["hf", "gguf"] | None = None,
    dtype: str | None = None,
    from_pickle: bool = False,
    strict: Strict = False,
    ignore_tensors: IgnoreTensors = (),
    overwrite: bool = False,
) -> None:
    """Write a checkpoint as a Hugging Face folder or as a GGUF file in llama.cpp's layout.

    Parameters
    ----------
    source
        A folder, a .gguf file, a name of `sightline models`, or OWNER/NAME of the hub.
    target
        The folder or .gguf file to write.
    to
        hf or gguf; by default what the target's name says.
    dtype
        float32, float16 or bfloat16; for GGUF also q8_0.
    from_pickle
        Allow an old pytorch_model.bin, read in a limited process of its own.
    overwrite
        Replace what is there.
    """
    from sightline.cli.ui.loading import load_shown

    model = load_shown(
        source, from_pickle=from_pickle, strict=strict, ignore_tensors=ignore_tensors
    )
    known = len(model.notes)
    model.save(target, dtype=dtype, format=to, overwrite=overwrite)
    for line in model.notes[known:]:
        note(line)
    remark(f"written: {target}", style="")
