"""Continuous batching: a request's tokens are the same alone or in company, whoever joins, leaves,
fails or began alike."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sightline as sl
from sightline.core.cache.kv_cache import Cache
from sightline.core.cache.slots import Slots
from sightline.errors import InputError
from sightline.generation import batch as batching
from sightline.generation.batch import Batch, Sequence
from sightline.generation.decode import Request, TokenEvent, decode
from sightline.generation.prefixes import Prefixes, common_prefix
from sightline.generation.sampling import Sampling, banned
from tests.support.tiny import GENERATORS, distance, make

KINDS = [
    "rotary",
    "learned",
    "alibi",
    "relative",
    "window",
    "window-alternating",
    "grouped",
    "soft-cap",
    "sinks",
    "value-dim",
    "ngpt",
    "transformer",
    "transformer-rotary",
    "t5",
]

UNCHECKED = pytest.mark.usefixtures("as_users_run_it")
"""Hundreds of shapes: the tests of slots below check them, and here it would take most of the time."""


def requests(config: sl.ModelConfig, count: int = 16, *, seed: int = 0) -> list[Request]:
    """Prompts and answers of many lengths, greedy and sampled."""
    generator = torch.Generator().manual_seed(seed)

    def draw(low: int, high: int) -> int:
        return int(torch.randint(low, high, (1,), generator=generator))

    def tokens(length: int) -> list[int]:
        return torch.randint(0, 29, (length,), generator=generator).tolist()

    two = config.encoder is not None
    return [
        Request(
            prompt=tokens(1 if two else draw(1, 14)),
            max_tokens=draw(1, 12),
            sampling=Sampling(temperature=float(n % 3), seed=n, top_p=0.9),
            end=(3,) if n % 4 == 0 else (),
            source=tokens(draw(1, 9)) if two else None,
        )
        for n in range(count)
    ]


def alone(model: sl.Transformer, request: Request) -> list[int]:
    return [event.token for event in decode(model, request)]


def gathered(batch: Batch, wanted: list[Request]) -> dict[Sequence, list[int]]:
    """Submit all, run to the end."""
    result: dict[Sequence, list[int]] = {batch.submit(request): [] for request in wanted}
    for sequence, event in batch.run():
        assert isinstance(event, TokenEvent), event
        result[sequence].append(event.token)
    return result


@pytest.mark.parametrize("kind", KINDS)
@UNCHECKED
def test_the_same_alone_or_in_a_batch_of_sixteen(kind: str) -> None:
    model = make(GENERATORS[kind])
    wanted = requests(model.config)
    result = gathered(Batch(model, rows=16, chunk=7), wanted)
    assert list(result.values()) == [alone(model, request) for request in wanted]


@pytest.mark.parametrize("rows", [1, 2, 5])
@UNCHECKED
def test_requests_wait_for_a_row_and_join_between_steps(rows: int) -> None:
    model = make(GENERATORS["rotary"])
    wanted = requests(model.config, 12, seed=4)
    batch, result = Batch(model, rows=rows, chunk=3), dict[Sequence, list[int]]()
    left = list(wanted)
    while left or batch.busy:
        if left:
            result[batch.submit(left.pop(0))] = []
        for sequence, event in batch.step():
            assert isinstance(event, TokenEvent)
            result[sequence].append(event.token)
        assert len(batch.scheduler.decoding) <= rows
    assert list(result.values()) == [alone(model, request) for request in wanted]
    assert batch.runner.slots.bytes == 0


def test_slots_give_the_logits_of_each_row_alone() -> None:
    """The numbers behind the tokens: 1e-5, also when a row leaves and another takes its place."""
    model = make(GENERATORS["transformer-rotary"])
    slots, own, generator = Slots(model.config), list[Cache](), torch.Generator().manual_seed(1)
    with torch.inference_mode():
        for length, source in ((5, 3), (2, 8), (9, 4)):
            for cache in (Cache.growing(model.config), Cache.growing(model.config)):
                torch.manual_seed(length)
                model(
                    torch.randint(0, 29, (1, length)),
                    source=torch.randint(0, 29, (1, source)),
                    cache=cache,
                )
                if cache.length and len(own) < len(slots) + 1:
                    own.append(cache)
                else:
                    slots.add(cache, capacity=20)
        for step in range(6):
            tokens = torch.randint(0, 29, (len(own), 1), generator=generator)
            together = model(tokens, cache=slots)
            for row, cache in enumerate(own):
                assert (
                    distance(model(tokens[row : row + 1], cache=cache), together[row : row + 1])
                    < 1e-5
                )
            if step == 2:
                slots.remove(0)
                own[0] = own.pop()


def test_a_row_read_back_goes_on_as_before() -> None:
    model = make(GENERATORS["transformer"])
    cache, slots = Cache.growing(model.config), Slots(model.config)
    with torch.inference_mode():
        model(torch.tensor([[1, 2, 3]]), source=torch.tensor([[4, 5]]), cache=cache)
        slots.add(cache, capacity=9)
        back = slots.read(0, 2)
        assert (
            distance(
                model(torch.tensor([[3]]), cache=back),
                model(torch.tensor([[1, 2, 3]]), source=torch.tensor([[4, 5]]))[:, -1:],
            )
            < 1e-5
        )


def test_a_nan_in_one_row_stays_there() -> None:
    model = make(GENERATORS["rotary"])
    wanted = requests(model.config, 3, seed=8)
    wanted = [replace(request, max_tokens=10, end=()) for request in wanted]
    batch = Batch(model)
    result: dict[Sequence, list[object]] = {batch.submit(request): [] for request in wanted}
    for n in range(40):
        for sequence, event in batch.step():
            result[sequence].append(event.token if isinstance(event, TokenEvent) else event)
        if n == 3:
            for store in batch.runner.slots.slots:
                store.value[1].fill_(torch.nan)
    first, broken, third = result.values()
    assert isinstance(broken[-1], InputError)
    assert "NaN" in str(broken[-1])
    assert [first, third] == [alone(model, wanted[0]), alone(model, wanted[2])]


def test_one_request_fails_the_others_go_on() -> None:
    model = make(GENERATORS["rotary"])
    wanted = [
        replace(request, max_tokens=8, end=()) for request in requests(model.config, 4, seed=2)
    ]
    wanted[1] = replace(
        wanted[1],
        changes=(
            lambda logits, history: banned(
                range(29 if len(history) > len(wanted[1].prompt) + 2 else 1)
            )(logits, history),
        ),
    )
    batch = Batch(model)
    result: dict[Sequence, list[object]] = {batch.submit(request): [] for request in wanted}
    for sequence, event in batch.run():
        result[sequence].append(event.token if isinstance(event, TokenEvent) else event)
    results = list(result.values())
    assert len(results[1]) == 4
    assert isinstance(results[1][-1], InputError)
    assert [results[n] for n in (0, 2, 3)] == [alone(model, wanted[n]) for n in (0, 2, 3)]


def test_a_change_with_a_fault_of_its_own_ends_its_request_only() -> None:
    model = make(GENERATORS["rotary"])
    wanted = [
        replace(request, max_tokens=4, end=()) for request in requests(model.config, 2, seed=3)
    ]
    wanted[0] = replace(wanted[0], changes=(lambda logits, history: logits / (1 // 0),))
    batch = Batch(model)
    result: dict[Sequence, list[object]] = {batch.submit(request): [] for request in wanted}
    for sequence, event in batch.run():
        result[sequence].append(event.token if isinstance(event, TokenEvent) else event)
    broken, whole = result.values()
    assert isinstance(broken[0], ZeroDivisionError)
    assert whole == alone(model, wanted[1])


def test_cancelling_ends_a_request_at_once_wherever_it_stands() -> None:
    model = make(GENERATORS["rotary"])
    wanted = [
        replace(request, max_tokens=9, end=()) for request in requests(model.config, 5, seed=6)
    ]
    batch = Batch(model, rows=3, chunk=4)
    sequences = [batch.submit(request) for request in wanted]
    reported: dict[Sequence, list[int]] = {sequence: [] for sequence in sequences}
    cancelled: dict[Sequence, int] = {}
    step = 0
    while batch.busy:
        for sequence, event in batch.step():
            assert isinstance(event, TokenEvent)
            reported[sequence].append(event.token)
        if step == 2:  # one that writes or reads, one that still waits
            for sequence in (sequences[0], sequences[4]):
                batch.cancel(sequence)
                cancelled[sequence] = len(reported[sequence])
        step += 1
    assert all(len(reported[sequence]) == count for sequence, count in cancelled.items())
    assert [reported[s] for s in sequences[1:4]] == [alone(model, r) for r in wanted[1:4]]


@pytest.mark.parametrize("kind", ["rotary", "learned", "window", "transformer"])
@UNCHECKED
def test_prefix_reuse_changes_nothing_and_saves_the_work(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sightline.generation.prefixes.SHORTEST", 1)
    model = make(GENERATORS[kind])
    two = model.config.encoder is not None
    start = [5, 7, 11, 2, 3, 9, 1, 4]
    wanted = [
        Request(prompt=[*start, n], max_tokens=6, source=[1, 2, 3] if two else None)
        for n in range(5)
    ]
    batch = Batch(model)
    first = gathered(batch, wanted[:1])
    rest = gathered(batch, wanted[1:])
    assert [*first.values(), *rest.values()] == [alone(model, request) for request in wanted]
    assert [sequence.reused for sequence in (*first, *rest)] == [0, 8, 8, 8, 8]


def test_the_next_turn_begins_with_what_the_last_one_computed() -> None:
    model = make(GENERATORS["rotary"])
    batch = Batch(model)
    (answer,) = gathered(batch, [Request(prompt=list(range(10)), max_tokens=5)]).values()
    turn = Request(prompt=[*range(10), *answer, 3, 4], max_tokens=5)
    ((sequence, tokens),) = gathered(batch, [turn]).items()
    assert sequence.reused == 14  # all but the last token, which was never put in
    assert tokens == alone(model, turn)


def test_prefixes_keep_the_longest_and_forget_the_oldest() -> None:
    config = GENERATORS["rotary"]
    model, kept = make(config), Prefixes(config, most=2)
    for tokens in ([1] * 9, [1] * 12, [2] * 9, [3] * 9):
        cache = Cache.growing(config)
        with torch.inference_mode():
            model(torch.tensor([tokens]), cache=cache)
        kept.keep(Request(prompt=tokens, max_tokens=1), cache, tokens)
    assert [len(entry.tokens) for entry in kept.entries] == [9, 9]
    assert kept.find(Request(prompt=[2] * 20, max_tokens=1))[1] == 9
    assert kept.find(Request(prompt=[1] * 20, max_tokens=1))[1] == 0
    kept.shrink(kept.entries[0].cache.bytes)
    assert [entry.tokens[0] for entry in kept.entries] == [2]
    assert common_prefix([1, 2, 3], [1, 2, 4, 5]) == 2


@pytest.mark.parametrize("kind", ["rotary", "transformer"])
def test_one_of_a_group_may_end_with_its_first_token(kind: str) -> None:
    """Prompts of one shape are read in one pass; rows must not move before all have joined."""
    model = make(GENERATORS[kind])
    two = model.config.encoder is not None
    wanted = [
        Request(
            prompt=[n] if two else [n, 2, 3, 4, 5],
            max_tokens=1 if n in (0, 2) else 8,
            source=[n, 7, 9] if two else None,
        )
        for n in range(6)
    ]
    result = gathered(Batch(model), wanted)
    assert list(result.values()) == [alone(model, request) for request in wanted]


def test_a_batch_that_fails_is_retried_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(GENERATORS["rotary"])
    batch, wanted = Batch(model), [Request(prompt=[n, 2, 3], max_tokens=3) for n in range(3)]
    read = batch.runner.prefill

    def broken(group: list[Sequence], most: int) -> object:
        if any(sequence.request.prompt[0] == 1 for sequence in group):
            raise MemoryError("no room")
        return read(group, most)

    monkeypatch.setattr(batch.runner, "prefill", broken)
    result: dict[Sequence, list[object]] = {batch.submit(request): [] for request in wanted}
    for sequence, event in batch.run():
        result[sequence].append(event.token if isinstance(event, TokenEvent) else event)
    first, failed, last = result.values()
    assert isinstance(failed[0], MemoryError)
    assert [first, last] == [alone(model, wanted[0]), alone(model, wanted[2])]


def test_what_is_kept_for_others_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(GENERATORS["rotary"])
    batch, wanted = Batch(model), [Request(prompt=[n, 2, 3], max_tokens=3 + n) for n in range(3)]

    def broken(row: int, length: int) -> Cache:
        raise MemoryError

    monkeypatch.setattr(batch.runner.slots, "read", broken)
    assert list(gathered(batch, wanted).values()) == [alone(model, request) for request in wanted]


@pytest.mark.parametrize("rows", [2, 3, 5, 9])
@UNCHECKED
def test_a_budget_refuses_what_never_fits_and_lets_the_rest_wait(rows: int) -> None:
    model = make(GENERATORS["rotary"])
    per_token = 4 * batching.numbers_per_token(model.config)
    budget = (rows + 1) * 10 * per_token  # so many rows of ten tokens, and one prompt beside them
    batch = Batch(model, budget=budget)
    with pytest.raises(
        InputError,
        match=r"a request of 999 tokens needs .* expected at most .* Fix: ask for fewer tokens",
    ):
        batch.scheduler.add(Sequence(Request(prompt=[1] * 900, max_tokens=99)))
    wanted = [Request(prompt=[n, 2, 3, 4, 5], max_tokens=5) for n in range(2 * rows)]
    wanted += [
        Request(prompt=[5, 6, 7, n, 9, 4, 3, 2, 1, 8, 9], max_tokens=4) for n in range(2)
    ]  # longer ones after many short
    result: dict[Sequence, list[int]] = {batch.submit(request): [] for request in wanted}
    while batch.busy:
        for sequence, event in batch.step():
            assert isinstance(event, TokenEvent)
            result[sequence].append(event.token)
        assert batch.bytes <= budget
    assert list(result.values()) == [alone(model, request) for request in wanted]


def test_bad_requests_are_refused_when_they_come() -> None:
    batch = Batch(make(GENERATORS["rotary"]))
    with pytest.raises(InputError, match="an empty prompt"):
        batch.submit(Request(prompt=[], max_tokens=3))
    with pytest.raises(InputError, match="the prompt holds 99999; expected token ids below 29"):
        batch.submit(Request(prompt=[1, 99999], max_tokens=3))
    with pytest.raises(InputError, match="a source for a decoder-only model"):
        batch.submit(Request(prompt=[1], max_tokens=3, source=[2]))
    with pytest.raises(InputError, match=r"max_tokens is 2\.5; expected an integer"):
        batch.submit(Request(prompt=[1], max_tokens=2.5))  # pyright: ignore
    with pytest.raises(InputError, match="an encoder–decoder without a source"):
        Batch(make(GENERATORS["transformer"])).submit(Request(prompt=[1], max_tokens=3))
    with pytest.raises(InputError, match="a batch of 0 rows"):
        Batch(batch.runner.runner, rows=0)
    assert not batch.busy
