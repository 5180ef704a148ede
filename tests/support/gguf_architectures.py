"""Tensors of each GGUF architecture, and the logits they must give."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from sightline.checkpoints.formats.gguf import write as gguf_write
from sightline.checkpoints.source import Entry
from tests.checkpoints.tiny_gguf import tensors_of

TOKENS = torch.randint(3, 96, (1, 24), generator=torch.Generator().manual_seed(0))

START = torch.cat([torch.zeros(1, 1, dtype=torch.long), TOKENS[:, :9]], dim=1)


def truth(model: Any, name: str) -> Tensor:
    """What transformers computes."""
    with torch.no_grad():
        if name in ("t5", "t5 v1.1"):
            return model(input_ids=TOKENS, decoder_input_ids=START).logits
        return model(TOKENS)[0]


def write(model: Any, path: Path, dtype: str = "float32") -> list[str]:
    """Our own writer."""
    entries = {
        name: Entry(name, tuple(x.shape), x.dtype, lambda x=x: x)
        for name, x in tensors_of(model).items()
    }
    return gguf_write.write_gguf(
        path,
        model.config.to_dict() | {"architectures": [type(model).__name__]},
        entries,
        None,
        dtype,
    )
