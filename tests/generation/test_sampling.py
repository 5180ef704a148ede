"""Each change against `transformers`, the definitions where it has none, and the refusals.

Ties differ by definition: `transformers` keeps every tie of top-k, top-p and typical, ours keep the
shortest start of the stable order. The comparisons therefore run on logits without ties; the ties
have tests of their own.
"""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers.generation import logits_process as reference

from sightline.errors import InputError
from sightline.generation import sampling as ours
from sightline.generation.randomness import FEW, draw, draws, relative, start, uniform
from sightline.generation.sampling import Change, Choice, Sampling, alternatives, choose
from tests.support.pairwise import pairwise

INFINITY = math.inf
VOCABULARY = 97

PAIRS: dict[str, tuple[Callable[[], Change], Callable[[], reference.LogitsProcessor]]] = {
    "temperature 0.3": (
        lambda: ours.temperature(0.3),
        lambda: reference.TemperatureLogitsWarper(0.3),
    ),
    "temperature 1": (lambda: ours.temperature(1), lambda: reference.TemperatureLogitsWarper(1.0)),
    "temperature 7": (
        lambda: ours.temperature(7.0),
        lambda: reference.TemperatureLogitsWarper(7.0),
    ),
    "top_k 1": (lambda: ours.top_k(1), lambda: reference.TopKLogitsWarper(1)),
    "top_k 10": (lambda: ours.top_k(10), lambda: reference.TopKLogitsWarper(10)),
    "top_k 1000": (lambda: ours.top_k(1000), lambda: reference.TopKLogitsWarper(1000)),
    "top_p 0": (lambda: ours.top_p(0.0), lambda: reference.TopPLogitsWarper(0.0)),
    "top_p 0.1": (lambda: ours.top_p(0.1), lambda: reference.TopPLogitsWarper(0.1)),
    "top_p 0.9": (lambda: ours.top_p(0.9), lambda: reference.TopPLogitsWarper(0.9)),
    "top_p 1": (lambda: ours.top_p(1.0), lambda: reference.TopPLogitsWarper(1.0)),
    "min_p 0": (lambda: ours.min_p(0.0), lambda: reference.MinPLogitsWarper(0.0)),
    "min_p 0.05": (lambda: ours.min_p(0.05), lambda: reference.MinPLogitsWarper(0.05)),
    "min_p 1": (lambda: ours.min_p(1.0), lambda: reference.MinPLogitsWarper(1.0)),
    "typical 0.2": (lambda: ours.typical(0.2), lambda: reference.TypicalLogitsWarper(0.2)),
    "typical 0.95": (lambda: ours.typical(0.95), lambda: reference.TypicalLogitsWarper(0.95)),
    "repetition 1.3": (
        lambda: ours.repetition_penalty(1.3),
        lambda: reference.RepetitionPenaltyLogitsProcessor(1.3),
    ),
    "repetition 0.7": (
        lambda: ours.repetition_penalty(0.7),
        lambda: reference.RepetitionPenaltyLogitsProcessor(0.7),
    ),
    "n-gram 1": (
        lambda: ours.no_repeat_ngram(1),
        lambda: reference.NoRepeatNGramLogitsProcessor(1),
    ),
    "n-gram 2": (
        lambda: ours.no_repeat_ngram(2),
        lambda: reference.NoRepeatNGramLogitsProcessor(2),
    ),
    "n-gram 3": (
        lambda: ours.no_repeat_ngram(3),
        lambda: reference.NoRepeatNGramLogitsProcessor(3),
    ),
    "bias": (
        lambda: ours.logit_bias({3: 2.5, 90: -4.0}),
        lambda: reference.SequenceBiasLogitsProcessor([[[3], 2.5], [[90], -4.0]]),
    ),
}

CHANGES: list[Change] = [pair[0]() for pair in PAIRS.values()] + [
    ours.temperature(0.0),
    ours.temperature(1e-6),
    ours.temperature(1e-5),
    ours.temperature(3e38),
    ours.presence_penalty(1.5, start=1),
    ours.frequency_penalty(-3e38, start=0),
    ours.repetition_penalty(1e-37),
    ours.repetition_penalty(3e38),
    ours.logit_bias({0: 1e9, 1: -3.4e38}),
    ours.banned([0, 2]),
    ours.allowed([0, 1, 2]),
]


