"""A program as JSON in the packed file: operations as objects with the key `kind` and only the
fields that differ from their default, small tensors as `{"kept": number}`. The names and the
numbers of kinds, norms and activations are those of format 2 and are fixed, independent of the
class names in `operations`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Any, cast

from torch import Tensor

from sightline.engine.operations import (
    Add,
    Attend,
    Blend,
    Embed,
    HeadTransform,
    Linear,
    Norm,
    Normalize,
    Operation,
    StoreKeyValue,
    TensorRef,
)
from sightline.engine.program import Matrix, Program

KINDS = ("embed", "norm", "linear", "attend", "blend", "add", "keep")
CLASSES: tuple[type[Operation], ...] = (Embed, Normalize, Linear, Attend, Blend, Add, StoreKeyValue)
NORMS = ("none", "layer", "rms", "unit")
ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "relu_squared", "tanh")
ENDS = {"input": "in", "output": "out"}
KEYS: dict[type, dict[str, str]] = {  # our name of a field → the file's, where they differ
    Embed: ENDS,
    Normalize: ENDS | {"offset": "layer", "width": "dim"},
    Linear: ENDS
    | {
        "activation": "curve",
        "gated_width": "dim",
        "gate_scale": "step",
        "column_scale": "factor",
        "accumulate": "adds",
        "logits": "last",
    },
    Attend: ENDS
    | {
        "head_dim": "dim",
        "scale": "score_scale",
        "softcap": "score_cap",
        "max_distance": "reach",
    },
    StoreKeyValue: ENDS | {"head_dim": "dim"},
    Blend: ENDS,
    Add: ENDS,
    Norm: {},
    HeadTransform: {},
}


@dataclass(slots=True)
class StoredProgram:
    """A program with its operations in the file's JSON form; nothing is checked yet."""

    widths: list[int]
    kv_heads: list[int]
    dims: list[int]
    max_positions: int
    operations: list[dict[str, Any]]
    cross_from: int
    matrices: list[Matrix]
    tensors: list[Tensor]

    def program(self) -> Program:
        """The program, after `check_program`."""
        return Program(
            self.widths,
            self.kv_heads,
            self.dims,
            self.max_positions,
            [decode_operation(operation) for operation in self.operations],
            self.matrices,
            self.tensors,
            self.cross_from,
        )


FIELDS = tuple(
    entry.name for entry in fields(StoredProgram) if entry.name not in ("matrices", "tensors")
)


def encode_program(program: Program) -> dict[str, Any]:
    """A program as JSON values, without its matrices and tensors."""
    values = {name: getattr(program, name) for name in FIELDS}
    values["operations"] = [
        encode_operation(operation, program.tensors) for operation in program.operations
    ]
    return values


def decode_program(
    values: Mapping[str, Any], matrices: list[Matrix], tensors: list[Tensor]
) -> StoredProgram:
    return StoredProgram(matrices=matrices, tensors=tensors, **decode_refs(values))


def decode_refs(value: Any) -> Any:
    """JSON values with `{"kept": number}` as TensorRef."""
    if isinstance(value, dict):
        entries = cast(dict[str, Any], value)
        if entries.keys() == {"kept"}:
            return TensorRef(entries["kept"])
        return {name: decode_refs(item) for name, item in entries.items()}
    if isinstance(value, list):
        return [decode_refs(item) for item in cast(list[Any], value)]
    return value


def encode_operation(operation: Operation, tensors: Sequence[Tensor]) -> dict[str, Any]:
    values = {"kind": CLASSES.index(type(operation))} | encode_fields(operation)
    transform = getattr(operation, "transform", None)
    if transform is not None and transform.frequencies is not None:
        values["pairs"] = len(tensors[transform.frequencies.number])
    if isinstance(operation, Linear) and operation.gated_width:
        values["gated"] = True
    return values


def encode_fields(part: Operation | Norm | HeadTransform) -> dict[str, Any]:
    values = dict[str, Any]()
    for entry in fields(part):
        value = getattr(part, entry.name)
        key = KEYS[type(part)].get(entry.name, entry.name)
        if isinstance(value, HeadTransform):
            values |= encode_fields(value)
        elif value != entry.default:
            values[key] = encode_value(value, entry.name)
    return values


def encode_value(value: Any, name: str) -> Any:
    if isinstance(value, TensorRef):
        return {"kept": value.number}
    if isinstance(value, Norm):
        return encode_fields(value)
    if name == "kind":
        return NORMS.index(value)
    return ACTIVATIONS.index(value) if name == "activation" else value


def decode_operation(values: Mapping[str, Any]) -> Operation:
    """The reverse of `encode_operation`, for values that `check_program` accepted."""
    kind = CLASSES[values["kind"]]
    values = {name: value for name, value in values.items() if name != "kind"}
    if kind is Linear and not values.get("gated"):
        values = {name: value for name, value in values.items() if name != "dim"}
    return decode_fields(kind, values)


def decode_fields(kind: type, values: Mapping[str, Any]) -> Any:
    arguments = dict[str, Any]()
    for entry in fields(kind):
        key = KEYS[kind].get(entry.name, entry.name)
        if entry.name == "transform":
            arguments["transform"] = decode_fields(HeadTransform, values)
        elif key in values:
            arguments[entry.name] = decode_value(values[key], entry.name)
        elif entry.default is MISSING:
            arguments[entry.name] = 0
    return kind(**arguments)


def decode_value(value: Any, name: str) -> Any:
    if name in ("norm", "query_norm", "key_norm"):
        return decode_fields(Norm, value)
    if name == "kind":
        return NORMS[value]
    return ACTIVATIONS[value] if name == "activation" else value
