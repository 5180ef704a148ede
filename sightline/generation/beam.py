"""Beam search: the best `beams` partial sequences are kept at every step, until none of them can
beat the finished ones.

    score(y)  =  Σₜ log p(yₜ | y₁ … yₜ₋₁, prompt) / length(y)^length_penalty

The length counts what was generated, including the end token.

Diverse groups (Vijayakumar et al. 2016): the beams are split, the groups choose one after another,
and each ranks by

    rank(y)   =  Σₜ log p(yₜ | …) − diversity · (beams of earlier groups that chose yₜ at step t)

while the score stays the formula above. Every beam is one row of the KV cache, and the rows are
reordered with the beams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from sightline.core.cache.kv_cache import Cache
from sightline.core.runner import Runner
from sightline.errors import InputError
from sightline.generation.randomness import whole
from sightline.generation.sampling import Change, effective_changes

STRONGEST = 100
MOST_BEAMS = 1024
STRETCH = 64  # values whose maximum is taken first, see `largest`

EarlyStopping = bool | Literal["never"]


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """The new tokens, their score, and whether they finished with an end token (or were cut at
    max_tokens)."""

    tokens: tuple[int, ...]
    score: float
    finished: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """The settings of a search. `width` is the number of beams in one group."""

    width: int
    max_tokens: int
    end: tuple[int, ...]
    length_penalty: float
    early_stopping: EarlyStopping
    diversity: float

    def score(self, total: float, length: int) -> float:
        """Σ log p / length^length_penalty."""
        return total / length**self.length_penalty

    @property
    def candidates(self) -> int:
        """Enough that `width` of them continue even if every beam's best tokens are end tokens."""
        return max(2, 1 + len(self.end)) * self.width


@dataclass(slots=True)
class Path:
    """A beam: its tokens, Σ log p, the rank it was chosen by, and the row of the cache that holds
    its parent."""

    tokens: tuple[int, ...]
    total: float
    rank: float
    row: int


@dataclass(slots=True)
class Group:
    """The beams of one group of one prompt: the running ones, best first, and the best `width` that
    are done."""

    running: list[Path]
    done: list[Hypothesis] = field(default_factory=list["Hypothesis"])

    def keep(self, path: Path, plan: Plan) -> None:
        """Insert a complete path among the best."""
        hypothesis = Hypothesis(
            path.tokens, plan.score(path.total, len(path.tokens)), path.tokens[-1] in plan.end
        )
        ranked = sorted((*self.done, hypothesis), key=lambda one: -one.score)
        self.done = ranked[: plan.width]

    def is_settled(self, length: int, plan: Plan) -> bool:
        """Whether no running path may still enter `done`.

        early_stopping=True: as soon as `done` is full. False: when the best running path, scored at
        its current length, is no better than the worst in `done` (a heuristic: with length_penalty
        > 0 a longer text may score better). "never": scored at the most favourable length, a bound.
        """
        if length == plan.max_tokens or not self.running:
            return True
        if len(self.done) < plan.width:
            return False
        longest = (
            plan.max_tokens
            if plan.early_stopping == "never" and plan.length_penalty > 0
            else length
        )
        best = plan.score(max(path.total for path in self.running), longest)
        return plan.early_stopping is True or best <= self.done[-1].score


