"""What a caller names that is not there: sequences, positions, tokens, rows. Each is refused in a
line, and nothing is changed."""

import threading

import pytest
import torch

from sightline.engine.encoder_runners import pair_runner
from sightline.engine.engine import NativeEngine, Rows
from sightline.engine.runner import native_runner
from sightline.errors import InputError
from sightline.kernels import library as kernels
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture
def engine() -> NativeEngine:
    return NativeEngine.of(tiny.make(tiny.DECODERS["grouped"]), "int8")


def uses(engine: NativeEngine, sequence: int):
    """Every way to name a sequence."""
    return (
        lambda: engine.run([Rows(sequence, [1, 2])]),
        lambda: engine.run([Rows(sequence, [1])]),
        lambda: engine.run([Rows(sequence, [1])], queries=True),
        lambda: engine.next(sequence, 1),
        lambda: engine.hidden([sequence], torch.tensor([[1, 2]])),
        lambda: engine.copy(sequence),
        lambda: engine.truncate(sequence, 0),
        lambda: engine.length(sequence),
        lambda: engine.read_cache(sequence, 0),
        lambda: engine.forget(sequence),
    )


@pytest.mark.parametrize("number", [-1, -(2**31), 1, 77, 2**31, 2**40])
def test_numbers_of_no_sequence_are_refused(engine, number) -> None:
    """Rows(-1, …) ended the process."""
    engine.run([Rows(engine.begin(), PROMPT)])
    for use in uses(engine, number):
        with pytest.raises(InputError, match=r"^sequence "):
            use()


def test_a_forgotten_sequence_is_refused_though_its_place_is_taken(engine) -> None:
    """It was written to, after another sequence had its memory."""
    old = engine.begin()
    engine.run([Rows(old, PROMPT)])
    engine.forget(old)
    for use in uses(engine, old):
        with pytest.raises(InputError, match="freed"):
            use()
    new = engine.begin()
    assert new != old
    before = engine.run([Rows(new, PROMPT, len(PROMPT))])
    for use in uses(engine, old):
        with pytest.raises(InputError, match="freed"):
            use()
    assert engine.length(new) == len(PROMPT)
    engine.truncate(new, 0)
    assert torch.equal(engine.run([Rows(new, PROMPT, len(PROMPT))]), before)


def test_numbers_are_not_given_twice(engine) -> None:
    seen = set[int]()
    for _ in range(100):
        sequence = engine.begin()
        assert sequence not in seen
        seen.add(sequence)
        engine.forget(sequence)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda s: [], "without tokens"),
        (lambda s: [Rows(s, [])], "without tokens"),
        (lambda s: [Rows(s, [1, 2]), Rows(s, [])], "without tokens"),
        (lambda s: [Rows(s, [1, 2], 3)], "logits after 3 of 2 tokens"),
        (lambda s: [Rows(s, [1, 2], -1)], "logits after -1 of 2 tokens"),
        (lambda s: [Rows(s, [1, 2]), Rows(s, [3])], "position 5; expected position 7"),
        (lambda s: [Rows(s, [1, 29])], "tokens hold 1 to 29; expected ids from 0 to 28"),
        (lambda s: [Rows(s, [2**40])], "tokens hold"),
        (lambda s: [Rows(s, [2**40, 1])], "tokens hold"),
        (lambda s: [Rows(s, [-1])], "tokens hold"),
    ],
)
def test_rows_that_cannot_be_are_refused_and_change_nothing(engine, rows, message) -> None:
    sequence, other = engine.begin(), engine.begin()
    for one in (sequence, other):
        engine.run([Rows(one, PROMPT)])
    with pytest.raises(InputError, match=message) as caught:
        engine.run(rows(sequence))
    assert "\n" not in str(caught.value)
    assert engine.length(sequence) == len(PROMPT)
    assert torch.equal(engine.run([Rows(sequence, [7])]), engine.run([Rows(other, [7])]))


@pytest.mark.parametrize("name", ["learned", "sinusoidal", "alibi"])
def test_positions_beyond_a_table_are_refused(name) -> None:
    """They were read from whatever memory came behind it."""
    model = tiny.make(tiny.DECODERS[name])
    engine, most = NativeEngine.of(model), model.config.decoder.max_positions
    sequence = engine.begin()
    engine.run([Rows(sequence, [1] * most)])
    for tokens in ([1], [1, 2]):
        with pytest.raises(InputError, match=f"position {most}; expected at most {most} positions"):
            engine.run([Rows(sequence, tokens)])
    assert engine.length(sequence) == most


