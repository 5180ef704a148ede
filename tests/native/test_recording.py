"""What the engine shows of itself is what core would show: every kind of attention, at once and
while a text is written."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.core.cache.kv_cache import Cache
from sightline.core.lazy import LazyTransformer
from sightline.engine.cache import NativeCache
from sightline.engine.engine import NativeEngine, Rows
from sightline.engine.matrices import PRECISIONS
from sightline.engine.runner import NativeRunner, native_runner
from sightline.generation.decode import Request, decode
from sightline.kernels import library as kernels
from sightline.lens.trace.layer import Look
from sightline.lens.trace.native import NativeWatch
from sightline.lens.trace.subject import read_tokens
from sightline.lens.trace.trace import Trace, trace_of
from sightline.record import Recorder
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import save_tokenizer, train_tokenizer
from tests.support import tiny

pytestmark = [
    pytest.mark.skipif(not kernels.available(), reason=kernels.missing),
    pytest.mark.usefixtures("as_users_run_it"),
]
LETTERS = Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy")
TEXT = "thequickbrownfoxateabug"
KNOWN = [name for name in tiny.DECODERS if name != "value-dim"]
KINDS = [
    "rotary",
    "grouped",
    "window",
    "window-alternating",
    "alibi",
    "alibi-grouped",
    "relative",
    "qk-norm",
    "qk-norm-joined",
    "cosine-fixed",
]
KINDS += [
    "ngpt-grouped",
    "ngpt-alibi",
    "sinks",
    "soft-cap",
    "rotary-partial",
    "rotary-yarn",
    "unscaled",
    "parallel",
    "learned",
]


def model_of(name: str, precision: Any = "float32") -> sl.Model:
    return sl.Model(tiny.make(tiny.DECODERS[name]), LETTERS, name=name, precision=precision)


def ids(count: int = 24) -> list[int]:
    return torch.randint(25, (count,), generator=torch.Generator().manual_seed(3)).tolist()


def far(ours: Trace, theirs: Trace, rows: slice = slice(None)) -> float:
    """The largest difference of any weight; scores must be hidden where the others' are."""
    assert set(ours.looks) == set(theirs.looks)
    worst = 0.0
    for site, look in ours.looks.items():
        a, b = look.weights(), theirs.looks[site].weights()[:, rows]
        assert a.shape == b.shape
        assert torch.equal(
            look.scores().isneginf(), theirs.looks[site].scores()[:, rows].isneginf()
        )
        worst = max(worst, float((a - b).abs().max()))
    return worst


class Counted:
    """An engine's own run, counted."""

    def __init__(self, engine: NativeEngine) -> None:
        self.engine, self.rows = engine.engine, list[int]()
        engine.engine = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self.engine, name)

    def run(self, *, positions: Tensor, **others: Any) -> None:
        self.rows.append(len(positions))
        self.engine.run(positions=positions, **others)

    def next(self, *given: Any) -> None:
        self.rows.append(1)
        self.engine.next(*given)


# ----------------------------------------------------------------------------------- a whole text


@pytest.mark.parametrize("name", KNOWN)
def test_a_text_is_seen_as_core_sees_it(name: str) -> None:
    model = model_of(name)
    result, expected = model.trace(ids()), trace_of(model, ids())
    assert far(result, expected) < 1e-5
    assert result.rows == expected.rows
    assert [token.text for token in result.tokens] == [token.text for token in expected.tokens]
    torch.testing.assert_close(result.logits, expected.logits, atol=1e-4, rtol=0)
    for site, look in result.looks.items():
        other = expected.looks[site]
        torch.testing.assert_close(look.mixed(), other.mixed(), atol=1e-5, rtol=1e-4)
        for head in (0, -1):
            torch.testing.assert_close(
                look.weights(head, rows=[-1, 3]),
                other.weights(head, rows=[-1, 3]),
                atol=1e-5,
                rtol=0,
            )


@pytest.mark.parametrize("name", KINDS)
def test_a_cache_of_half_floats_is_seen_to_a_thousandth(name: str) -> None:
    model = tiny.make(tiny.DECODERS[name])
    half = sl.Model(model, precision="float32").with_engine(NativeEngine.of(model, half_cache=True))
    result, expected = half.trace(ids()), trace_of(half, ids())
    assert 0 < far(result, expected) < 1e-3
    assert "float16 cache" in result.notes[0]


