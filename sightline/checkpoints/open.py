"""One door for every format: what was found becomes a `Source`."""

from __future__ import annotations

from collections.abc import Sequence

from sightline.checkpoints.source import Source
from sightline.checkpoints.sources.reference import Resolved
from sightline.checkpoints.tensor_names import clean_names
from sightline.errors import CheckpointError


def open_source(
    found: Resolved,
    *,
    verify: bool = False,
    allow_pickle_weights: bool = False,
    skip_pickles: bool = False,
    ignore_tensors: Sequence[str] = (),
) -> Source:
    """Open, but read nothing yet. Tensors that match a glob of `ignore_tensors` are left out.
    `skip_pickles`: see `folder.read`."""
    source = _open(
        found, verify=verify, allow_pickle_weights=allow_pickle_weights, skip_pickles=skip_pickles
    )
    return clean_names(source, ignore_tensors)


def _open(
    found: Resolved, *, verify: bool, allow_pickle_weights: bool, skip_pickles: bool
) -> Source:
    """A format's reader is imported when a file of it is met."""
    if verify and found.kind in ("gguf", "llama2c", "npz"):
        raise CheckpointError(
            f"{found.path} is one file, without checksums",
            expected="a folder with sightline.json",
            fix="leave verify out",
        )
    if found.kind == "gguf":
        from sightline.checkpoints.formats.gguf import read as gguf_read

        return gguf_read.read(found.path)
    if found.kind == "llama2c":
        from sightline.checkpoints.formats import llama2c

        return llama2c.read(found.path)
    if found.kind == "npz":
        from sightline.checkpoints.formats import npz

        return npz.read(found.path)
    from sightline.checkpoints.formats import folder

    return folder.read(
        found.path,
        verify=verify,
        allow_pickle_weights=allow_pickle_weights,
        skip_pickles=skip_pickles,
    )
