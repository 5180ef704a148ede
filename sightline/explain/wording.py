"""Texts and table rows shared by terminal and Markdown output: headings, symbols, shares, costs."""

from __future__ import annotations

from dataclasses import dataclass

from sightline.config import (
    BlockConfig,
    Classifier,
    EmbeddingConfig,
    FeedForwardConfig,
    LanguageHead,
    LayerNorm,
    MaskedHead,
    ModelConfig,
    NoNorm,
    NoPosition,
    Pooler,
    StackConfig,
)
from sightline.explain.lines import Section
from sightline.explain.memory import cache_bytes_per_token
from sightline.explain.summary import Explanation

ACTIVATION_NAMES = {
    "relu": "ReLU",
    "gelu": "GELU",
    "gelu_tanh": "GELU (tanh)",
    "silu": "SiLU",
    "relu_squared": "ReLU²",
}
GATED_NAMES = {
    "relu": "ReGLU",
    "gelu": "GEGLU",
    "gelu_tanh": "GEGLU (tanh)",
    "silu": "SwiGLU",
    "relu_squared": "gated ReLU²",
}
PLACEMENT_NAMES = {
    "pre": "Pre-LN",
    "post": "Post-LN",
    "sandwich": "sandwich",
    "output": "output",
    "sphere": "sphere",
}
POSITION_NAMES = {
    "Learned": "learned",
    "Sinusoidal": "sinusoidal",
    "Rotary": "RoPE",
    "ALiBi": "ALiBi",
    "RelativeBias": "relative-bias",
}
SECTION_NAMES = {
    "attention": "self-attention",
    "cross_attention": "cross-attention",
    "feed_forward": "feed-forward",
    "final_norm": "final norm",
}
SMALL_LETTERS = (
    "t, p, i, j",
    "a token, its position, the query's and the key's position; shapes are of one sequence",
)
UNITS = ("", "k", "M", "G", "T", "P", "E")


def with_unit(value: float, unit: str) -> str:
    """291648000000, FLOP → 291.6 GFLOP"""
    power = 0
    while abs(value) >= 999.95 and power < len(UNITS) - 1:
        value = value / 1000
        power = power + 1
    return f"{value:.{0 if power == 0 else 1 if value >= 99.95 else 2}f} {UNITS[power]}{unit}"


def share_text(value: int, whole: int) -> str:
    return f"{100 * value / whole:.1f}%" if value and whole else ""


# ------------------------------------------------------------------------------------ model kind


def model_kind(config: ModelConfig) -> str:
    """`decoder × 12 · learned positions · Pre-LN LayerNorm · 12 heads · GELU (tanh) · tied head`"""
    stack = config.last
    block = config.last.blocks[0]
    blocks = " + ".join(f"{name} × {stack.layers}" for name, stack in config.stacks.items())
    pattern = [f"a pattern of {len(stack.blocks)}"] if len(stack.blocks) > 1 else []
    return " · ".join(
        [
            blocks,
            *pattern,
            position_words(stack.embedding, block),
            norm_words(stack, block),
            head_count_words(block),
            *feed_forward_words(block),
            output_head_words(config),
        ]
    )


def paper_sentences(explanation: Explanation) -> list[str]:
    """The paper's own count and what of its model is not modelled, for a published model."""
    paper = explanation.published
    return [] if paper is None else [each for each in (paper.sentence, paper.not_modelled) if each]


def position_words(embedding: EmbeddingConfig, block: BlockConfig) -> str:
    forms = [
        form
        for form in (embedding.positions, block.attention.positions)
        if not isinstance(form, NoPosition)
    ]
    return (
        " and ".join(POSITION_NAMES[type(form).__name__] for form in forms) + " positions"
        if forms
        else "no positions"
    )


def norm_words(stack: StackConfig, block: BlockConfig) -> str:
    if stack.on_sphere:
        return "unit hypersphere (nGPT)"
    if isinstance(block.norm, NoNorm):
        return "no norm"
    return (
        f"{PLACEMENT_NAMES[block.placement]}"
        f" {'LayerNorm' if isinstance(block.norm, LayerNorm) else 'RMSNorm'}"
    )


def head_count_words(block: BlockConfig) -> str:
    form = block.attention
    grouped = f" on {form.kv_heads} key-value heads" if form.kv_heads < form.heads else ""
    return f"{form.heads} {'head' if form.heads == 1 else 'heads'}{grouped}"


def feed_forward_words(block: BlockConfig) -> list[str]:
    config: FeedForwardConfig = block.feed_forward
    name = (GATED_NAMES if config.gated else ACTIVATION_NAMES)[config.activation]
    return [name, "parallel"] if block.parallel else [name]


def output_head_words(config: ModelConfig) -> str:
    form = config.head
    if isinstance(form, (LanguageHead, MaskedHead)):
        masked = "masked-token " if isinstance(form, MaskedHead) else ""
        return f"{masked}{'tied head' if form.tied else 'untied head'}"
    if isinstance(form, Classifier):
        return f"classifier of {form.labels} labels ({form.pool})"
    return f"{form.how} pooler" if isinstance(form, Pooler) else "no head"


# --------------------------------------------------------------------------- symbols and headings


def dimension_legend(letters: dict[str, int]) -> list[str]:
    """`d_model = 768`, …, with `d_k = d_v` where they are equal."""
    items: list[str] = []
    together = letters.get("d_k") == letters.get("d_v") is not None
    for letter, size in letters.items():
        if not (together and letter == "d_v"):
            items.append(f"{'d_k = d_v' if together and letter == 'd_k' else letter} = {size:,}")
    return items


