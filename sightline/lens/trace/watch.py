"""Traces while generating: the attention of each step, and one trace of the whole text at the end.

watch = Watch(runner, tokenizer, name)
for event in decode(runner, request, watch=watch):
    watch.step(…).weights(layer=5)     [heads, 1, key]: attention of the pass that made this token
watch.trace(…)                         as if the whole text had been traced at once
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from sightline.core.masks import Mask
from sightline.core.runner import TorchRunner
from sightline.generation.decode import Request
from sightline.generation.text import Piece
from sightline.lens.trace.layer import Look
from sightline.lens.trace.subject import Token, read_tokens
from sightline.lens.trace.trace import (
    Trace,
    checked_layers,
    names_to_record,
    other_tensors,
    recorded_layers,
)
from sightline.record import ATTENTION, Place, Recorder, Site
from sightline.text.tokenizer import Tokenizer

Looks = dict[Site, Look]


@dataclass(slots=True)
class Watch:
    """Gives every pass a recorder. Keys and values of earlier passes are in the cache of the next,
    so only the queries of each pass are kept, and the keys that a ring cache drops."""

    runner: TorchRunner
    tokenizer: Tokenizer | None = None
    name: str = ""
    what: Sequence[str] = ATTENTION
    layers: Iterable[int] | None = None
    chosen: set[int] | None = field(init=False, default=None)
    recorder: Recorder | None = None
    last: Looks = field(default_factory=dict[Site, Look])
    passed: dict[Site, list[Look]] = field(default_factory=dict[Site, list[Look]])
    notes: tuple[str, ...] = ()
    known: tuple[Token, ...] = field(init=False, default=())

    def __post_init__(self) -> None:
        self.chosen = checked_layers(self.runner.config, self.layers)

    def __call__(self) -> Recorder:
        """A recorder for the next pass."""
        self._close()
        self.recorder = Recorder(
            names_to_record(self.runner.transformer, self.what, self.chosen), layers=self.chosen
        )
        return self.recorder

    def _close(self) -> None:
        """End the current pass, and drop what it shares with the one before."""
        if self.recorder is None:
            return
        looks = recorded_layers(self.recorder, self.runner.transformer)
        for site, look in looks.items():
            if site in self.last:
                self.passed.setdefault(site, []).append(without_shared_keys(self.last[site], look))
            self.last[site] = look
        self.recorder = None

    def step(self, ids: Sequence[int], *, source: Sequence[int] | None = None) -> Trace:
        """A trace of the last pass: its queries are the rows, all tokens so far (`ids`) the
        keys."""
        assert self.recorder is not None
        looks = recorded_layers(self.recorder, self.runner.transformer)
        looks = {
            site: look if site[0] == "encoder" or site[2] else pad_dropped_keys(look, len(ids))
            for site, look in looks.items()
        }
        return self._trace(
            looks,
            ids,
            source,
            rows=decoder_queries(looks),
            kept=other_tensors(self.recorder, self.what),
        )

    def trace(
        self,
        ids: Sequence[int],
        *,
        source: Sequence[int] | None = None,
        text: str = "",
        source_text: str = "",
    ) -> Trace:
        """A trace of all passes. `ids` are the tokens that went through the model: the prompt, and
        all new tokens but the last."""
        self._close()
        looks = {
            site: concat_passes([*self.passed.get(site, []), look])
            for site, look in self.last.items()
        }
        return self._trace(
            looks, ids, source, rows=decoder_queries(looks), text=text, source_text=source_text
        )

    def _trace(
        self,
        looks: Mapping[Site, Look],
        ids: Sequence[int],
        source: Sequence[int] | None,
        *,
        rows: int,
        kept: dict[Place, Tensor] | None = None,
        text: str = "",
        source_text: str = "",
    ) -> Trace:
        return Trace(
            name=self.name,
            config=self.runner.config,
            tokens=(
                read_tokens(self.tokenizer, ids, text, source=source is None)
                if text
                else self._read(ids, source=source is None)
            ),
            looks=looks,
            text=text,
            source=(
                None
                if source is None
                else read_tokens(self.tokenizer, source, source_text or None, source=True)
            ),
            source_text=source_text,
            rows=range(len(ids) - rows, len(ids)),
            kept=kept or {},
            notes=self.notes,
        )

    def _read(self, ids: Sequence[int], *, source: bool) -> tuple[Token, ...]:
        """Ids as tokens. Known ones are reused, unless the last is an incomplete character."""
        known = self.known
        count = len(self.known)
        if (
            not known
            or "\\x" in known[-1].text
            or [token.id for token in known] != list(ids[:count])
        ):
            known = ()
            count = 0
        self.known = known + read_tokens(self.tokenizer, ids[count:], source=source)
        return self.known


def with_traces(pieces: Iterable[Piece], watch: Watch, request: Request) -> Iterator[Piece]:
    """The same pieces, each with the trace of the pass that made its token."""
    ids = list(request.prompt)
    for piece in pieces:
        yield replace(piece, trace=watch.step(ids, source=request.source))
        if piece.event is not None:
            ids.append(piece.event.token)


def decoder_queries(looks: Looks) -> int:
    """The number of decoder queries."""
    return max((look.queries for site, look in looks.items() if site[0] == "decoder"), default=0)


def without_shared_keys(look: Look, following: Look) -> Look:
    """A finished pass: its queries, and the keys that the following pass does not have. A ring
    cache drops the oldest."""
    mask = look.scoring.mask
    after = following.scoring.mask
    forgets = after.offset is None and not look.site[2]
    count = int((mask.key_at < after.key_at[:, :1]).sum()) if forgets else 0
    mask = Mask(mask.query_at, mask.key_at[:, :count].clone())
    value = None if look.value is None else look.value[:, :, :count].clone()
    scoring = replace(look.scoring, mask=mask)
    return replace(
        look,
        query=look.query.clone(),
        key=look.key[:, :, :count].clone(),
        value=value,
        scoring=scoring,
    )


def concat_passes(looks: Sequence[Look]) -> Look:
    """The queries of all passes, with the keys of the last pass and those dropped earlier,
    copied."""
    last = looks[-1]
    masks = [look.scoring.mask for look in looks]
    query_at, key_at = (
        torch.cat([getattr(mask, name) for mask in masks], dim=1) for name in ("query_at", "key_at")
    )
    mask = replace(
        last.scoring.mask,
        query_at=query_at,
        key_at=key_at,
        offset=None if len(looks) > 1 else last.scoring.mask.offset,
    )
    query, key = (
        torch.cat([getattr(look, name) for look in looks], dim=2) for name in ("query", "key")
    )
    values = [look.value for look in looks if look.value is not None]
    value = torch.cat(values, dim=2) if values else None
    return replace(
        last, query=query, key=key, value=value, scoring=replace(last.scoring, mask=mask)
    )


def pad_dropped_keys(look: Look, tokens: int) -> Look:
    """The layer with a column for every token; those that a ring cache has dropped are masked."""
    dropped = tokens - look.key.shape[2]
    if dropped <= 0:
        return look
    key = F.pad(look.key, (0, 0, dropped, 0))
    mask = look.scoring.mask
    value = None if look.value is None else F.pad(look.value, (0, 0, dropped, 0))
    mask = replace(mask, key_at=F.pad(mask.key_at, (dropped, 0), value=-1), offset=None)
    return replace(look, key=key, value=value, scoring=replace(look.scoring, mask=mask))