def row(seed: int, *, size: int = VOCABULARY, scale: float = 3.0) -> Tensor:
    logits = torch.randn(size, generator=torch.Generator().manual_seed(seed)) * scale
    assert len(logits.unique()) == size
    return logits


def tokens(seed: int, *, length: int, size: int) -> list[int]:
    return torch.randint(size, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def p_of(*probabilities: float) -> Tensor:
    return torch.tensor(probabilities).log()


def possible(logits: Tensor) -> list[int]:
    return torch.nonzero(logits > -INFINITY).flatten().tolist()


@pytest.mark.parametrize(
    ("name", "length", "size"),
    pairwise({"name": PAIRS, "length": (0, 1, 2, 60), "size": (5, VOCABULARY)}),
)
def test_each_change_equals_transformers_token_for_token(name: str, length: int, size: int) -> None:
    make, make_reference = PAIRS[name]
    for seed in range(5):
        logits = row(seed)
        history = tokens(seed, length=length, size=size)
        changed = make()(logits, history)
        expected = make_reference()(torch.tensor([history], dtype=torch.long), logits[None])[0]
        assert possible(changed) == possible(expected)
        torch.testing.assert_close(torch.log_softmax(changed, 0), torch.log_softmax(expected, 0))
        if not name.startswith("temperature"):  # ours subtracts the maximum: softmax is the same
            assert torch.equal(changed, expected)


@pytest.mark.parametrize("seed", range(20))
def test_the_whole_chain_equals_transformers(seed: int) -> None:
    logits, history = row(seed, scale=1.5), tokens(seed, length=30, size=8)
    sampling = Sampling(
        temperature=1.4,
        top_k=40,
        top_p=0.97,
        min_p=0.01,
        typical=0.9,
        repetition_penalty=1.2,
        logit_bias={5: 3.0},
        no_repeat_ngram=2,
    )
    wanted = logits[None]
    for processor in (
        reference.SequenceBiasLogitsProcessor([[[5], 3.0]]),
        reference.RepetitionPenaltyLogitsProcessor(1.2),
        reference.NoRepeatNGramLogitsProcessor(2),
        reference.TemperatureLogitsWarper(1.4),
        reference.TopKLogitsWarper(40),
        reference.TopPLogitsWarper(0.97),
        reference.MinPLogitsWarper(0.01),
        reference.TypicalLogitsWarper(0.9),
    ):
        wanted = processor(torch.tensor([history]), wanted)
    result = ours.apply(sampling.changes(10), logits, history=history)
    torch.testing.assert_close(torch.log_softmax(result, 0), torch.log_softmax(wanted[0], 0))
    assert 1 < len(possible(result)) < 40


def test_openai_penalties_count_generated_tokens_only() -> None:
    logits, history = torch.zeros(6), [0, 0, 1, 2, 2, 2, 3]
    assert ours.presence_penalty(0.5, start=2)(logits, history).tolist() == [
        0.0,
        -0.5,
        -0.5,
        -0.5,
        0.0,
        0.0,
    ]
    assert ours.frequency_penalty(0.5, start=2)(logits, history).tolist() == [
        0.0,
        -0.5,
        -1.5,
        -0.5,
        0.0,
        0.0,
    ]
    both = Sampling(temperature=1.0, presence_penalty=1.0, frequency_penalty=0.25).changes(2)
    assert ours.apply(both, logits, history=history).tolist() == [
        0.0,
        -1.25,
        -1.75,
        -1.25,
        0.0,
        0.0,
    ]


def test_penalties_on_an_empty_history_are_the_identity() -> None:
    logits = row(1)
    for change in (
        ours.repetition_penalty(2.0),
        ours.presence_penalty(1.0, start=0),
        ours.frequency_penalty(1.0, start=0),
        ours.no_repeat_ngram(1),
    ):
        assert torch.equal(change(logits, []), logits)
    assert torch.equal(ours.presence_penalty(1.0, start=2)(logits, [4, 5]), logits)


def test_ids_without_a_logit_are_ignored_in_the_history() -> None:
    for change in (
        ours.repetition_penalty(2.0),
        ours.presence_penalty(1.0, start=0),
        ours.frequency_penalty(1.0, start=0),
        ours.no_repeat_ngram(1),
    ):
        assert torch.equal(change(torch.ones(3), [7, -1]), torch.ones(3))


def test_ties_are_broken_by_the_lowest_id() -> None:
    equal, two_high = torch.zeros(5), torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0])
    assert possible(ours.top_k(2)(equal, [])) == [0, 1]
    assert possible(ours.top_k(3)(two_high, [])) == [1, 2, 3]
    assert possible(ours.top_p(0.4)(equal, [])) == [0, 1]
    assert possible(ours.typical(0.4)(equal, [])) == [0, 1]
    assert possible(ours.temperature(0.0)(two_high, [])) == [1]
    assert possible(ours.min_p(1.0)(two_high, [])) == [1, 3]
    assert [token for token, _ in alternatives(two_high, 4)] == [1, 3, 2, 4]
    assert choose(two_high, [], Sampling(), 0, prompt_length=0).token == 1


