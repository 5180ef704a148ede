"""The native engine against core: every decoder, every way to cut the work, bit for bit where the
law says so."""

import pytest
import torch

from sightline.engine import matrices
from sightline.engine.engine import NativeEngine, Rows
from sightline.errors import InputError
from sightline.kernels import library as kernels
from sightline.record import Recorder
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
LENGTH = 40
KNOWN = [name for name in tiny.DECODERS if name != "value-dim"]
ERRORS = {
    "float32": 1e-5,
    "float16": 5e-3,
    "int8": 0.1,
    "int8_groups": 0.1,
    "int4": 0.6,
    "int4_min": 0.6,
}  # of tiny models with random weights


def tokens_for(model, length: int = LENGTH) -> list[int]:
    config = model.config.decoder
    random = torch.Generator().manual_seed(1)
    return torch.randint(
        config.embedding.vocab_size, (min(length, config.max_positions),), generator=random
    ).tolist()


@torch.no_grad()
def truth(model, tokens: list[int]):
    return model(torch.tensor([tokens]))[0]


def off(ours, theirs) -> float:
    return float((ours - theirs).norm() / theirs.norm())


@pytest.mark.parametrize("name", KNOWN)
def test_float32_is_core(name) -> None:
    model = tiny.make(tiny.DECODERS[name])
    tokens, engine = tokens_for(model), NativeEngine.of(model)
    result, wanted = engine.run([Rows(engine.begin(), tokens, len(tokens))]), truth(model, tokens)
    assert float((result - wanted).abs().max()) < 1e-4
    assert off(result, wanted) < ERRORS["float32"]


@pytest.mark.parametrize("precision", matrices.PRECISIONS)
@pytest.mark.parametrize(
    "name", ["swiglu", "grouped", "window", "alibi", "ngpt", "parallel", "sinks"]
)
def test_steps_chunks_and_company_change_no_bit(name, precision) -> None:
    model = tiny.make(tiny.DECODERS[name])
    tokens, engine = tokens_for(model), NativeEngine.of(model, precision)
    whole = engine.run([Rows(engine.begin(), tokens, len(tokens))])
    assert off(whole, truth(model, tokens)) < ERRORS[precision]
    step, chunked, early = engine.begin(), engine.begin(), engine.begin()
    assert torch.equal(whole, torch.cat([engine.run([Rows(step, [token])]) for token in tokens]))
    cut = [tokens[:3], tokens[3:20], tokens[20:]]
    assert torch.equal(
        whole, torch.cat([engine.run([Rows(chunked, part, len(part))]) for part in cut])
    )
    engine.run([Rows(early, tokens[:9])])
    mixed = engine.run(
        [
            Rows(engine.begin(), tokens[::-1], 2),
            Rows(early, tokens[9:30], 21),
            Rows(engine.begin(), tokens[:1]),
        ]
    )
    assert torch.equal(mixed[2:23], whole[9:30])
    assert torch.equal(mixed[23:], whole[:1])


@pytest.mark.parametrize("precision", matrices.PRECISIONS)
def test_the_number_of_threads_changes_no_bit(precision) -> None:
    model, before, result = tiny.make(tiny.DECODERS["grouped"]), torch.get_num_threads(), []
    tokens = tokens_for(model)
    try:
        for threads in (1, 2, 3, 8):
            torch.set_num_threads(threads)
            engine = NativeEngine.of(model, precision)
            sequence = engine.begin()
            result.append(
                torch.cat(
                    (
                        engine.run([Rows(sequence, tokens, len(tokens))]),
                        engine.run([Rows(sequence, [3])]),
                    )
                )
            )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result[0], other) for other in result[1:])


