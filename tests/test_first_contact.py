"""What a newcomer types first: it works, or the error says what to type instead."""

from __future__ import annotations

import pydoc
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.generation.decode import Request
from sightline.html import html_table
from sightline.text.tokenizer import Tokenizer
from tests.support import tiny

HOSTILE = '<script>alert("x")</script>\x1b[31m'


@pytest.fixture
def model() -> sl.Model:
    return sl.Model(
        tiny.make(tiny.DECODERS["grouped"]),
        Tokenizer.from_characters("abcdefghijklmnopqrstuvwxy"),
        name="tiny",
    )


def test_dir_shows_the_public_names_only() -> None:
    assert set(dir(sl)) == {*sl.__all__, "__version__"}
    assert all(hasattr(sl, name) for name in sl.__all__)


def test_help_begins_with_load_generate_and_trace() -> None:
    text = pydoc.plain(pydoc.render_doc(sl))
    places = [text.index(word) for word in ("sl.load(", "model.generate(", "model.trace(")]
    assert places == sorted(places)
    assert max(places) < 900


def test_the_package_says_that_it_is_typed() -> None:
    assert Path(sl.__file__).with_name("py.typed").exists()


def test_models_lists_what_can_be_loaded_by_name() -> None:
    assert "enja" in [entry.name for entry in sl.models()]
    assert max(len(repr(entry)) for entry in sl.models()) < 200


def test_a_model_can_be_called(model: sl.Model) -> None:
    assert model("abc", max_tokens=3).tokens == model.generate("abc", max_tokens=3).tokens
    with pytest.raises(sl.InputError, match=r"Fix: model\.transformer\(tokens\)"):
        model(torch.tensor([[1, 2]]))  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize(
    ("options", "fix"),
    [
        ({"max_new_tokens": 5}, "max_tokens"),
        ({"num_beams": 5}, "beams"),
        ({"do_sample": True}, "temperature"),
        ({"edits": {}}, "logits_with"),
        ({"temprature": 1}, "temperature"),
    ],
)
def test_options_of_other_libraries_are_named(
    model: sl.Model, options: dict[str, Any], fix: str
) -> None:
    with pytest.raises(sl.InputError, match=f"no option is called.*Fix: .*{fix}"):
        model.generate("abc", **options)


def test_a_list_of_texts_is_for_generate_many(model: sl.Model) -> None:
    with pytest.raises(sl.InputError, match=r"Fix: model\.generate_many"):
        model.generate(["abc", "b"])  # pyright: ignore[reportArgumentType]


def test_moving_to_a_device(model: sl.Model) -> None:
    assert model.device == torch.device("cpu")
    assert model.to("cpu") is model
    for device in ("nowhere", "cuda:99"):
        with pytest.raises(sl.InputError, match=r'Fix: model\.to\("cpu"\)'):
            model.to(device)


def test_hugging_faces_names_in_a_config(model: sl.Model) -> None:
    config = model.config
    for name in ("num_heads", "hidden_size", "n_layer", "vocab_size", "d_ff"):
        with pytest.raises(AttributeError, match=rf"no '{name}'. Fix: config\.decoder\."):
            getattr(config, name)
    for path in ("block(0).attention.heads", "width", "layers", "embedding.vocab_size"):
        assert isinstance(eval(f"config.decoder.{path}"), int)
    assert not hasattr(config, "anything_else")


def test_well_known_names_say_where_their_weights_are() -> None:
    with pytest.raises(sl.CheckpointError, match=r"hub\. Fix: openai-community/gpt2"):
        sl.load("gpt2")


def test_reprs_are_short(model: sl.Model) -> None:
    results = [model, model.generate("abc", max_tokens=20), model.score("abcabc")]
    for result in results:
        assert len(repr(result)) < 200
        assert "\n" not in repr(result)


def test_notebooks_show_tables_without_markup_of_the_text(model: sl.Model) -> None:
    made = model.generate("abc", max_tokens=3)
    made.text = HOSTILE
    for page in (made._repr_html_(), html_table([HOSTILE], [[HOSTILE]], caption=HOSTILE)):
        assert "<script" not in page
        assert "\x1b" not in page
    assert "perplexity" in model.score("abcabc")._repr_html_()


def test_a_request_is_made_once_and_run_as_it_is(
    model: sl.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The prompt is encoded once and the sampling is built once."""
    counts = {"encode": 0, "sampling": 0}
    encode = Tokenizer.encode

    def counting(self: Tokenizer, *args: Any, **options: Any) -> list[int]:
        counts["encode"] += 1
        return encode(self, *args, **options)

    from sightline.tasks import request as requests

    def counting_sampling(**options: Any) -> Any:
        counts["sampling"] += 1
        return sampling(**options)

    sampling = requests.Sampling
    monkeypatch.setattr(Tokenizer, "encode", counting)
    monkeypatch.setattr(requests, "sampling_of", lambda options: counting_sampling())
    request = model.request("abcabc", {"max_tokens": 3, "stop": ["x"]})
    assert isinstance(request, Request)
    assert (request.prompt_tokens, request.stop, request.truncated) == (6, ["x"], 0)
    pieces = list(model.stream(request))
    assert [piece.event.token for piece in pieces if piece.event] == model.generate(request).tokens
    assert counts == {"encode": 1, "sampling": 1}


def test_one_message_is_a_conversation(tmp_path: Path) -> None:
    from tests.support.chat_folder import make_folder

    (tmp_path / "chat").mkdir()
    chatting = sl.load(make_folder(tmp_path / "chat"))
    alone = chatting.chat("the cat", max_tokens=3)
    assert (
        alone.tokens == chatting.chat([{"role": "user", "content": "the cat"}], max_tokens=3).tokens
    )