@pytest.mark.parametrize("size", [3, 7, 10, 30])
def test_top_p_of_equal_probabilities_is_the_exact_count(size: int) -> None:
    """k tokens of 1/n reach k/n: rounding neither adds a token nor loses one."""
    for count in range(1, size):
        assert possible(ours.top_p(count / size)(torch.zeros(size), [])) == list(range(count))


def test_top_p_is_the_smallest_set_that_reaches_it() -> None:
    logits = p_of(0.1, 0.5, 0.15, 0.25)
    assert [possible(ours.top_p(p)(logits, [])) for p in (0.0, 1e-12, 0.49, 0.51, 0.76, 0.91, 1.0)] == [
        *[[1]] * 3, [1, 3], [1, 2, 3], [0, 1, 2, 3], [0, 1, 2, 3]
    ]  # fmt: skip


@pytest.mark.parametrize("cold", [0.0, -0.0, 1e-45, 1e-9, 1e-6, 9.9e-6])
def test_cold_is_greedy_without_overflow(cold: float) -> None:
    logits = torch.tensor([3e38, -3e38, 3.1e38, 3.1e38])
    sampling = Sampling(temperature=cold, typical=0.1)
    assert sampling.greedy
    assert all(
        choose(logits, [], replace(sampling, seed=seed), seed, prompt_length=0).token == 2
        for seed in range(20)
    )
    assert not Sampling(temperature=1e-5).greedy
    assert choose(logits, [], Sampling(temperature=1e-5), 0, prompt_length=0).token in (2, 3)


def test_bans_and_allowances() -> None:
    logits = torch.zeros(4)
    assert possible(ours.banned([1, 1, 3])(logits, [])) == [0, 2]
    assert possible(ours.allowed(iter([3, 1]))(logits, [])) == [1, 3]
    assert ours.banned([])(logits, []) is logits


@pytest.mark.parametrize("change", CHANGES)
def test_changes_do_not_write_into_their_input(change: Change) -> None:
    logits, history = row(5), [1, 2, 1, 2, 3]
    before = logits.clone()
    change(logits, history)
    assert torch.equal(logits, before)
    assert history == [1, 2, 1, 2, 3]


EXTREME = st.floats(width=32, allow_nan=False) | st.sampled_from(
    [INFINITY, -INFINITY, 0.0, -0.0, 3.4e38, -3.4e38, 1e-45]
)
ROWS = (
    st.lists(EXTREME, min_size=91, max_size=91)
    | st.floats(width=32, allow_nan=False).map(lambda x: [x] * 91)
    | st.tuples(st.integers(0, 90), st.floats(-(2.0**100), 2.0**100, width=32)).map(
        lambda at: [at[1] if i == at[0] else -INFINITY for i in range(91)]
    )
)


@settings(max_examples=60, deadline=None)
@given(values=ROWS, history=st.lists(st.integers(0, 90), max_size=8))
def test_any_logits_never_nan_and_impossible_stays_impossible(
    values: list[float], history: list[int]
) -> None:
    logits = torch.tensor(values)
    for change in CHANGES:
        changed = change(logits, history)
        assert changed.dtype == torch.float32
        assert changed.shape == logits.shape
        assert not changed.isnan().any()
        assert set(possible(changed)) <= set(possible(logits))


@settings(max_examples=100, deadline=None)
@given(values=ROWS, t=st.sampled_from([0.0, 1e-6, 0.01, 1.0, 50.0]), seed=st.integers(0, 2**64 - 1))
def test_filters_always_leave_a_choice(values: list[float], t: float, seed: int) -> None:
    sampling = Sampling(temperature=t, top_k=3, top_p=0.5, min_p=0.3, typical=0.5, seed=seed)
    if max(values) > -INFINITY:
        chosen = choose(torch.tensor(values), [], sampling, 0, prompt_length=0)
        assert values[chosen.token] > -INFINITY
        assert chosen.logprob <= 0.0


