"""The two row orders of a rotary head: adjacent pairs (0 1)(2 3)…, or halves (0 d/2)(1 d/2+1)….

GGUF (architecture llama) and llama2.c keep pairs, as Meta's code does; Hugging Face and Sightline
keep halves. The rows of the query and key projections move; the scores do not change.
"""

from __future__ import annotations

from torch import Tensor


def pairs_to_halves(rows: Tensor, heads: int) -> Tensor:
    """Rows [heads · head_dim, …] in the order of pairs, as halves."""
    rest = rows.shape[1:]
    return rows.reshape(heads, -1, 2, *rest).transpose(1, 2).reshape(-1, *rest).contiguous()


def halves_to_pairs(rows: Tensor, heads: int) -> Tensor:
    """Rows [heads · head_dim, …] in the order of halves, as pairs."""
    rest = rows.shape[1:]
    return rows.reshape(heads, 2, -1, *rest).transpose(1, 2).reshape(-1, *rest).contiguous()
