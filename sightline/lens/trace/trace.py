"""A trace: one ordinary pass of the fused kernel, with enough recorded to rebuild every attention
map exactly.

trace = trace_of(model, "The cat sat")
trace.logits                                [time, vocab_size], bit-identical to an untraced pass
trace.weights(layer=5, head=1)              [query, key]
trace.weights(layer=5, rows=-1)             [heads, key]: the row of the last token
trace.cross_weights(layer=2)                [heads, query, source]; row t produced trace.produced[t]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import ModelConfig
from sightline.core.model import Transformer
from sightline.errors import InputError, RecordError, nearest, short_repr
from sightline.lens.trace.layer import Look, Map, Rows, checked_index, look_at, sites_of
from sightline.lens.trace.rebuild import LazyLayers, check_weights, recomputed_layers, weights_state
from sightline.lens.trace.subject import Subject, Token, eval_transformer, read_tokens
from sightline.record import ATTENTION, QUANTITIES, Edit, Place, Recorder, Site

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sightline.lens.geometry.decompose import Geometry

CROSS = tuple("cross_" + name for name in ATTENTION)
NEEDED = ("query", "key", "mask", "bias")  # without these no map can be rebuilt


@dataclass(frozen=True, eq=False, repr=False)
class Trace:
    """The recorded pass of one text. `tokens` are the keys, `rows` is the range of tokens that were
    queries (all, except while generating: the new ones); `source` is the encoder's text if there is
    one, `notes` name the engine where it was not only torch. Layers and heads count from 0, or from
    the end when negative."""

    name: str
    config: ModelConfig
    tokens: tuple[Token, ...]
    looks: Mapping[Site, Look]
    answer: Callable[[], Float[Tensor, ...]] | None = field(default=None, repr=False, compare=False)
    text: str = ""
    source: tuple[Token, ...] | None = None
    source_text: str = ""
    rows: range = range(0)
    kept: dict[Place, Tensor] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @cached_property
    def logits(self) -> Float[Tensor, ...]:
        """`[time, vocab_size]`, bit-identical to an untraced pass, computed on first use; empty for
        traces made while generating."""
        return torch.empty(0) if self.answer is None else self.answer()

    def weights(
        self, layer: int, head: int | None = None, rows: Rows = None, *, stack: str | None = None
    ) -> Map:
        """Self-attention, exactly as the fused kernel used it: `[heads, query, key]`, `[query,
        key]` of a head, `[…, key]` of a row."""
        return self.look(layer, stack=stack).weights(head, rows)

    def scores(
        self, layer: int, head: int | None = None, rows: Rows = None, *, stack: str | None = None
    ) -> Map:
        """The scores before the softmax; −∞ where masked."""
        return self.look(layer, stack=stack).scores(head, rows)

    def cross_weights(self, layer: int, head: int | None = None, rows: Rows = None) -> Map:
        """Cross-attention of the decoder over the source: row t belongs to `produced[t]`."""
        return self.look(layer, cross=True).weights(head, rows)

    def look(self, layer: int, *, stack: str | None = None, cross: bool = False) -> Look:
        """One attention layer; by default the decoder's, if there is one."""
        name = self.stack_named(stack)
        site = name, checked_index("layer", layer, self.config.stacks[name].layers), cross
        if site in self.looks:
            return self.looks[site]
        if cross and self.config.stacks[name].block(site[1]).cross_attention is None:
            raise InputError(
                f"the {name} has no cross-attention",
                expected="an encoder–decoder",
                fix="trace.weights(…) for its self-attention",
            )
        there = sorted({place[1] for place in self.looks if place[0] == name and place[2] == cross})
        if not there:
            raise InputError(
                f"no attention of the {name} was traced",
                expected="query and key",
                fix=f"trace(…, what={ATTENTION})",
            )
        raise InputError(
            f"layer {site[1]} of the {name} was not traced",
            expected=f"one of {there}",
            fix="trace(…, layers=None)",
        )

    def stack_named(self, stack: str | None) -> str:
        """The name of a stack, by default the one whose states reach the head."""
        stacks = self.config.stacks
        if stack is None:
            return "decoder" if "decoder" in stacks else "encoder"
        if stack not in stacks:
            raise InputError(
                f"a stack named {stack!r}",
                expected=" or ".join(stacks),
                fix=f"stack={next(iter(stacks))!r}",
            )
        return stack

    def tokens_of(self, stack: str | None) -> tuple[Token, ...]:
        """The tokens of a stack: the source for the encoder of an encoder–decoder."""
        return (
            self.source
            if self.stack_named(stack) == "encoder" and self.source is not None
            else self.tokens
        )

    @property
    def produced(self) -> tuple[Token, ...]:
        """The token that the decoder produced at each position (the one after its input), which
        labels the rows of cross-attention."""
        return (*self.tokens[1:], Token(-1, "(next)"))

    def __getitem__(self, place: tuple[str, int | None]) -> Tensor:
        """Any other recorded quantity, without its batch axis: `trace["residual", 3]`; the
        encoder's as `trace["encoder.residual", 3]`."""
        if not isinstance(place, tuple) or len(place) != 2:
            raise RecordError(
                f"{short_repr(place)} names no place",
                expected="a name and a layer",
                fix='trace["residual", 3]',
            )
        stack, _, quantity = place[0].rpartition(".")
        if quantity not in QUANTITIES:
            raise RecordError(
                f"nothing named {short_repr(quantity)} can be recorded",
                fix=nearest(quantity, QUANTITIES),
            )
        name = self.stack_named(stack or None)
        part = quantity.removeprefix("cross_")
        layer = (
            None
            if place[1] is None
            else checked_index("layer", place[1], self.config.stacks[name].layers)
        )
        if part in (*ATTENTION, "mask", "bias") and layer is not None:
            return self._of_look(self.look(layer, stack=name, cross=part != quantity), part)
        for where in (name, "model"):
            if (where, layer, quantity) in self.kept:
                return self.kept[where, layer, quantity]
        raise RecordError(
            f"{place} was not recorded",
            fix=f"trace(…, what=('query', 'key', 'value', {quantity!r}))",
        )

    @staticmethod
    def _of_look(look: Look, part: str) -> Tensor:
        """q, k or v of one layer; a mask and a bias are functions of positions, not tensors."""
        if part in ("mask", "bias"):
            raise RecordError(
                f"the {part} is not a tensor",
                expected="query, key or value",
                fix=f"trace.look(layer).scoring.{part}",
            )
        return (look.needed_value() if part == "value" else getattr(look, part))[0]

    def __repr__(self) -> str:
        read = "" if self.source is None else f" from {len(self.source)}"
        return (
            f"<Trace of {self.name or 'a model'}: {len(self.tokens)} tokens{read},"
            f" {len(self.looks)} attention layers>"
        )

    def geometry(
        self,
        layer: int,
        head: int,
        *,
        stack: str | None = None,
        cross: bool = False,
        origin: Literal["mean", "zero"] | None = None,
        sink: bool = True,
    ) -> Geometry:
        """|q|, |k|, cos θ of a head, and the shares of direction and length of its score variance.

        Lengths need an origin, since softmax ignores a vector added to all keys: each row's mean
        key or zero (by default the mean, or zero where all keys have the same length; `raw` and
        `centred` hold both). `sink=False` leaves out the first token."""
        from sightline.lens.geometry.decompose import geometry_of

        return geometry_of(self, layer, head, stack=stack, cross=cross, origin=origin, sink=sink)

    def show(
        self,
        view: str = "map",
        layer: int | None = None,
        head: int | None = None,
        *,
        file: str | Path | None = None,
    ) -> None:
        """Show a view in a notebook, in the terminal, or in a file (.html, .svg, .png, .json).
        Views are those of `sightline trace`; by default the head with most structure. A logit lens
        needs its model: `view_of(trace, "logit-lens", subject=model)`."""
        from sightline.lens.draw.show import show_trace

        show_trace(self, view, layer=layer, head=head, file=file)

    def plot(self, view: str = "map", layer: int | None = None, head: int | None = None) -> Figure:
        """A view as a Matplotlib figure; the arguments of `show`."""
        from sightline.lens.draw.figure import view_figure
        from sightline.lens.draw.views import view_of

        return view_figure(view_of(self, view, layer=layer, head=head))

    def _repr_html_(self) -> str:
        """The interactive page in an iframe, for notebooks."""
        from sightline.lens.draw.show import page_text, sandboxed_iframe

        return sandboxed_iframe(page_text(self, "map"))

    def save(self, file: str | Path) -> Path:
        """Write one safetensors file, with everything else as JSON in its metadata."""
        from sightline.lens.trace.file import save_trace

        return save_trace(self, Path(file))

    @staticmethod
    def open(file: str | Path) -> Trace:
        """Open a file written by `save`."""
        from sightline.lens.trace.file import open_trace

        return open_trace(Path(file))

    @property
    def bytes(self) -> int:
        """The memory of the trace in bytes, without the logits."""
        size = sum(x.numel() * x.element_size() for x in self.kept.values())
        if isinstance(self.looks, LazyLayers):
            return size + self.looks.bytes
        tensors = [
            x
            for look in self.looks.values()
            for x in (look.query, look.key, look.value)
            if x is not None
        ]
        return size + sum(x.numel() * x.element_size() for x in tensors)