def test_draws_follow_the_distribution() -> None:
    """χ² over 2,000 choices and 50,000 draws of 6 tokens: 5 degrees of freedom, 20.5 is the 99.9th
    percentile."""
    logits = torch.tensor([0.3, -1.0, 1.2, 0.0, -0.5, 0.8])
    p = torch.softmax(logits.double() / 0.8, 0)
    chosen = [
        choose(logits, [], Sampling(temperature=0.8, seed=11), step, prompt_length=0).token
        for step in range(2000)
    ]
    drawn = draws(
        logits / 0.8,
        torch.tensor([uniform(12, step) for step in range(50_000)], dtype=torch.float64),
    )
    for result in (torch.tensor(chosen), drawn):
        seen, wanted = torch.bincount(result, minlength=6), p * len(result)
        assert ((seen - wanted) ** 2 / wanted).sum() < 20.5


def test_the_same_seed_and_step_is_the_same_draw() -> None:
    logits, sampling = row(2), Sampling(temperature=1.0, seed=2**64 - 1)
    first = [choose(logits, [], sampling, step, prompt_length=0) for step in range(50)]
    assert [
        choose(logits, [], sampling, step, prompt_length=0) for step in reversed(range(50))
    ] == first[::-1]
    assert [
        choose(logits, [], replace(sampling, seed=1), step, prompt_length=0) for step in range(50)
    ] != first
    assert [
        choose(logits, [], sampling, step, prompt_length=0, lane=1) for step in range(50)
    ] != first


def test_logprob_is_of_the_unmodified_logits() -> None:
    logits = row(3)
    sampling = Sampling(temperature=0.5, top_k=2, logit_bias={4: 100.0})
    chosen = choose(logits, [], sampling, 0, prompt_length=0)
    assert chosen == Choice(4, pytest.approx(float(torch.log_softmax(logits, 0)[4]), abs=1e-5))
    assert choose(logits.half().requires_grad_(), [], sampling, 0, prompt_length=0).token == 4


def test_extra_changes_come_first() -> None:
    """A grammar's mask, then top-k among what it allows."""
    chosen = choose(
        torch.tensor([3.0, 2.0, 1.0]),
        [],
        Sampling(temperature=1.0, top_k=1),
        0,
        prompt_length=0,
        extra=[ours.banned([0])],
    )
    assert chosen.token == 1


def test_alternatives_are_the_most_probable_first() -> None:
    logits = torch.tensor([0.5, 2.0, -INFINITY, 1.0])
    wanted = torch.log_softmax(logits, 0).tolist()
    assert alternatives(logits, 0) == []
    assert alternatives(logits, 2) == [(1, pytest.approx(wanted[1])), (3, pytest.approx(wanted[3]))]
    assert [token for token, _ in alternatives(logits, 9)] == [1, 3, 0]


# ── the slices that are sorted give what sorting everything gives ──