@torch.inference_mode()
def search(
    runner: Runner,
    prompt: Int[Tensor, "batch time"],
    *,
    beams: int,
    max_tokens: int,
    end: tuple[int, ...],
    length_penalty: float = 1.0,
    early_stopping: EarlyStopping = False,
    groups: int = 1,
    diversity: float = 0.0,
    count: int = 1,
    source: Int[Tensor, "batch source"] | None = None,
    source_padding: Bool[Tensor, "batch source"] | None = None,
    padding: Bool[Tensor, "batch time"] | None = None,
    changes: Sequence[Change] = (),
) -> list[list[Hypothesis]]:
    """For each row of the prompt its `count` best continuations, best first.

    With a source, `prompt` is what the decoder starts from. A padded prompt is padded on the left.
    `changes` are applied to each beam's log-probabilities, with its real tokens so far. There are
    fewer than `count` only where fewer continuations exist.
    """
    _check(
        beams,
        groups,
        count=count,
        max_tokens=max_tokens,
        length_penalty=length_penalty,
        diversity=diversity,
        padding=padding,
    )
    plan = Plan(
        width=beams // groups,
        max_tokens=max_tokens,
        end=tuple(end),
        length_penalty=length_penalty,
        early_stopping=early_stopping,
        diversity=diversity,
    )
    cache = runner.new_cache() if padding is None else Cache.growing(runner.config)
    hidden = runner.hidden(
        prompt, padding=padding, source=source, source_padding=source_padding, cache=cache
    )
    before = _real_tokens(prompt, padding)
    rows = [[Group([Path((), 0.0, 0.0, row)]) for _ in range(groups)] for row in range(len(before))]
    changes = effective_changes(*changes)
    room = None
    for length in range(1, max_tokens + 1):
        logits = runner.head(hidden[:, -1:])[:, -1].float()
        if changes or diversity:
            likely = _Changed(torch.log_softmax(logits, dim=-1), changes)
        else:
            room = torch.empty_like(logits) if room is None or room.shape != logits.shape else room
            likely = _Likely.of(logits, plan.candidates, room)
        if likely.broken:
            raise InputError(
                "the model returned NaN logits", expected="numbers", fix="run the model in float32"
            )
        for history, row in zip(before, rows, strict=True):
            _step(row, likely, history, length=length, plan=plan)
        paths = [path for row in rows for group in row for path in group.running]
        if not paths:
            break
        hidden = _feed(runner, paths, cache)
    return [
        sorted((h for group in row for h in group.done), key=lambda h: -h.score)[:count]
        for row in rows
    ]


def _step(
    row: list[Group], likely: _Changed | _Likely, history: list[int], *, length: int, plan: Plan
) -> None:
    """One more token for the groups of one prompt, one group after another."""
    taken: Counter[int] = Counter()
    for group in row:
        if group.running:
            _extend(
                group, likely.after(group.running, history, taken, plan), length=length, plan=plan
            )
            taken.update(path.tokens[-1] for path in group.running)
            if group.is_settled(length, plan):
                group.running = []


class Candidate(NamedTuple):
    """A token that may follow a path, with its log p and the rank that both would have."""

    rank: float
    gain: float
    parent: Path
    token: int


def _extend(group: Group, candidates: list[Candidate], *, length: int, plan: Plan) -> None:
    """Extend a group by its best candidates: of the first `width`, those that end are done; the
    best `width` that do not end keep running."""
    running: list[Path] = []
    for n, (rank, gain, parent, token) in enumerate(candidates):
        path = Path((*parent.tokens, token), parent.total + gain, rank, parent.row)
        if rank == -torch.inf:  # forbidden by a change
            break
        if token not in plan.end:
            running.append(path)
        if n < plan.width and (token in plan.end or length == plan.max_tokens):
            group.keep(path, plan)
    group.running = running[: plan.width]


