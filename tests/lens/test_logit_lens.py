"""The lens is the model's own head on an earlier stream, and at the end it is the model."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest
import torch

import sightline as sl
from sightline.checkpoints.sources.packages import UnreachableError
from sightline.lens.attributions.logit_lens import logit_lens, logits_of_row
from sightline.lens.trace.trace import trace_of
from tests.lens.asked import ids_of, source_of, tiny
from tests.support.tiny import LANGUAGE_MODELS, distance

SOME = ["layer-pre", "rms-post", "parallel", "ngpt", "logit-cap", "bert", "transformer-pre", "t5"]


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
def test_the_last_row_is_the_model(name: str) -> None:
    subject, ids, source = tiny(name), ids_of(name), source_of(name)
    trace = trace_of(subject, ids, **source, what=("residual", "output"))
    layers = subject.transformer.last_stack.config.layers
    assert distance(trace.logits, logits_of_row(subject.transformer, trace, layers)) < 1e-5
    lens = logit_lens(subject, ids, **source, top_k=3)
    probabilities = trace.logits.softmax(-1)
    torch.testing.assert_close(
        lens.top_probability[-1], probabilities.topk(3).values, atol=1e-5, rtol=0
    )
    assert [token.id for token in lens.answers] == trace.logits.argmax(-1).tolist()
    assert bool((lens.rank[-1] == 1).all())
    assert float(lens.divergence[-1].abs().max()) < 1e-6
    assert lens.top.shape == (layers + 1, len(ids), 3)


def numpy_rms_lens(model: sl.Transformer, stream: np.ndarray) -> np.ndarray:
    """softmax(W · γ x / √(mean x² + ε)) by hand."""
    norm = model.last_stack.norm
    x = stream.astype(np.float64)
    x = x / np.sqrt((x * x).mean(-1, keepdims=True) + norm.eps) * norm.weight.detach().numpy()
    logits = x @ model.output.vocabulary.weight.detach().numpy().T.astype(np.float64)
    e = np.exp(logits - logits.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def test_each_row_is_the_formula_by_hand() -> None:
    subject, ids = tiny("free-output"), ids_of("free-output")
    seen = sl.Recorder({"residual"})
    final = (
        subject.transformer(torch.tensor([ids]), record=seen)[0]
        .softmax(-1)
        .detach()
        .numpy()
        .astype(np.float64)
    )
    lens = logit_lens(subject, ids, token=4)
    for layer in range(2):
        p = numpy_rms_lens(
            subject.transformer, seen["decoder", layer, "residual"][0].detach().numpy()
        )
        np.testing.assert_allclose(lens.probability[layer].numpy(), p[:, 4], atol=1e-6)
        np.testing.assert_allclose(
            lens.divergence[layer].numpy(), (final * np.log(final / p)).sum(-1), atol=1e-5
        )
        assert lens.rank[layer].tolist() == [int((row > row[4]).sum()) + 1 for row in p]
        assert lens.top[layer, :, 0].tolist() == p.argmax(-1).tolist()


@pytest.mark.parametrize("name", SOME)
def test_bands_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    subject, ids, source = tiny(name), ids_of(name), source_of(name)
    whole = logit_lens(subject, ids, **source)
    monkeypatch.setattr(sys.modules[logit_lens.__module__], "TILE", 29 * 2)
    banded = logit_lens(subject, ids, **source)
    for one in ("top", "rank"):
        assert torch.equal(getattr(whole, one), getattr(banded, one))
    for one in ("top_probability", "probability", "divergence"):
        torch.testing.assert_close(getattr(whole, one), getattr(banded, one))
    some = logit_lens(subject, ids, **source, positions=[5, 1])
    assert some.positions == (5, 1)
    assert torch.equal(some.rank, whole.rank[:, [5, 1]])


def test_it_describes_the_applied_head() -> None:
    message = {
        name: logit_lens(tiny(name), ids_of(name)).applied
        for name in ("layer-pre", "layer-post", "no-norm", "ngpt", "bert")
    }
    assert message["layer-pre"] == "its final norm, then its head"
    assert (
        message["layer-post"]
        == message["ngpt"]
        == "only its head: the stream is normalized by every block already"
    )
    assert message["no-norm"] == "only its head: the model has no final norm"
    assert "only its masked-token head" in message["bert"]


def test_the_answer_settles_where_its_rank_stays_first() -> None:
    lens = logit_lens(tiny("swiglu"), ids_of("swiglu"))
    for column, row in enumerate(lens.settled):
        assert bool((lens.rank[row:, column] == 1).all())
        assert row == 0 or lens.rank[row - 1, column] != 1
    unlikely = logit_lens(tiny("swiglu"), ids_of("swiglu"), token=int(lens.top[-1, -1, -1]))
    assert unlikely.settled[-1] == 3


def test_json_and_best() -> None:
    lens = logit_lens(tiny("swiglu"), ids_of("swiglu"), top_k=2)
    read = json.loads(json.dumps(lens.to_dict()))
    assert read["top"][1][2] == [word for word, _ in lens.best(1, 2)]
    assert read["answers"] == [f"<{token.id}>" for token in lens.answers]


def test_bad_questions() -> None:
    for name in ("bert-mean", "classifier", "bert-hidden"):
        with pytest.raises(sl.InputError, match="expected a language model"):
            logit_lens(tiny(name), [1, 2])
    for wrong, message in (
        ({"top_k": 0}, "top_k is 0"),
        ({"token": 29}, "token 29"),
        ({"positions": 9}, "row 9"),
    ):
        with pytest.raises(sl.InputError, match=message):
            logit_lens(tiny("rotary"), [1, 2], **wrong)


@pytest.mark.long
def test_smollm2_finds_paris() -> None:
    try:
        model = sl.load("smollm2-135m-instruct")
    except UnreachableError as missing:
        pytest.skip(str(missing))
    lens = logit_lens(model, "The capital of France is", positions=-1)
    assert lens.best(-1)[0][0] == lens.answers[0].text == " Paris"
    assert int(lens.rank[0]) > 1000
    assert lens.rank[-4:, 0].tolist() == sorted(lens.rank[-4:, 0].tolist(), reverse=True)
    assert float(lens.divergence[-2]) < 3 < 15 < float(lens.divergence[10])
