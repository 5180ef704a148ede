"""Documents that share a row are computed as if each were alone."""

from __future__ import annotations

import pytest
import torch

import sightline as sl
from sightline.core import check
from sightline.core.cache.kv_cache import Cache
from sightline.errors import InputError

LENGTHS = (5, 1, 7)


def model(kind: str, positions: str) -> sl.Transformer:
    torch.manual_seed(0)
    maker = sl.gpt if kind == "gpt" else sl.bert
    return sl.build(
        maker(width=32, layers=2, heads=4, vocab_size=50, max_positions=32, positions=positions)
    ).eval()


def packed_row(
    lengths: tuple[int, ...] = LENGTHS,
) -> tuple[torch.Tensor, torch.Tensor, list[torch.Tensor]]:
    parts = [
        torch.randint(0, 50, (1, n), generator=torch.Generator().manual_seed(n)) for n in lengths
    ]
    documents = torch.cat([torch.full((1, n), i) for i, n in enumerate(lengths)], dim=1)
    return torch.cat(parts, dim=1), documents, parts


@pytest.mark.parametrize("kernel", ["equation", "fused"])
@pytest.mark.parametrize(
    "positions", ["none", "learned", "sinusoidal", "rotary", "alibi", "relative"]
)
@pytest.mark.parametrize("kind", ["gpt", "bert"])
def test_a_document_in_a_shared_row_is_as_it_is_alone(
    kind: str, positions: str, kernel: str
) -> None:
    made = model(kind, positions)
    row, documents, parts = packed_row()
    together = made.hidden(row, documents=documents, kernel=kernel)
    alone = torch.cat([made.hidden(part, kernel=kernel) for part in parts], dim=1)
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-4)


def test_without_numbers_the_documents_see_each_other() -> None:
    made = model("gpt", "rotary")
    row, documents, _ = packed_row()
    assert not torch.allclose(made.hidden(row, documents=documents), made.hidden(row), atol=1e-3)


def test_windows_and_long_rows_keep_documents_apart() -> None:
    """Long enough that the mask is built tile by tile."""
    torch.manual_seed(0)
    made = sl.build(
        sl.gpt(
            width=16,
            layers=1,
            heads=2,
            vocab_size=50,
            max_positions=4096,
            positions="rotary",
            window=64,
        )
    ).eval()
    row, documents, parts = packed_row((1000, 500, 1300))
    together = made.hidden(row, documents=documents)
    alone = torch.cat([made.hidden(part) for part in parts], dim=1)
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-4)


def test_padding_beside_documents() -> None:
    made = model("gpt", "learned")
    row, documents, parts = packed_row()
    padding = torch.zeros(1, row.shape[1] + 3, dtype=torch.bool)
    padding[:, row.shape[1] :] = True
    filled, numbers = (
        torch.cat([row, row[:, :3]], dim=1),
        torch.cat([documents, torch.full((1, 3), 9)], dim=1),
    )
    together = made.hidden(filled, padding=padding, documents=numbers)[:, : row.shape[1]]
    torch.testing.assert_close(
        together, torch.cat([made.hidden(part) for part in parts], dim=1), atol=2e-5, rtol=1e-4
    )


def test_refusals() -> None:
    made = model("gpt", "rotary")
    row, documents, _ = packed_row()
    with pytest.raises(InputError, match="one number per token"):
        check.packed_documents(documents[:, 1:], row, None)
    with pytest.raises(InputError, match="cache"):
        made.hidden(row, documents=documents, cache=Cache.growing(made.config))