@dataclass(frozen=True, slots=True)
class _Likely:
    """Each path's most likely tokens, best first, with log p: sufficient for beams without
    changes."""

    logs: Float[Tensor, "paths few"]
    tokens: Int[Tensor, "paths few"]
    broken: bool

    @classmethod
    def of(
        cls, logits: Float[Tensor, "paths vocab"], count: int, room: Float[Tensor, "paths vocab"]
    ) -> _Likely:
        """`room` is overwritten: with a large vocabulary, allocating memory at each step would take
        longer than the sums."""
        values, tokens = largest(logits, min(count, logits.shape[1]))
        total = torch.sub(logits, values[:, :1], out=room).exp_().sum(-1, keepdim=True)
        logs = (values - values[:, :1] - total.log()).double().cpu()
        return cls(logs, tokens.cpu(), broken=bool(logs.isnan().any()))

    def after(
        self, paths: list[Path], history: list[int], taken: Counter[int], plan: Plan
    ) -> list[Candidate]:
        """The best continuations of these paths, best first."""
        rows = [path.row for path in paths]
        logs = self.logs[rows]
        ranks = logs + torch.tensor([path.rank for path in paths], dtype=logs.dtype)[:, None]
        ranks, places = ranks.flatten().topk(min(plan.candidates, ranks.numel()))
        tokens = self.tokens[rows].flatten()[places]
        columns = zip(
            *(
                column.tolist()
                for column in (ranks, logs.flatten()[places], places // logs.shape[1], tokens)
            ),
            strict=True,
        )
        return [
            Candidate(rank, gain, paths[parent], token) for rank, gain, parent, token in columns
        ]


@dataclass(frozen=True, slots=True)
class _Changed:
    """Each path's log p of every token, which changes and the groups' diversity act on."""

    logs: Float[Tensor, "paths vocab"]
    changes: Sequence[Change]

    @property
    def broken(self) -> bool:
        return bool(self.logs.amax(-1).isnan().any())

    def after(
        self, paths: list[Path], history: list[int], taken: Counter[int], plan: Plan
    ) -> list[Candidate]:
        """The best continuations of these paths, best first."""
        rows = list(self.logs[[path.row for path in paths]])
        for change in self.changes:
            rows = [
                change(row, [*history, *path.tokens]) for row, path in zip(rows, paths, strict=True)
            ]
        logs = torch.stack(rows)
        ranks = logs + torch.tensor([path.rank for path in paths], device=logs.device)[:, None]
        if plan.diversity and taken:
            used = torch.tensor(list(taken.items()), device=logs.device)
            ranks[:, used[:, 0]] -= plan.diversity * used[:, 1]
        values, places = (
            top[0] for top in largest(ranks.flatten()[None], min(plan.candidates, ranks.numel()))
        )
        best = zip(values.tolist(), logs.flatten()[places].tolist(), places.tolist(), strict=True)
        return [
            Candidate(rank, gain, paths[place // logs.shape[1]], place % logs.shape[1])
            for rank, gain, place in best
        ]


def largest(
    numbers: Float[Tensor, "rows many"], count: int
) -> tuple[Float[Tensor, "rows count"], Int[Tensor, "rows count"]]:
    """`numbers.topk(count)`, faster for many numbers: the largest are in the stretches with the
    largest maxima."""
    rows, many = numbers.shape
    whole_part = many - many % STRETCH
    if many < 16 * STRETCH * count:
        return numbers.topk(count)
    stretches = numbers[:, :whole_part].unflatten(1, (-1, STRETCH))
    where = stretches.amax(-1).topk(count).indices
    inside = stretches.gather(1, where[..., None].expand(-1, -1, STRETCH)).flatten(1)
    places = (where[..., None] * STRETCH + torch.arange(STRETCH, device=numbers.device)).flatten(1)
    rest = torch.arange(whole_part, many, device=numbers.device).expand(rows, -1)
    values, indices = torch.cat([inside, numbers[:, whole_part:]], 1).topk(count)
    return values, torch.cat([places, rest], 1).gather(1, indices)


def _feed(runner: Runner, paths: list[Path], cache: Cache) -> Float[Tensor, "paths 1 width"]:
    """Run the model on the last token of every path, each with its parent's row of the cache."""
    parents = [path.row for path in paths]
    if parents != list(range(cache.batch or 0)):
        cache.reorder(torch.tensor(parents, device=runner.device))
    for row, path in enumerate(paths):
        path.row = row
    return runner.hidden(
        torch.tensor([path.tokens[-1:] for path in paths], device=runner.device), cache=cache
    )


def _real_tokens(
    prompt: Int[Tensor, "batch time"], padding: Bool[Tensor, "batch time"] | None
) -> list[list[int]]:
    """The prompts without their padding."""
    if padding is None:
        return prompt.tolist()
    return [row[~pad].tolist() for row, pad in zip(prompt, padding, strict=True)]


def _check(
    beams: int,
    groups: int,
    *,
    count: int,
    max_tokens: int,
    length_penalty: float,
    diversity: float,
    padding: Tensor | None,
) -> None:
    """Refuse invalid searches before anything is computed."""
    for name, value in (("beams", beams), ("groups", groups), ("max_tokens", max_tokens)):
        whole(name, value, least=1)
    if not abs(length_penalty) <= STRONGEST:
        raise InputError(
            f"length_penalty is {length_penalty}",
            expected=f"a number from −{STRONGEST} to {STRONGEST}",
            fix="length_penalty=1.0",
        )
    if beams > MOST_BEAMS:
        raise InputError(f"{beams} beams", expected=f"at most {MOST_BEAMS}", fix="beams=8")
    if beams % groups:
        raise InputError(
            f"{beams} beams in {groups} groups",
            expected="as many beams in every group",
            fix=f"beams={groups * 2}",
        )
    if not 1 <= count <= beams:
        raise InputError(
            f"count is {count} with {beams} beams",
            expected=f"1 to {beams}",
            fix=f"beams={max(count, 1)}",
        )
    if diversity < 0 or (diversity and groups == 1):
        raise InputError(
            f"diversity is {diversity} with {groups} groups",
            expected="0 or more, between groups",
            fix="groups=2",
        )
    if padding is not None and bool(padding[:, -1].any()):
        raise InputError(
            "a prompt that ends in padding",
            expected="padding on the left",
            fix="put the padding before the tokens",
        )
