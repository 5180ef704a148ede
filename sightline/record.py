"""Recording activations without hooks: `x = record("residual", x)` reads like part of the formula.

A recorder is an argument of the forward pass. It gets each named quantity and returns it: the same
object (recording), or another one (an edit: patch, ablate, steer). `NOTHING` returns everything
unchanged. No module keeps a reference to it, so passes do not affect each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from sightline.errors import RecordError, nearest

Value = TypeVar("Value")
Place = tuple[str, int | None, str]  # ("decoder", 3, "query"); the layer is None outside the blocks
Site = tuple[str, int, bool]  # ("decoder", 3, False): self-attention of layer 3; True: cross
ATTENTION = ("query", "key", "value")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A quantity that can be recorded: its axes and a description."""

    axes: str
    says: str


QUANTITIES: dict[str, Quantity] = {
    "embedding": Quantity(
        "batch time width",
        "the sum of token, position and type embeddings that enters the first block",
    ),
    "residual": Quantity("batch time width", "the residual stream as it enters a block"),
    "input": Quantity(
        "batch time width",
        "the input of attention: the stream, normed for pre-norm placements; q, k and v are"
        " computed from it",
    ),
    "query": Quantity(
        "batch heads query head_dim", "what each token asks for, after normalising and rotating"
    ),
    "key": Quantity(
        "batch kv_heads key head_dim", "what each token is matched by, cached tokens included"
    ),
    "value": Quantity(
        "batch kv_heads key value_dim", "what each token contributes when it is attended to"
    ),
    "mask": Quantity(
        "batch query key",
        "which keys a query may attend to: a predicate over positions, not a tensor",
    ),
    "bias": Quantity(
        "batch heads query key", "what ALiBi or T5 add to the scores: a function of positions"
    ),
    "weights": Quantity(
        "batch heads query key",
        "softmax of the scores; recording it runs the equation kernel in that layer",
    ),
    "heads": Quantity(
        "batch heads query value_dim", "each head's mix of values, before the output projection"
    ),
    "attention": Quantity("batch time width", "what attention adds to the residual stream"),
    "cross_input": Quantity("batch time width", "what cross-attention makes its queries of"),
    "cross_query": Quantity("batch heads query head_dim", "a decoder token's query to the encoder"),
    "cross_key": Quantity("batch kv_heads key head_dim", "an encoder token's key for the decoder"),
    "cross_value": Quantity(
        "batch kv_heads key value_dim", "what an encoder token contributes to the decoder"
    ),
    "cross_mask": Quantity("batch query key", "which encoder tokens are real"),
    "cross_bias": Quantity("batch heads query key", "what is added to the cross-attention scores"),
    "cross_weights": Quantity(
        "batch heads query key", "softmax of the cross scores; runs the equation kernel there"
    ),
    "cross_heads": Quantity(
        "batch heads query value_dim", "each cross-attention head's mix of encoder values"
    ),
    "cross_attention": Quantity(
        "batch time width", "what cross-attention adds to the residual stream"
    ),
    "hidden": Quantity(
        "batch time hidden", "the feed-forward's inner activations, after the non-linearity"
    ),
    "feed_forward": Quantity(
        "batch time width", "what the feed-forward adds to the residual stream"
    ),
    "output": Quantity("batch time width", "the last hidden state, after the final norm"),
    "logits": Quantity("batch time vocab_size", "the scores over the vocabulary"),
}


@runtime_checkable
class Record(Protocol):
    """What a forward pass needs of a recorder."""

    def __call__(self, name: str, value: Value) -> Value: ...
    def at(self, stack: str, layer: int | None = None) -> Record: ...
    def wants(self, name: str) -> bool: ...


class Nothing:
    """Records nothing and changes nothing."""

    __slots__ = ()

    def __call__(self, name: str, value: Value) -> Value:
        return value

    def at(self, stack: str, layer: int | None = None) -> Nothing:
        return self

    def wants(self, name: str) -> bool:
        return False


