"""`sl.load`: from a name to a model that runs.

resolve        the name, to a folder or a file (downloaded if it is not there yet)
open_source    its files, to config, tensors and tokenizer
precision_for  which engine runs it, in which precision
load_weights   the tensors, into a Transformer; or load_packed, into the native engine
Model          all of it together
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from sightline.checkpoints.defaults import read_defaults
from sightline.checkpoints.engine_choice import Engine, dtype_named, precision_for
from sightline.checkpoints.load import Progress, load_weights
from sightline.checkpoints.open import open_source
from sightline.checkpoints.packed_cache import load_packed
from sightline.checkpoints.pooling import read_pooling
from sightline.checkpoints.source import Source
from sightline.checkpoints.sources.reference import resolve
from sightline.checkpoints.tokenizer_files import tokenizer_of
from sightline.core.lazy import LazyTransformer
from sightline.core.model import Transformer
from sightline.engine import gguf
from sightline.engine.encoder_runners import check_known
from sightline.errors import InputError
from sightline.model import Model


def load(
    reference: str | Path,
    *,
    dtype: str = "float32",
    engine: Engine = "auto",
    strict: bool = False,
    verify: bool = False,
    from_pickle: bool = False,
    ignore_tensors: Sequence[str] = (),
    progress: Progress | None = None,
) -> Model:
    """Load a model: a folder, a .gguf file, a hub id, or a name listed by `sl.models()`.

    `strict` refuses NaN weights and unknown keys in config.json; by default both are reported in
    `model.notes`. `verify` checks the folder's checksums. `from_pickle` allows an old
    `pytorch_model.bin`, which is converted in a sandboxed process. Tensors whose names match a
    glob of `ignore_tensors`, such as `"v_head.*"`, are skipped. `progress(name, numbers)` is
    called for every tensor that was loaded.

    `engine="auto"` generates with the native engine where that can run the model in the same dtype,
    and with torch otherwise; `model.runner.name` is the one in use. Its weights are packed at the
    first use. `"native"` requires the engine, in `dtype` float32, float16, int8, int8_groups, int4
    or int4_min, and keeps the packed weights on disk: the next load reads only those, and
    `transformer` when it is first used. `"torch"` runs the core as it is written.
    """
    if isinstance(ignore_tensors, str):
        raise InputError(
            f"ignore_tensors {ignore_tensors!r}",
            expected="a list of globs",
            fix=f"ignore_tensors=[{ignore_tensors!r}]",
        )
    source = open_source(
        resolve(reference),
        verify=verify,
        allow_pickle_weights=from_pickle,
        ignore_tensors=ignore_tensors,
    )
    return load_opened(
        source,
        dtype=dtype,
        engine=engine,
        strict=strict,
        progress=progress,
        name=display_name(reference),
    )


def display_name(reference: str | Path) -> str:
    """A model's name in captions: that of its folder or file, or the reference itself."""
    return Path(reference).name if Path(reference).exists() else str(reference)


def load_opened(
    source: Source,
    *,
    dtype: str = "float32",
    engine: Engine = "auto",
    strict: bool = False,
    progress: Progress | None = None,
    name: str = "",
) -> Model:
    """Load a model from an open source."""
    precision = precision_for(source, engine, dtype)
    packed_engine = None
    if precision is None:
        loaded = load_weights(source, dtype=dtype_named(dtype), strict=strict, progress=progress)
        weights = LazyTransformer.of(loaded.transformer)
    else:
        # an automatic choice writes nothing to disk
        loaded = load_packed(
            source, precision, strict=strict, progress=progress, write=engine == "native"
        )
        weights = loaded.weights
        packed_engine = loaded.engine
        if packed_engine is None and not can_run(weights.get(), engine):
            precision = None
        if precision is not None:
            kinds = {entry.name: entry.kind for entry in source.tensors.values()}
            source.notes += gguf.notes(kinds, precision)
    model = Model(
        weights,
        tokenizer_of(source),
        family=loaded.family.name,
        head=loaded.head,
        keys=source.keys,
        source=source,
        defaults=read_defaults(source, weights.config.last.embedding.vocab_size),
        pooling=read_pooling(source.where) if source.where.is_dir() else None,
        name=name,
        precision=precision,
    )
    if packed_engine is not None:
        return model.with_engine(packed_engine)
    if precision not in (None, "float32"):
        _ = model.runner  # pack now, so that notes on rounding are there after loading
    return model


def can_run(transformer: Transformer, engine: Engine) -> bool:
    """Whether the native engine supports every operation of this model. If not, `"native"` is
    refused and `"auto"` falls back to torch."""
    try:
        check_known(transformer)
    except InputError:
        if engine == "native":
            raise
        return False
    return True
