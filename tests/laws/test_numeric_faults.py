"""Numbers at the edge: empty rows, infinities, ties, half precision, distant positions."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.core.positions import rotate, rotation
from sightline.errors import InputError
from sightline.generation import sampling as changes
from sightline.generation.decode import Request, decode
from sightline.generation.randomness import draw, open_interval, uniform
from sightline.generation.sampling import Sampling, alternatives, choose
from tests.support.tiny import DECODERS, GENERATORS, SIZE, distance, inputs, left_padding, make

INFINITY, NAN = math.inf, math.nan
LOWEST = torch.finfo(torch.float32).min
KERNELS = ("equation", "fused")
SOME = ["rotary", "alibi", "relative", "soft-cap", "sinks", "window", "grouped", "learned"]


def qkv(batch: int = 2, time: int = 5, dim: int = 8) -> tuple[Tensor, ...]:
    torch.manual_seed(0)
    return tuple(torch.randn(batch, 2, time, dim) for _ in range(3))


# ── masks ──


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("how", ["padding", "bias", "left of everything"])
def test_a_row_with_nothing_to_see_is_zero_with_finite_gradients(kernel: str, how: str) -> None:
    query, key, value = (x.requires_grad_() for x in qkv())
    options: dict[str, Any] = {
        "padding": {"key_padding": torch.tensor([[True] * 5, [False] * 5])},
        "bias": {"bias": torch.zeros(2, 1, 5, 5).index_fill(0, torch.tensor([0]), -INFINITY)},
        "left of everything": {
            "causal": True,
            "key_padding": torch.tensor([[True, True, False, False, False], [False] * 5]),
        },
    }[how]
    output = sl.attention(query, key, value, **options, kernel=kernel)
    empty = output[0, :, :2] if how == "left of everything" else output[0]
    assert bool((empty == 0).all())
    assert bool(output[1].abs().sum() > 0)
    output.sum().backward()
    assert all(x.grad is not None and bool(x.grad.isfinite().all()) for x in (query, key, value))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", SOME)
def test_a_padded_row_of_a_model_is_finite_with_finite_gradients(name: str, kernel: str) -> None:
    model = make(DECODERS[name])
    tokens = inputs(DECODERS[name])["tokens"]
    padding = left_padding().index_fill(0, torch.tensor([0]), True)  # row 0 is padding throughout
    logits = model(tokens, padding=padding, kernel=kernel)
    assert bool(logits.isfinite().all())
    logits.sum().backward()
    assert all(
        bool(parameter.grad.isfinite().all())
        for parameter in model.parameters()
        if parameter.grad is not None
    )


def poisoned(cache: sl.Cache, spot: Callable[[Tensor], Tensor], poison: float) -> sl.Cache:
    """The cache, except that what it hands out is poisoned where `spot` of the positions [batch,
    key] says."""

    def changed(update: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def of(new: Any) -> Any:
            stored = update(new)
            hidden = spot(stored.at.expand(stored.key.shape[0], -1))[:, None, :, None]
            return stored._replace(
                key=stored.key.masked_fill(hidden, poison),
                value=stored.value.masked_fill(hidden, poison),
            )

        return of

    for store in cache.stores:
        store.update = changed(store.update)  # pyright: ignore[reportAttributeAccessIssue]
    return cache


@pytest.mark.parametrize("poison", [NAN, INFINITY, -INFINITY])
@pytest.mark.parametrize("name", SOME)
def test_what_stands_behind_the_padding_never_leaks(name: str, poison: float) -> None:
    model, padding = make(DECODERS[name]), left_padding()
    tokens = inputs(DECODERS[name])["tokens"]
    with torch.inference_mode():
        clean = model(tokens, padding=padding, cache=sl.Cache.growing(model.config))
        dirty = model(
            tokens,
            padding=padding,
            cache=poisoned(sl.Cache.growing(model.config), lambda at: at < 0, poison),
        )
    assert distance(clean[~padding], dirty[~padding]) < 1e-5


@pytest.mark.parametrize("name", SOME)
def test_a_broken_neighbour_stays_alone(name: str) -> None:
    model = make(DECODERS[name])
    tokens = inputs(DECODERS[name])["tokens"]

    def first_row(at: Tensor) -> Tensor:
        return torch.zeros_like(at, dtype=torch.bool).index_fill(0, torch.tensor([0]), True)

    with torch.inference_mode():
        clean = model(tokens, cache=sl.Cache.growing(model.config))
        dirty = model(tokens, cache=poisoned(sl.Cache.growing(model.config), first_row, NAN))
    assert bool(dirty[0].isnan().all())
    assert distance(clean[1:], dirty[1:]) < 1e-5


@pytest.mark.parametrize("kernel", KERNELS)
def test_the_lowest_number_added_twice_is_minus_infinity(kernel: str) -> None:
    query, key, value = qkv()
    hidden = torch.tensor([[False, True, False, False, True], [True] * 5])
    once = torch.zeros(2, 1, 5, 5).masked_fill(hidden[:, None, None, :], LOWEST)
    assert bool((once + once).isneginf().any())
    ways = [
        {"key_padding": hidden},
        {"bias": once + once},
        {"bias": torch.where(once < 0, -INFINITY, 0.0)},
    ]
    results = [sl.attention(query, key, value, **way, kernel=kernel) for way in ways]
    for result in results:
        torch.testing.assert_close(result, results[0])
        assert bool((result[1] == 0).all())
    torch.testing.assert_close(
        sl.attention(query, key, value, bias=once, kernel=kernel)[0], results[0][0]
    )


# ── choosing ──


@pytest.mark.parametrize(
    ("logits", "options", "extra"),
    [
        (torch.full((9,), -INFINITY), {}, ()),
        (torch.full((9,), -INFINITY), {"top_k": 2, "top_p": 0.5, "logit_bias": {3: 100.0}}, ()),
        (torch.zeros(9), {"top_k": 1}, (changes.banned(range(9)),)),
        (torch.tensor([0.0, -INFINITY]), {}, (changes.allowed([1]),)),
        (torch.zeros(2), {"no_repeat_ngram": 1}, ()),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_possible_token_is_one_line_for_that_request(
    logits: Tensor, options: Any, extra: Any, temperature: float
) -> None:
    with pytest.raises(InputError, match=r"^every token is impossible after [^\n]+$"):
        choose(
            logits,
            [0, 1],
            Sampling(temperature=temperature, **options),
            0,
            prompt_length=0,
            extra=extra,
        )


def test_grammars_that_allow_nothing_end_the_generator_and_leave_the_model_usable() -> None:
    model = make(DECODERS["rotary"])
    with pytest.raises(InputError, match="every token is impossible"):
        list(
            decode(
                model, Request(prompt=[1, 2], max_tokens=3, changes=(changes.banned(range(29)),))
            )
        )
    assert len(list(decode(model, Request(prompt=[1, 2], max_tokens=3)))) == 3


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kernel", ["equation", "fused"])
def test_scores_beyond_float16_are_the_float64_result(dtype: torch.dtype, kernel: str) -> None:
    """q·k is 640,000; float16 ends at 65,504, and bfloat16 counts in steps of 4,096 there."""
    query, key, value = (
        x.to(dtype) for x in (100 + qkv(dim=64)[0], 100 + qkv(dim=64)[1], qkv(dim=64)[2])
    )
    wanted = sl.attention(query.double(), key.double(), value.double(), causal=True)
    torch.testing.assert_close(
        sl.attention(query, key, value, causal=True, kernel=kernel).double(),
        wanted,
        atol=0.02,
        rtol=0.02,
    )


def test_ties_that_bfloat16_makes_go_to_the_lowest_id() -> None:
    logits = torch.tensor([0.0, 7.001, 7.0, 7.0005]).bfloat16()
    assert logits[1:].unique().numel() == 1
    assert choose(logits, [], Sampling(), 0, prompt_length=0).token == 1
    assert [token for token, _ in alternatives(logits, 3)] == [1, 2, 3]
    large = torch.tensor([6e4, -6e4, 6e4]).half()
    assert choose(
        large, [], Sampling(temperature=0.01), 0, prompt_length=0
    ).logprob == pytest.approx(-math.log(2))


@pytest.mark.parametrize("size", [7, 10, 30, 3000])
def test_the_smallest_set_that_reaches_top_p_in_the_stable_order(size: int) -> None:
    equal = torch.zeros(size)

    def kept(p: float) -> list[int]:
        return torch.nonzero(changes.top_p(p)(equal, []) > -INFINITY).flatten().tolist()

    for p in (0.0, -0.0, 1e-300, 1e-12):
        assert kept(p) == [0]
    for count in {1, 2, size // 3, size // 2, size - 1}:
        assert kept(count / size) == list(range(count)), "neither one more nor one less by rounding"
    assert kept(1.0) == kept(1 - 1e-12) == list(range(size))


@pytest.mark.parametrize("size", [5, 5000])
def test_a_masked_token_is_never_drawn_and_u_is_never_0_or_1(size: int) -> None:
    assert 0.0 < open_interval(0) < open_interval(2**64 - 1) < 1.0
    logits = torch.randn(size, generator=torch.Generator().manual_seed(1)) * 5
    logits[::2] = -INFINITY
    logits[1] = -800.0  # possible, and its probability underflows to 0
    edges = [0.0, 5e-324, 2.0**-53, 0.5, 1.0 - 2.0**-53, 1.0]
    for u in [*edges, *(uniform(3, step) for step in range(200))]:
        token = draw(logits, u)
        assert token % 2 == 1
        assert token != 1


@pytest.mark.parametrize("cold", [1e-6, 1e-30, 5e-324])
def test_almost_no_temperature_is_greedy(cold: float) -> None:
    for logits in (
        torch.tensor([1.0, 3e38, -3e38, 2.9e38]),
        torch.tensor([1.0, 1.0 + 1e-6, 1.0]),
        torch.tensor([-1e-45, 0.0]),
    ):
        greedy = choose(logits, [], Sampling(), 0, prompt_length=0)
        for step in range(20):
            assert (
                choose(logits, [], Sampling(temperature=cold, seed=step), step, prompt_length=0)
                == greedy
            )


# ── positions and caches ──


@pytest.mark.parametrize(
    "name",
    [
        "rotary",
        "alibi",
        "relative",
        "learned",
        "window-alternating",
        "grouped",
        "ngpt",
        "transformer",
    ],
)
def test_the_tokens_do_not_depend_on_cache_chunks_or_neighbours(name: str) -> None:
    model = make(GENERATORS[name])
    source = {"source": [3, 1, 4, 1, 5]} if model.config.encoder is not None else {}
    request = Request(prompt=[2, 7, 1, 8, 2, 8, 1], max_tokens=8, **source)
    wanted = [event.token for event in decode(model, request)]
    for chunk in (1, 3):
        assert [event.token for event in decode(model, request, chunk=chunk)] == wanted
    for cache in (sl.Cache.preallocated(model.config, 15), sl.Cache.windowed(model.config)):
        assert [event.token for event in decode(model, request, cache=cache)] == wanted
    whole, alone = list(request.prompt), torch.tensor([request.source]) if source else None
    with torch.inference_mode():
        for _ in range(8):
            given = {} if alone is None else {"source": alone}
            whole.append(int(model(torch.tensor([whole]), **given)[0, -1].argmax()))
    assert whole[7:] == wanted
    assert beside_a_longer_row(model, list(request.prompt), alone) == wanted


def beside_a_longer_row(
    model: sl.Transformer, prompt: list[int], source: Tensor | None
) -> list[int]:
    """Greedy tokens of a row that is padded on the left by three, beside another row."""
    tokens = torch.tensor([[0, 0, 0, *prompt], [5, 5, 6, *prompt[::-1]]])
    padding = torch.zeros_like(tokens, dtype=torch.bool)
    padding[0, :3] = True
    cache, actual = sl.Cache.growing(model.config), list[int]()
    given: dict[str, Any] = {"padding": padding} | (
        {} if source is None else {"source": source.expand(2, -1)}
    )
    with torch.inference_mode():
        for _ in range(8):
            best = model(tokens, cache=cache, **given)[:, -1].argmax(-1)
            actual.append(int(best[0]))
            tokens, given = best[:, None], {}
    return actual


def test_a_learned_table_ends_and_says_so() -> None:
    model = make(DECODERS["learned"])
    long = torch.zeros(1, SIZE["max_positions"] + 1, dtype=torch.long)
    model(long[:, :-1])
    with pytest.raises(
        InputError,
        match=r"^tokens reach position 48; expected at most 47, the end of the learned table\. Fix: [^\n]+$",
    ):
        model(long)
    cache = sl.Cache.growing(model.config)
    model(long[:, :-1], cache=cache)
    with pytest.raises(InputError, match="reach position 48"):
        model(long[:, :1], cache=cache)


@pytest.mark.parametrize(
    "name", ["rotary", "rotary-yarn", "rotary-llama3", "alibi", "relative", "sinusoidal", "none"]
)
def test_other_positions_go_on_and_generation_stops_at_the_trained_length(name: str) -> None:
    model, limit = make(DECODERS[name]), SIZE["max_positions"]
    tokens = torch.randint(0, 29, (1, 3 * limit), generator=torch.Generator().manual_seed(0))
    assert bool(model(tokens).isfinite().all())
    for prompt, most in (([1] * limit, 1), ([1] * (limit - 2), 3)):
        with pytest.raises(InputError, match=r"for a context of 48; expected [^\n]+$"):
            next(iter(decode(model, Request(prompt=prompt, max_tokens=most))))


def test_rotary_at_a_million_keeps_lengths_and_distances() -> None:
    """float32 angles of 2^20 are off by up to 2^−4 each: the scores drift by so much, and by no
    more."""
    query, key = (
        torch.nn.functional.normalize(x, dim=-1) for x in qkv(batch=1, time=1, dim=64)[:2]
    )

    def score(at: int, distance: int) -> float:
        turned = [
            rotate(x, rotation(sl.Rotary(), 64, torch.tensor([[place]])))
            for x, place in ((query, at), (key, at - distance))
        ]
        assert all(float(x.norm(dim=-1).sub(1).abs().max()) < 1e-5 for x in turned)
        return float((turned[0] * turned[1]).sum())

    for gap in (0, 1, 17, 500):
        assert abs(score(2**20, gap) - score(1000, gap)) < 2 * 2.0**-4


# ── penalties and log-probabilities ──


@pytest.mark.parametrize("history", [[], [0], [0, 1, 2, 3, 4, 5] * 3])
def test_penalties_are_finite_and_leave_the_impossible_impossible(history: list[int]) -> None:
    logits = torch.tensor([0.0, -0.0, 3e38, -3e38, -INFINITY, 2.0])
    for change in (
        *(changes.repetition_penalty(r) for r in (1e-37, 0.5, 2.0, 3e38)),
        *(changes.presence_penalty(x, start=0) for x in (-3e38, 3e38)),
        *(changes.frequency_penalty(x, start=0) for x in (-3e38, 3e38)),
    ):
        changed = change(logits, history)
        assert bool(changed[[0, 1, 2, 3, 5]].isfinite().all())
        assert float(changed[4]) == -INFINITY
        assert history or torch.equal(changed, logits)
        certain = change(torch.tensor([INFINITY, 0.0, -INFINITY, 0.0, 0.0, 0.0]), history)
        assert float(certain[0]) == INFINITY
        assert not certain.isnan().any()


def test_the_least_log_probability_is_what_openai_writes() -> None:
    """With one +inf the others have probability 0; a ban can still leave only those."""
    certain = torch.tensor([INFINITY, 0.0, 1.0])
    chosen = choose(certain, [], Sampling(), 0, prompt_length=0, extra=[changes.banned([0])])
    assert (chosen.token, chosen.logprob) == (2, -9999.0)
    assert alternatives(certain, 3) == [(0, 0.0), (2, -9999.0), (1, -9999.0)]
    assert (
        choose(
            torch.tensor([0.0, -3e38]),
            [],
            Sampling(),
            0,
            prompt_length=0,
            extra=[changes.banned([0])],
        ).logprob
        == -9999.0
    )
    written = json.dumps([chosen.logprob, *alternatives(certain, 3)], allow_nan=False)
    assert "Infinity" not in written
