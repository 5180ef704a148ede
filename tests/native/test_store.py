"""Packed weights on disk: what comes back is what was packed, and what is not whole or not of this
checkpoint is rebuilt."""

import os
import threading
import time
from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.checkpoints import packed_cache as packed
from sightline.checkpoints.formats import safetensors as files
from sightline.cli.commands.manage.doctor import machine_facts
from sightline.config.model import StackConfig
from sightline.engine import store
from sightline.engine.engine import NativeEngine, Rows
from sightline.engine.matrices import PRECISIONS
from sightline.errors import CheckpointError, InputError
from sightline.kernels import library as kernels
from sightline.text.tokenizer import Tokenizer
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
KNOWN = [name for name in tiny.DECODERS if name != "value-dim"]
PROMPT = [1, 5, 2, 7, 3, 3, 1]
KEY = {"files": [], "of": "a test"}


def logits(engine: NativeEngine) -> torch.Tensor:
    sequence = engine.begin()
    return torch.cat(
        [engine.run([Rows(sequence, PROMPT, len(PROMPT))]), engine.run([Rows(sequence, [4])])]
    )


def stack_of(name: str) -> StackConfig:
    stack = tiny.DECODERS[name].decoder
    assert stack is not None
    return stack


def read_back(path: Path, engine: NativeEngine, name: str) -> NativeEngine:
    store.write(path, KEY, engine)
    result = store.read(path, KEY, stack_of(name))
    assert result is not None
    return result.engine


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    "name",
    ["swiglu", "learned", "alibi", "ngpt", "sinks", "rms-sandwich", "qk-norm-joined", "logit-cap"],
)
def test_what_comes_back_is_what_was_packed(name, precision, tmp_path) -> None:
    engine = NativeEngine.of(tiny.make(tiny.DECODERS[name]), precision)
    again = read_back(tmp_path / "entry", engine, name)
    assert again.half_cache == engine.half_cache
    assert [(one.data.data_ptr() % 64, one.scales.data_ptr() % 64) for one in again.packed] == [
        (0, 0)
    ] * len(engine.packed)
    assert torch.equal(logits(again), logits(engine))


@pytest.mark.parametrize("name", KNOWN)
def test_every_program_is_plain_values(name, tmp_path) -> None:
    engine = NativeEngine.of(tiny.make(tiny.DECODERS[name]))
    again = read_back(tmp_path / "entry", engine, name)
    assert again.program.operations == engine.program.operations
    assert all(
        torch.equal(a, b)
        for a, b in zip(again.program.tensors, engine.program.tensors, strict=True)
    )


def test_another_key_is_another_entry(tmp_path) -> None:
    store.write(tmp_path / "entry", KEY, NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"])))
    assert (
        store.read(tmp_path / "entry", KEY | {"of": "something else"}, stack_of("swiglu")) is None
    )
    assert store.read(tmp_path / "nothing", KEY, stack_of("swiglu")) is None


def spoil_at(place: int):
    def spoil(data: bytes) -> bytes:
        return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]

    return spoil


