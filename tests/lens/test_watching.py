"""A text that was watched while it was written: each step is the last row of a whole trace, all
steps together are that trace."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.checkpoints.defaults import Defaults
from sightline.core.runner import TorchRunner
from sightline.generation.decode import Request, TokenEvent, decode
from sightline.generation.sampling import Sampling
from sightline.lens.trace.layer import Look
from sightline.lens.trace.trace import Trace, trace_of
from sightline.lens.trace.watch import Watch, pad_dropped_keys
from tests.support.tiny import ALL, ENCODER_DECODERS, GENERATORS, make

pytestmark = pytest.mark.usefixtures(
    "as_users_run_it"
)  # the shapes are checked elsewhere; here they would take half of the time
PROMPT, SOURCE, NEW = [3, 7, 1, 4, 9, 2, 8], [5, 6, 7, 8], 4
NEAR = 1e-5
CACHES: dict[str, Callable[[sl.ModelConfig], sl.Cache]] = {
    "growing": sl.Cache.growing,
    "preallocated": lambda config: sl.Cache.preallocated(config, 20),
    "ring": sl.Cache.windowed,
}


def model_of(name: str) -> sl.Model:
    return sl.Model(make(ALL[name]), defaults=Defaults(decoder_start=PROMPT[0]), name=name)


def request(name: str, **changes: Any) -> Request:
    source = SOURCE if name in ENCODER_DECODERS else None
    return Request(**({"prompt": PROMPT, "max_tokens": NEW, "source": source} | changes))


def written(
    model: sl.Model, wanted: Request, **options: Any
) -> tuple[list[TokenEvent], list[Trace], Trace]:
    """Events, the trace of each step, and the trace of all."""
    watch, events, steps, read = (
        Watch(TorchRunner(model.transformer)),
        list[TokenEvent](),
        list[Trace](),
        list(wanted.prompt),
    )
    for event in decode(model.transformer, wanted, watch=watch, **options):
        events.append(event)
        steps.append(watch.step(read, source=wanted.source))
        read.append(event.token)
    return events, steps, watch.trace(read[:-1], source=wanted.source)


def same(result: Trace, expected: Trace, rows: Sequence[int] | slice = slice(None)) -> None:
    """Every map of one trace is that of the other, or some rows of it."""
    for site, look in result.looks.items():
        other = expected.looks[site]
        part = slice(None) if site[0] == "encoder" else rows
        for kind in (Look.weights, Look.scores):
            a, b = kind(look), kind(other)[:, part]
            assert a.shape == b.shape, site
            torch.testing.assert_close(
                a, b, atol=NEAR * (1 if kind is Look.weights else 10), rtol=1e-5
            )


@pytest.mark.parametrize("name", GENERATORS)
def test_all_steps_together_are_the_whole_traced_at_once(name: str) -> None:
    model, wanted = model_of(name), request(name)
    events, steps, result = written(model, wanted, chunk=3)
    ids = [*PROMPT, *(event.token for event in events[:-1])]
    whole = trace_of(model, ids, source=wanted.source)
    assert result.looks.keys() == whole.looks.keys()
    assert [token.id for token in result.tokens] == ids
    assert result.rows == whole.rows == range(len(ids))
    same(result, whole)
    for look in result.looks.values():
        torch.testing.assert_close(
            look.mixed(), whole.looks[look.site].mixed(), atol=NEAR, rtol=1e-4
        )
    for n, step in enumerate(steps):  # the first step is the last chunk of the prompt
        first = 6 if n == 0 else 6 + n
        so_far = trace_of(model, ids[: 7 + n], source=wanted.source)
        assert step.rows == range(first, 7 + n)
        same(step, so_far, rows=slice(first, None))
    quiet = list(decode(model.transformer, wanted, chunk=3))
    assert [(event.token, event.logprob) for event in events] == [
        (event.token, event.logprob) for event in quiet
    ], "to the bit"


@pytest.mark.parametrize("chunk", [1, 3, 512])
@pytest.mark.parametrize("kind", CACHES)
@pytest.mark.parametrize("name", ["rotary", "window", "window-alternating", "alibi-grouped", "t5"])
def test_whatever_remembers_the_keys(name: str, kind: str, chunk: int) -> None:
    model, wanted = model_of(name), request(name)
    caches = [CACHES[kind](model.config) for _ in range(2)]
    events, steps, result = written(model, wanted, chunk=chunk, cache=caches[0])
    ids = [*PROMPT, *(event.token for event in events[:-1])]
    same(result, trace_of(model, ids, source=wanted.source))
    same(steps[-1], trace_of(model, ids, source=wanted.source), rows=slice(-1, None))
    quiet = list(decode(model.transformer, wanted, chunk=chunk, cache=caches[1]))
    assert [(event.token, event.logprob) for event in events] == [
        (event.token, event.logprob) for event in quiet
    ], "to the bit"


def test_a_cache_with_a_prefix_leaves_fewer_rows() -> None:
    model, wanted = model_of("rotary"), request("rotary")
    cache = sl.Cache.growing(model.config)
    with torch.inference_mode():
        model.transformer(torch.tensor([PROMPT[:4]]), cache=cache)
    events, steps, result = written(model, wanted, cache=cache)
    ids = [*PROMPT, *(event.token for event in events[:-1])]
    assert result.rows == range(4, len(ids))
    assert steps[0].rows == range(4, 7)
    same(result, trace_of(model, ids), rows=slice(4, None))


def test_what_is_forgotten_in_8_bits_is_seen_as_it_was_used() -> None:
    model, wanted = model_of("rotary"), request("rotary")
    events, _, result = written(model, wanted, cache=sl.Cache.quantised(model.config))
    seen, cache = sl.Recorder({"weights"}), sl.Cache.quantised(model.config)
    with torch.no_grad():
        for n, ids in enumerate([PROMPT, *([event.token] for event in events[:-1])]):
            seen = sl.Recorder({"weights"})
            model.transformer(torch.tensor([ids]), cache=cache, record=seen)
            rows = slice(0, 7) if n == 0 else slice(6 + n, 7 + n)
            expected = seen["decoder", 1, "weights"][0]
            torch.testing.assert_close(
                result.weights(1)[:, rows, : expected.shape[-1]], expected, atol=1e-4, rtol=0
            )


def test_sampled_and_ended_texts() -> None:
    model = model_of("grouped")
    wanted = request("grouped", sampling=Sampling(temperature=1.5, seed=3))
    events, _, result = written(model, wanted)
    same(result, trace_of(model, [*PROMPT, *(event.token for event in events[:-1])]))
    ended, steps, result = written(
        model, request("grouped", sampling=wanted.sampling, end=(events[0].token,))
    )
    assert len(ended) == len(steps) == 1
    same(result, trace_of(model, PROMPT))


def held(watch: Watch) -> int:
    """Numbers in all tensors that a watch keeps of passes that are over."""
    looks = [look for of_site in watch.passed.values() for look in of_site]
    parts = [
        (x.query, x.key, x.value, x.scoring.mask.query_at, x.scoring.mask.key_at) for x in looks
    ]
    return sum(
        x.untyped_storage().nbytes() // x.element_size()
        for part in parts
        for x in part
        if x is not None
    )


@pytest.mark.parametrize("kind", ["growing", "ring"])
def test_of_each_pass_only_its_queries_stay(kind: str) -> None:
    """As many numbers for every token, not more the longer the text is."""
    model = sl.Model(
        make(sl.llama(width=16, layers=2, heads=2, vocab_size=29, max_positions=100, window=4))
    )
    counts = []
    for count in (15, 30, 60):
        watch = Watch(TorchRunner(model.transformer))
        for _ in decode(
            model.transformer,
            Request(prompt=[3], max_tokens=count),
            watch=watch,
            cache=CACHES[kind](model.config),
        ):
            pass
        counts.append(held(watch) / count)
    assert max(counts) <= 2 * (16 + 1 if kind == "growing" else 3 * 16 + 2), (
        "two layers, and for each token its query (in a ring k and v)"
    )


def test_a_whole_trace_is_its_own() -> None:
    """In memory of its own, usable in a graph, and untouched by what the cache does next."""
    model, wanted = model_of("rotary"), request("rotary")
    cache = sl.Cache.preallocated(model.config, 40)
    _, _, result = written(model, wanted, cache=cache)
    before = result.weights(1)
    cache.truncate(0)
    list(decode(model.transformer, request("rotary", prompt=[1, 2, 3]), cache=cache))
    assert torch.equal(result.weights(1), before)
    for look in result.looks.values():
        assert not any(
            x.is_inference() or x.requires_grad for x in (look.query, look.key, look.value)
        )


def test_some_layers_and_more_than_attention() -> None:
    model = model_of("rotary")
    watch = Watch(
        TorchRunner(model.transformer), what=("query", "key", "residual"), layers=iter([-1])
    )
    read = list(PROMPT)
    for event in decode(model.transformer, request("rotary"), watch=watch):
        step = watch.step(read)
        assert set(step.looks) == {("decoder", 1, False)}
        torch.testing.assert_close(
            step["residual", 1],
            trace_of(model, read, what=("residual",))["residual", 1][list(step.rows)],
            atol=1e-5,
            rtol=1e-5,
        )
        read.append(event.token)
    result = watch.trace(read[:-1])
    assert result.logits.numel() == 0
    with pytest.raises(sl.InputError, match="a trace without values"):
        result.look(1).mixed()
    with pytest.raises(sl.InputError, match=r"layer 9; expected 0 to 1"):
        Watch(TorchRunner(model.transformer), layers=[9])


def test_columns_that_a_ring_has_forgotten_are_hidden() -> None:
    look = trace_of(model_of("window"), PROMPT).look(0)
    wide = pad_dropped_keys(look, 10)
    assert wide.weights().shape == (4, 7, 10)
    assert bool((wide.weights()[..., :3] == 0).all())
    assert bool(wide.scores()[..., :3].isneginf().all())
    torch.testing.assert_close(wide.weights()[..., 3:], look.weights())
    assert pad_dropped_keys(look, 7) is look