def section_heading(explanation: Explanation, section: Section) -> str:
    """`decoder block × 12`, or `decoder layers 1, 3, 5, … × 6` in a pattern."""
    if section.block is None:
        both = len(explanation.config.stacks) > 1
        place = f"{section.stack} " if both and section.stack != "head" else ""
        return place + SECTION_NAMES.get(section.name, section.name)
    stack = explanation.config.stacks[section.stack]
    if len(stack.blocks) == 1:
        return f"{section.stack} block × {section.times}"
    first = [str(section.block + n * len(stack.blocks)) for n in range(min(3, section.times))]
    layers = ", ".join(first) + (", …" if section.times > 3 else "")
    return (
        f"{section.stack} {'layer' if section.times == 1 else 'layers'} {layers} × {section.times}"
    )


def length_words(explanation: Explanation) -> str:
    """`T = 512, S = 512 tokens, batch 8`"""
    source = f", S = {explanation.source:,}" if explanation.source is not None else ""
    return f"T = {explanation.time:,}{source} tokens" + (
        f", batch {explanation.batch:,}" if explanation.batch > 1 else ""
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table of parameters and FLOPs."""

    label: str
    times: int
    parameters: int
    flops: int


def table_rows(explanation: Explanation) -> list[Row]:
    """Parameters and FLOPs of each sub-layer, all layers together."""
    rows: list[Row] = []
    patterned = {section.stack for section in explanation.sections if section.block}
    for section in explanation.sections:
        number = section.block if section.stack in patterned else None
        parts = [
            part
            for part in explanation.parts
            if (part.stack, part.section, part.block) == (section.stack, section.name, number)
        ]
        place = (
            ""
            if section.stack == "head" or (len(explanation.config.stacks) == 1 and number is None)
            else f"{section.stack} "
        )
        numbered = "" if number is None or section.block is None else f"{number} "
        parameters = sum(part.parameters for part in parts)
        flops = explanation.batch * sum(part.flops for part in parts)
        if parts:
            rows.append(
                Row(
                    f"{place}{numbered}{SECTION_NAMES.get(section.name, section.name)}",
                    section.times,
                    parameters,
                    flops,
                )
            )
    return rows


def row_cells(row: Row, parameters: int, flops: int) -> list[str]:
    """Label, parameters and their share, FLOPs and theirs."""
    label = f"{row.label} × {row.times}" if row.times > 1 else row.label
    counts = [
        f"{row.parameters:,}" if row.parameters else "–",
        share_text(row.parameters, parameters),
    ]
    return [
        label,
        *counts,
        with_unit(row.flops, "") if row.flops else "–",
        share_text(row.flops, flops),
    ]


# ------------------------------------------------------------------------------------------ costs


@dataclass(frozen=True, slots=True)
class Cost:
    """A name, a value, and how it is computed."""

    name: str
    value: str
    how: str


def cost_rows(explanation: Explanation) -> list[Cost]:
    """Cost of a forward pass, a training step and the KV cache at this length."""
    return [
        *_compute_costs(explanation),
        *_cache_costs(explanation),
        *_memory_costs(explanation),
        *_attention_paths(explanation),
    ]


def _compute_costs(explanation: Explanation) -> list[Cost]:
    forward = explanation.forward_flops
    square = explanation.square_flops
    masked = (
        f", pairs that the mask allows (all pairs: {with_unit(square, 'FLOP')})"
        if square != forward
        else ""
    )
    estimate = with_unit(explanation.six_n_d, "FLOP")
    rule = f"3 × forward; the rule 6 · parameters · tokens gives {estimate}"
    return [
        Cost(
            "forward",
            with_unit(forward, "FLOP"),
            f"2 per multiply-add, matrix products only{masked}",
        ),
        Cost("training step", with_unit(explanation.training_flops, "FLOP"), rule),
    ]


def _cache_costs(explanation: Explanation) -> list[Cost]:
    stack = explanation.config.decoder
    if stack is None:
        return []
    windows = any(block.attention.window is not None for block in stack.blocks)
    forms = {
        (form.heads, form.kv_heads, form.head_dim, form.value_width)
        for form in (block.attention for block in stack.blocks)
    }
    letter = "h" if all(heads == kv_heads for heads, kv_heads, *_ in forms) else "h_kv"
    layers = (
        f"N·{letter}·(d_k + d_v)·2 bytes"
        if len(forms) == 1
        else f"{letter}·(d_k + d_v)·2 bytes of each layer"
    )
    how = f"16-bit: {layers} per token" + (", until a window is full" if windows else "")
    crossing = " and the source's" if explanation.config.encoder is not None else ""
    per_token = Cost("KV cache", f"{cache_bytes_per_token(explanation.config):,} B/token", how)
    whole = f"{explanation.time:,} tokens{crossing}" + (
        f" × {explanation.batch}" if explanation.batch > 1 else ""
    )
    return [per_token, Cost("", with_unit(explanation.cache_bytes(), "B"), f"for {whole}")]


def _memory_costs(explanation: Explanation) -> list[Cost]:
    memory = explanation.training_memory
    states = memory.total - memory.activations
    fixed = (
        f"{with_unit(states, 'B')} at 16 bytes per parameter (fp32 weight, gradient, AdamW's two"
        " moments)"
    )
    how = f"{fixed} + {with_unit(memory.activations, 'B')} activations, estimated"
    return [Cost("training memory", with_unit(memory.total, "B"), how)]


def _attention_paths(explanation: Explanation) -> list[Cost]:
    paths = explanation.attention_paths
    if len(set(paths.values())) == 1:
        return [Cost("attention kernel", "", next(iter(paths.values())))]
    return [
        Cost("attention kernel" if n == 0 else "", "", f"{name}: {path}")
        for n, (name, path) in enumerate(paths.items())
    ]