@pytest.mark.parametrize("precision", PRECISIONS)
def test_what_is_seen_is_what_was_used(precision: str) -> None:
    """Whatever the weights were rounded to: the cache's own keys and values, and the bits of an
    unwatched pass."""
    model = model_of("grouped", precision)
    result, twin = (
        model.trace(ids(), what=("query", "key", "value", "heads", "weights", "output", "logits")),
        model.runner,
    )
    cache = twin.new_cache()
    with torch.inference_mode():
        hidden = twin.hidden(torch.tensor([ids()]), cache=cache)
        assert torch.equal(result["output", None], hidden[0])
        assert torch.equal(result.logits, twin.head(hidden)[0]), (
            "the very bits of an unwatched pass"
        )
    assert torch.equal(result["logits", None], result.logits)
    for layer in range(2):
        keys, values = twin.engine.read_cache(cache.sequences[0], layer)
        assert torch.equal(result["key", layer], keys)
        assert torch.equal(result["value", layer], values)
        torch.testing.assert_close(
            result["heads", layer],
            result.weights(layer) @ values.repeat_interleave(2, dim=0),
            atol=1e-5,
            rtol=1e-5,
        )
        assert torch.equal(result["weights", layer], result.weights(layer))


def test_the_first_layer_by_hand() -> None:
    """softmax(q kᵀ/√d) of int8's own q and k, in NumPy's way: row by row."""
    result = model_of("grouped", "int8").trace(ids(9))
    query, key = result["query", 1].double(), result["key", 1].double()
    for head in range(4):
        for row in range(9):
            scores = key[head // 2, : row + 1] @ query[head, row] / query.shape[-1] ** 0.5
            expected = (scores - scores.max()).exp()
            torch.testing.assert_close(
                result.weights(1, head, row)[: row + 1].double(),
                expected / expected.sum(),
                atol=1e-6,
                rtol=0,
            )


def test_one_pass_and_no_more() -> None:
    model = model_of("rotary", "int8")
    counted = Counted(model.runner.engine)
    result = model.trace(ids())
    assert counted.rows == [24]
    result.weights(0), result.weights(1), result.bytes, result["query", 1]
    assert counted.rows == [24], "maps are made of what was kept"
    assert result.logits.shape == (24, 29)
    assert counted.rows == [24, 24], "logits alone, when they were asked for"


def test_memory_is_that_of_q_and_k() -> None:
    model = sl.Model(
        tiny.make(sl.llama(width=16, layers=3, heads=2, vocab_size=29, max_positions=2100)),
        precision="float32",
    )
    short, long = (model.trace([1, 2, 3, 4] * (count // 4)) for count in (500, 2000))
    assert long.bytes == 4 * short.bytes == 2000 * 3 * (16 + 2 * 16) * 4
    assert model.runner.engine.cache_bytes <= 2.1 * (short.bytes + long.bytes)
    assert float(long.weights(2, 0, rows=-1).sum()) == pytest.approx(1, abs=1e-5)
    assert len(long.looks.made) == 1
    del short, long
    gc.collect()
    assert model.runner.engine.cache_bytes == 0


def test_longer_than_one_call() -> None:
    model = sl.Model(
        tiny.make(
            sl.llama(width=16, layers=2, heads=2, vocab_size=29, max_positions=700, window=50)
        ),
        precision="float32",
    )
    text = ids() * 27
    result, expected = model.trace(text), trace_of(model, text)
    assert far(result, expected) < 1e-5
    torch.testing.assert_close(result.logits, expected.logits, atol=1e-4, rtol=0)


def test_some_layers_and_more_than_attention() -> None:
    model = model_of("rotary", "int8")
    result = model.trace(ids(), layers=[-1], what=("query", "key", "residual", "hidden"))
    expected = trace_of(model, ids(), what=("residual", "hidden"))
    assert set(result.looks) == {("decoder", 1, False)}
    assert torch.equal(result["residual", 1], expected["residual", 1])
    assert (
        result.notes[0]
        == "queries, keys, values and logits are the native engine's: int8 weights, a float16 cache"
    )
    assert result.notes[1] == "residual, hidden: recorded by torch, with the weights before packing"
    assert torch.equal(result.weights(1), model.trace(ids()).weights(1))
    with pytest.raises(sl.InputError, match="layer 0 of the decoder was not traced"):
        result.weights(0)
    with pytest.raises(sl.RecordError, match="nothing named 'resdual' can be recorded"):
        model.trace(ids(), what=("resdual",))
    with pytest.raises(sl.InputError, match="a text of 60 tokens for a context of 48"):
        model.trace("abc" * 20)


def test_a_trace_outlives_its_model_and_its_file(tmp_path) -> None:
    model = model_of("sinks", "int8")
    result = model.trace(ids())
    before = [look.weights() for look in result.looks.values()]
    with torch.no_grad():
        for parameter in model.transformer.parameters():
            parameter.mul_(3)
    model.trace(ids())
    del model
    gc.collect()
    again = Trace.open(result.save(tmp_path / "seen.safetensors"))
    assert again.notes == result.notes
    assert torch.equal(again.logits, result.logits)
    for trace in (result, again):
        assert all(
            torch.equal(look.weights(), old)
            for look, old in zip(trace.looks.values(), before, strict=True)
        )


# ------------------------------------------------------------------------ while a text is written


@pytest.mark.parametrize("name", KINDS)
def test_a_text_that_is_written_is_seen_as_core_sees_it(name: str) -> None:
    model = model_of(name)
    result = model.generate(ids(7), max_tokens=9, trace=True)
    assert result.trace is not None
    read = [*ids(7), *result.tokens[:-1]]
    assert [token.id for token in result.trace.tokens] == read
    assert result.trace.rows == range(len(read))
    assert far(result.trace, trace_of(model, read)) < 1e-5
    pieces = list(model.stream(ids(7), max_tokens=9, trace=True))
    for n, piece in enumerate(pieces):  # all of them looked at after the end
        first = 0 if n == 0 else 6 + n
        assert piece.trace.rows == range(first, 7 + n)
        assert [token.id for token in piece.trace.tokens] == read[: 7 + n]
        assert far(piece.trace, trace_of(model, read[: 7 + n]), rows=slice(first, None)) < 1e-5


@pytest.mark.parametrize("precision", PRECISIONS)
def test_watching_changes_no_bit(precision: str) -> None:
    model = model_of("grouped", precision)
    for options in ({}, {"temperature": 1.3, "seed": 4}, {"stop": ["q"]}):
        quiet = model.generate(TEXT, max_tokens=20, **options)
        seen = model.generate(TEXT, max_tokens=20, trace=True, **options)
        assert (seen.tokens, seen.logprobs, seen.text) == (quiet.tokens, quiet.logprobs, quiet.text)
        streamed = [
            piece.event.token for piece in model.stream(TEXT, max_tokens=20, trace=True, **options)
        ]
        assert streamed == quiet.tokens
        whole = model.trace([*model.ids(TEXT), *quiet.tokens[:-1]])
        for site, look in seen.trace.looks.items():
            assert torch.equal(look.query, whole.looks[site].query), "step by step or at once"
            assert torch.equal(look.key, whole.looks[site].key)


def test_any_recorder_changes_no_bit() -> None:
    twin, request = model_of("grouped", "int8").runner, Request(prompt=ids(7), max_tokens=12)
    seen = list(decode(twin, request, watch=lambda: Recorder({"query", "key", "logits"})))
    quiet = list(decode(twin, request))
    assert [(event.token, event.logprob) for event in seen] == [
        (event.token, event.logprob) for event in quiet
    ]
    assert seen[-1].recording["decoder", 1, "key"].shape == (1, 2, 18, 6)


def test_two_that_are_written_at_once_are_seen_apart() -> None:
    model, result = model_of("grouped", "int8"), dict[int, list[torch.Tensor]]()

    def write(count: int) -> None:
        result[count] = [
            piece.trace.weights(1) for piece in model.stream(ids(count), max_tokens=12, trace=True)
        ]

    threads = [threading.Thread(target=write, args=(count,)) for count in (5, 9, 13)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    for count, seen in list(result.items()):
        write(count)
        assert all(torch.equal(a, b) for a, b in zip(seen, result[count], strict=True))
    assert set(result) == {5, 9, 13}


def test_watching_costs_no_pass() -> None:
    model = model_of("window", "int8")
    counted = Counted(model.runner.engine)
    model.generate(TEXT, max_tokens=8)
    quiet, counted.rows = counted.rows, []
    result = model.generate(TEXT, max_tokens=8, trace=True)
    result.trace.weights(0), result.trace.weights(1)
    assert counted.rows == quiet


def test_of_each_pass_only_its_queries_stay() -> None:
    model = model_of("grouped", "float32")
    watch = NativeWatch(model.runner)
    for _ in decode(model.runner, Request(prompt=ids(7), max_tokens=30), watch=watch):
        assert not any(one.kept for one in watch.passes)
    numbers = [sum(q.numel() for q in one.queries) for one in watch.passes]
    assert numbers == [7 * 2 * 24, *([2 * 24] * 29)]
    assert watch.trace([*ids(7), *range(29)][:36]).bytes == 36 * 2 * (24 + 2 * 12) * 4


def test_tokens_are_read_once_but_bytes_of_a_character_together(tmp_path) -> None:
    (tmp_path / "text.txt").write_text("the cat sat on the mat; " * 40, encoding="utf-8")
    reader = Tokenizer.from_folder(
        save_tokenizer(
            train_tokenizer([tmp_path / "text.txt"], vocab_size=272), tmp_path / "tokenizer"
        )
    )
    assert reader is not None
    twin = native_runner(tiny.make(sl.llama(**(tiny.SIZE | {"vocab_size": 300}))))
    written, watch = reader.encode("the né→x 猫🙂 sat"), NativeWatch(twin, reader)
    for count in [*range(1, len(written) + 1), 3]:
        assert watch._read(written[:count], source=True) == read_tokens(
            reader, written[:count], source=True
        )


def test_what_a_cache_forgets_is_still_seen() -> None:
    model = model_of("rotary")
    cache = model.runner.new_cache()
    assert isinstance(cache, NativeCache)
    pieces = list(model.stream(ids(7), cache=cache, max_tokens=5, trace=True))
    before = [piece.trace.weights(1) for piece in pieces]
    for piece in pieces:
        piece.trace.looks.made.clear()
    engine = model.runner.engine
    cache.truncate(3)
    assert cache.length == engine.length(cache.sequences[0]) == 3
    other = list(model.stream([*ids(3), 9, 9, 9, 9, 9, 9], cache=cache, max_tokens=5, trace=True))
    assert [piece.event.token for piece in other] == model.generate(
        [*ids(3), 9, 9, 9, 9, 9, 9], max_tokens=5
    ).tokens
    assert other[0].trace.rows == range(3, 9), "the beginning was in the cache"
    assert all(
        torch.equal(piece.trace.weights(1), old) for piece, old in zip(pieces, before, strict=True)
    )
    last = other[-1].trace
    cache.reorder(torch.tensor([0, 0]))
    assert (
        far(last, trace_of(model, [token.id for token in last.tokens]), rows=slice(-1, None)) < 1e-5
    )
    del cache, pieces, piece, other, last
    gc.collect()
    assert engine.cache_bytes == 0, "and then given back"


def test_another_kind_of_cache_runs_and_is_watched_on_torch() -> None:
    model = model_of("grouped", "int8")
    quiet = [
        piece.event.token
        for piece in model.stream(TEXT, cache=Cache.growing(model.config), max_tokens=6)
    ]
    pieces = list(model.stream(TEXT, cache=Cache.growing(model.config), max_tokens=6, trace=True))
    assert [piece.event.token for piece in pieces] == quiet
    assert pieces[-1].trace.notes == (
        "computed by torch, with the weights as they were before packing for the native engine",
    )
    assert far(pieces[0].trace, trace_of(model, model.ids(TEXT))) < 1e-5


def test_the_best_of_several_beams_is_seen() -> None:
    model = model_of("grouped")
    result = model.generate(TEXT, max_tokens=6, beams=3, trace=True)
    assert result.tokens == model.generate(TEXT, max_tokens=6, beams=3).tokens
    assert far(result.trace, trace_of(model, [*model.ids(TEXT), *result.tokens[:-1]])) < 1e-5
    assert "native engine's" in result.trace.notes[0]
    with pytest.raises(sl.InputError, match="a trace of many texts at once"):
        model.generate_many([TEXT], trace=True)


def test_torch_has_nothing_to_note() -> None:
    model = sl.Model(tiny.make(tiny.DECODERS["rotary"]), LETTERS)
    assert model.trace(TEXT).notes == ()
    assert model.generate(TEXT, max_tokens=2, trace=True).trace.notes == ()


# ----------------------------------------------------------------------------------- any recorder


@pytest.mark.parametrize("name", KINDS)
@torch.inference_mode()
def test_a_recorder_is_given_what_core_gives_it(name: str) -> None:
    model = tiny.make(tiny.DECODERS[name])
    twin, tokens = native_runner(model), torch.tensor([ids(9), ids(9)[::-1]])
    names, caches = (
        {"query", "key", "value", "mask", "bias", "output", "logits"},
        (twin.new_cache(), Cache.growing(model.config)),
    )
    for part in tokens.split(5, dim=1):
        ours, theirs = Recorder(names), Recorder(names)
        for transformer, cache, record in ((twin, caches[0], ours), (model, caches[1], theirs)):
            transformer.head(transformer.hidden(part, cache=cache, record=record), record=record)
        assert ours.kept.keys() == theirs.kept.keys()
        for place, value in theirs.kept.items():
            if isinstance(value, torch.Tensor):
                torch.testing.assert_close(
                    ours.kept[place], value, atol=1e-4 if place[2] == "logits" else 1e-5, rtol=1e-4
                )
        for layer in range(model.config.decoder.layers):
            scorings = [
                model.decoder[layer].attention.scoring(
                    one["decoder", layer, "mask"], one["decoder", layer, "bias"]
                )
                for one in (ours, theirs)
            ]
            looks = [
                Look(
                    ("decoder", layer, False),
                    one["decoder", layer, "query"][:1],
                    one["decoder", layer, "key"][:1],
                    None,
                    scoring,
                )
                for one, scoring in zip((ours, theirs), scorings, strict=True)
            ]
            torch.testing.assert_close(looks[0].weights(), looks[1].weights(), atol=1e-5, rtol=0)


@torch.inference_mode()
def test_what_the_engine_cannot_show_or_change_is_refused() -> None:
    model = tiny.make(tiny.DECODERS["rotary"])
    twin, tokens = (
        NativeRunner(LazyTransformer.of(model), NativeEngine.of(model)),
        torch.tensor([ids(5)]),
    )
    for record in (
        Recorder({"residual"}),
        Recorder({"query"}, edits={("decoder", 0, "query"): lambda x: x * 2}),
    ):
        with pytest.raises(
            sl.InputError, match=r"of a pass of the native engine|an edit in a pass"
        ) as refusal:
            twin.hidden(tokens, cache=twin.new_cache(), record=record)
        assert "\n" not in str(refusal.value)
        twin.hidden(tokens, cache=Cache.growing(model.config), record=record)
    with pytest.raises(sl.InputError, match="residual while the native engine generates"):
        NativeWatch(twin, what=("query", "residual"))
    few = Recorder({"query"}, layers=[1])
    twin.hidden(tokens, cache=twin.new_cache(), record=few)
    assert set(few.kept) == {("decoder", 1, "query")}


def test_queries_of_one_call_are_not_written_by_the_next() -> None:
    """Room that was given once is not written to again by a longer pass."""
    engine = NativeEngine.of(tiny.make(tiny.DECODERS["rotary"]))
    engine.run([Rows(engine.begin(), [1, 2])], queries=True)
    before = [one.clone() for one in engine.queries]
    engine.hidden([engine.begin()], torch.tensor([ids()]))
    assert all(torch.equal(a, b) for a, b in zip(engine.queries, before, strict=True))
