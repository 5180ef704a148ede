"""LoRA adapters in the format of Hugging Face's PEFT: adapter_config.json,
adapter_model.safetensors, Hugging Face's names.

    base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight    [r, in]
    base_model.model.model.layers.3.self_attn.q_proj.lora_B.weight    [out, r]

Where a family's files hold several of our matrices as one (GPT-2's c_attn), their adapters become
one of the summed rank: A stacked, B block by block. That is the same product.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.checkpoints.formats.safetensors import open_safetensors
from sightline.checkpoints.formats.writing import save_safetensors
from sightline.checkpoints.tables import Pairing, pairings
from sightline.config import Classifier, LanguageHead, ModelConfig
from sightline.core.model import Transformer
from sightline.errors import CheckpointError
from sightline.families import Family
from sightline.files.atomic import write_text
from sightline.files.strict_json import read_json
from sightline.training.lora import adapters, is_adapter, replace_layer

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
STORED = re.compile(rf"{re.escape(PREFIX)}(?P<module>.+)\.lora_(?P<side>[AB])\.weight")


@dataclass(frozen=True, slots=True)
class Stored:
    """One adapter under Hugging Face's module name; `transposed` if the matrix is stored as [in,
    out]."""

    module: str
    a: Float[Tensor, "rank in"]
    b: Float[Tensor, "out rank"]
    alpha: float
    transposed: bool


def save_adapters(
    transformer: Transformer,
    family: Family,
    head: str,
    folder: Path,
    *,
    base: str = "",
    parameters: Mapping[str, Tensor] | None = None,
) -> None:
    """Write PEFT's adapter_config.json and adapter_model.safetensors; other trained parameters (a
    new head) are saved in full with them. `parameters` are written in place of the model's own."""
    table = table_of(transformer, family, head)
    own = (
        {name: p.detach() for name, p in transformer.named_parameters()}
        if parameters is None
        else parameters
    )
    stored = list(stored_adapters(transformer, table, own))
    whole = dict(full_parameters(transformer, table, own))
    tensors = {
        f"{PREFIX}{adapter.module}.lora_{side}.weight": getattr(adapter, side.lower())
        for adapter in stored
        for side in "AB"
    }
    tensors |= {f"{PREFIX}{name}": tensor for name, tensor in whole.items()}
    config = adapter_config(
        stored, table, sorted({name.rpartition(".")[0] for name in whole}), transformer.config, base
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_safetensors(
            folder / WEIGHTS,
            {name: tensor.float().contiguous() for name, tensor in tensors.items()},
            {"format": "pt"},
        )
        write_text(folder / CONFIG, json.dumps(config, indent=2) + "\n", durable=True)
    except OSError as error:
        raise CheckpointError(
            f"{folder}: cannot be written ({error.strerror})",
            fix="free some space, or another --out",
        ) from None


def table_of(transformer: Transformer, family: Family, head: str) -> list[Pairing]:
    """The rows of the family's table for this model that are stored in its files."""
    shapes = {
        name: tuple(p.shape) for name, p in transformer.named_parameters() if not is_adapter(name)
    }
    pairs = pairings(family, transformer.config, head, shapes, prefixed=head != "none")
    return [pair for pair in pairs if not pair.rule.optional]


def stored_adapters(
    transformer: Transformer, table: Iterable[Pairing], own: Mapping[str, Tensor]
) -> Iterator[Stored]:
    """Our adapters under Hugging Face's names: one to one, or several joined where the file stores
    their matrices as one."""
    ours = adapters(transformer)
    for pair in table:
        paths = [name.removesuffix(".weight") for name in pair.ours]
        parts = [ours[path] for path in paths if path in ours and pair.theirs.endswith(".weight")]
        if not parts:
            continue
        if len({part.scale for part in parts}) > 1:
            raise CheckpointError(
                f"{pair.theirs}: adapters of different scale in one matrix",
                expected="one α/r for all of them",
            )
        b = join_columns(
            pair,
            padded_columns(
                [(own[f"{path}.weight"].shape[0], own.get(f"{path}.lora_b")) for path in paths]
            ),
        )
        a = torch.cat([own[f"{path}.lora_a"] for path in paths if path in ours])
        yield Stored(
            pair.theirs.removesuffix(".weight"), a, b, parts[0].scale * len(a), pair.rule.transpose
        )


def padded_columns(parts: list[tuple[int, Tensor | None]]) -> list[Tensor]:
    """The B's side by side, [out, all ranks]; zeros for a matrix without adapter."""
    rank = sum(b.shape[1] for _, b in parts if b is not None)
    at = 0
    columns = list[Tensor]()
    for out, b in parts:
        column = torch.zeros(out, rank)
        if b is not None:
            column[:, at : at + b.shape[1]] = b
            at += b.shape[1]
        columns.append(column)
    return columns


def join_columns(pair: Pairing, columns: list[Tensor]) -> Tensor:
    """The parts of B in the file's order of outputs. PEFT stores [out, rank] even if the matrix
    itself is stored transposed."""
    joined = pair.join(columns)
    return joined.T if pair.rule.transpose else joined


def full_parameters(
    transformer: Transformer, table: Iterable[Pairing], own: Mapping[str, Tensor]
) -> Iterator[tuple[str, Tensor]]:
    """The parameters trained without an adapter."""
    learns = {name for name, p in transformer.named_parameters() if p.requires_grad}
    for pair in table:
        if learns & set(pair.ours):
            yield pair.theirs, pair.join([own[name] for name in pair.ours])


def adapter_config(
    stored: list[Stored], table: list[Pairing], whole: list[str], config: ModelConfig, base: str
) -> dict[str, Any]:
    """PEFT's LoraConfig. Ranks that differ from the most common one are listed by module."""
    ranks = {adapter.module: adapter.a.shape[0] for adapter in stored}
    rank = min(ranks.values())
    scale = {adapter.alpha / adapter.a.shape[0] for adapter in stored}
    assert len(scale) == 1
    odd = {module: r for module, r in ranks.items() if r != rank}
    return {
        "peft_type": "LORA",
        "task_type": task_type(config),
        "base_model_name_or_path": base,
        "r": rank,
        "lora_alpha": number(rank * next(iter(scale))),
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": targets(ranks, table),
        "rank_pattern": odd,
        "alpha_pattern": {module: number(r * next(iter(scale))) for module, r in odd.items()},
        "fan_in_fan_out": any(adapter.transposed for adapter in stored),
        "modules_to_save": targets(whole, table) or None,
        "inference_mode": True,
    }


def number(value: float) -> float | int:
    return int(value) if value == int(value) else value


def targets(modules: Iterable[str], table: list[Pairing]) -> list[str]:
    """The last parts of the modules' names if they are unambiguous, else the full names."""
    full_names = set(modules)
    short = {name.rpartition(".")[2] for name in full_names}
    all_modules = {
        pair.theirs.removesuffix(".weight") for pair in table if pair.theirs.endswith(".weight")
    }
    matched = {name for name in all_modules if name.rpartition(".")[2] in short}
    return sorted(short) if matched == full_names else sorted(full_names)


def task_type(config: ModelConfig) -> str | None:
    """PEFT's task type for the head."""
    if isinstance(config.head, LanguageHead):
        return "SEQ_2_SEQ_LM" if config.encoder is not None else "CAUSAL_LM"
    if isinstance(config.head, Classifier):
        return "TOKEN_CLS" if config.head.pool == "tokens" else "SEQ_CLS"
    return None


def load_adapters(transformer: Transformer, family: Family, head: str, folder: Path) -> None:
    """Add a PEFT folder's adapters to the matrices that it names; all other parameters are frozen,
    except those that the folder stores in full."""
    config = read_json(folder / CONFIG)
    entries = {name: entry.read() for name, entry in open_safetensors(folder / WEIGHTS).items()}
    check_kind(folder, config)
    table = {pair.theirs: pair for pair in table_of(transformer, family, head)}
    transformer.requires_grad_(False)
    sides = {
        (match["module"], match["side"]): name
        for name in entries
        if (match := STORED.fullmatch(name))
    }
    for module in sorted({module for module, _ in sides}):
        pair = table.get(f"{module}.weight")
        if pair is None or (module, "A") not in sides or (module, "B") not in sides:
            raise CheckpointError(
                f"{folder}: an adapter of {module}, which this model does not have",
                fix="use the model it was made for",
            )
        a = entries.pop(sides[module, "A"])
        b = entries.pop(sides[module, "B"])
        add_adapter(transformer, pair, a, b, alpha=alpha_of(config, module))
    for name, tensor in entries.items():
        load_full_tensor(transformer, table.get(name.removeprefix(PREFIX)), name, tensor, folder)


def check_kind(folder: Path, config: dict[str, Any]) -> None:
    """Refuse options of the LoraConfig that change the formula."""
    for key, plain in (
        ("peft_type", ("LORA",)),
        ("use_dora", (None, False)),
        ("use_rslora", (None, False)),
        ("bias", (None, "none")),
    ):
        if config.get(key) not in plain:
            raise CheckpointError(
                f"{folder / CONFIG}: {key} is {config.get(key)!r}",
                expected=f"{plain[-1]!r}",
                fix="use a plain LoRA",
            )


def alpha_of(config: dict[str, Any], module: str) -> float:
    """α of a module: the pattern that its name ends in, or the one for all."""
    for pattern, alpha in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            return float(alpha)
    return float(config["lora_alpha"])


def add_adapter(
    transformer: Transformer, pair: Pairing, a: Tensor, b: Tensor, *, alpha: float
) -> None:
    """Each of our matrices gets its rows of B, and all of A."""
    for name, rows in zip(pair.ours, pair.split(b.T if pair.rule.transpose else b), strict=True):
        layer = transformer.get_parameter(name)
        if (
            rows.shape[0] != layer.shape[0]
            or a.shape[1] != layer.shape[1]
            or a.shape[0] != rows.shape[1]
        ):
            raise CheckpointError(
                f"{pair.theirs}: an adapter of {list(rows.shape)} × {list(a.shape)} for a matrix"
                f" {list(layer.shape)}"
            )
        adapter = replace_layer(
            transformer, name.removesuffix(".weight"), rank=a.shape[0], alpha=alpha
        )
        with torch.no_grad():
            adapter.lora_a.copy_(a)
            adapter.lora_b.copy_(rows)


def load_full_tensor(
    transformer: Transformer, pair: Pairing | None, name: str, tensor: Tensor, folder: Path
) -> None:
    """Load a tensor that the folder stores in full."""
    if pair is None:
        raise CheckpointError(
            f"{folder}: {name}, which this model does not have", fix="use the model it was made for"
        )
    with torch.no_grad():
        for own, part in zip(pair.ours, pair.split(tensor), strict=True):
            transformer.get_parameter(own).copy_(part)
            transformer.get_parameter(own).requires_grad_()
