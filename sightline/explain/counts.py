"""Parameters and FLOPs per part, counted from the equations that are shown.

Conventions for FLOPs: a multiply-add is 2; only matrix products count (norms, softmax, activations,
biases and lookups do not). Attention's two products, 2·h·d_k and 2·h·d_v per pair of tokens, count
the pairs that the mask allows: T (T + 1) / 2 for a causal mask. `square` counts all T² instead, as
FlopCounterMode and the 12·layers·width·time rule do. Training is 3 × forward: the backward pass
multiplies twice as often.
"""

from __future__ import annotations

from dataclasses import dataclass

from sightline.config import Learned, ModelConfig
from sightline.errors import InputError
from sightline.explain.equations import sections
from sightline.explain.lines import Section

LONGEST = 10**9


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a model: its parameters in one layer, the number of layers, and the FLOPs of all
    these layers."""

    stack: str
    section: str
    name: str
    block: int | None
    each: int
    times: int
    formula: str
    flops: int
    square_flops: int

    @property
    def parameters(self) -> int:
        return self.each * self.times

    @property
    def path(self) -> str:
        """`decoder.attention.query`, with the block's number where a pattern has several:
        `decoder.1.attention.query`."""
        where = [self.stack] if self.block is None else [self.stack, str(self.block)]
        names = [
            name
            for name in (self.section, self.name)
            if name not in (self.stack, "norm" if self.section == "final_norm" else "")
        ]
        return ".".join(where + names)


def section_parts(sections_given: list[Section]) -> list[Part]:
    """The weights and matrix products of these sections, per part."""
    patterned = {section.stack for section in sections_given if section.block}
    return [
        part
        for section in sections_given
        for part in _parts_in_section(section, numbered=section.stack in patterned)
    ]


def _parts_in_section(section: Section, *, numbered: bool) -> list[Part]:
    weights = [weight for line in section.lines for weight in line.weights]
    names = dict.fromkeys(
        [*(weight.part for weight in weights), *(line.part for line in section.lines if line.part)]
    )
    rows: list[Part] = []
    for name in names:
        part_weights = [weight for weight in weights if weight.part == name]
        times = 1 if part_weights and "{n}" not in part_weights[0].path else section.times
        lines = [line for line in section.lines if line.part == name]
        rows.append(
            Part(
                stack=section.stack,
                section=section.name,
                name=name,
                block=section.block if numbered else None,
                each=sum(weight.count for weight in part_weights),
                times=times,
                formula=" + ".join(weight.formula for weight in part_weights),
                flops=section.times * sum(line.flops for line in lines),
                square_flops=section.times * sum(line.square_flops for line in lines),
            )
        )
    return rows


def count_parameters(config: ModelConfig) -> list[Part]:
    """Every part that has parameters. Their sum equals the parameter count of the built model."""
    return [part for part in section_parts(sections(config, time=1, source=1)) if part.each]


def total_parameters(config: ModelConfig) -> int:
    """The number of parameters; shared ones count once."""
    return sum(part.parameters for part in count_parameters(config))


def count_flops(config: ModelConfig, *, time: int, source: int | None = None) -> list[Part]:
    """Every part with matrix products, and its FLOPs in one forward pass over a sequence of `time`
    tokens."""
    check_sizes(config, time=time, source=source)
    return [
        part
        for part in section_parts(
            sections(config, time=time, source=time if source is None else source)
        )
        if part.square_flops
    ]


def forward_flops(
    config: ModelConfig, *, time: int, source: int | None = None, square: bool = False
) -> int:
    """FLOPs of one forward pass over one sequence; `square` counts masked pairs too."""
    parts = count_flops(config, time=time, source=source)
    return sum(part.square_flops if square else part.flops for part in parts)


def check_sizes(config: ModelConfig, *, time: int, source: int | None, batch: int = 1) -> None:
    """Raise InputError for lengths that no forward pass could take."""
    for name, value in (("time", time), ("batch", batch), ("source", source)):
        if value is not None and value < 1:
            raise InputError(
                f"{name} is {value}", expected="1 or more", fix=f"{name} 1, or leave it out"
            )
        if value is not None and value > LONGEST:
            raise InputError(
                f"{name} is {value:.3g}", expected=f"up to {LONGEST:,}", fix=f"{name} {LONGEST}"
            )
    if source is not None and (config.encoder is None or config.decoder is None):
        raise InputError(
            "source for a model with one stack",
            expected="an encoder and a decoder",
            fix="leave source out",
        )
    both = config.encoder is not None and config.decoder is not None
    for name, stack in config.stacks.items():
        length, argument = (
            (source or time, "source") if both and name == "encoder" else (time, "time")
        )
        if isinstance(stack.embedding.positions, Learned) and length > stack.max_positions:
            raise InputError(
                f"{length} tokens for a table of {stack.max_positions} learned positions",
                expected=f"{argument} up to {stack.max_positions}",
                fix=f"{argument} {stack.max_positions}, or leave it out",
            )