@runtime_checkable
class TracingSubject(Protocol):
    """A subject with a `trace` of its own, as a `Model` has: by the engine that runs it. An
    encoder–decoder generates the target first."""

    def trace(self, text: str | Sequence[int], *, what: Iterable[str] = ATTENTION) -> Trace: ...


def trace_of(
    subject: Subject,
    ids: Sequence[int],
    *,
    source: Sequence[int] | None = None,
    text: str = "",
    source_text: str = "",
    layers: Iterable[int] | None = None,
    what: Iterable[str] = ATTENTION,
    edits: Mapping[Place, Edit] | None = None,
) -> Trace:
    """Trace one pass of the model. `edits` change quantities during the pass (see
    `interventions.edits`)."""
    transformer = eval_transformer(subject)
    what = (what,) if isinstance(what, str) else tuple(what)
    layers = checked_layers(transformer.config, layers)
    kept = (
        names_to_record(transformer, what, layers)
        if edits
        else names_to_recompute(transformer, what, layers)
    )
    recorder = Recorder(kept, layers=layers, edits=edits)
    answer = run_recorded(
        transformer, ids, source, recorder, at_once=bool(edits) or "logits" in what
    )
    recorder.finish()
    return Trace(
        name=subject.name,
        config=transformer.config,
        tokens=read_tokens(subject.tokenizer, ids, text or None, source=source is None),
        looks=recorded_layers(recorder, transformer)
        if edits
        else recomputed_layers(recorder, transformer),
        answer=answer,
        text=text,
        source=(
            None
            if source is None
            else read_tokens(subject.tokenizer, source, source_text or None, source=True)
        ),
        source_text=source_text,
        rows=range(len(ids)),
        kept=other_tensors(recorder, what),
    )


