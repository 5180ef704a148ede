"""Tensors with another layout in llama.cpp than in Hugging Face, and the conversion both ways.

llama               rotary rows of q and k as adjacent pairs, not as halves (`rotary_order`)
gemma, gemma2       norm gains as γ, not as γ − 1
gpt_neox, bloom     all of q, then k, then v, not head by head
gpt2                matrices as [out, in]
roberta             position table without the padding rows
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sightline.checkpoints.formats.rotary_order import halves_to_pairs, pairs_to_halves

QUERY = re.compile(r"blk\.\d+\.attn_q\.(weight|bias)")
KEY = re.compile(r"blk\.\d+\.attn_k\.(weight|bias)")
JOINED = re.compile(r"blk\.\d+\.attn_qkv\.(weight|bias)")
GAIN = re.compile(r"(blk\.\d+\.\w+|output)_norm\.weight")
TRANSPOSED = re.compile(r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight")


@dataclass(frozen=True, slots=True)
class Layout:
    """Conversions of one tensor in both directions."""

    to_hugging_face: Callable[[Tensor], Tensor]
    to_gguf: Callable[[Tensor], Tensor]


def layout_of(
    family: str, name: str, *, heads: int, kv_heads: int, reserved: int = 0
) -> Layout | None:
    """The layout of a GGUF tensor; None if it is the same as Hugging Face's. `reserved` positions
    are padding."""
    if family in ("llama", "mistral") and QUERY.fullmatch(name):
        return _pairs_layout(heads)
    if family in ("llama", "mistral") and KEY.fullmatch(name):
        return _pairs_layout(kv_heads)
    if family in ("gemma", "gemma2") and GAIN.fullmatch(name):
        return Layout(lambda gain: gain - 1, lambda gain: gain.float() + 1)
    if family in ("gpt_neox", "bloom") and JOINED.fullmatch(name):
        return _qkv_layout(heads)
    if family == "gpt2" and TRANSPOSED.fullmatch(name):
        return Layout(lambda matrix: matrix.t().contiguous(), lambda matrix: matrix.t())
    if name == "token_types.weight":
        return Layout(lambda rows: rows.reshape(-1, rows.shape[-1]), lambda rows: rows)
    if name == "position_embd.weight" and reserved:
        return Layout(lambda rows: rows, lambda rows: rows[reserved:])
    return None


def shape_after(change: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape after a conversion, computed without data; RuntimeError if it does not fit."""
    return tuple(change(torch.empty(shape, device="meta")).shape)


def _pairs_layout(heads: int) -> Layout:
    return Layout(
        lambda rows: pairs_to_halves(rows, heads), lambda rows: halves_to_pairs(rows, heads)
    )


def _qkv_layout(heads: int) -> Layout:
    """In GGUF all of q, then k, then v; in Hugging Face head by head."""

    def head_by_head(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2).contiguous()

    def part_by_part(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2).contiguous()

    return Layout(head_by_head, part_by_part)
