"""Traces of the native engine: while generating, or of one text.

watch = NativeWatch(runner, tokenizer, name)
for event in decode(runner, request, watch=watch): …
watch.trace(…).weights(layer=5)    # softmax(q kᵀ · scale + bias), computed on request

native_trace(runner, model, ids)   # one pass over a whole text
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import torch
from torch import Tensor

from sightline.core.multi_head import split_heads
from sightline.engine.recording import RECORDABLE, Form, Pass, describe_precision, forms_of
from sightline.engine.runner import NativeRunner
from sightline.errors import InputError
from sightline.lens.trace.layer import Look
from sightline.lens.trace.rebuild import LazyLayers
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace, checked_layers, trace_of
from sightline.lens.trace.watch import Watch
from sightline.record import ATTENTION, Place, Recorder, Site

BY_TORCH = "computed by torch, with the weights as they were before packing for the native engine"
CHUNK = 512  # tokens per pass; scratch memory grows with it, results do not depend on it


class CachedLayers(LazyLayers):
    """Attention layers rebuilt from recorded queries and the keys in the engine's cache."""

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
            [
                queries
                for queries in (each.queries[layer] for each in self.passes)
                if queries is not None
            ]
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
        query_bytes = sum(4 * form.heads * form.dim for form in self.forms.values())
        last = self.passes[-1]
        cache_bytes = 2 if last.held is not None and last.held.engine.half_cache else 4
        return query_bytes * self.queries + cache_bytes * last.stop * sum(
            2 * form.kv_heads * form.dim for form in self.forms.values()
        )


@dataclass(slots=True)
class NativeWatch(Watch):
    """A `Watch` for a decoder on the native engine."""

    runner: NativeRunner  # pyright: ignore[reportIncompatibleVariableOverride]
    forms: dict[Site, Form] = field(init=False, default_factory=dict[Site, Form])
    passes: list[Pass] = field(init=False, default_factory=list[Pass])

    def __post_init__(self) -> None:
        others = sorted(set(self.what) - set(ATTENTION))
        if others:
            raise InputError(
                f"{others[0]} while the native engine generates",
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
        self.notes = (*self.notes, describe_precision(self.runner.engine))

    def __call__(self) -> Recorder:
        self.recorder = Pass(self.chosen)
        self.passes.append(self.recorder)
        return self.recorder

    def step(self, ids: Sequence[int], *, source: Sequence[int] | None = None) -> Trace:
        return self._trace_passes(self.passes[-1:], ids)

    def trace(
        self,
        ids: Sequence[int],
        *,
        source: Sequence[int] | None = None,
        text: str = "",
        source_text: str = "",
    ) -> Trace:
        return self._trace_passes(self.passes, ids, text=text)

    def _trace_passes(self, passes: Sequence[Pass], ids: Sequence[int], *, text: str = "") -> Trace:
        completed = [
            earlier for earlier in passes if earlier.held is not None
        ]  # an interrupted pass has no cache
        if any(later.start != earlier.stop for earlier, later in pairwise(completed)):
            raise InputError(
                "passes that do not follow each other",
                expected="consecutive passes over one text",
                fix="a new watch for each text",
            )
        looks = CachedLayers(self.forms, completed)
        return self._trace(looks, ids, None, rows=looks.queries, text=text)


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
    """Trace one pass of the engine. Quantities that it does not expose are recorded in a second
    pass by torch, and noted."""
    what = (what,) if isinstance(what, str) else tuple(what)
    layers = None if layers is None else list(layers)
    watch = NativeWatch(runner, subject.tokenizer, subject.name, layers=layers)
    cache = runner.new_cache()
    pieces = torch.tensor([list(ids)]).split(CHUNK, dim=1)
    hidden = torch.cat(
        [runner.hidden(piece, cache=cache, record=watch()) for piece in pieces], dim=1
    )
    trace = replace(
        watch.trace(ids, text=text), answer=torch.no_grad()(lambda: runner.head(hidden)[0])
    )
    trace.kept.update(derived_tensors(trace, what, hidden))
    rest = tuple(name for name in what if name not in (*RECORDABLE, "weights", "heads"))
    if not rest:
        return trace
    tensors = trace_of(subject, ids, layers=layers, what=rest).kept
    names = ", ".join(dict.fromkeys(place[2] for place in tensors))
    return replace(
        trace,
        kept=trace.kept | tensors,
        notes=(*trace.notes, f"{names}: recorded by torch, with the weights before packing"),
    )


def derived_tensors(trace: Trace, what: Sequence[str], hidden: Tensor) -> dict[Place, Tensor]:
    """The requested quantities that follow from q, k and v or from the last hidden states."""
    tensors = dict[Place, Tensor]()
    for name, make in (("weights", Look.weights), ("heads", Look.mixed)):
        if name in what:
            tensors |= {(site[0], site[1], name): make(look) for site, look in trace.looks.items()}
    if "output" in what:
        tensors["decoder", None, "output"] = hidden[0]
    if "logits" in what:
        tensors["model", None, "logits"] = trace.logits
    return tensors
