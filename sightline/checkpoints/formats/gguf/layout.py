"""Tensors that llama.cpp lays out in another way than Hugging Face, and the way there and back.

llama               the rows of q and k side by side as pairs, not as halves (`rotary_order`)
gemma, gemma2       gains as γ, not as γ − 1
gpt_neox, bloom     all of q, then k, then v, not head by head
gpt2                matrices as [out, in]
roberta             positions without the rows that stand for padding
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
TURNED = re.compile(r"blk\.\d+\.(attn_qkv|attn_output|ffn_up|ffn_down)\.weight")


@dataclass(frozen=True, slots=True)
class Layout:
    """The two directions."""

    to_hugging_face: Callable[[Tensor], Tensor]
    to_gguf: Callable[[Tensor], Tensor]


def layout_of(
    family: str, name: str, *, heads: int, kv_heads: int, reserved: int = 0
) -> Layout | None:
    """How one of GGUF's tensors differs from Hugging Face's; None if it does not. `reserved`
    positions stand for padding."""
    if family in ("llama", "mistral") and QUERY.fullmatch(name):
        return _pairs(heads)
    if family in ("llama", "mistral") and KEY.fullmatch(name):
        return _pairs(kv_heads)
    if family in ("gemma", "gemma2") and GAIN.fullmatch(name):
        return Layout(lambda gain: gain - 1, lambda gain: gain.float() + 1)
    if family in ("gpt_neox", "bloom") and JOINED.fullmatch(name):
        return _joined(heads)
    if family == "gpt2" and TURNED.fullmatch(name):
        return Layout(lambda matrix: matrix.t().contiguous(), lambda matrix: matrix.t())
    if name == "token_types.weight":
        return Layout(lambda rows: rows.reshape(-1, rows.shape[-1]), lambda rows: rows)
    if name == "position_embd.weight" and reserved:
        return Layout(lambda rows: rows, lambda rows: rows[reserved:])
    return None


def shape_of(change: Callable[[Tensor], Tensor], shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape after a change, without any numbers; RuntimeError if the change cannot be made."""
    return tuple(change(torch.empty(shape, device="meta")).shape)


def _pairs(heads: int) -> Layout:
    return Layout(
        lambda rows: pairs_to_halves(rows, heads), lambda rows: halves_to_pairs(rows, heads)
    )


def _joined(heads: int) -> Layout:
    """[q, k, v] of all heads one after the other in GGUF, head by head in Hugging Face."""

    def head_by_head(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (3, heads, -1)).transpose(0, 1).flatten(0, 2).contiguous()

    def part_by_part(rows: Tensor) -> Tensor:
        return rows.unflatten(0, (heads, 3, -1)).transpose(0, 1).flatten(0, 2).contiguous()

    return Layout(head_by_head, part_by_part)