def test_lengths_layers_and_room_that_do_not_fit_are_refused(engine) -> None:
    sequence = engine.begin()
    engine.run([Rows(sequence, PROMPT)])
    with pytest.raises(InputError, match="truncated to -1"):
        engine.truncate(sequence, -1)
    with pytest.raises(InputError, match="layer 9"):
        engine.engine.read_cache(sequence, 9, torch.empty(4, 1, 6), torch.empty(4, 1, 6))
    heads, dim = engine.program.kv_heads[0], engine.program.dims[0]
    with pytest.raises(InputError, match=rf"^keys: .*expected torch.float32 \[{heads}, "):
        engine.engine.read_cache(
            sequence, 0, torch.empty(heads + 1, 1, dim), torch.empty(heads + 1, 1, dim)
        )
    with pytest.raises(InputError, match="6 positions"):
        engine.engine.read_cache(
            sequence, 0, torch.empty(heads, 6, dim), torch.empty(heads, 6, dim)
        )
    with pytest.raises(InputError, match=r"^queries: torch.float32 \[1, 24\]"):
        engine.run([Rows(sequence, [1, 2])], into=[torch.empty(1, 24), torch.empty(2, 24)])
    with pytest.raises(InputError, match="queries: tensors for 1 layers"):
        engine.run([Rows(sequence, [1, 2])], into=[torch.empty(2, 24)])
    with pytest.raises(InputError, match=r"^start: torch.float32 \[1, 7\]"):
        engine.hidden([sequence], torch.tensor([[1]]), start=torch.empty(1, 1, 7), first=1)
    with pytest.raises(InputError, match="without hidden states"):
        engine.hidden([sequence], torch.tensor([[1]]), first=1)
    with pytest.raises(InputError, match="operation 99"):
        engine.hidden([sequence], torch.tensor([[1]]), first=99)
    with pytest.raises(InputError, match="one per row"):
        engine.hidden([sequence], torch.tensor([[1], [2]]))
    with pytest.raises(InputError, match="tokens hold"):
        engine.hidden([sequence], torch.tensor([[2**32 + 1]]))
    with pytest.raises(InputError, match="matrix 99"):
        engine.engine.unpack(99, 0, torch.empty(1, 24))
    with pytest.raises(InputError, match="row 29"):
        engine.engine.unpack(0, 29, torch.empty(1, 24))
    assert engine.length(sequence) == len(PROMPT)


@torch.inference_mode()
def test_a_closed_cache_is_refused() -> None:
    """It began again at position 0, and said that it was further on."""
    twin = native_runner(tiny.make(tiny.DECODERS["grouped"]))
    cache, token = twin.new_cache(), torch.tensor([[1]])
    twin.last_logits(torch.tensor([PROMPT]), cache=cache)
    cache.close()
    cache.close()
    for use in (
        lambda: twin.last_logits(token, cache=cache),
        lambda: twin.hidden(token, cache=cache),
        lambda: cache.truncate(1),
        lambda: cache.reorder(torch.tensor([0])),
        lambda: cache.fork(2),
    ):
        with pytest.raises(InputError, match=r"a cache that was closed.*new_cache\(\)"):
            use()
    assert twin.engine.cache_bytes == 0


@torch.no_grad()
def test_a_decoder_refuses_sources_that_are_not_there() -> None:
    model = tiny.make(tiny.ENCODER_DECODERS["t5"])
    twin, given = pair_runner(model), tiny.inputs(model.config)
    cache = twin.new_cache()
    twin.hidden(given["tokens"], source=given["source"], cache=cache)
    source, sequence, token = cache.sources[0], cache.sequences[0], torch.tensor([[1]])
    with pytest.raises(InputError, match="without sources"):
        twin.engine.hidden([sequence], token)
    with pytest.raises(InputError, match=r"^sequence"):
        twin.engine.hidden([sequence], token, sources=[99])
    cache.close()
    with pytest.raises(InputError, match="closed"):
        twin.hidden(given["tokens"], cache=cache)
    with pytest.raises(InputError, match="freed"):
        twin.engine.hidden([twin.engine.begin()], token, sources=[source])
    assert twin.native.engine.cache_bytes == 0


def test_a_cache_that_is_dropped_while_the_engine_works_waits_for_nobody(engine) -> None:
    """`__del__` runs in any thread: one that waited for a lock could wait for a thread that waits
    for its own."""
    sequence = engine.begin()
    engine.run([Rows(sequence, PROMPT)])
    with engine.lock:
        thread = threading.Thread(target=engine.leave, args=(sequence,))
        thread.start()
        thread.join(10)
        assert not thread.is_alive()
        assert engine.abandoned
    assert engine.cache_bytes == 0
