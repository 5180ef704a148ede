"""Facts about a checkpoint, without reading its weights."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from sightline.checkpoints.formats.folder import manifest_digests
from sightline.checkpoints.formats.writing import MANIFEST
from sightline.checkpoints.identity import identify
from sightline.checkpoints.open import open_source
from sightline.checkpoints.source import Source
from sightline.checkpoints.sources.catalogue import CATALOGUE
from sightline.checkpoints.sources.reference import resolve
from sightline.checkpoints.tokenizer_files import tokenizer_of
from sightline.config import ModelConfig
from sightline.explain import total_parameters


def checkpoint_info(reference: str | Path, *, strict: bool = False) -> dict[str, Any]:
    """Facts by name, in the order in which they are shown. `strict` refuses unknown keys of
    config.json."""
    resolved = resolve(reference)
    source = open_source(resolved, skip_pickles=True)
    identity = identify(source, strict=strict)
    config = identity.config
    tokenizer = tokenizer_of(source)
    stack = config.last
    block = stack.block(0)
    return {
        "name": resolved.name,
        "family": identity.family.name,
        "head": identity.head,
        "kind": " + ".join(config.stacks),
        "parameters": total_parameters(config),
        "width": stack.width,
        "layers": stack.layers,
        "heads": block.attention.heads,
        "kv heads": block.attention.kv_heads,
        "head dim": block.attention.head_dim,
        "hidden": block.feed_forward.hidden,
        "vocabulary": stack.embedding.vocab_size,
        "context": stack.max_positions,
        "positions": position_types(config),
        "norm": f"{type(block.norm).__name__}, {block.placement}",
        "feed-forward": (
            f"{block.feed_forward.activation}{', gated' if block.feed_forward.gated else ''}"
        ),
        "format": source.format,
        "dtype": stored_dtypes(source) or None,
        "bytes": bytes_on_disk(resolved.path),
        "checksums": checksum_status(resolved.path),
        "tokenizer": None if tokenizer is None else f"{tokenizer.vocab_size:,} tokens",
        "chat template": tokenizer is not None and tokenizer.chat_template is not None,
        "licence": CATALOGUE[resolved.name].licence if resolved.name in CATALOGUE else None,
        "path": str(resolved.path),
        "notes": source.notes,
    }


def position_types(config: ModelConfig) -> str:
    """The kinds of position encoding, in the embedding and in attention."""
    stack = config.last
    names = [
        type(stack.embedding.positions).__name__,
        *sorted({type(block.attention.positions).__name__ for block in stack.blocks}),
    ]
    return " + ".join(name for name in dict.fromkeys(names) if name != "NoPosition") or "none"


def stored_dtypes(source: Source) -> str:
    """The dtypes of the stored weights, most frequent first, with their shares if there are
    several: `Q4_1 (79%), Q8_0 (21%), F32 (<1%)`."""
    counts = Counter[str]()
    for entry in source.tensors.values():
        counts[entry.kind or str(entry.dtype).removeprefix("torch.")] += entry.numbers
    if len(counts) == 1:
        return next(iter(counts))
    return ", ".join(
        f"{name} ({percent_of(count, counts.total())})" for name, count in counts.most_common()
    )


def percent_of(part: int, whole: int) -> str:
    """In percent: a part above zero is never shown as 0%, and 100% means all of it."""
    percent = round(100 * part / max(1, whole))
    if percent == 0:
        return "<1%"
    return f"{percent}%" if percent < 100 or part == whole else ">99%"


def checksum_status(path: Path) -> str | None:
    """How many files a folder's sightline.json covers. `sightline check --verify` reads them."""
    sums = manifest_digests(path) if path.is_dir() else None
    return None if sums is None else f"sha256 of {len(sums)} files in {MANIFEST}, not verified here"


def bytes_on_disk(path: Path) -> int:
    """Bytes on disk."""
    files = [path] if path.is_file() else [file for file in path.iterdir() if file.is_file()]
    return sum(file.stat().st_size for file in files)