@pytest.mark.parametrize(
    "spoil",
    [
        lambda data: b"",
        lambda data: b"\0" * 100,
        lambda data: data[:30],
        lambda data: data[: len(data) // 2],
        lambda data: data[:-1],
        lambda data: data + b"\0",
        lambda data: data[:8] + b"\xff" * 8 + data[16:],
        spoil_at(0),
        spoil_at(20),
        spoil_at(60),
    ],
)
def test_a_file_that_is_not_whole_is_noticed(spoil, tmp_path) -> None:
    store.write(tmp_path / "entry", KEY, NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"])))
    (tmp_path / "entry").write_bytes(spoil((tmp_path / "entry").read_bytes()))
    with pytest.raises(store.BrokenError):
        store.read(tmp_path / "entry", KEY, stack_of("swiglu"))


def test_a_folder_or_a_pipe_of_that_name_is_noticed(tmp_path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(store.BrokenError):
            store.read(tmp_path / name, KEY, stack_of("swiglu"))


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_a_writer_that_is_stopped_leaves_nothing(error, tmp_path, monkeypatch) -> None:
    def stop(*_):
        raise error

    engine = NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"]))
    store.write(tmp_path / "entry", KEY, engine)
    before = (tmp_path / "entry").read_bytes()
    monkeypatch.setattr(os, "fsync", stop)
    with pytest.raises(error):
        store.write(tmp_path / "entry", KEY | {"of": "new"}, engine)
    assert os.listdir(tmp_path) == ["entry"]
    assert (tmp_path / "entry").read_bytes() == before


def test_a_full_disk_is_left_alone(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(store, "SPARE", 1 << 60)
    with pytest.raises(OSError, match="GB are free"):
        store.write(tmp_path / "entry", KEY, NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"])))
    assert not os.listdir(tmp_path)


def test_writers_and_readers_at_once_meet_whole_files_only(tmp_path) -> None:
    engines = [NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"], seed)) for seed in (0, 1)]
    wanted, wrong = [logits(engine) for engine in engines], list[object]()
    store.write(tmp_path / "entry", KEY, engines[0])

    def work(number: int) -> None:
        for _ in range(20):
            store.write(tmp_path / "entry", KEY, engines[number % 2])
            result = store.read(tmp_path / "entry", KEY, stack_of("swiglu"))
            if result is None or not any(torch.equal(logits(result.engine), one) for one in wanted):
                wrong.append(result)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert os.listdir(tmp_path) == ["entry"]


def test_tidying_removes_what_nobody_needs(tmp_path) -> None:
    (tmp_path / "model").write_text("a checkpoint")
    engine = NativeEngine.of(tiny.make(tiny.DECODERS["swiglu"]))
    for name, where in (("there", "model"), ("gone", "no model")):
        store.write(
            tmp_path / f"{name}{store.SUFFIX}", {"files": [[str(tmp_path / where), 1, 1]]}, engine
        )
    for name, age in (("new", 0), ("old", 2 * store.HOUR)):
        for unfinished in (f".{name}.packed.0123456789abcdef.part", f"{name}.unfinished"):
            (tmp_path / unfinished).write_bytes(b"half")
            os.utime(tmp_path / unfinished, (time.time() - age, time.time() - age))
    (tmp_path / f"foreign{store.SUFFIX}").write_bytes(b"something else")
    store.tidy(tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(
        [
            "model",
            "there.packed",
            ".new.packed.0123456789abcdef.part",
            "new.unfinished",
            "foreign.packed",
        ]
    )
    assert store.size(tmp_path) == (2, 14 + (tmp_path / "there.packed").stat().st_size)


# A checkpoint and its entry


@pytest.fixture
def home(tmp_path, monkeypatch) -> Path:
    """A cache of its own, in which small models are kept, too."""
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(packed, "SMALLEST_CACHED", 0)
    return tmp_path / "home" / "packed"


def saved(folder: Path, seed: int = 0, name: str = "grouped") -> Path:
    return sl.Model(tiny.make(tiny.DECODERS[name], seed)).save(folder, overwrite=True)


def loaded(folder: Path, dtype: str = "int8", *, engine: str = "native", **options) -> sl.Model:
    model = sl.load(folder, engine=engine, dtype=dtype, **options)
    model.tokenizer = Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy")
    return model


@pytest.fixture
def folder(home, tmp_path) -> Path:
    return saved(tmp_path / "model")


def sleeps(model: sl.Model) -> bool:
    return not model._weights.is_read


def forbid_reading(monkeypatch) -> None:
    def refuse(*_):
        raise AssertionError("the weights were read")

    monkeypatch.setattr(files, "_read_tensor", refuse)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_second_load_does_not_read_the_weights(precision, home, tmp_path, monkeypatch) -> None:
    folder = saved(tmp_path / "model")
    first = loaded(folder, precision)
    wanted, text = logits(first.runner.engine), first.generate("abc", max_tokens=8).text
    assert sleeps(first)
    assert torch.equal(wanted, logits(NativeEngine.of(sl.load(folder).transformer, precision)))
    forbid_reading(monkeypatch)
    again = loaded(folder, precision)
    assert torch.equal(logits(again.runner.engine), wanted)
    assert again.generate("abc", max_tokens=8).text == text
    assert "".join(piece.text for piece in again.stream("abc", max_tokens=8)) == text
    assert again.generate_many(["abc", "b"], max_tokens=8)[0].text == text
    assert (
        again.generate("abc", max_tokens=8, beams=3).text
        == first.generate("abc", max_tokens=8, beams=3).text
    )
    assert again.config == first.config
    assert again.notes == first.notes
    assert sleeps(again)
    with pytest.raises(AssertionError, match="were read"):
        again.transformer.parameters()


def test_a_transformer_that_is_asked_for_is_the_checkpoints(folder) -> None:
    loaded(folder)
    model, plain = loaded(folder), sl.load(folder)
    runner, transformer = model.runner, model.transformer
    tokens = torch.tensor([PROMPT])
    with torch.no_grad():
        assert torch.equal(model.transformer(tokens), plain.transformer(tokens))
    assert model.transformer is transformer
    assert type(transformer) is sl.Transformer
    assert model.runner is runner  # its weights are those that were packed
    ours, theirs = transformer.state_dict(), plain.transformer.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert model.notes == loaded(folder).notes


def test_every_way_to_ask_wakes_it(folder) -> None:
    loaded(folder)
    wanted = sum(p.numel() for p in sl.load(folder).transformer.parameters())
    ways = (
        lambda model: sum(p.numel() for p in model.transformer.parameters()),
        lambda model: sum(p.numel() for p in model.runner.transformer.parameters()),
        lambda model: sum(
            p.numel() for part in model.transformer.children() for p in part.parameters()
        ),
        lambda model: sum(p.numel() for p in model.transformer.train().parameters()),
        lambda model: sum(p.numel() for p in model.transformer.parameters()),
    )
    assert all(way(loaded(folder)) == wanted for way in ways)
    model = loaded(folder)
    model.transformer.note = "mine"
    assert model.transformer.note == "mine"
    assert model.transformer.decoder is not None


def test_all_that_needs_the_weights_has_them(folder, tmp_path) -> None:
    loaded(folder)
    plain = loaded(folder, "float32", engine="torch")
    assert torch.allclose(
        loaded(folder, "float32").trace("abc").weights(layer=1, head=0),
        plain.trace("abc").weights(layer=1, head=0),
    )
    assert torch.equal(loaded(folder).embed(["abc", "b"]), plain.embed(["abc", "b"]))
    assert loaded(folder, "float32").score("abcabc").perplexity == pytest.approx(
        plain.score("abcabc").perplexity, rel=1e-5
    )
    loaded(folder).save(tmp_path / "copy")
    assert (tmp_path / "copy" / "model.safetensors").read_bytes() == (
        folder / "model.safetensors"
    ).read_bytes()
    one, two = loaded(folder).runner, native_runner(plain)
    tokens = torch.tensor([PROMPT])
    with torch.inference_mode():
        assert torch.equal(one.hidden(tokens), two.hidden(tokens))  # no cache: the core runs


def native_runner(model: sl.Model) -> sl.Transformer:
    model.precision = "int8"
    return model.runner


def test_it_can_be_trained_even_if_it_was_woken_by_a_pass_without_gradients(folder) -> None:
    loaded(folder)
    model = loaded(folder)
    with torch.inference_mode():
        model.runner.hidden(torch.tensor([PROMPT]))
    model.transformer(torch.tensor([PROMPT])).sum().backward()
    assert model.transformer.last_stack.embedding.tokens.weight.grad is not None


def test_a_weight_that_is_changed_later_is_repacked(folder) -> None:
    loaded(folder)
    model = loaded(folder)
    before = model.runner
    with torch.no_grad():
        model.transformer.last_stack.embedding.tokens.weight.mul_(2)
    assert model.runner is not before
    assert not torch.equal(logits(model.runner.engine), logits(before.engine))


def test_another_transformer_in_its_place_is_repacked(folder, tmp_path) -> None:
    other = saved(tmp_path / "other", seed=1)
    for _ in range(2):
        model, another = loaded(folder), loaded(other)
    before = logits(model.runner.engine)
    model.transformer = another.transformer
    assert not torch.equal(logits(model.runner.engine), before)
    assert torch.equal(logits(model.runner.engine), logits(another.runner.engine))


def test_threads_that_wake_it_together_read_once(folder, monkeypatch) -> None:
    loaded(folder)
    model, calls, read = loaded(folder), list[str](), packed.load_weights

    def slow(source, **options):
        calls.append("read")
        time.sleep(0.05)
        return read(source, **options)

    monkeypatch.setattr(packed, "load_weights", slow)
    threads = [threading.Thread(target=getattr, args=(model, "transformer")) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert calls == ["read"]
    assert model.transformer.decoder is not None


def test_a_changed_checkpoint_is_repacked(folder, home) -> None:
    before = logits(loaded(folder).runner.engine)
    saved(folder, seed=1)
    model = loaded(folder)
    assert not torch.equal(logits(model.runner.engine), before)
    assert torch.equal(
        logits(model.runner.engine), logits(NativeEngine.of(sl.load(folder).transformer, "int8"))
    )
    assert len(os.listdir(home)) == 1  # in the place of the old one


def test_a_checkpoint_that_is_gone_when_it_is_needed_is_one_clear_line(folder) -> None:
    loaded(folder)
    model = loaded(folder)
    weights = folder / "model.safetensors"
    weights.rename(folder / "elsewhere")
    assert model.generate("abc", max_tokens=4).tokens
    with pytest.raises(CheckpointError, match="load the model again"):
        model.transformer.parameters()
    (folder / "elsewhere").rename(weights)
    assert model.transformer.decoder is not None  # it was not left half there


@pytest.mark.parametrize(
    "spoil", [lambda data: data[: len(data) // 2], lambda data: b"nonsense" * 100, spoil_at(60)]
)
def test_a_damaged_entry_is_rebuilt_with_a_note(spoil, folder, home) -> None:
    wanted = logits(loaded(folder).runner.engine)
    (entry,) = home.iterdir()
    whole = entry.read_bytes()
    entry.write_bytes(spoil(whole))
    model = loaded(folder)
    assert any("rebuilt" in note for note in model.notes)
    assert torch.equal(logits(model.runner.engine), wanted)
    assert entry.stat().st_size == len(whole)
    assert not any("rebuilt" in note for note in loaded(folder).notes)


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, monkeypatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "file"))
    monkeypatch.setattr(packed, "SMALLEST_CACHED", 0)
    model = loaded(saved(tmp_path / "model"))
    assert any("could not be cached" in note for note in model.notes)
    assert not sleeps(model)
    assert model.generate("abc", max_tokens=4).tokens


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission_is_no_error(folder, home) -> None:
    home.mkdir(parents=True)
    home.chmod(0o500)
    assert any("could not be cached" in note for note in loaded(folder).notes)


def test_strict_sees_what_was_warned_of(folder) -> None:
    model = sl.load(folder)
    with torch.no_grad():
        model.transformer.last_stack.embedding.tokens.weight[0, 0] = torch.nan
    model.save(folder, overwrite=True)
    assert any("NaN" in note for note in loaded(folder, "float32").notes)
    assert any("NaN" in note for note in loaded(folder, "float32").notes)
    with pytest.raises(CheckpointError, match="NaN"):
        loaded(folder, "float32", strict=True)


def test_a_small_model_leaves_no_file(tmp_path, monkeypatch) -> None:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))
    model = loaded(saved(tmp_path / "model"))
    assert model.generate("abc", max_tokens=4).tokens
    assert not (tmp_path / "home").exists()


def test_doctor_says_how_much_is_kept_and_where(folder, home) -> None:
    assert machine_facts()["packed weights"].startswith(f"none yet, in {home}")
    loaded(folder)
    loaded(folder, "int4")
    assert machine_facts()["packed weights"].startswith(f"0 MB in 2 files, in {home}")


# Which engine


def test_auto_is_the_default_and_native_for_models_that_generate(folder) -> None:
    model = sl.load(folder)
    assert model.precision == "float32"
    assert model.runner.name == "native, float32"
    assert not any("engine" in note for note in model.notes), "the usual choice needs no note"
    prompt = [5, 6, 7]
    assert (
        model.generate(prompt, max_tokens=12).tokens
        == loaded(folder, "float32", engine="torch").generate(prompt, max_tokens=12).tokens
    )
    assert sl.load(folder, engine="auto", dtype="int4").precision == "int4"


def test_auto_writes_nothing_to_disk_but_reads_what_native_has_written(folder, home) -> None:
    sl.load(folder).generate([5, 6, 7], max_tokens=2)
    assert not list(home.rglob("*.packed"))
    loaded(folder, "float32", engine="native")
    assert list(home.rglob("*.packed"))
    model = sl.load(folder)
    assert not model._weights.is_read, "the packed weights are enough"


def test_auto_translates_with_the_native_engine(tmp_path, home) -> None:
    sl.Model(tiny.make(tiny.ALL["transformer"])).save(tmp_path / "model")
    model = sl.load(tmp_path / "model")
    assert model.runner.name == "native, float32"


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        pytest.param(tiny.DECODERS["grouped"], "bfloat16", id="another dtype"),
        pytest.param(tiny.DECODERS["value-dim"], "float32", id="values of another width"),
        pytest.param(tiny.ALL["bert"], "float32", id="an encoder"),
    ],
)
def test_auto_is_torch_for_the_rest_and_keeps_the_dtype(config, dtype, tmp_path, home) -> None:
    sl.Model(tiny.make(config)).save(tmp_path / "model")
    model = sl.load(tmp_path / "model", dtype=dtype)
    assert model.precision is None
    assert model.runner.name.startswith("torch")
    assert next(model.transformer.parameters()).dtype == getattr(torch, dtype)


def test_auto_without_kernels_is_torch(folder, monkeypatch) -> None:
    monkeypatch.setattr(kernels, "missing", "not compiled on this machine")
    model = sl.load(folder)
    assert model.precision is None
    assert "generating with torch, which is slower: not compiled on this machine" in model.notes
    with pytest.raises(InputError, match="not compiled"):
        sl.load(folder, engine="auto", dtype="int8")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"engine": "nativ"}, "did you mean 'native'"),
        ({"engine": "auto", "dtype": "int9"}, "did you mean 'int"),
        ({"engine": "native", "dtype": "flaot16"}, "did you mean 'float16'"),
        ({"engine": "torch", "dtype": "int8_group"}, "did you mean 'int8_groups'"),
        ({"engine": "torch", "dtype": "int8"}, "engine='native'"),
    ],
)
def test_an_unknown_name_is_one_clear_line(options, message, folder) -> None:
    with pytest.raises(InputError, match=message) as caught:
        sl.load(folder, **options)
    assert "\n" not in str(caught.value)