@torch.no_grad()
def run_recorded(
    transformer: Transformer,
    ids: Sequence[int],
    source: Sequence[int] | None,
    recorder: Recorder,
    *,
    at_once: bool,
) -> Callable[[], Tensor]:
    """Run one text with a recorder; returns a function for its logits, `[time, vocab_size]`,
    computed now or on the first call."""
    tokens = torch.tensor([list(ids)], device=transformer.device)
    read = None if source is None else torch.tensor([list(source)], device=transformer.device)
    hidden = transformer.hidden(tokens, source=read, record=recorder)
    if at_once:
        logits = transformer.head(hidden, record=recorder)[0]
        return lambda: logits
    state = weights_state(transformer)

    @torch.no_grad()
    def answer() -> Tensor:
        check_weights(transformer, state)
        return transformer.head(hidden)[0]

    return answer


def names_to_recompute(
    transformer: Transformer, what: Sequence[str], layers: Set[int] | None
) -> set[str]:
    """The names to record where q, k and v are recomputed on demand: the inputs of attention, and
    other requested quantities."""
    inner, others, crossed = split_names(transformer, what, layers)
    names = {"input", "mask", "bias"} if inner else set[str]()
    across = {"cross_" + name for name in names} | {"output"} if crossed and inner else set[str]()
    return names | across | others


def names_to_record(
    transformer: Transformer, what: Sequence[str], layers: Set[int] | None
) -> set[str]:
    """The names to record: the requested quantities, and those that a map needs; for
    cross-attention too, if there is any."""
    inner, others, crossed = split_names(transformer, what, layers)
    names = {*NEEDED, *inner} if inner else set[str]()
    return names | ({"cross_" + name for name in names} if crossed else set()) | others


def split_names(
    transformer: Transformer, what: Sequence[str], layers: Set[int] | None
) -> tuple[set[str], set[str], bool]:
    """The requested ones of q, k and v, other requested names, and whether these layers have
    cross-attention."""
    crossed = any(
        cross and (layers is None or layer in layers) for _, layer, cross in sites_of(transformer)
    )
    others = {name for name in what if name not in ATTENTION and not (crossed and name in CROSS)}
    return {name.removeprefix("cross_") for name in what} & set(ATTENTION), others, crossed


def checked_layers(config: ModelConfig, layers: Iterable[int] | None) -> set[int] | None:
    """The layers as indices from 0, valid in at least one stack; −1 is the last of each."""
    if layers is None:
        return None
    if not isinstance(layers, Iterable):
        raise InputError(
            f"layers is {short_repr(layers)}",
            expected="a list of layers",
            fix=f"layers=[{short_repr(layers)}]",
        )
    depths = [stack.layers for stack in config.stacks.values()]
    indices = set[int]()
    for layer in layers:
        checked_index("layer", layer, max(depths))
        indices |= {layer % depth for depth in depths if -depth <= layer < depth}
    if not indices:
        raise InputError("no layers", expected="at least one", fix="layers=None for all of them")
    return indices


def recorded_layers(recorder: Recorder, transformer: Transformer) -> dict[Site, Look]:
    """All recorded attention layers."""
    query_places = {
        site: (site[0], site[1], ("cross_" if site[2] else "") + "query")
        for site in sites_of(transformer)
    }
    return {
        site: look_at(recorder, transformer, site)
        for site, place in query_places.items()
        if place in recorder.kept
    }


def other_tensors(recorder: Recorder, what: Sequence[str]) -> dict[Place, Tensor]:
    """The other requested tensors, without their batch axis."""
    names = set(what) - {*ATTENTION, *CROSS}
    return {
        place: value[0]
        for place, value in recorder.kept.items()
        if place[2] in names and isinstance(value, Tensor)
    }