def sorted_whole(logits: Tensor, sampling: Sampling, u: float) -> tuple[Tensor, int]:
    """The filters and the draw as they are defined: everything is sorted, and added up in that
    order."""

    def order_of(key: Tensor) -> Tensor:
        possible = torch.nonzero(logits > -INFINITY).flatten()
        return possible[torch.sort(key[possible], descending=True, stable=True).indices]

    def keep_start(order: Tensor, weights: Tensor, mass: float) -> Tensor:
        share = weights[order].cumsum(0) / weights[order].sum()
        return torch.full_like(logits, -INFINITY).index_copy(
            0, kept := order[: int((share < mass - 1e-9).sum()) + 1], logits[kept]
        )

    if sampling.temperature != 1.0:
        logits = ours.temperature(sampling.temperature)(logits, [])
    if sampling.top_k is not None:
        kept = order_of(logits)[: sampling.top_k]
        logits = torch.full_like(logits, -INFINITY).index_copy(0, kept, logits[kept])
    if sampling.top_p not in (None, 1.0):
        logits = keep_start(order_of(logits), relative(logits).exp(), sampling.top_p)
    if sampling.min_p is not None:
        logits = logits.masked_fill(relative(logits) < math.log(sampling.min_p), -INFINITY)
    if sampling.typical is not None:
        logprob = torch.log_softmax(relative(logits), 0)
        surprise = -logprob[logits > -INFINITY]
        surprise = surprise[surprise < INFINITY]
        entropy = (surprise * (-surprise).exp()).sum()
        possible = torch.nonzero(logprob > -INFINITY).flatten()
        order = possible[torch.sort((-logprob[possible] - entropy).abs(), stable=True).indices]
        logits = keep_start(order, logprob.exp(), sampling.typical)
    order = order_of(logits)
    weights = relative(logits[order]).exp()
    share = weights.cumsum(0)
    result = torch.searchsorted(
        share, torch.tensor([u * float(share[-1])], dtype=torch.float64), right=True
    )
    return logits, int(order[result.clamp(max=(weights > 0).sum() - 1)])


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "natural": lambda x: 3 * x,
    "flat": lambda x: 0.001 * x,
    "peaky": lambda x: 50 * x,
    "one in front": lambda x: x.index_fill(0, torch.tensor([len(x) // 2]), 40.0),
    "ties": lambda x: (2 * x).round(),
    "two steps": lambda x: (x > 1).float() * 7,
    "constant": lambda x: 0 * x + 5,
    "huge": lambda x: 1e37 * x,
    "certain": lambda x: torch.where(x > 2, INFINITY, x),
    "tiny": lambda x: torch.where(x > 0, 1e-45 * x.abs().round(), 0.0).index_fill(
        0, torch.tensor([7]), 1.0
    ),
}


@settings(max_examples=250, deadline=None)
@given(
    shape=st.sampled_from(sorted(SHAPES)),
    size=st.sampled_from([FEW + 1, 1500, 4000]),
    masked=st.sampled_from([0.0, 0.3, 0.9]),
    seed=st.integers(0, 2**32),
    temperature=st.sampled_from([0.3, 1.0, 1.7]),
    top_k=st.sampled_from([None, None, 3, 1200]),
    top_p=st.sampled_from([None, 0.0, 0.1, 0.5, 0.9, 0.999, 1 - 1e-9, 1 - 1e-12])
    | st.floats(0.0, 1.0),
    min_p=st.sampled_from([None, None, 1e-6, 0.05]),
    typical=st.sampled_from([None, None, 0.2, 0.95]),
    u=st.sampled_from([5e-324, 2.0**-53, 0.25, 0.5, 1.0 - 2.0**-53])
    | st.floats(0.0, 1.0, exclude_min=True, exclude_max=True),
)
def test_slices_give_what_sorting_everything_gives(
    shape: str,
    size: int,
    masked: float,
    seed: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    typical: float | None,
    u: float,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = SHAPES[shape](torch.randn(size, generator=generator))
    logits = logits.masked_fill(torch.rand(size, generator=generator) < masked, -INFINITY)
    logits[size // 2] = max(float(logits[size // 2]), 0.0)
    sampling = Sampling(
        temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, typical=typical, seed=seed
    )
    wanted, token = sorted_whole(logits, sampling, u)
    result = ours.apply(sampling.changes(0), logits, history=[])
    assert torch.equal(result, wanted)
    assert draw(result, u) == token
    assert (
        choose(logits, [], sampling, 3, prompt_length=0).token
        == sorted_whole(logits, sampling, uniform(seed, 3))[1]
    )


@pytest.mark.parametrize("shape", ["natural", "flat", "ties", "peaky"])
def test_the_slices_are_used(shape: str) -> None:
    """Or the law above would compare sorting with itself."""
    logits = SHAPES[shape](torch.randn(5000, generator=torch.Generator().manual_seed(0)))
    weights = relative(logits).exp()
    for share in (0.3, 0.9):
        head = start(logits, share, weights=weights)
        assert head is not None
        assert (
            float(weights[head].sum() / weights.sum())
            >= share
            > float(weights[head[:-1]].sum() / weights.sum())
        )


BAD = [
    *[("temperature", bad) for bad in (-1, math.nan, INFINITY, "1", None, True)],
    *[("top_p", bad) for bad in (2, -0.1, 1.0000001, math.nan, "0.9")],
    *[("min_p", bad) for bad in (-0.1, 1.1, math.nan)],
    *[("typical", bad) for bad in (0, 1.1, -1, math.nan)],
    *[("top_k", bad) for bad in (0, -1, 1.5, True, "3")],
    *[("no_repeat_ngram", bad) for bad in (0, -1, 2.0)],
    *[("repetition_penalty", bad) for bad in (0, -1.0, math.nan, INFINITY)],
    *[("presence_penalty", bad) for bad in (math.nan, INFINITY, None, 1e39)],
    *[("frequency_penalty", bad) for bad in (math.nan, -INFINITY, "x\ny")],
    *[
        ("logit_bias", bad)
        for bad in (
            {-1: 1.0},
            {"5": 1.0},
            {1.5: 1.0},
            {True: 1.0},
            {5: math.nan},
            {5: INFINITY},
            {5: "a"},
            [5],
            None,
        )
    ],
    *[("seed", bad) for bad in (-1, 2**64, 0.5, None)],
]


@pytest.mark.parametrize(("name", "bad"), BAD)
def test_every_bad_argument_is_refused_in_one_line(name: str, bad: object) -> None:
    with pytest.raises(
        InputError, match=rf"^(a token of )?{name}.* is .+; expected .+\. Fix: .+$"
    ) as caught:
        Sampling(**{name: bad})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 140


def test_the_refusals_read_well() -> None:
    with pytest.raises(InputError) as caught:
        Sampling(top_p=2)
    assert (
        str(caught.value)
        == "top_p is 2; expected a number from 0 to 1. Fix: leave it out for the default"
    )


@pytest.mark.parametrize(
    "make",
    [lambda: ours.logit_bias({9: 1.0}), lambda: ours.banned([0, 9]), lambda: ours.allowed([9])],
)
def test_ids_beyond_the_vocabulary_are_refused_when_applied(make: Callable[[], Change]) -> None:
    with pytest.raises(
        InputError, match=r"^\w+ names token 9; expected ids below the vocabulary size 4\. Fix: .+$"
    ):
        make()(torch.zeros(4), [])


@pytest.mark.parametrize("make", [ours.banned, ours.allowed])
def test_ids_that_are_no_ids_are_refused_when_made(make: Callable[[Sequence[int]], Change]) -> None:
    with pytest.raises(InputError, match=r"^a token of \w+ is -1; expected an integer"):
        make([-1])
    with pytest.raises(InputError, match="allowed names no token"):
        ours.allowed([])


@pytest.mark.parametrize("t", [0.0, 1.0, 0.7])
def test_unusable_logits_are_an_error_of_that_request(t: float) -> None:
    sampling = Sampling(temperature=t, top_k=2, top_p=0.5, typical=0.5)

    def refused(
        logits: Tensor, message: str, *, by: Sampling = sampling, extra: Sequence[Change] = ()
    ) -> None:
        with pytest.raises(InputError, match=message):
            choose(logits, [0, 1], by, 0, prompt_length=0, extra=extra)

    refused(torch.tensor([1.0, math.nan]), "^the model returned 1 NaN logits")
    refused(torch.full((3,), -INFINITY), "^every token is impossible after the model")
    refused(
        torch.zeros(2),
        "^every token is impossible after the extra changes",
        extra=[ours.banned([0, 1])],
    )
    refused(
        torch.zeros(2),
        "^the extra changes returned 2 NaN logits",
        extra=[lambda logits, history: logits * math.nan],
    )
    refused(
        torch.zeros(2),
        "^every token is impossible after bias and n-gram",
        by=replace(sampling, no_repeat_ngram=1),
    )
    refused(torch.zeros(2), "^logit_bias names token 5", by=replace(sampling, logit_bias={5: 1.0}))
    refused(torch.zeros(1, 2), r"^logits have shape \(1, 2\)")
    refused(torch.zeros(0), r"^logits have shape \(0,\)")
    with pytest.raises(InputError, match=r"^prompt_length is -1"):
        choose(torch.zeros(2), [], sampling, 0, prompt_length=-1)


def test_a_sampling_is_a_value() -> None:
    bias = {5: 1.0}
    sampling = Sampling(logit_bias=bias)
    bias[6] = 2.0
    assert sampling == Sampling(logit_bias={5: 1.0}) == pickle.loads(pickle.dumps(sampling))
    assert hash(sampling) == hash(Sampling(logit_bias={5: 1.0}))
    assert Sampling().greedy
    assert Sampling(temperature=1.0, top_p=1.0, min_p=0.0, repetition_penalty=1.0).changes(3) == ()
