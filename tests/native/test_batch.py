"""Many sequences on the engine: each text is what it is alone, bit for bit, and whoever leaves
leaves nothing."""

import threading
from dataclasses import replace

import pytest
import torch

import sightline as sl
from sightline.engine.cache import bytes_for
from sightline.engine.runner import native_runner
from sightline.errors import InputError
from sightline.generation.batch import Batch, batch_runner_for
from sightline.generation.decode import Request, TokenEvent, decode
from sightline.generation.native_batch import NativeBatchRunner
from sightline.generation.sampling import Sampling, banned, temperature
from sightline.generation.speculative import Chance, after_changes, decode_lookup, decode_with_draft
from sightline.generation.text import stream_many
from sightline.generation.torch_batch import TorchBatchRunner
from sightline.kernels import library as kernels
from sightline.text.tokenizer import Tokenizer
from sightline.text.training.subwords import save_tokenizer, train_tokenizer
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)


def sharpened(name: str) -> sl.Transformer:
    """A model with pronounced opinions: its texts do not only repeat one token."""
    model = tiny.make(tiny.DECODERS[name])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


MODEL = sharpened("grouped")


def requests(count: int = 16, *, seed: int = 0) -> list[Request]:
    """Prompts and answers of many lengths, greedy and sampled."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, 24, (count, 2), generator=generator).tolist()
    return [
        Request(
            prompt=torch.randint(0, 29, (prompt,), generator=generator).tolist(),
            max_tokens=answer,
            sampling=Sampling(temperature=float(n % 3), seed=n, top_p=0.9),
            end=(3,) if n % 4 == 0 else (),
            alternatives=2,
        )
        for n, (prompt, answer) in enumerate(lengths)
    ]


def output(event: TokenEvent) -> tuple[object, ...]:
    return event.token, event.logprob, event.alternatives, event.finish


def alone(transformer, request) -> list[tuple[object, ...]]:
    return [output(event) for event in decode(transformer, request)]


def together(batch, wanted) -> dict:
    """Submit all, run to the end; errors as they come."""
    result = {batch.submit(request): [] for request in wanted}
    for sequence, event in batch.run():
        result[sequence].append(output(event) if isinstance(event, TokenEvent) else event)
    return result


def counted(engine, monkeypatch) -> list[list[int]]:
    """For each call of the engine from now on: how many tokens of each sequence it was given."""
    calls, run = [], engine.run

    def counting(rows, **others):
        calls.append([len(one.tokens) for one in rows])
        return run(rows, **others)

    monkeypatch.setattr(engine, "run", counting)
    return calls


@pytest.mark.parametrize("precision", ["float32", "int8", "int4"])
@pytest.mark.parametrize(("rows", "chunk"), [(16, 512), (5, 7)])
def test_each_text_is_what_it_is_alone(precision, rows, chunk) -> None:
    twin = native_runner(MODEL, precision)
    batch = Batch(twin, rows=rows, chunk=chunk)
    result = together(batch, requests())
    assert list(result.values()) == [alone(twin, request) for request in requests()]
    batch.close()
    assert twin.engine.cache_bytes == 0


@pytest.mark.parametrize("name", ["window-alternating", "learned", "alibi", "ngpt"])
def test_it_is_what_torch_writes(name) -> None:
    model = sharpened(name)
    ours, theirs = (
        together(Batch(one, chunk=5), requests(6)) for one in (native_runner(model), model)
    )
    tokens = [
        [[token for token, *_ in events] for events in result.values()] for result in (ours, theirs)
    ]
    assert tokens[0] == tokens[1]


def test_sixty_four_join_between_steps() -> None:
    twin, wanted = native_runner(MODEL, "int8"), requests(64, seed=3)
    batch, result, left = Batch(twin, rows=64, chunk=40), {}, list(wanted)
    while left or batch.busy:
        for request in left[:5]:
            result[batch.submit(request)] = []
        del left[:5]
        for sequence, event in batch.step():
            result[sequence].append(output(event))
    assert list(result.values()) == [alone(twin, request) for request in wanted]


def test_a_step_is_one_call(monkeypatch) -> None:
    twin = native_runner(MODEL)
    calls, batch = counted(twin.engine, monkeypatch), Batch(twin, chunk=8)
    for length in (3, 4, 12):
        batch.submit(Request(prompt=[length] * length, max_tokens=4))
    for _ in range(4):
        batch.step()
    assert calls == [[3, 4, 1], [1, 1, 8], [1, 1, 3], [1, 1, 1]]


def test_a_common_prefix_is_computed_once(monkeypatch) -> None:
    twin, start = native_runner(MODEL), list(range(1, 21))
    wanted = [Request(prompt=[*start, n, 5], max_tokens=6) for n in range(3)]
    calls, batch = counted(twin.engine, monkeypatch), Batch(twin)
    result = together(batch, wanted)
    assert [sequence.reused for sequence in result] == [0, 20, 20]
    assert calls[:2] == [[22], [1, 2, 2]]  # the others wait for the first, then all go on together
    monkeypatch.undo()
    assert list(result.values()) == [alone(twin, request) for request in wanted]
    (answer,) = [
        [token for token, *_ in events]
        for sequence, events in result.items()
        if sequence.request is wanted[1]
    ]
    turn = Request(prompt=[*wanted[1].prompt, *answer, 9], max_tokens=3)
    ((sequence, events),) = together(batch, [turn]).items()
    assert sequence.reused == len(wanted[1].prompt) + len(answer) - 1
    assert events == alone(twin, turn)


def test_equal_prompts_and_very_short_ones_do_not_wait_for_ever() -> None:
    twin = native_runner(MODEL)
    wanted = [Request(prompt=[7] * length, max_tokens=3) for length in (1, 1, 12, 12, 40, 40)]
    assert list(together(Batch(twin, chunk=6), wanted).values()) == [
        alone(twin, request) for request in wanted
    ]


def test_cancelling_frees_the_memory_in_every_phase() -> None:
    twin, lengths = native_runner(MODEL), (4, 6, 20, 5, 5)
    wanted = [Request(prompt=[n] * length, max_tokens=9) for n, length in enumerate(lengths)]
    batch = Batch(twin, rows=3, chunk=12)
    sequences, reported = [batch.submit(request) for request in wanted], {}
    for step in range(40):
        for sequence, event in batch.step():
            reported.setdefault(sequence, []).append(output(event))
        if step == 1:
            before = twin.engine.cache_bytes
            for sequence in (
                sequences[0],
                sequences[2],
                sequences[4],
            ):  # one writes, one reads, one waits
                batch.cancel(sequence)
            assert before - twin.engine.cache_bytes == 2 * bytes_for(twin.engine, 32)
    assert [len(reported.get(sequence, [])) for sequence in sequences] == [2, 9, 0, 9, 0]
    assert [reported[sequences[n]] for n in (1, 3)] == [alone(twin, wanted[n]) for n in (1, 3)]
    assert batch.bytes == twin.engine.cache_bytes > 0  # prefixes
    batch.prefixes.shrink(0)
    assert batch.bytes == 0


def test_an_error_is_its_own_and_leaves_nothing() -> None:
    twin, wanted = (
        native_runner(MODEL),
        [replace(request, max_tokens=8, end=()) for request in requests(3, seed=2)],
    )
    length = len(wanted[1].prompt) + 2
    wanted[1] = replace(
        wanted[1],
        changes=(lambda x, history: banned(range(29 if len(history) > length else 1))(x, history),),
    )
    batch = Batch(twin)
    first, broken, third = together(batch, wanted).values()
    assert isinstance(broken[-1], InputError)
    assert len(broken) == 4
    assert [first, third] == [alone(twin, wanted[0]), alone(twin, wanted[2])]
    batch.close()
    assert twin.engine.cache_bytes == 0


def test_a_call_that_fails_is_tried_for_each(monkeypatch) -> None:
    twin, wanted = native_runner(MODEL), [Request(prompt=[n, 2, 3], max_tokens=5) for n in range(3)]
    batch, run, failed = Batch(twin), twin.engine.run, []

    def breaking(rows, **others):
        result = run(rows, **others)  # it failed after the keys were written
        if any(list(one.tokens) == [1, 2, 3] for one in rows):
            failed.append(len(rows))
            raise MemoryError("no room")
        return result

    monkeypatch.setattr(twin.engine, "run", breaking)
    first, broken, third = together(batch, wanted).values()
    monkeypatch.undo()
    assert failed == [3, 1]
    assert isinstance(broken[0], MemoryError)
    assert [first, third] == [alone(twin, wanted[0]), alone(twin, wanted[2])]
    batch.close()
    assert twin.engine.cache_bytes == 0


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_interrupted_step_is_made_again(when, monkeypatch) -> None:
    twin, wanted = (
        native_runner(MODEL),
        [replace(request, max_tokens=9, end=()) for request in requests(3, seed=4)],
    )
    batch, run = Batch(twin), twin.engine.run
    result = {batch.submit(request): [] for request in wanted}

    def interrupted(rows, **others):
        if when == "after":
            run(rows, **others)
        raise KeyboardInterrupt

    for step in range(12):
        if step == 3:
            monkeypatch.setattr(twin.engine, "run", interrupted)
            with pytest.raises(KeyboardInterrupt):
                batch.step()
            monkeypatch.undo()
        for sequence, event in batch.step():
            result[sequence].append(output(event))
    assert list(result.values()) == [alone(twin, request) for request in wanted]


def test_a_budget_counts_blocks_and_lets_the_rest_wait() -> None:
    twin = native_runner(MODEL)
    budget = 3 * bytes_for(twin.engine, 32)
    batch = Batch(twin, budget=budget)
    with pytest.raises(InputError, match=r"needs .* MB of cache; expected at most"):
        Batch(twin, budget=budget // 4).submit(Request(prompt=[1], max_tokens=2))
    wanted = [Request(prompt=[n, 2, 3, 4, 5, 6, 7, 8, 9], max_tokens=9) for n in range(8)]
    result = {batch.submit(request): [] for request in wanted}
    while batch.busy:
        for sequence, event in batch.step():
            result[sequence].append(output(event))
        assert len(batch.scheduler.active) <= 3
        assert batch.bytes <= budget
    assert list(result.values()) == [alone(twin, request) for request in wanted]


def test_a_stream_beside_a_batch_takes_turns_with_it() -> None:
    twin, wanted = native_runner(MODEL, "int8"), requests(8, seed=5)
    expected, result = [alone(twin, request) for request in wanted], []
    beside = threading.Thread(
        target=lambda: result.extend(alone(twin, request) for request in wanted)
    )
    beside.start()
    ours = together(Batch(twin), wanted)
    beside.join(60)
    assert result == list(ours.values()) == expected


def test_who_runs_a_model() -> None:
    assert isinstance(batch_runner_for(native_runner(MODEL)), NativeBatchRunner)
    assert isinstance(batch_runner_for(MODEL), TorchBatchRunner)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A tiny model with a tokenizer, in a folder."""
    place = tmp_path_factory.mktemp("many")
    (place / "text.txt").write_text(
        "the cat sat on the mat and the dog sat on the log. " * 40, encoding="utf-8"
    )
    tokenizer = Tokenizer.from_folder(
        save_tokenizer(train_tokenizer([place / "text.txt"], vocab_size=280), place / "tokenizer")
    )
    torch.manual_seed(3)
    config = sl.llama(width=32, layers=2, heads=4, kv_heads=2, vocab_size=280, max_positions=64)
    return sl.Model(sl.build(config).eval(), tokenizer).save(place / "model")


