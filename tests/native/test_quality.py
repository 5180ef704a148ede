"""The quality report against the same figures, made by hand from core and from the engine's
logits."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.core.model import Transformer
from sightline.engine import quality
from sightline.engine.engine import NativeEngine, Rows
from sightline.engine.matrices import PRECISIONS
from sightline.engine.quality import Quality, packed_bytes, report, reports, states, windows_of
from sightline.errors import InputError
from sightline.kernels import library as kernels
from sightline.record import Recorder
from tests.support import tiny

pytestmark = pytest.mark.skipif(not kernels.available(), reason=kernels.missing)
DECODERS = ["swiglu", "layer-post", "parallel", "ngpt", "window-alternating", "qk-norm", "no-norm"]


@dataclass
class Held:
    """A transformer where a model is asked for."""

    transformer: Transformer
    tokenizer: Any = None
    name: str = "tiny"


def ids(length: int) -> list[int]:
    return torch.randint(29, (length,), generator=torch.Generator().manual_seed(1)).tolist()


@torch.no_grad()
def logits(
    model: Transformer, precision: str, windows: list[list[int]]
) -> tuple[np.ndarray, np.ndarray]:
    """Core's and the engine's, in float64."""
    engine = NativeEngine.of(model, precision)  # type: ignore[arg-type]
    ours = [engine.run([Rows(engine.begin(), window, len(window))]) for window in windows]
    theirs = [model(torch.tensor([window]))[0] for window in windows]
    return torch.cat(theirs).double().numpy(), torch.cat(ours).double().numpy()


def log_softmax(x: np.ndarray) -> np.ndarray:
    x = x - x.max(-1, keepdims=True)
    return x - np.log(np.exp(x).sum(-1, keepdims=True))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_figures_are_those_of_the_logits(precision: str) -> None:
    model, text = tiny.make(tiny.DECODERS["swiglu"]), ids(97)
    (result,) = report(Held(model), text, precisions=[precision])
    theirs, ours = logits(model, precision, [text[:48], text[48:96]])
    p, q, coming = log_softmax(theirs), log_softmax(ours), np.array(text[1:97])[:, None]
    assert result.precision == precision
    assert result.tokens == 96
    assert result.perplexity == pytest.approx(
        math.exp(-np.take_along_axis(q, coming, 1).mean()), rel=1e-4
    )
    assert result.float32_perplexity == pytest.approx(
        math.exp(-np.take_along_axis(p, coming, 1).mean()), rel=1e-4
    )
    assert result.divergence == pytest.approx(
        (np.exp(p) * (p - q)).sum(-1).mean(), rel=1e-3, abs=1e-6
    )
    assert result.agreement == pytest.approx((theirs.argmax(-1) == ours.argmax(-1)).mean())
    assert result.largest == pytest.approx(np.abs(theirs - ours).max(), rel=1e-3, abs=1e-5)
    assert result.bytes == NativeEngine.of(model, precision).bytes == packed_bytes(model, precision)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DECODERS)
def test_the_states_after_each_block_are_cores(name: str) -> None:
    """In float32 the engine's are core's; in int4 they are what one engine has that runs the whole
    program."""
    model, text, record = tiny.make(tiny.DECODERS[name]), ids(20), Recorder({"residual", "output"})
    with torch.no_grad():
        model.hidden(torch.tensor([text]), record=record)
    layers = model.config.decoder.layers
    wanted = [record["decoder", n, "residual"][0] for n in range(1, layers)] + [
        record["decoder", None, "output"][0]
    ]
    result = list(states(NativeEngine.of(model), text))
    assert len(result) == layers
    for ours, theirs in zip(result, wanted, strict=True):
        assert float((ours - theirs).norm() / theirs.norm()) < 1e-5
    engine = NativeEngine.of(model, "int4")
    *_, last = states(engine, text)
    assert torch.equal(last, engine.hidden([engine.begin()], torch.tensor([text]))[0])


def test_errors_of_matrices_and_blocks() -> None:
    model, text = tiny.make(tiny.DECODERS["swiglu"]), ids(40)
    exact, four = report(Held(model), text, precisions=["float32", "int4"])
    assert all(one.error == 0 for one in exact.matrices)
    assert max(exact.blocks) < 1e-6
    engine = NativeEngine.of(model, "int4")
    for number, (one, matrix) in enumerate(
        zip(four.matrices, engine.program.matrices, strict=True)
    ):
        back, weight = torch.empty(matrix.rows, matrix.inputs), matrix.make().detach()
        engine.engine.unpack(number, 0, back)
        assert (one.name, one.error) == (
            matrix.name,
            pytest.approx(float((weight - back).norm() / weight.norm()), rel=1e-4),
        )
        assert 1e-3 < one.error < 0.2
    assert len(four.blocks) == 2
    assert all(1e-3 < error < 0.5 for error in four.blocks)
    assert four.looked_at == 39


def test_more_bits_are_nearer() -> None:
    result = report(Held(tiny.make(tiny.DECODERS["grouped"])), ids(49))
    assert [one.precision for one in result] == [
        "float16",
        "int8",
        "int8_groups",
        "int4",
        "int4_min",
    ]
    assert result[0].divergence < result[2].divergence < result[3].divergence
    assert result[0].bytes > result[1].bytes > result[3].bytes


@pytest.mark.parametrize(
    ("length", "limit", "sizes"),
    [
        (97, 4096, [48, 48]),
        (96, 4096, [48]),
        (20, 4096, [19]),
        (97, 50, [48]),
        (97, 30, [30]),
        (2, 4096, [1]),
        (500, 144, [48] * 3),
    ],
)
def test_whole_windows_of_the_context(length: int, limit: int, sizes: list[int]) -> None:
    """Every token that is read has the one that comes after it, in the next window too."""
    text = ids(length)
    windows, coming = windows_of(tiny.make(tiny.DECODERS["swiglu"]), text, limit=limit)
    assert [len(window) for window in windows] == sizes
    assert [id for window in windows for id in window] == text[: sum(sizes)]
    assert [id for after in coming for id in after] == text[1 : sum(sizes) + 1]


def test_one_window_has_the_perplexity_of_score() -> None:
    """Another way to the same figure: `score` on the same tokens."""
    from sightline.tasks.score import Parts, logprobs_of

    model, text = tiny.make(tiny.DECODERS["swiglu"]), ids(40)
    (result,) = report(Held(model), text, precisions=["float32"])
    logs = [
        log for some in logprobs_of(model, Parts(before=[], tokens=text, bytes=1)) for log in some
    ]
    assert result.perplexity == pytest.approx(math.exp(-sum(logs) / len(logs)), rel=1e-5)


def test_progress_and_one_precision_at_a_time() -> None:
    reported = list[tuple[str, int, int]]()
    running = reports(
        Held(tiny.make(tiny.DECODERS["swiglu"])),
        ids(30),
        precisions=["int8", "int4"],
        progress=lambda *message: reported.append(message),
    )
    assert isinstance(next(running), Quality)
    assert not any(what.startswith("int4") for what, _, _ in reported)
    assert ("float32", 29, 29) in reported
    assert ("int8: logits", 29, 29) in reported
    assert ("int8: blocks", 2, 2) in reported
    assert all(0 <= done <= total for _, done, total in reported)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"text": []}, "a text of 0 tokens"),
        ({"text": [3]}, "a text of 1 tokens"),
        ({"text": "words"}, "a model without tokenizer"),
        ({"limit": 0}, "a limit of 0 tokens"),
        ({"precisions": ["int7"]}, "precision 'int7'"),
        ({"model": "bert"}, "is not a decoder"),
        ({"model": "half"}, r"a model in torch\.float16"),
    ],
)
def test_mistakes(given: dict[str, Any], message: str) -> None:
    model = (
        tiny.make(tiny.ENCODERS["bert"])
        if given.get("model") == "bert"
        else tiny.make(tiny.DECODERS["swiglu"])
    )
    if given.pop("model", "") == "half":
        model = model.half()
    with pytest.raises(InputError, match=message):
        report(Held(model), **({"text": ids(20)} | given))


def test_a_model_of_the_library_is_taken_as_it_is() -> None:
    (result,) = report(sl.Model(tiny.make(tiny.DECODERS["swiglu"])), ids(20), precisions=["int8"])
    assert result.tokens == 19
    assert quality.LIMIT == 4096
