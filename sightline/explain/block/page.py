"""A walk through one block as a value: formulas, shapes, and the numbers if there are any."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sightline.config import ModelConfig, StackConfig
from sightline.explain.block.small import TOKENS, check_block, small_config
from sightline.explain.block.steps import Part, Step, Values, block_axes, block_parts
from sightline.explain.counts import check_sizes
from sightline.explain.published import published
from sightline.explain.wording import dimension_legend
from sightline.record import QUANTITIES


@dataclass(frozen=True, slots=True)
class BlockPage:
    """One block: the parts of its computation, and the values of every step where a seed made
    them."""

    name: str
    stack: StackConfig
    tokens: int
    parts: tuple[Part, ...]
    seed: int | None = None
    values: dict[str, Values] | None = None
    not_modelled: str = ""

    @property
    def steps(self) -> list[Step]:
        return [step for part in self.parts for step in part.steps]

    @property
    def letters(self) -> dict[str, int]:
        """N, d, h, … and their sizes."""
        axes = block_axes(self.stack, self.tokens)
        each = (
            axes.tokens,
            axes.width,
            axes.heads,
            axes.kv_heads,
            axes.size,
            axes.value_size,
            axes.hidden,
        )
        return {axis.symbol: axis.size for axis in each}

    @property
    def legend(self) -> list[str]:
        return dimension_legend(self.letters)

    @property
    def weights(self) -> list[Step]:
        return [step for step in self.steps if step.is_weight]

    @property
    def parameters(self) -> int:
        return sum(count(step) for step in self.weights)

    def to_plain(self) -> dict[str, Any]:
        """The page as dictionaries and lists; −∞ is null, since JSON has no infinity."""
        return {
            "name": self.name,
            "seed": self.seed,
            "letters": self.letters,
            "parameters": self.parameters,
            "not_modelled": self.not_modelled,
            "parts": [
                {"title": part.title, "steps": [self.plain_step(step) for step in part.steps]}
                for part in self.parts
            ],
        }

    def plain_step(self, step: Step) -> dict[str, Any]:
        recorded = step.name in QUANTITIES
        plain = {
            "name": step.name,
            "symbol": step.symbol,
            "formula": step.formula,
            "shape": [axis.symbol for axis in step.shape],
            "size": [axis.size for axis in step.shape],
            "meaning": step.says,
            "remark": step.remark,
            "recorded": recorded,
            "parameter": step.is_weight,
        }
        return plain | ({} if self.values is None else {"values": finite(self.values[step.name])})


def count(step: Step) -> int:
    return math.prod(axis.size for axis in step.shape)


def finite(values: Any) -> Any:
    """The values with None for −∞."""
    if isinstance(values, list):
        return [finite(value) for value in values]
    return values if math.isfinite(values) else None


def block_page(config: ModelConfig, *, name: str, time: int | None = None) -> BlockPage:
    """Formulas and shapes of the block, at its real sizes."""
    check_block(config, name)
    stack = config.last
    tokens = stack.max_positions if time is None else time
    check_sizes(config, time=tokens, source=None, batch=1)
    parts = block_parts(stack, tokens=tokens)
    paper = published(name, config)
    return BlockPage(name, stack, tokens, parts, not_modelled=paper.not_modelled if paper else "")


def block_numbers(config: ModelConfig, *, name: str, seed: int = 0) -> BlockPage:
    """Formulas, shapes and numbers of the block at a small size."""
    check_block(config, name)
    from sightline.explain.block.numbers import block_values

    stack = small_config(config).last
    values = block_values(config, seed=seed)
    return BlockPage(name, stack, TOKENS, block_parts(stack, tokens=TOKENS), seed, values)