@pytest.mark.parametrize("precision", matrices.PRECISIONS)
def test_plain_cpp_gives_the_same(precision) -> None:
    native, before = kernels._native, kernels._native.instruction_set()
    model = tiny.make(tiny.DECODERS["swiglu"])
    tokens, result = tokens_for(model), {}
    try:
        for kind in native.instruction_sets():
            native.select_instruction_set(kind)
            engine = NativeEngine.of(model, precision)
            result[kind] = engine.run([Rows(engine.begin(), tokens, len(tokens))])
    finally:
        native.select_instruction_set(before)
    assert all(
        off(result["portable"], other) < (2e-5 if precision.startswith("float") else 3e-2)
        for other in result.values()
    )


@pytest.mark.parametrize("rows", [1, 7, 8, 17, 100])
@pytest.mark.parametrize("inputs", [1, 31, 32, 33, 100])
@pytest.mark.parametrize("precision", matrices.PRECISIONS)
def test_what_is_packed_is_near_what_was_given(rows, inputs, precision) -> None:
    weight = torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows * inputs))
    weight[0] = 0
    engine = kernels.ready().Engine(widths=[8], kv_heads=[], head_dims=[], half_cache=True)
    packed = matrices.empty(precision, rows, inputs)
    engine.pack(matrices.add(engine, packed), weight)
    back = torch.empty_like(weight)
    engine.unpack(0, 0, back)
    worst = {
        "float32": 0.0,
        "float16": 5e-4,
        "int8": 0.6 / 127,
        "int8_groups": 0.6 / 127,
        "int4": 0.12,
        "int4_min": 0.08,
    }[precision]
    assert float((back - weight).abs().max()) <= worst * float(weight.abs().max()) + 1e-7
    assert not back[0].any()


def test_int4_scales_are_chosen_by_error() -> None:
    weight = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    engine = kernels.ready().Engine(widths=[8], kv_heads=[], head_dims=[], half_cache=True)
    packed = matrices.empty("int4", 64, 256)
    engine.pack(matrices.add(engine, packed), weight)
    back = torch.empty_like(weight)
    engine.unpack(0, 0, back)
    groups = weight.view(64, 8, 32)
    edge = groups.gather(-1, groups.abs().argmax(-1, keepdim=True)) / -8
    by_maximum = ((groups / edge).round().clamp(-8, 7) * edge).view(64, 256)

    def error(result) -> float:
        return float((weight * (result - weight)).square().sum())

    assert error(back) < 0.9 * error(by_maximum)
    assert float((back - weight).square().sum()) < float((by_maximum - weight).square().sum())


@pytest.mark.parametrize("name", ["grouped", "qk-norm", "ngpt", "rotary-partial"])
def test_queries_and_keys_leave_the_step_as_core_has_them(name) -> None:
    model = tiny.make(tiny.DECODERS[name])
    tokens, engine, sequence = tokens_for(model), NativeEngine.of(model), 0
    sequence = engine.begin()
    engine.run([Rows(sequence, tokens)], queries=True)
    record = Recorder({"query", "key", "value"})
    with torch.no_grad():
        model(torch.tensor([tokens]), record=record)
    for layer in range(model.config.decoder.layers):
        keys, values = engine.read_cache(sequence, layer)
        query = (
            engine.queries[layer].unflatten(-1, (-1, engine.program.dims[layer])).transpose(0, 1)
        )
        for ours, what in ((query, "query"), (keys, "key"), (values, "value")):
            assert off(ours, record["decoder", layer, what][0]) < 1e-5


def test_sequences_that_begin_alike_share_their_memory() -> None:
    model = tiny.make(tiny.DECODERS["grouped"])
    tokens, engine = (tokens_for(model) * 3)[:64], NativeEngine.of(model)
    first = engine.begin()
    engine.run([Rows(first, tokens[:50])])
    before = engine.cache_bytes
    second = engine.copy(first)
    assert engine.cache_bytes == before
    ours = [
        engine.run([Rows(first, [1])]),
        engine.run([Rows(second, [2])]),
        engine.run([Rows(first, [3]), Rows(second, [3])]),
    ]
    assert (
        engine.cache_bytes == before * 3 // 2
    )  # the first block is shared, the second is not any more
    for n, token in ((0, 1), (1, 2)):
        alone = engine.begin()
        engine.run([Rows(alone, tokens[:50])])
        assert torch.equal(engine.run([Rows(alone, [token])]), ours[n])
        assert torch.equal(engine.run([Rows(alone, [3])]), ours[2][n : n + 1])
        engine.forget(alone)
    engine.forget(first)
    engine.forget(second)
    assert engine.cache_bytes == 0


