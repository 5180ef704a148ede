"""Looking on while the engine works: queries leave the step, keys and values stay where they are,
in its cache.

    watch = NativeWatch(runner, tokenizer, name)
    for event in decode(runner, request, watch=watch): …
    watch.trace(…).weights(layer=5)    # softmax(q kᵀ · scale + bias), computed when asked for

A pass costs no more than copying its queries. What stands between q·k and the softmax is read from
the engine's own program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.config import ALiBi, AttentionConfig, RelativeBias
from sightline.core.attention import Scoring
from sightline.core.masks import Mask
from sightline.core.multi_head import split_heads
from sightline.core.positions import ALiBiBias, Bias, alibi_slopes, relative_bucket
from sightline.engine.engine import ATTEND, NativeEngine
from sightline.engine.program import Program
from sightline.errors import InputError
from sightline.lens.trace.layer import Look, Site, TableBias
from sightline.lens.trace.rebuild import Made
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import ATTENTION, Trace, checked_layers, trace_of
from sightline.lens.trace.watch import Watch
from sightline.record import NOTHING, QUANTITIES, Place, Record, Recorder

if TYPE_CHECKING:
    from sightline.engine.runner import NativeRunner

GIVEN = (
    *ATTENTION,
    "mask",
    "bias",
    "output",
    "logits",
)  # what a pass of the engine can hand to a recorder
BY_TORCH = "all of it is torch's, with the weights before they were packed for the native engine"
AT_ONCE = 512  # tokens of a pass; scratch memory grows with them, results do not depend on them


# -------------------------------------------------------------------- keys that stay in the cache


class Held:
    """One sequence of an engine, for whoever will read its keys. It belongs to a cache as long as
    that only adds to it; a cache that forgets some of it leaves it to the holder, and goes on with
    a copy."""

    def __init__(self, engine: NativeEngine, sequence: int) -> None:
        self.engine = engine
        self.sequence = sequence
        self.owned = False

    def read(
        self, layer: int, length: int
    ) -> tuple[Float[Tensor, "kv_heads key dim"], Float[Tensor, "kv_heads key dim"]]:
        """Keys and values of the first tokens."""
        return self.engine.remembered(self.sequence, layer, length=length)

    def __del__(self) -> None:
        if self.owned:
            self.engine.leave(self.sequence)


# -------------------------------------------------------------------- between q·k and the softmax


@dataclass(frozen=True, slots=True)
class Form:
    """One attention layer of a program: how many heads, and its scoring without a mask."""

    heads: int
    kv_heads: int
    dim: int
    scale: float
    softcap: float | None
    window: int | None
    causal: bool
    bias: Bias | None
    sinks: Float[Tensor, " heads"] | None

    def scoring(self, start: int, stop: int) -> Scoring:
        """For queries from `start` to `stop`, after whom nobody came yet."""
        at = torch.arange(stop)[None]
        return Scoring(
            Mask(at[:, start:], at, self.causal, self.window, start),
            self.scale,
            self.bias,
            self.softcap,
            self.sinks,
        )


def forms_of(runner: NativeRunner) -> dict[Site, Form]:
    """The attention layers, as the engine computes them."""
    program = runner.engine.program
    stack = runner.config.decoder
    assert stack is not None
    said = [one for one in program.operations if one["kind"] == ATTEND]
    return {
        ("decoder", n, False): form_of(program, one, stack.block(n).attention)
        for n, one in enumerate(said)
    }


def form_of(program: Program, said: Mapping[str, Any], config: AttentionConfig) -> Form:
    sinks = program.kept[said["sinks"].number] if "sinks" in said else None
    scoring = said["score_scale"], said.get("score_cap"), said.get("window"), said["causal"]
    return Form(
        said["heads"],
        said["kv_heads"],
        said["dim"],
        *scoring,
        bias_of(program, said, config),
        sinks,
    )


def bias_of(program: Program, said: Mapping[str, Any], config: AttentionConfig) -> Bias | None:
    """ALiBi's, or T5's: its table, found again in what the engine adds at each distance."""
    form = config.positions
    if isinstance(form, ALiBi):
        return ALiBiBias(tuple(alibi_slopes(config.heads)))
    if not isinstance(form, RelativeBias):
        return None
    by_distance = program.kept[said["distance_bias"].number]
    causal = said["causal"]
    distances = torch.arange(-said["reach"], said["reach"] + 1)
    table = torch.zeros(form.buckets, config.heads)
    table[relative_bucket(distances, form.buckets, form.max_distance, causal=causal)] = (
        by_distance.T
    )
    return TableBias(table, form.max_distance, causal)


# --------------------------------------------------------------------------------------- one pass


class Pass(Recorder):
    """One pass of the engine: where it began, its queries, and who has its keys."""

    def __init__(self, layers: Iterable[int] | None) -> None:
        super().__init__({"query"}, layers=layers)
        self.start = 0
        self.stop = 0
        self.queries: Sequence[Tensor | None] = ()
        self.held: Held | None = None

    def take(self, held: Held, start: int, queries: Sequence[Tensor | None]) -> None:
        self.held = held
        self.queries = queries
        self.start = start
        self.stop = start + next(len(one) for one in queries if one is not None)


def check_record(record: Record) -> None:
    """What the engine cannot hand over, or cannot change, is refused before it runs."""
    if record is NOTHING:
        return
    asked = (
        record.names
        if isinstance(record, Recorder)
        else frozenset(name for name in QUANTITIES if record.wants(name))
    )
    missing = sorted(asked - set(GIVEN))
    if missing or (isinstance(record, Recorder) and record.edits):
        seen = (
            f"{missing[0]} of a pass of the native engine"
            if missing
            else "an edit in a pass of the native engine"
        )
        raise InputError(
            seen,
            expected=f"a record of {', '.join(GIVEN)}",
            fix="use Cache.growing(model.config), which runs on torch",
        )


def room_for_queries(record: Record, engine: NativeEngine, rows: int) -> list[Tensor | None]:
    """Where the queries of a pass go, in the layers of which they were asked for."""
    if record is NOTHING:
        return []
    wanted = enumerate(engine.query_widths)
    return [
        torch.empty(rows, width) if record.at("decoder", n).wants("query") else None
        for n, width in wanted
    ]


def hand_over(
    record: Record,
    runner: NativeRunner,
    sequences: Sequence[int],
    queries: Sequence[Tensor | None],
    hidden: Tensor,
) -> None:
    """To any recorder: q, k, v, mask and bias of a pass that is over, as core would have."""
    time = hidden.shape[1]
    forms = forms_of(runner)
    for (stack, layer, _), form in forms.items():
        scope = record.at(stack, layer)
        query = queries[layer]
        if query is not None:
            scope("query", split_heads(query.unflatten(0, (-1, time)), form.heads))
        if scope.wants("key") or scope.wants("value"):
            both = [runner.engine.remembered(sequence, layer) for sequence in sequences]
            scope("key", torch.stack([one[0] for one in both]))
            scope("value", torch.stack([one[1] for one in both]))
        if scope.wants("mask") or scope.wants("bias"):
            stop = runner.engine.length(sequences[0])
            scoring = form.scoring(stop - time, stop)
            scope("mask", scoring.mask)
            scope("bias", scoring.bias)
    record.at("decoder")("output", hidden)


# ------------------------------------------------------------------------------------ many passes


class Remembered(Made):
    """Layers made of queries that were kept and keys that the cache has."""

    def __init__(self, forms: Mapping[Site, Form], passes: Sequence[Pass]) -> None:
        super().__init__(forms)
        self.forms = forms
        self.passes = passes

    @property
    def queries(self) -> int:
        return self.passes[-1].stop - self.passes[0].start if self.passes else 0

    def make(self, site: Site) -> Look:
        form = self.forms[site]
        layer = site[1]
        last = self.passes[-1]
        assert last.held is not None
        query = torch.cat(
            [one for one in (each.queries[layer] for each in self.passes) if one is not None]
        )
        key, value = last.held.read(layer, last.stop)
        return Look(
            site,
            split_heads(query[None], form.heads),
            key[None],
            value[None],
            form.scoring(self.passes[0].start, last.stop),
        )

    @property
    def bytes(self) -> int:
        """Queries, and the part of the cache that keys and values take."""
        if not self.passes:
            return 0
        asked = sum(4 * form.heads * form.dim for form in self.forms.values())
        last = self.passes[-1]
        number = 2 if last.held is not None and last.held.engine.half_cache else 4
        return asked * self.queries + number * last.stop * sum(
            2 * form.kv_heads * form.dim for form in self.forms.values()
        )


@dataclass(slots=True)
class NativeWatch(Watch):
    """The same for a model that runs on the engine."""

    runner: NativeRunner  # pyright: ignore[reportIncompatibleVariableOverride]
    forms: dict[Site, Form] = field(init=False, default_factory=dict[Site, Form])
    passes: list[Pass] = field(init=False, default_factory=list[Pass])

    def __post_init__(self) -> None:
        others = sorted(set(self.what) - set(ATTENTION))
        if others:
            raise InputError(
                f"{others[0]} while the native engine writes",
                expected=", ".join(ATTENTION),
                fix="engine='torch'",
            )
        self.chosen = checked_layers(self.runner.config, self.layers)
        forms = forms_of(self.runner)
        self.forms = {
            site: form
            for site, form in forms.items()
            if self.chosen is None or site[1] in self.chosen
        }
        self.notes = (*self.notes, made_by(self.runner.engine))

    def __call__(self) -> Recorder:
        self.recorder = Pass(self.chosen)
        self.passes.append(self.recorder)
        return self.recorder

    def step(self, ids: Sequence[int], *, source: Sequence[int] | None = None) -> Trace:
        return self._seen(self.passes[-1:], ids)

    def trace(
        self,
        ids: Sequence[int],
        *,
        source: Sequence[int] | None = None,
        text: str = "",
        source_text: str = "",
    ) -> Trace:
        return self._seen(self.passes, ids, text=text)

    def _seen(self, passes: Sequence[Pass], ids: Sequence[int], *, text: str = "") -> Trace:
        done = [
            one for one in passes if one.held is not None
        ]  # one that was interrupted left nothing
        if any(after.start != one.stop for one, after in pairwise(done)):
            raise InputError(
                "passes that do not follow each other",
                expected="one text, written on",
                fix="a new watch for each text",
            )
        looks = Remembered(self.forms, done)
        return self._trace(looks, ids, None, rows=looks.queries, text=text)


def made_by(engine: NativeEngine) -> str:
    """Who computed what a trace shows."""
    weights = " and ".join(sorted({one.precision for one in engine.packed}))
    cache = "float16" if engine.half_cache else "float32"
    return (
        f"queries, keys, values and logits are the native engine's: {weights} weights, a {cache}"
        " cache"
    )


# ----------------------------------------------------------------------------------- a whole text


@torch.no_grad()
def native_trace(
    runner: NativeRunner,
    subject: Subject,
    ids: Sequence[int],
    *,
    text: str = "",
    layers: Iterable[int] | None = None,
    what: Iterable[str] = ATTENTION,
) -> Trace:
    """One pass of the engine, watched. What it does not hand over is recorded by torch, in a pass
    of its own, and noted."""
    what = (what,) if isinstance(what, str) else tuple(what)
    layers = None if layers is None else list(layers)
    watch = NativeWatch(runner, subject.tokenizer, subject.name, layers=layers)
    cache = runner.new_cache()
    pieces = torch.tensor([list(ids)]).split(AT_ONCE, dim=1)
    hidden = torch.cat(
        [runner.hidden(piece, cache=cache, record=watch()) for piece in pieces], dim=1
    )
    found = replace(
        watch.trace(ids, text=text), answer=torch.no_grad()(lambda: runner.head(hidden)[0])
    )
    found.kept.update(own_part(found, what, hidden))
    rest = tuple(name for name in what if name not in (*GIVEN, "weights", "heads"))
    if not rest:
        return found
    kept = trace_of(subject, ids, layers=layers, what=rest).kept
    named = ", ".join(dict.fromkeys(place[2] for place in kept))
    return replace(
        found,
        kept=found.kept | kept,
        notes=(*found.notes, f"{named}: recorded by torch, with the weights before packing"),
    )


def own_part(trace: Trace, what: Sequence[str], hidden: Tensor) -> dict[Place, Tensor]:
    """What was asked for besides q, k and v, and follows from them or from the last hidden
    states."""
    found = dict[Place, Tensor]()
    for name, make in (("weights", Look.weights), ("heads", Look.mixed)):
        if name in what:
            found |= {(site[0], site[1], name): make(look) for site, look in trace.looks.items()}
    if "output" in what:
        found["decoder", None, "output"] = hidden[0]
    if "logits" in what:
        found["model", None, "logits"] = trace.logits
    return found
