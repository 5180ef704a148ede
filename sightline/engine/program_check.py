"""Validates a program that was read from a file: the engine addresses memory by its numbers and
checks none of them itself.

Every value has the type that the engine casts it to, every index is in range, every tensor has
exactly the elements that its operation reads, and the sizes are those of the model's configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, cast

from sightline.config.model import StackConfig
from sightline.engine.matrices import TILE, rounded
from sightline.engine.operations import TensorRef
from sightline.engine.program_format import ACTIVATIONS, KINDS, NORMS, StoredProgram

WIDEST_HEAD = 1024
FIELDS = {
    "embed": {"out", "matrix", "scale", "positions", "types", "norm"},
    "norm": {"in", "out", "norm", "layer", "dim"},
    "linear": {
        "in",
        "out",
        "adds",
        "matrix",
        "norm",
        "bias",
        "curve",
        "gated",
        "dim",
        "step",
        "scale",
        "softcap",
        "factor",
        "last",
    },
    "attend": {
        "in",
        "out",
        "layer",
        "heads",
        "kv_heads",
        "dim",
        "score_scale",
        "score_cap",
        "window",
        "sinks",
        "causal",
    }
    | {
        "distance_bias",
        "reach",
        "query_norm",
        "key_norm",
        "pairs",
        "frequencies",
        "amplitude",
        "unit",
        "query_scale",
        "key_scale",
    },
    "blend": {"in", "out", "step"},
    "add": {"in", "out"},
}


def check_program(program: StoredProgram, stack: StackConfig) -> None:
    """Raise a ValueError with the reason unless the program is valid for a decoder of this
    configuration."""
    attention = [stack.block(n).attention for n in range(stack.layers)]
    require(
        program.kv_heads == [form.kv_heads for form in attention],
        "the key-value heads are not the model's",
    )
    require(
        program.dims == [form.head_dim for form in attention], "the head sizes are not the model's"
    )
    require(type(program.cross_from) is int and program.cross_from == 0, "there is cross-attention")
    _check_sizes(program, stack)
    operations: Any = program.operations
    require(isinstance(operations, list) and len(operations) > 0, "there are no operations")
    require(
        all(isinstance(operation, dict) for operation in operations),
        "an operation is not an object",
    )
    checks = [
        OperationCheck(program, stack, number, operation)
        for number, operation in enumerate(program.operations)
    ]
    for check in checks:
        check.run()
    require(checks[0].kind == "embed", "the first operation does not embed tokens")
    require(checks[-1].fields.get("last") is True, "the last operation does not give logits")
    attended = sorted(check.fields["layer"] for check in checks if check.kind == "attend")
    require(attended == list(range(stack.layers)), "the layers that attend are not the model's")


def require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise ValueError(otherwise)


def _check_sizes(program: StoredProgram, stack: StackConfig) -> None:
    matrices = program.matrices
    require(len(matrices) > 0, "there are no matrices")
    require(
        (matrices[0].rows, matrices[0].inputs) == (stack.embedding.vocab_size, stack.width),
        "the embedding is not the model's",
    )
    widest = max(max(matrix.rows, matrix.inputs) for matrix in matrices)
    widths: Any = program.widths
    require(isinstance(widths, list) and len(widths) == 5, "the buffers are not five")
    require(
        all(type(width) is int and 0 < width <= widest for width in widths),
        "a buffer has an impossible width",
    )
    require(widths[0] == stack.width, "the residual stream has another width than the model's")


class OperationCheck:
    """Checks one operation against the program that contains it."""

    def __init__(
        self, program: StoredProgram, stack: StackConfig, number: int, fields: Mapping[str, Any]
    ) -> None:
        self.program = program
        self.stack = stack
        self.number = number
        self.fields = fields
        self.kind = KINDS[self.integer("kind", 0, len(KINDS) - 1)]

    def run(self) -> None:
        self.require(self.kind in FIELDS, "it is of a kind that no decoder has")
        unknown = self.fields.keys() - FIELDS[self.kind] - {"kind"}
        self.require(not unknown, f"{min(unknown, default='')!r} is unknown")
        getattr(self, f"check_{self.kind}")()

    def check_embed(self) -> None:
        self.require(
            self.integer("matrix", 0, 0, required=True) == 0,
            "it reads another matrix than the embedding",
        )
        width = self.stack.width
        self.require(self.buffer("out") >= width, "its output is too narrow")
        self.number_field("scale")
        self.tensor("positions", self.stack.max_positions * width)
        self.tensor("types", width)
        self.norm("norm", width)

    def check_norm(self) -> None:
        narrowest = min(self.buffer("in"), self.buffer("out"))
        dim = self.integer("dim", 1, narrowest, required=True)
        self.integer("layer", 0, narrowest - dim)
        self.norm("norm", dim)

    def check_linear(self) -> None:
        matrix = self.program.matrices[
            self.integer("matrix", 0, len(self.program.matrices) - 1, required=True)
        ]
        self.require(self.buffer("in") >= matrix.inputs, "its input is too narrow")
        gated = self.flag("gated")
        last = self.flag("last")
        self.flag("adds")
        width = self.integer("dim", 1, matrix.rows, required=True) if gated else matrix.rows
        if last:
            at_the_end = self.number == len(self.program.operations) - 1
            self.require(
                at_the_end and not gated and width == self.stack.embedding.vocab_size,
                "its logits are not the model's",
            )
        else:
            self.require(self.buffer("out") >= width, "its output is too narrow")
        self.require(
            not gated or 2 * rounded(width, TILE) == matrix.rows, "gate and matrix differ in size"
        )
        self.require(gated or "step" not in self.fields, "it has the step of a gate, but no gate")
        self.integer("curve", 0, len(ACTIVATIONS) - 1)
        for name in ("scale", "softcap"):
            self.number_field(name)
        for name in ("bias", "step"):
            self.tensor(name, 2 * width if gated else width)
        self.tensor("factor", width)
        self.norm("norm", matrix.inputs)

    def check_attend(self) -> None:
        layer = self.integer("layer", 0, self.stack.layers - 1, required=True)
        form = self.stack.block(layer).attention
        sizes = [
            self.integer(name, 1, 1 << 20, required=True) for name in ("heads", "kv_heads", "dim")
        ]
        self.require(
            sizes == [form.heads, form.kv_heads, form.head_dim], "its heads are not the model's"
        )
        heads, kv_heads, dim = sizes
        self.require(dim <= WIDEST_HEAD, "its heads are too wide")
        self.require(self.buffer("in") >= (heads + 2 * kv_heads) * dim, "its input is too narrow")
        self.require(self.buffer("out") >= heads * dim, "its output is too narrow")
        for name in ("score_scale", "score_cap", "amplitude"):
            self.number_field(name)
        for name in ("causal", "unit"):
            self.flag(name)
        self.integer("window", 0, 1 << 31)
        reach = self.integer("reach", 0, 1 << 31)
        pairs = self.integer("pairs", 0, dim // 2)
        self.require(pairs == 0 or "frequencies" in self.fields, "it rotates without frequencies")
        self.tensor("frequencies", pairs)
        self.tensor("distance_bias", heads * (2 * reach + 1))
        self.tensor("sinks", heads)
        self.tensor("query_scale", heads * dim)
        self.tensor("key_scale", kv_heads * dim)
        self.norm("query_norm", dim)
        self.norm("key_norm", dim)

    def check_blend(self) -> None:
        self.check_add()
        self.require("step" in self.fields, "it has no step")
        self.tensor("step", self.buffer("out"))

    def check_add(self) -> None:
        self.require(self.buffer("in") >= self.buffer("out"), "its input is too narrow")

    def require(self, holds: bool, otherwise: str) -> None:
        require(holds, f"operation {self.number}: {otherwise}")

    def integer(self, name: str, least: int, most: int, *, required: bool = False) -> int:
        """A field between two bounds; 0 where it may select the engine's default."""
        if name not in self.fields and not required and name != "kind":
            return 0
        value = self.fields.get(name)
        self.require(
            type(value) is int and least <= value <= most, f"{name!r} is not from {least} to {most}"
        )
        return cast(int, value)

    def flag(self, name: str) -> bool:
        value = self.fields.get(name, False)
        self.require(type(value) is bool, f"{name!r} is not true or false")
        return value

    def number_field(self, name: str) -> None:
        value = self.fields.get(name, 0.0)
        self.require(
            type(value) in (int, float) and abs(value) < 1e38 and math.isfinite(value),
            f"{name!r} is not a number",
        )

    def buffer(self, name: str) -> int:
        """The width of a buffer that is read or written."""
        return self.program.widths[self.integer(name, 0, len(self.program.widths) - 1)]

    def tensor(self, name: str, count: int, fields: Mapping[str, Any] | None = None) -> None:
        """A small tensor that is left out, or has exactly `count` numbers."""
        fields = self.fields if fields is None else fields
        if name not in fields:
            return
        value = fields[name]
        there = (
            isinstance(value, TensorRef)
            and type(value.number) is int
            and 0 <= value.number < len(self.program.tensors)
        )
        self.require(there, f"the tensor {name!r} is missing")
        elements = self.program.tensors[value.number].numel()
        self.require(
            elements == count,
            f"the tensor {name!r} has {elements:,} elements and should have {count:,}",
        )

    def norm(self, name: str, width: int) -> None:
        if name not in self.fields:
            return
        fields = self.fields[name]
        self.require(
            isinstance(fields, dict) and fields.keys() <= {"kind", "epsilon", "gain", "bias"},
            f"{name!r} is not a norm",
        )
        kind = fields.get("kind")
        epsilon = fields.get("epsilon", 0.0)
        self.require(
            type(kind) is int and 0 <= kind < len(NORMS), f"{name!r} is of an unknown kind"
        )
        self.require(
            type(epsilon) in (int, float) and 0 <= epsilon < 1e38,
            f"the epsilon of {name!r} is not a number",
        )
        for part in ("gain", "bias"):
            self.tensor(part, width, fields)
