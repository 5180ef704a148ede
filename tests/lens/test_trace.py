"""A trace changes no bit of the pass, rebuilds every map of it, costs O(time), leaves nothing
behind, and refuses in one line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import sightline as sl
from sightline.checkpoints.defaults import Defaults
from sightline.lens.trace.layer import sites_of
from sightline.lens.trace.trace import Trace, trace_of
from tests.support.tiny import ALL, ENCODER_DECODERS, inputs, make

pytestmark = pytest.mark.usefixtures(
    "as_users_run_it"
)  # the shapes are checked elsewhere; here they would take half of the time
IDS, SOURCE, START = [3, 7, 1, 4, 9, 2, 8, 7, 1, 4], [5, 6, 7, 8, 2], 1


def model_of(name: str, seed: int = 0) -> sl.Model:
    return sl.Model(make(ALL[name], seed), defaults=Defaults(decoder_start=START), name=name)


def asked(name: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """What `trace` is given, and the same for the transformer itself."""
    if name in ENCODER_DECODERS:
        return {"text": IDS, "source": SOURCE}, {
            "tokens": torch.tensor([[START, *IDS]]),
            "source": torch.tensor([SOURCE]),
        }
    return {"text": IDS}, {"tokens": torch.tensor([IDS])}


def seen_by_the_equation(model: sl.Transformer, arguments: dict[str, torch.Tensor]) -> sl.Recorder:
    crossed = any(cross for _, _, cross in sites_of(model))
    seen = sl.Recorder({"weights"} | ({"cross_weights"} if crossed else set()))
    with torch.no_grad():
        model.hidden(**arguments, record=seen)
    return seen


@pytest.mark.parametrize("name", ALL)
def test_logits_are_the_very_bits_and_weights_the_equations(name: str) -> None:
    model = model_of(name)
    question, arguments = asked(name)
    trace = model.trace(**question)
    with torch.no_grad():
        assert torch.equal(trace.logits, model.transformer(**arguments)[0])
    with torch.inference_mode():
        assert torch.equal(trace.logits, model.transformer(**arguments)[0])
    result = seen_by_the_equation(model.transformer, arguments)
    for stack, layer, what in result.kept:
        map = (
            trace.cross_weights(layer)
            if what == "cross_weights"
            else trace.weights(layer, stack=stack)
        )
        assert float((map - result[stack, layer, what][0]).abs().max()) < 1e-5
    assert set(trace.looks) == set(sites_of(model.transformer))


@pytest.mark.parametrize("name", ALL)
def test_what_is_made_again_is_what_the_kernel_got_bit_for_bit(name: str) -> None:
    model = model_of(name)
    question, arguments = asked(name)
    trace, parts = model.trace(**question), ("query", "key", "value")
    crossed = name in ENCODER_DECODERS
    seen = sl.Recorder({*parts, *(f"cross_{part}" for part in parts)} if crossed else parts)
    with torch.no_grad():
        model.transformer(**arguments, record=seen)
    for (stack, layer, what), value in seen.kept.items():
        assert torch.equal(trace[f"{stack}.{what}", layer], value[0]), (stack, layer, what)


@pytest.mark.parametrize("name", ["grouped", "window", "alibi", "bert", "t5"])
def test_an_edited_pass_is_watched_as_exactly(name: str) -> None:
    """With edits q, k and v are kept, not made again; the maps are those of the edited pass."""
    model = model_of(name)
    _, arguments = asked(name)
    stack = "encoder" if name == "bert" else "decoder"
    edits = {(stack, 0, "heads"): lambda x: x * 0, (stack, 1, "query"): lambda x: x * 2}
    ids, source = (
        arguments["tokens"][0].tolist(),
        arguments["source"][0].tolist() if "source" in arguments else None,
    )
    trace = trace_of(model, ids, source=source, edits=edits)
    seen = sl.Recorder({"weights", "logits"}, edits=edits)
    with torch.no_grad():
        logits = model.transformer(**arguments, record=seen)[0]
    torch.testing.assert_close(trace.logits, logits, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(trace.weights(1), seen[stack, 1, "weights"][0], atol=1e-5, rtol=0)
    assert (
        float((trace.weights(1) - trace_of(model, ids, source=source).weights(1)).abs().max())
        > 1e-3
    )
    with pytest.raises(sl.RecordError, match="never computed it"):
        trace_of(model, ids, source=source, edits={(stack, 7, "heads"): lambda x: x})


def test_a_row_a_head_and_scores() -> None:
    trace = model_of("grouped").trace(IDS)
    assert trace.weights(1).shape == (4, 10, 10)
    assert trace.weights(-1, -1).shape == (10, 10)
    assert trace.weights(layer=1, rows=-1).shape == (4, 10)
    torch.testing.assert_close(trace.weights(1, 3, [2, 2, 0]), trace.weights(1)[3, [2, 2, 0]])
    torch.testing.assert_close(trace.scores(np.int64(1), 2).softmax(-1), trace.weights(1, 2))
    assert bool(trace.scores(0)[:, 0, 1:].isneginf().all())
    assert list(trace.rows) == list(range(10))


# ---------------------------------------------------------------------------------- what it costs


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest tensor has that was made."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for x in out if isinstance(out, tuple | list) else [out]:
            self.numbers = max(self.numbers, x.numel() if isinstance(x, torch.Tensor) else 0)
        return out


LONG = 3000


@pytest.mark.parametrize("positions", ["rotary", "alibi", "relative"])
def test_a_long_text_never_makes_a_square(positions: str) -> None:
    model = sl.Model(
        make(
            sl.gpt(
                width=8, layers=2, heads=2, vocab_size=29, max_positions=LONG, positions=positions
            )
        )
    )
    ids = torch.randint(0, 29, (LONG,), generator=torch.Generator().manual_seed(0)).tolist()
    with Largest() as seen:
        trace = model.trace(ids)
        row, mixed = trace.weights(1, rows=[-1, 7]), trace.look(1).mixed()
    assert seen.numbers < LONG * LONG / 2
    assert row.shape == (2, 2, LONG)
    assert mixed.shape == (2, LONG, 4)
    short = model.trace(ids[: LONG // 4])
    assert trace.bytes == 4 * short.bytes
    assert trace.bytes <= LONG * 8 * 4 * 2 * 3, "no more than q, k and v of every layer"


def test_nothing_is_left_behind() -> None:
    for name in ("rotary", "sinks", "t5", "bert"):
        model = model_of(name)
        transformer = model.transformer
        transformer.requires_grad_(True)
        before = [(path, sorted(vars(part))) for path, part in transformer.named_modules()]
        trace = model.trace(**asked(name)[0], what=("query", "residual"))
        assert [(path, sorted(vars(part))) for path, part in transformer.named_modules()] == before
        assert all(parameter.grad is None for parameter in transformer.parameters())
        assert not model.trace(**asked(name)[0]).logits.requires_grad
        probe = torch.nn.Linear(24, 2)
        probe(trace["residual", 1]).sum().backward()  # what was kept may enter a graph later
        assert probe.weight.grad is not None
        probe(trace.look(0).query.new_ones(24) * trace.weights(0).sum()).sum().backward()
        for result in (trace.weights(0), trace.logits, trace["query", 0], trace["residual", 1]):
            assert not result.is_inference()
            assert isinstance(result.numpy(), np.ndarray)


def test_a_model_in_training_is_seen_without_dropout() -> None:
    model = sl.Model(
        sl.build(
            sl.gpt(width=16, layers=2, heads=2, vocab_size=29, max_positions=16, dropout=0.5)
        ).train()
    )
    assert torch.equal(model.trace(IDS).weights(1), model.trace(IDS).weights(1))
    assert model.transformer.training


def test_weights_that_have_changed_since_are_said() -> None:
    model = model_of("sinks")
    trace = model.trace(IDS)
    kept = trace.weights(0)
    with torch.no_grad():
        for parameter in model.transformer.parameters():
            parameter.mul_(1.5)
    assert torch.equal(trace.weights(0), kept), "a layer that is at hand stays as it was"
    for ask in (lambda: trace.weights(1), lambda: trace.logits):
        with pytest.raises(
            sl.InputError,
            match=r"the model's weights have changed since this trace.*Fix: trace again, or trace.save",
        ):
            ask()


# ----------------------------------------------------------------------------- what was asked for


def test_more_can_be_kept_and_less() -> None:
    model = model_of("t5")
    trace = model.trace(
        IDS,
        source=SOURCE,
        what=("query", "residual", "output", "logits", "cross_heads"),
        layers=[-1],
    )
    seen = sl.Recorder({"residual", "output", "cross_heads", "logits"})
    with torch.no_grad():
        model.transformer(**asked("t5")[1], record=seen)
    assert torch.equal(trace["residual", 1], seen["decoder", 1, "residual"][0])
    assert torch.equal(trace["residual", -1], trace["decoder.residual", 1])
    assert torch.equal(trace["encoder.residual", 1], seen["encoder", 1, "residual"][0])
    assert torch.equal(trace["output", None], seen["decoder", None, "output"][0])
    assert torch.equal(trace["encoder.output", None], seen["encoder", None, "output"][0])
    assert torch.equal(trace["cross_heads", 1], seen["decoder", 1, "cross_heads"][0])
    assert torch.equal(trace["logits", None], trace.logits)
    assert trace["cross_key", 1].shape == (4, 5, 6)
    assert set(trace.looks) == {("encoder", 1, False), ("decoder", 1, False), ("decoder", 1, True)}
    for ask in (lambda: trace.weights(0), lambda: trace.cross_weights(0)):
        with pytest.raises(
            sl.InputError, match=r"layer 0 of the decoder was not traced; expected one of \[1\]"
        ):
            ask()
    nothing = model.trace(IDS, source=SOURCE, what="residual")
    assert nothing["residual", 0].shape == (11, 24)
    with pytest.raises(
        sl.InputError, match=r"no attention of the decoder was traced; expected query and key"
    ):
        nothing.weights(0)


def test_one_of_the_cross_quantities_is_enough() -> None:
    trace = model_of("t5").trace(IDS, source=SOURCE, what=("cross_query",))
    assert trace["cross_query", 0].shape == (4, 11, 6)
    assert trace.cross_weights(1).shape == (4, 11, 5)
    with pytest.raises(
        sl.RecordError, match="asked for cross_query, but the model never computed it"
    ):
        model_of("rotary").trace(IDS, what=("cross_query",))


def test_stacks_of_unequal_depth() -> None:
    config = ALL["transformer"]
    config = replace(config, encoder=replace(config.encoder, layers=4))
    model = sl.Model(make(config), defaults=Defaults(decoder_start=1))
    whole, last, deep = (
        model.trace(IDS, source=SOURCE, layers=layers) for layers in (None, [-1], [3])
    )
    assert set(last.looks) == {
        ("encoder", 3, False),
        ("encoder", 1, False),
        ("decoder", 1, False),
        ("decoder", 1, True),
    }
    assert torch.equal(last.weights(-1), whole.weights(1))
    assert torch.equal(deep.weights(3, stack="encoder"), whole.weights(3, stack="encoder"))
    assert set(deep.looks) == {("encoder", 3, False)}


REFUSED: list[tuple[str, Any, str]] = [
    (
        "rotary",
        lambda m: m.trace(IDS).weights(2),
        r"layer 2; expected 0 to 1\. Fix: layer=1 is the last",
    ),
    ("rotary", lambda m: m.trace(IDS).weights(-3), r"layer -3; expected 0 to 1"),
    ("rotary", lambda m: m.trace(IDS).weights(1.0), r"layer 1\.0; expected 0 to 1"),
    ("rotary", lambda m: m.trace(IDS).weights(True), r"layer True; expected 0 to 1"),
    ("rotary", lambda m: m.trace(IDS).weights(0, 4), r"head 4; expected 0 to 3"),
    ("rotary", lambda m: m.trace(IDS).weights(0, rows=10), r"row 10; expected 0 to 9"),
    (
        "rotary",
        lambda m: m.trace(IDS).weights(0, stack="encoder"),
        r"a stack named 'encoder'; expected decoder\. Fix: stack='decoder'",
    ),
    (
        "rotary",
        lambda m: m.trace(IDS).cross_weights(0),
        r"the decoder has no cross-attention; expected an encoder–decoder",
    ),
    ("bert", lambda m: m.trace(IDS).cross_weights(0), r"the encoder has no cross-attention"),
    ("rotary", lambda m: m.trace(IDS, layers=[0, 2]), r"layer 2; expected 0 to 1"),
    (
        "rotary",
        lambda m: m.trace(IDS, layers=1),
        r"layers is 1; expected a list of layers\. Fix: layers=\[1\]",
    ),
    ("rotary", lambda m: m.trace(IDS, layers=[]), r"no layers; expected at least one"),
    ("rotary", lambda m: m.trace(IDS, layers=[0.5]), r"layer 0\.5; expected"),
    (
        "rotary",
        lambda m: m.trace(IDS, what=("qeury",)),
        r"nothing named 'qeury' can be recorded\. Fix: did you mean 'query'",
    ),
    (
        "rotary",
        lambda m: m.trace(IDS)["residul", 0],
        r"nothing named 'residul' can be recorded\. Fix: did you mean 'residual'",
    ),
    (
        "rotary",
        lambda m: m.trace(IDS)["residual", 0],
        r"\('residual', 0\) was not recorded\. Fix: trace\(…, what=",
    ),
    ("rotary", lambda m: m.trace(IDS)["residual", 5], r"layer 5; expected 0 to 1"),
    (
        "rotary",
        lambda m: m.trace(IDS)["residual"],
        r"'residual' names no place; expected a name and a layer",
    ),
    (
        "rotary",
        lambda m: m.trace(IDS)["mask", 0],
        r"the mask is not a tensor.*Fix: trace\.look\(layer\)\.scoring\.mask",
    ),
    ("rotary", lambda m: m.trace(IDS)["tower.residual", 0], r"a stack named 'tower'"),
]


@pytest.mark.parametrize(("name", "ask", "words"), REFUSED)
def test_what_is_not_there_is_refused_in_one_line(name: str, ask: Any, words: str) -> None:
    with pytest.raises(sl.SightlineError, match=words) as refusal:
        ask(model_of(name))
    assert "\n" not in str(refusal.value)


def test_a_trace_is_said_in_one_line() -> None:
    trace = model_of("t5").trace(IDS, source=SOURCE)
    assert repr(trace) == "<Trace of t5: 11 tokens from 5, 6 attention layers>"
    assert (
        repr(sl.Model(make(ALL["rotary"])).trace(IDS))
        == "<Trace of a model: 10 tokens, 2 attention layers>"
    )
    assert trace != model_of("t5").trace(IDS, source=SOURCE)
    assert isinstance(trace, Trace)
    assert trace.tokens_of("encoder") == trace.source
    assert trace.tokens_of(None) == trace.tokens


def test_batches_at_the_recorder_agree_with_each_text_alone() -> None:
    model = model_of("alibi")
    rows = inputs(ALL["alibi"])["tokens"]
    seen = seen_by_the_equation(model.transformer, {"tokens": rows})
    for text, ids in enumerate(rows.tolist()):
        torch.testing.assert_close(
            model.trace(ids).weights(1), seen["decoder", 1, "weights"][text], atol=1e-5, rtol=0
        )
