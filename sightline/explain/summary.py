"""The explanation of one model: equations, symbols, counts and costs, as one value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sightline.config import ModelConfig
from sightline.config.values import to_plain
from sightline.errors import InputError
from sightline.explain import definitions, memory
from sightline.explain.counts import Part, check_sizes, section_parts, total_parameters
from sightline.explain.equations import sections
from sightline.explain.lines import Definition, Line, Section, symbol_text
from sightline.explain.published import Published, published

LARGEST = 10**18  # parameters; more is certainly a mistake
ORDER = (
    "T",
    "S",
    "d_model",
    "d_enc",
    "h",
    "h_kv",
    "d_k",
    "d_v",
    "d_ff",
    "N",
    "V",
    "P",
    "types",
    "buckets",
)


@dataclass(frozen=True, slots=True)
class Explanation:
    """The result of `explain`. Shapes and parts are for one sequence; costs for `batch` of them."""

    name: str
    config: ModelConfig
    time: int
    source: int | None
    batch: int
    sections: list[Section]

    @property
    def published(self) -> Published | None:
        """The paper's own count, for a published model."""
        return published(self.name, self.config)

    @property
    def parts(self) -> list[Part]:
        return section_parts(self.sections)

    @property
    def parameters(self) -> int:
        return sum(part.parameters for part in self.parts)

    @property
    def forward_flops(self) -> int:
        return self.batch * sum(part.flops for part in self.parts)

    @property
    def square_flops(self) -> int:
        """Forward FLOPs including masked pairs."""
        return self.batch * sum(part.square_flops for part in self.parts)

    @property
    def training_flops(self) -> int:
        """3 × forward: the backward pass multiplies twice as often."""
        return 3 * self.forward_flops

    @property
    def six_n_d(self) -> int:
        """The rule of thumb: 6 · parameters · tokens."""
        return 6 * self.parameters * self.batch * self.time

    @property
    def definitions(self) -> list[Definition]:
        return definitions.definitions_of(self.sections)

    @property
    def letters(self) -> dict[str, int]:
        """The symbols that have one size in the whole model."""
        sizes: dict[str, set[int]] = {}
        for section in self.sections:
            for letter, size in section.dimensions.items():
                sizes.setdefault(letter, set()).add(size)
        sizes["N"] = {stack.layers for stack in self.config.stacks.values()}
        return {
            letter: sizes[letter].copy().pop()
            for letter in ORDER
            if len(sizes.get(letter, ())) == 1
        }

    def letters_of(self, section: Section) -> dict[str, int]:
        """The symbols whose size is specific to this section."""
        return {
            letter: size
            for letter, size in section.dimensions.items()
            if letter not in self.letters
        }

    @property
    def training_memory(self) -> memory.TrainingMemory:
        return memory.training_memory(
            self.config, time=self.time, source=self.source, batch=self.batch
        )

    def cache_bytes(self, number_bytes: int = 2) -> int:
        return memory.cache_bytes(
            self.config,
            time=self.time,
            source=self.source,
            batch=self.batch,
            number_bytes=number_bytes,
        )

    @property
    def attention_paths(self) -> dict[str, str]:
        """Each kind of self-attention layer and the kernel that computes it."""
        paths: dict[str, str] = {}
        for name, stack in self.config.stacks.items():
            length = self.source if self.source is not None and name == "encoder" else self.time
            for n, block in enumerate(stack.blocks):
                label = name if len(stack.blocks) == 1 else f"{name} block {n}"
                paths[label] = memory.attention_path(
                    block.attention, causal=stack.causal, time=length
                )
        return paths

    def to_plain(self) -> dict[str, Any]:
        """The explanation as dictionaries, lists, strings and integers."""
        training = self.training_memory
        return {
            "name": self.name,
            "time": self.time,
            "source": self.source,
            "batch": self.batch,
            "letters": self.letters,
            "sections": [_plain_section(self, section) for section in self.sections],
            "where": dict(self.definitions),
            "parameters": {
                "total": self.parameters,
                "published": _plain_published(self.published),
                "parts": [_plain_part(part) for part in self.parts if part.each],
            },
            "flops": {
                "convention": (
                    "2 per multiply-add, matrix products only; forward counts the pairs that masks"
                    " allow"
                ),
                "forward": self.forward_flops,
                "forward_with_masked_pairs": self.square_flops,
                "training": self.training_flops,
                "six_n_d": self.six_n_d,
                "parts": {part.path: self.batch * part.flops for part in self.parts if part.flops},
            },
            "cache": {
                "number_bytes": 2,
                "bytes_per_token": memory.cache_bytes_per_token(self.config),
                "bytes": self.cache_bytes(),
            },
            "training_memory": {
                "weights": training.weights,
                "gradients": training.gradients,
                "moments": training.moments,
                "activations_estimate": training.activations,
                "total": training.total,
            },
            "attention_path": self.attention_paths,
            "config": to_plain(self.config),
        }


def explain(
    config: ModelConfig,
    *,
    name: str = "model",
    time: int | None = None,
    source: int | None = None,
    batch: int = 1,
) -> Explanation:
    """Explain a model at a length of `time` tokens, by default `max_positions`; the encoder of an
    encoder–decoder reads `source` tokens."""
    both = config.encoder is not None and config.decoder is not None
    length = config.last.max_positions if time is None else time
    check_sizes(config, time=length, source=source, batch=batch)
    read = (source or time or config.stacks["encoder"].max_positions) if both else None
    check_sizes(config, time=length, source=read, batch=batch)
    if total_parameters(config) > LARGEST:
        raise InputError(
            f"{name} has more than 10^18 parameters",
            fix="check its layers, width, hidden and vocab_size",
        )
    return Explanation(
        name, config, length, read, batch, sections(config, time=length, source=read or length)
    )


def _plain_published(paper: Published | None) -> dict[str, str] | None:
    return paper and {"count": paper.count, "why": paper.why, "not_modelled": paper.not_modelled}


def _plain_section(explanation: Explanation, section: Section) -> dict[str, Any]:
    return {
        "stack": section.stack,
        "block": section.block,
        "name": section.name,
        "times": section.times,
        "letters": explanation.letters_of(section),
        "lines": [_plain_line(line) for line in section.lines],
    }


def _plain_line(line: Line) -> dict[str, Any]:
    weights = [
        {"symbol": w.symbol, "name": w.path, "shape": symbol_text(w.shape), "parameters": w.count}
        for w in line.weights
    ]
    return {
        "equation": line.equation,
        "shape": [axis.symbol for axis in line.shape],
        "size": [axis.size for axis in line.shape],
        "parameters": line.count,
        "flops": line.flops,
        "weights": weights,
    }


def _plain_part(part: Part) -> dict[str, Any]:
    return {
        "name": part.path,
        "each": part.each,
        "times": part.times,
        "parameters": part.parameters,
        "formula": part.formula,
    }
