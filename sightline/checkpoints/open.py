"""Open a checkpoint of any format as a `Source`."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.checkpoints.source import Source
from sightline.checkpoints.sources.reference import Resolved
from sightline.checkpoints.tensor_names import clean_names
from sightline.errors import CheckpointError


def open_source(
    resolved: Resolved,
    *,
    verify: bool = False,
    allow_pickle_weights: bool = False,
    skip_pickles: bool = False,
    ignore_tensors: Sequence[str] = (),
) -> Source:
    """Open a checkpoint without reading its weights. Tensors that match a glob of `ignore_tensors`
    are left out. `skip_pickles`: see `read_folder`."""
    source = _open_format(
        resolved,
        verify=verify,
        allow_pickle_weights=allow_pickle_weights,
        skip_pickles=skip_pickles,
    )
    return clean_names(source, ignore_tensors)


def _open_format(
    resolved: Resolved, *, verify: bool, allow_pickle_weights: bool, skip_pickles: bool
) -> Source:
    """Read the header with the reader of the format, imported only when needed."""
    if verify and resolved.kind in ("gguf", "llama2c", "npz"):
        raise CheckpointError(
            f"{resolved.path} is one file, without checksums",
            expected="a folder with sightline.json",
            fix="leave verify out",
        )
    if resolved.kind == "gguf":
        from sightline.checkpoints.formats.gguf import read as gguf_read

        return gguf_read.read_gguf(resolved.path)
    if resolved.kind == "llama2c":
        from sightline.checkpoints.formats import llama2c

        return llama2c.read_llama2c(resolved.path)
    if resolved.kind == "npz":
        from sightline.checkpoints.formats import npz

        return npz.read_npz(resolved.path)
    from sightline.checkpoints.formats import folder

    return folder.read_folder(
        resolved.path,
        verify=verify,
        allow_pickle_weights=allow_pickle_weights,
        skip_pickles=skip_pickles,
    )
