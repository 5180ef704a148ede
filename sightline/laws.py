"""Checks the laws on a checkpoint: measures how equal the two sides of each law are.

cached = whole      one token at a time with a cache, against one pass
chunked = whole     in uneven pieces, against one pass
row = alone         a row of a batch, against the row by itself
padded = alone      the same row behind padding
past                later tokens changed: earlier logits are equal to the last bit
fused = equation    the kernel, against the formula
saved = loaded      written and read back, equal to the last bit
reference           against transformers
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.checkpoints.save import class_name_for
from sightline.core.cache.kv_cache import Cache
from sightline.families import FAMILIES
from sightline.loading import load
from sightline.model import Model

BATCH = 3
TIME = 24
SOURCE = 10
TOLERANCE = 1e-4


@dataclass(frozen=True, slots=True)
class LawResult:
    """One law: the difference of the two sides, relative to the largest number; None if the law
    does not apply, with a note why."""

    law: str
    difference: float | None
    allowed: float
    note: str = ""

    @property
    def holds(self) -> bool:
        return self.difference is None or self.difference <= self.allowed


@torch.no_grad()
def check_laws(model: Model, *, seed: int = 0, reference: bool = True) -> Iterator[LawResult]:
    """Measure every law, one at a time."""
    case = Case(model, seed)
    parameters = list(model.transformer.parameters())
    empty = sum(
        parameter.is_meta for parameter in parameters
    )  # loading itself refuses unclaimed tensors
    yield LawResult(
        "each tensor claimed once",
        float(empty),
        0.0,
        f"{len(parameters) - empty} parameters filled",
    )
    laws: dict[str, Callable[[], float]] = {
        "fused = equation": case.fused,
        "row = alone": case.alone,
        "padded = alone": case.padded,
    }
    if model.config.decoder is not None:
        laws |= {"cached = whole": case.cached, "chunked = whole": case.chunked}
    for name, measure in laws.items():
        yield LawResult(name, measure(), TOLERANCE)
    if model.config.decoder is not None:
        yield LawResult("future changes no past", case.past(), 0.0)
    with tempfile.TemporaryDirectory() as place:
        folder = model.save(Path(place) / "saved")
        yield LawResult("saved = loaded", case.reloaded(folder), 0.0)
        if reference:
            yield case.reference(folder)


class Case:
    """The inputs that all laws share, and one forward pass over them."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model = model
        config = model.config
        random = torch.Generator().manual_seed(seed)
        time = min(TIME, config.last.max_positions)
        self.tokens = torch.randint(
            0, config.last.embedding.vocab_size, (BATCH, time), generator=random
        )
        self.sources: dict[str, Tensor] = {}
        if config.encoder is not None and config.decoder is not None:
            length = min(SOURCE, config.encoder.max_positions)
            self.sources = {
                "source": torch.randint(
                    0, config.encoder.embedding.vocab_size, (BATCH, length), generator=random
                )
            }
        self.whole = self.run(self.tokens)

    def run(self, tokens: Tensor, **options: object) -> Tensor:
        return self.model.transformer(tokens, **self.sources, **options)

    def fused(self) -> float:
        return relative_difference(self.run(self.tokens, kernel="equation"), self.whole)

    def alone(self) -> float:
        rows = [
            self.model.transformer(self.tokens[n : n + 1], **self._row(n)) for n in range(BATCH)
        ]
        return relative_difference(self.whole, torch.cat(rows))

    def _row(self, n: int) -> dict[str, Tensor]:
        return {name: x[n : n + 1] for name, x in self.sources.items()}

    def padded(self) -> float:
        """Each row with a different amount of left padding, against the same tokens without
        padding."""
        time = self.tokens.shape[1]
        keep = self.tokens.shape[1] - 2 * (BATCH - 1)
        if keep < 1:
            return 0.0
        padding = torch.arange(time)[None] < 2 * torch.arange(BATCH)[:, None]
        together = self.run(self.tokens, padding=padding)
        worst = 0.0
        for n in range(BATCH):
            alone = self.model.transformer(self.tokens[n : n + 1, 2 * n :], **self._row(n))[0]
            worst = max(
                worst,
                relative_difference(
                    alone, together[n, 2 * n :] if together.dim() == 3 else together[n]
                ),
            )
        return worst

    def cached(self) -> float:
        return self._in_pieces([1] * self.tokens.shape[1])

    def chunked(self) -> float:
        time = self.tokens.shape[1]
        return self._in_pieces([time // 3, 1, time - time // 3 - 1])

    def _in_pieces(self, sizes: list[int]) -> float:
        if self.whole.dim() != 3:
            return 0.0
        cache = Cache.growing(self.model.config)
        outputs = list[Tensor]()
        for n, piece in enumerate(self.tokens.split([size for size in sizes if size > 0], dim=1)):
            outputs.append(
                self.model.transformer(piece, cache=cache, **(self.sources if n == 0 else {}))
            )
        return relative_difference(self.whole, torch.cat(outputs, dim=1))

    def past(self) -> float:
        half = self.tokens.shape[1] // 2
        changed = self.tokens.clone()
        changed[:, half:] = (changed[:, half:] + 1) % self.model.config.last.embedding.vocab_size
        after = self.run(changed)
        return (
            0.0
            if self.whole.dim() != 3
            else relative_difference(self.whole[:, :half], after[:, :half])
        )

    def reloaded(self, folder: Path) -> float:
        again = load(folder)
        mine = self.model.transformer.state_dict()
        theirs = again.transformer.state_dict()
        assert mine.keys() == theirs.keys()
        return max(float((mine[name] - theirs[name]).abs().max()) for name in mine)

    def reference(self, folder: Path) -> LawResult:
        """transformers' output for the saved folder, if it is installed and supports the model."""
        if self.model.family == "sightline":
            return LawResult(
                "reference",
                None,
                TOLERANCE,
                "a model in Sightline's own format: transformers cannot load it",
            )
        try:
            import transformers
        except ImportError:
            return LawResult(
                "reference",
                None,
                TOLERANCE,
                "transformers is not installed: pip install transformers",
            )
        name = class_name_for(self.model.keys, FAMILIES[self.model.family], self.model.head)
        kind = getattr(transformers, name, None)
        if kind is None:
            return LawResult(
                "reference",
                None,
                TOLERANCE,
                f"transformers {transformers.__version__} has no {name}",
            )
        theirs = kind.from_pretrained(folder, dtype=torch.float32).eval()
        inputs = {"input_ids": self.tokens}
        if self.sources:
            inputs = {"input_ids": self.sources["source"], "decoder_input_ids": self.tokens}
        output = theirs(**inputs)
        expected = matching_output(output, self.whole)
        return LawResult(
            "reference",
            relative_difference(expected, self.whole),
            TOLERANCE,
            f"transformers {transformers.__version__}",
        )


def matching_output(output: Any, like: Tensor) -> Tensor:
    """The part of transformers' output that corresponds to ours."""
    if getattr(output, "start_logits", None) is not None:
        return torch.stack((output.start_logits, output.end_logits), dim=-1)
    for name in ("logits", "pooler_output", "last_hidden_state"):
        tensor = getattr(output, name, None)
        if tensor is not None and tensor.shape == like.shape:
            return tensor
    raise AssertionError("transformers has no output of our shape")


def relative_difference(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest number."""
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-6))
