"""Looking while a text is written: each new token's attention as it is made, and one trace of
everything at the end.

watch = Watch(runner, tokenizer, name)
for event in decode(runner, request, watch=watch):
    watch.step(…).weights(layer=5)     [heads, 1, key]: where the pass that made this token looked
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
    looks_in,
    others_in,
    recorded,
)
from sightline.record import ATTENTION, Place, Recorder, Site
from sightline.text.tokenizer import Tokenizer

Looks = dict[Site, Look]


@dataclass(slots=True)
class Watch:
    """Hands a recorder to every pass. Keys and values of earlier passes are in those of the next,
    so of each pass only its queries stay, and what the next has forgotten (in a ring)."""

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
            recorded(self.runner.transformer, self.what, self.chosen), layers=self.chosen
        )
        return self.recorder

    def _close(self) -> None:
        """The pass is over: the one before it may be forgotten, as far as this one remembers it."""
        if self.recorder is None:
            return
        looks = looks_in(self.recorder, self.runner.transformer)
        for site, look in looks.items():
            if site in self.last:
                self.passed.setdefault(site, []).append(shortened(self.last[site], look))
            self.last[site] = look
        self.recorder = None

    def step(self, ids: Sequence[int], *, source: Sequence[int] | None = None) -> Trace:
        """The last pass alone: its queries are the rows, and all tokens so far (`ids`) can be
        looked at."""
        assert self.recorder is not None
        looks = looks_in(self.recorder, self.runner.transformer)
        looks = {
            site: look if site[0] == "encoder" or site[2] else aligned(look, len(ids))
            for site, look in looks.items()
        }
        return self._trace(
            looks, ids, source, rows=decoded(looks), kept=others_in(self.recorder, self.what)
        )

    def trace(
        self,
        ids: Sequence[int],
        *,
        source: Sequence[int] | None = None,
        text: str = "",
        source_text: str = "",
    ) -> Trace:
        """All passes as one. `ids` are those that went through the model: the prompt, and all new
        tokens but the last."""
        self._close()
        looks = {
            site: joined([*self.passed.get(site, []), look]) for site, look in self.last.items()
        }
        return self._trace(
            looks, ids, source, rows=decoded(looks), text=text, source_text=source_text
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
        """Ids as tokens. Those that were read before are read once, unless bytes of a character are
        still to come."""
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
    read = list(request.prompt)
    for piece in pieces:
        yield replace(piece, trace=watch.step(read, source=request.source))
        if piece.event is not None:
            read.append(piece.event.token)


def decoded(looks: Looks) -> int:
    """How many tokens of the decoder asked."""
    return max((look.queries for site, look in looks.items() if site[0] == "decoder"), default=0)


def shortened(look: Look, following: Look) -> Look:
    """A pass that is over: its queries, and the keys that the following pass has not. A ring
    forgets those that stand first."""
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


def joined(looks: Sequence[Look]) -> Look:
    """The queries of all passes against the keys of the last and those that were forgotten on the
    way, in memory of its own."""
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


def aligned(look: Look, tokens: int) -> Look:
    """The same with a column for every token: those that a ring has forgotten cannot be seen."""
    gone = tokens - look.key.shape[2]
    if gone <= 0:
        return look
    key = F.pad(look.key, (0, 0, gone, 0))
    mask = look.scoring.mask
    value = None if look.value is None else F.pad(look.value, (0, 0, gone, 0))
    mask = replace(mask, key_at=F.pad(mask.key_at, (gone, 0), value=-1), offset=None)
    return replace(look, key=key, value=value, scoring=replace(look.scoring, mask=mask))