@pytest.mark.parametrize("dtype", ["float32", "int8"])
@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "seed": 4}])
def test_generate_many_runs_on_the_engine_and_leaves_nothing(
    saved, dtype, options, monkeypatch
) -> None:
    model = sl.load(saved, engine="native", dtype=dtype)
    prompts, options = (
        ["the cat", "the dog sat on", "a", "the dog sat on"],
        {"max_tokens": 12, **options},
    )
    wanted = [model.generate(prompt, **options) for prompt in prompts]
    calls = counted(model.runner.engine, monkeypatch)
    result = model.generate_many(prompts, **options)
    assert len(calls[0]) == 4
    assert [(one.text, one.tokens, one.logprobs) for one in result] == [
        (one.text, one.tokens, one.logprobs) for one in wanted
    ]
    stop = wanted[1].text[4:6]
    stopped = model.generate_many(prompts, stop=[stop], **options)
    assert [one.text for one in stopped] == [
        model.generate(prompt, stop=[stop], **options).text for prompt in prompts
    ]
    assert model.runner.engine.cache_bytes == 0


def test_a_stream_that_ends_early_leaves_nothing(saved) -> None:
    model = sl.load(saved, engine="native")
    wanted = [Request(prompt=[n, 2, 3], max_tokens=9) for n in range(3)]
    pieces = stream_many(model.runner, model.tokenizer, wanted)
    next(pieces)
    assert model.runner.engine.cache_bytes > 0
    pieces.close()
    assert model.runner.engine.cache_bytes == 0
    wanted[2] = replace(wanted[2], changes=(lambda logits, history: logits / (1 // 0),))
    with pytest.raises(ZeroDivisionError) as held:  # the error keeps its frames
        list(stream_many(model.runner, model.tokenizer, wanted))
    assert held.value is not None
    assert model.runner.engine.cache_bytes == 0


REPEATING = [1, 5, 2, 7, 3] * 4


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("most", [1, 8])
def test_lookup_writes_the_same_and_checks_all_guesses_in_one_call(
    precision, most, monkeypatch
) -> None:
    twin = native_runner(MODEL, precision)
    plain = [event.token for event in decode(twin, Request(prompt=REPEATING, max_tokens=24))]
    calls = counted(twin.engine, monkeypatch)
    result = decode_lookup(twin, torch.tensor([REPEATING]), max_tokens=24, most=most)
    assert result.tokens == plain
    assert result.accepted > 0
    assert len(calls) == result.passes == 24 - result.accepted
    assert sum(sum(call) for call in calls) == len(REPEATING) + result.passes - 1 + result.proposed
    assert twin.engine.cache_bytes == 0


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_draft_on_the_engine_changes_nothing(precision, monkeypatch) -> None:
    twin, draft = native_runner(MODEL, precision), native_runner(MODEL, "int4")
    plain = [event.token for event in decode(twin, Request(prompt=REPEATING, max_tokens=24))]
    calls, drafts = (counted(one.engine, monkeypatch) for one in (twin, draft))
    result = decode_with_draft(twin, torch.tensor([REPEATING]), draft=draft, max_tokens=24)
    assert result.tokens == plain
    assert 0 < result.accepted < result.proposed
    assert len(calls) == result.passes
    assert len(drafts) == result.proposed
    assert twin.engine.cache_bytes == draft.engine.cache_bytes == 0


def test_sampled_speculation_draws_as_in_core() -> None:
    given = {"max_tokens": 24, "distribution": after_changes((temperature(1.2),))}
    ours, theirs = (
        decode_lookup(one, torch.tensor([REPEATING]), chance=Chance(3), **given)
        for one in (native_runner(MODEL), MODEL)
    )
    assert ours == theirs
