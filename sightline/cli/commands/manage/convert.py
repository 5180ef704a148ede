"""`sightline convert`: write a checkpoint in another format or precision."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sightline.cli.ui.options.groups import OPTIONS
from sightline.cli.ui.options.model import LoadOptions
from sightline.cli.ui.options.values import ModelName
from sightline.cli.ui.output import note, remark

DTYPES = ("float32", "float16", "bfloat16", "q8_0")


@Parameter(name="*", group=OPTIONS)
@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """Format and precision of the result."""

    to: Annotated[
        Literal["hf", "gguf"] | None, Parameter(show_default="gguf for *.gguf, otherwise hf")
    ] = None
    """Format: a Hugging Face folder, or a GGUF file in llama.cpp's layout."""

    dtype: Annotated[
        str | None, Parameter(choices=DTYPES, show_default="as it is; float16 for GGUF")
    ] = None
    """Precision of the weights; q8_0 is for GGUF only."""

    from_pickle: bool = False
    """Allow an old pytorch_model.bin, which is read in a sandboxed process."""

    overwrite: bool = False
    """Replace an existing target."""


def convert(
    source: ModelName,
    target: Path,
    /,
    *,
    options: ConvertOptions = ConvertOptions(),
    loading: LoadOptions = LoadOptions(),
) -> None:
    """Write a checkpoint as a Hugging Face folder or as a GGUF file.

    Parameters
    ----------
    target
        The folder or .gguf file to write.
    """
    model = loading.load(source, from_pickle=options.from_pickle)
    shown = len(model.notes)
    model.save(target, dtype=options.dtype, format=options.to, overwrite=options.overwrite)
    for line in model.notes[shown:]:
        note(line)
    remark(f"written: {target}", style="")