def test_what_is_truncated_is_forgotten() -> None:
    model = tiny.make(tiny.DECODERS["swiglu"])
    tokens, engine = tokens_for(model), NativeEngine.of(model, "int8")
    sequence = engine.begin()
    whole = engine.run([Rows(sequence, tokens, len(tokens))])
    engine.truncate(sequence, 5)
    assert engine.length(sequence) == 5
    assert torch.equal(engine.run([Rows(sequence, tokens[5:], len(tokens) - 5)]), whole[5:])


def test_two_models_at_once_and_ten_thousand_steps() -> None:
    models = [tiny.make(tiny.DECODERS[name]) for name in ("swiglu", "alibi")]
    engines, random = (
        [NativeEngine.of(model, "int8") for model in models],
        torch.Generator().manual_seed(0),
    )
    sequences = [engine.begin() for engine in engines]
    for engine, sequence in zip(engines, sequences, strict=True):
        engine.run([Rows(sequence, [1, 2, 3])])
    bytes_then = [engine.cache_bytes for engine in engines]
    for n in range(5000):
        which = n % 2
        token = int(torch.randint(8, (1,), generator=random))
        engines[which].run([Rows(sequences[which], [token])])
        engines[which].truncate(sequences[which], 3 + n % 20)
    assert [engine.cache_bytes for engine in engines] == bytes_then


@pytest.mark.parametrize("tokens", [[], [-1], [10**6]])
def test_ids_that_it_has_not_are_refused(tokens) -> None:
    engine = NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"]))
    with pytest.raises(InputError, match="ids from 0"):
        engine.run([Rows(engine.begin(), tokens)])


def test_what_it_does_not_know_it_refuses() -> None:
    with pytest.raises(InputError, match="no decoder"):
        NativeEngine.of(tiny.make(next(iter(tiny.ENCODERS.values()))))
    with pytest.raises(InputError, match="values of another width"):
        NativeEngine.of(tiny.make(tiny.DECODERS["value-dim"]))
    with pytest.raises(InputError, match="int7"):
        NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"]), "int7")  # type: ignore[arg-type]


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_one_more_token_is_a_run_of_one_row(precision) -> None:
    """The short way gives the bits of the long one, counts the same positions, and refuses the same
    ids."""
    engine = NativeEngine.of(tiny.make(tiny.DECODERS["grouped"]), precision)
    one, other = engine.begin(), engine.begin()
    for token in (3, 1, 4, 1, 5):
        short = engine.next(one, token)
        long = engine.run([Rows(other, [token])], queries=True)
        assert torch.equal(short, long)
        assert engine.length(one) == engine.length(other)
    for token in (-1, engine.packed[0].rows):
        with pytest.raises(InputError, match="tokens hold"):
            engine.next(one, token)
    assert engine.length(one) == 5


def test_blocks_of_many_sequences_come_from_shared_slabs() -> None:
    """Memory is taken by slabs, but counted and given back by blocks."""
    engine = NativeEngine.of(tiny.make(tiny.DECODERS["grouped"]), "float32")
    sequences = [engine.begin() for _ in range(40)]
    engine.run([Rows(sequence, [1, 2, 3]) for sequence in sequences])
    all_of_them = engine.cache_bytes
    engine.forget(sequences[0])
    assert engine.cache_bytes == all_of_them * 39 // 40
    logits = engine.run([Rows(sequence, [4]) for sequence in sequences[1:]])
    assert bool((logits == logits[0]).all())
