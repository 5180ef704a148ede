"""The engine behind the same doors as core: caches, texts, bad input."""

import threading

import pytest
import torch

import sightline as sl
from sightline.core.cache.kv_cache import Cache
from sightline.engine.cache import NativeCache
from sightline.engine.runner import native_runner
from sightline.errors import InputError
from sightline.generation.beam import search
from sightline.generation.decode import Request, decode
from sightline.generation.sampling import Sampling
from sightline.generation.speculative import decode_lookup
from sightline.kernels import library as kernels
from sightline.text.tokenizer import Tokenizer
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
MODEL = tiny.make(tiny.DECODERS["grouped"])
PROMPT = [1, 5, 2, 7, 3, 3, 1]


def written(transformer, **options) -> list[int]:
    request = Request(prompt=PROMPT, max_tokens=30, **options)
    return [event.token for event in decode(transformer, request)]


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.0, seed=5)])
def test_it_writes_what_core_writes(sampling) -> None:
    assert written(native_runner(MODEL), sampling=sampling) == written(MODEL, sampling=sampling)


@torch.inference_mode()
def test_hidden_states_and_logits_are_cores_row_by_row() -> None:
    twin, tokens = native_runner(MODEL), torch.tensor([PROMPT, PROMPT[::-1]])
    cache = twin.new_cache()
    assert isinstance(cache, NativeCache)
    for part in tokens.split(3, dim=1):
        result = twin.hidden(part, cache=cache)
    whole = MODEL.hidden(tokens)
    assert torch.allclose(result, whole[:, -result.shape[1] :], atol=1e-5)
    assert torch.allclose(twin.head(result), MODEL.head(whole)[:, -result.shape[1] :], atol=1e-4)
    cache.reorder(torch.tensor([1, 1, 0]))
    cache.truncate(4)
    again = twin.hidden(tokens[[1, 1, 0], 4:], cache=cache)
    assert torch.allclose(again, whole[[1, 1, 0], 4:], atol=1e-5)


@torch.inference_mode()
def test_other_caches_run_on_core() -> None:
    twin, tokens = native_runner(MODEL, "int4"), torch.tensor([PROMPT])
    assert torch.equal(
        twin.hidden(tokens, cache=Cache.growing(MODEL.config)),
        MODEL.hidden(tokens, cache=Cache.growing(MODEL.config)),
    )
    assert torch.equal(twin.hidden(tokens), MODEL.hidden(tokens))


def test_speculation_writes_the_same_with_fewer_passes() -> None:
    twin, prompt = native_runner(MODEL, "int8"), torch.tensor([PROMPT * 3])
    plain = [event.token for event in decode(twin, Request(prompt=PROMPT * 3, max_tokens=20))]
    assert decode_lookup(twin, prompt, max_tokens=20).tokens == plain


@pytest.mark.parametrize("name", ["grouped", "window", "ngpt"])
def test_beams_find_what_they_find_on_core(name) -> None:
    model = tiny.make(tiny.DECODERS[name])
    twin, prompt = native_runner(model), torch.tensor([PROMPT, PROMPT[::-1]])
    ours, theirs = (
        search(one, prompt, beams=4, max_tokens=12, count=4, end=(3,)) for one in (twin, model)
    )
    assert [[h.tokens for h in row] for row in ours] == [[h.tokens for h in row] for row in theirs]
    assert all(
        abs(a.score - b.score) < 1e-4
        for mine, other in zip(ours, theirs, strict=True)
        for a, b in zip(mine, other, strict=True)
    )
    assert twin.engine.cache_bytes == 0


def test_a_pass_that_never_ended_leaves_nothing() -> None:
    twin = native_runner(MODEL)
    cache = twin.new_cache()
    with torch.inference_mode():
        twin.hidden(torch.tensor([PROMPT]), cache=cache)
        twin.engine.hidden(
            cache.sequences, torch.tensor([[4, 4]])
        )  # as if interrupted before its end
        result = twin.hidden(torch.tensor([[2]]), cache=cache)
        assert torch.allclose(result, MODEL.hidden(torch.tensor([[*PROMPT, 2]]))[:, -1:], atol=1e-5)


def test_a_cache_gives_its_memory_back() -> None:
    twin = native_runner(MODEL)
    cache = twin.new_cache()
    with torch.inference_mode():
        twin.hidden(torch.tensor([PROMPT]), cache=cache)
    assert cache.bytes > 0
    del cache
    assert twin.engine.cache_bytes == 0


def test_threads_take_turns() -> None:
    twin, wanted, result = native_runner(MODEL, "int8"), [], {}
    wanted = written(twin)

    def write(number: int) -> None:
        result[number] = written(twin)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert all(result[n] == wanted for n in range(4))


@torch.inference_mode()
def test_bad_input_is_refused_before_the_engine_sees_it() -> None:
    twin = native_runner(MODEL)
    cache = twin.new_cache()
    for tokens in ([[10**6]], [[-1]]):
        with pytest.raises(InputError, match="holds id"):
            twin.hidden(torch.tensor(tokens), cache=cache)
    with pytest.raises(InputError, match="padding"):
        twin.hidden(torch.tensor([[1]]), cache=cache, padding=torch.tensor([[False]]))
    short = tiny.make(tiny.DECODERS["learned"])
    twin = native_runner(short)
    with pytest.raises(InputError, match="learned table"):
        twin.hidden(
            torch.ones(1, short.config.decoder.max_positions + 1, dtype=torch.long),
            cache=twin.new_cache(),
        )


def test_a_model_is_loaded_with_it(tmp_path) -> None:
    sl.Model(MODEL).save(tmp_path / "m")
    wanted = sl.load(tmp_path / "m", engine="torch").runner
    ours = sl.load(tmp_path / "m", engine="native").runner
    assert written(ours) == written(wanted)
    assert (
        sl.load(tmp_path / "m", engine="native", dtype="int4").runner.engine.bytes
        < ours.engine.bytes / 2
    )
    for options, match in (
        ({"engine": "nativ"}, "native"),
        ({"engine": "native", "dtype": "int9"}, "int9"),
        ({"engine": "torch", "dtype": "int8"}, "engine='native'"),
    ):
        with pytest.raises(InputError, match=match):
            sl.load(tmp_path / "m", **options)


def test_a_changed_weight_is_repacked() -> None:
    model = sl.Model(tiny.make(tiny.DECODERS["swiglu"]), precision="float32")
    before = model.runner
    assert model.runner is before
    with torch.no_grad():
        model.transformer.last_stack.embedding.tokens.weight.mul_(2)
    assert model.runner is not before


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
def test_a_score_is_what_generating_said(precision) -> None:
    """log p of generated tokens, scored as a text: both by the engine's weights."""
    model = sl.Model(
        MODEL,
        Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy"),
        precision=precision,
    )
    made = model.generate(PROMPT, max_tokens=8, ignore_eos=True)
    scored = model.score([*PROMPT, *made.tokens])
    assert scored.logprobs[-8:] == pytest.approx(made.logprobs, abs=1e-5)