NOTHING = Nothing()


class Watcher(Protocol):
    """Supplies a recorder for each forward pass of a generation."""

    def __call__(self) -> Record: ...


def record_nothing() -> Record:
    """The watcher of a generation that is not recorded."""
    return NOTHING


Edit = Callable[[Any], Any]


class Recorder:
    """Records the requested quantities by (stack, layer, name), and applies edits.

        record = Recorder({"query", "key"}, layers={0, 5}, edits={("decoder", 2, "heads"): ablate})
        model(tokens, record=record)
        record["decoder", 5, "query"]          # [batch, heads, query, head_dim]
        record.finish()                        # raises if anything requested was not computed

    A name that is not in QUANTITIES is refused at once. `weights` is the only quantity that the
    fused kernel does not compute: recording or editing it runs the equation kernel in these
    layers (`equation_layers`).
    """

    def __init__(
        self,
        names: Iterable[str] = (),
        *,
        layers: Iterable[int] | None = None,
        edits: Mapping[Place, Edit] | None = None,
    ) -> None:
        self.names = frozenset(names)
        self.layers = None if layers is None else frozenset(layers)
        self.edits = dict(edits or {})
        for name in [*self.names, *(place[2] for place in self.edits)]:
            if name not in QUANTITIES:
                raise RecordError(
                    f"nothing named {name!r} can be recorded", fix=nearest(name, QUANTITIES)
                )
        self.kept: dict[Place, Any] = {}
        self.edited: set[Place] = set()
        self.equation_layers: set[tuple[str, int | None]] = set()

    def at(self, stack: str, layer: int | None = None) -> Record:
        return _Scope(self, stack, layer)

    def __call__(self, name: str, value: Value) -> Value:
        return self.at("model")(name, value)

    def wants(self, name: str) -> bool:
        return self.at("model").wants(name)

    def __getitem__(self, place: Place) -> Any:
        if place not in self.kept:
            there = sorted({str(key) for key in self.kept}) or [
                "nothing yet: run the model with record=this"
            ]
            raise RecordError(
                f"{place} was not recorded", fix=f"recorded so far: {', '.join(there[:8])}"
            )
        return self.kept[place]

    def finish(self) -> None:
        """Raise if a requested quantity or an edit never occurred."""
        seen = {name for _, _, name in self.kept}
        missed = sorted(self.names - seen) + sorted(map(str, self.edits.keys() - self.edited))
        if missed:
            raise RecordError(
                f"asked for {', '.join(missed)}, but the model never computed it",
                fix="check the stack, the layer number and that the model has such a part",
            )


class _Scope:
    """A recorder for one stack and layer."""

    __slots__ = ("layer", "recorder", "stack")

    def __init__(self, recorder: Recorder, stack: str, layer: int | None) -> None:
        self.recorder = recorder
        self.stack = stack
        self.layer = layer

    def at(self, stack: str, layer: int | None = None) -> Record:
        return _Scope(self.recorder, stack, layer)

    def _keeps(self, name: str) -> bool:
        within = (
            self.recorder.layers is None or self.layer is None or self.layer in self.recorder.layers
        )
        return name in self.recorder.names and within

    def wants(self, name: str) -> bool:
        return self._keeps(name) or (self.stack, self.layer, name) in self.recorder.edits

    def __call__(self, name: str, value: Value) -> Value:
        place = (self.stack, self.layer, name)
        edit = self.recorder.edits.get(place)
        if edit is not None:
            value = edit(value)
            self.recorder.edited.add(place)
        if self._keeps(name) or (
            edit is not None and name.endswith("weights")
        ):  # edited weights cannot be recomputed from q and k
            self.recorder.kept[place] = value
        if name.endswith("weights"):
            self.recorder.equation_layers.add((self.stack, self.layer))
        return value
