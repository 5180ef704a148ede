"""Direction and length: interventions on models whose keys are known to differ in one of them, and
verdicts that follow."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from sightline.architectures import gpt
from sightline.core.model import Transformer
from sightline.lab.experiment import Check, Numbers
from sightline.lab.experiments import geometry as lab
from sightline.lab.learning import build_seeded, seeded_generator
from sightline.lab.measures import key_costs as measure
from sightline.lab.measures.geometry_pictures import SHARE_NAMES, steps_to_loss
from sightline.lab.measures.repeats import ProbedModel
from sightline.lab.measures.score_kinds import cost_of_equal_lengths
from sightline.lab.results import to_json_numbers
from sightline.lens.trace.trace import trace_of

TOKENS = 16
TIME = 24
MODEL = "real.smollm2-135m-instruct.text-128.seed-{}"


# ------------------------------------------------------------------------- models of known geometry


def largest_so_far(rows: int, random: torch.Generator) -> tuple[Tensor, Tensor]:
    tokens = torch.randint(TOKENS, (rows, TIME), generator=random)
    return tokens, tokens.cummax(1).values


def learner(kind: str) -> Transformer:
    config = gpt(
        width=32, layers=1, heads=1, vocab_size=TOKENS, max_positions=TIME, hidden=32,
        positions="none", attention="cosine" if kind == "sphere" else "dot",
    )  # fmt: skip
    return build_seeded(config, 0)


def put_on_one_ray(model: Transformer) -> None:
    """k = (w·x + 30) u: all along u, so that they differ by length alone."""
    key = model.last_stack[0].attention.key
    assert key.bias is not None
    with torch.no_grad():
        key.weight[1:] = 0
        key.bias.zero_()
        key.bias[0] = 30.0


@pytest.fixture(scope="module", params=["ray", "sphere"])
def known(request: pytest.FixtureRequest) -> tuple[str, Transformer]:
    """Trained to repeat the largest token so far: with keys on one ray, or with keys of one
    length."""
    kind = str(request.param)
    model = learner(kind)
    random = seeded_generator(1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(120):
        if kind == "ray":
            put_on_one_ray(model)
        tokens, targets = largest_so_far(32, random)
        loss = cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    if kind == "ray":
        put_on_one_ray(model)
    return kind, model.eval()


def measured_numbers(model: Transformer, monkeypatch: pytest.MonkeyPatch) -> Numbers:
    """Raw texts through the experiment's own measurement; the loss is that of the largest token."""

    def loss_with(subject: ProbedModel, ids: list[int], edits: Any) -> float:
        logits = measure_logits(subject, ids, edits)
        return float(cross_entropy(logits, torch.tensor(ids).cummax(0).values))

    monkeypatch.setattr(measure, "loss_with", loss_with)
    texts = [largest_so_far(1, seeded_generator(7, n))[0][0].tolist() for n in range(8)]
    rows = [measure.key_costs(ProbedModel(model), ids, n) for n, ids in enumerate(texts)]
    return {MODEL.format(n): to_json_numbers(row) for n, row in enumerate(rows)}


def measure_logits(subject: ProbedModel, ids: list[int], edits: Any) -> Tensor:
    from sightline.lens.interventions.edits import logits_with

    return logits_with(subject, ids, edits)


def test_keys_on_one_ray_are_not_supported_and_keys_on_a_sphere_are(
    known: tuple[str, Transformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, model = known
    numbers = measured_numbers(model, monkeypatch)
    losses = [row["losses"] for row in numbers.values()]
    assert max(row["as is"] for row in losses) < 1.0  # it has learned the task
    equal, shuffled, length, *_ = lab.real_checks(numbers)
    _, sphere = lab.exact_checks(numbers)
    if kind == "ray":
        assert [equal.holds, shuffled.holds, length.holds, sphere.holds] == [
            False, False, True, False,
        ]  # fmt: skip
        for row in losses:
            assert row["zero equal direction all"] == pytest.approx(row["as is"], abs=1e-4)
        # which the shares from the mean key cannot see
        assert all(row["shares"]["mean all"][0] > 0.5 for row in numbers.values())
        assert all(row["shares"]["zero all"][0] < 1e-3 for row in numbers.values())
    else:
        assert [equal.holds, shuffled.holds] == [True, True]
        assert length.holds is not True
        for row in losses:
            assert row["zero equal length all"] == pytest.approx(row["as is"], abs=1e-4)


def test_a_score_that_is_not_the_product_is_noticed(known: tuple[str, Transformer]) -> None:
    _, model = known
    trace, other = (
        trace_of(ProbedModel(model), largest_so_far(1, seeded_generator(n))[0][0].tolist())
        for n in (1, 2)
    )
    own, foreign = (next(iter(one.looks.values())) for one in (trace, other))
    row = {"sphere": 0.0, "sphere weights": 0.0, "sphere before": 1.0}
    for look, holds in ((own, True), (foreign, False)):
        apart = measure.score_difference(trace, look)
        assert lab.exact_checks({MODEL.format(0): row | {"apart": apart}})[0].holds is holds


def test_points_in_general_position_have_a_centre_and_points_on_a_line_have_none() -> None:
    random = torch.Generator().manual_seed(0)
    keys = torch.randn(48, 64, generator=random, dtype=torch.float64) + 3.0
    assert measure.relative_spread(keys.norm(dim=-1)) > 0.1
    assert measure.sphere_spread(keys) < 1e-12
    line = torch.arange(1.0, 49.0)[:, None] * torch.eye(64)[:1] + 2.0
    assert measure.sphere_spread(line) > 0.5


# ------------------------------------------------------------------------------- verdicts from losses


def text_row(seed: int, costs: dict[str, float]) -> dict[str, Any]:
    """The losses of one text; `costs` by the ending of the change's name."""
    noise = 0.01 * (seed * 7 % 5)
    losses = {"as is": 3.0 + noise}
    for origin, how in measure.CHANGES:
        for part in measure.PARTS:
            for which in measure.SINKS:
                name = measure.change_name(origin, how, part, which)
                cost = next(value for key, value in costs.items() if name.endswith(key))
                losses[name] = losses["as is"] + cost + noise * (1 if part == "length" else 2)
    shares = {name: [0.9, 0.8] for name in SHARE_NAMES}
    return {
        "losses": losses, "tokens": 128, "shares": shares, "apart": 1e-7, "sphere": 1e-15,
        "sphere before": 0.5, "sphere weights": 1e-15,
        "first length": [5.0, 5.0], "other length": [9.0, 9.0],
    }  # fmt: skip


def real_numbers(costs: dict[str, float]) -> dict[str, Any]:
    return {MODEL.format(n): text_row(n, costs) for n in range(6)}


USUAL = {"length all": 1.0, "length others": 0.3, "direction all": 5.0, "direction others": 5.0}


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, [True, True, True, True]),
        ({"direction all": 0.5}, [False, False, True, True]),
        ({"mean equal direction others": 0.2}, [False, True, True, True]),
        ({"zero shuffled direction all": 0.1}, [True, False, True, True]),
        ({"length others": 0.9}, [True, True, True, False]),
        ({"length all": -0.2, "length others": -0.1}, [True, True, False, True]),
    ],
)
def test_the_verdict_follows_the_losses(change: dict[str, float], holds: list[bool | None]) -> None:
    result = lab.real_checks(real_numbers({**change, **USUAL, **change}))
    if change.get("length all") == -0.2:
        assert result[2].holds is False
    else:
        assert [check.holds for check in result] == holds


# ------------------------------------------------------------------------------------ trained models


@pytest.fixture(scope="module")
def runs() -> dict[str, dict[str, Any]]:
    """Real runs of a few steps."""
    return {kind: to_json_numbers(lab.train(kind, 1e-2, 6, 0)) for kind in lab.KINDS}


def trained_numbers(
    runs: dict[str, Any], *, ngpt_lead: float = 0.5, cosine_loss: float = -0.1
) -> dict[str, Any]:
    """Real runs with the loss made to say what is wanted."""
    result: dict[str, Any] = {}
    for kind in lab.KINDS:
        for rate, score in ((0.003, 1.2), (0.01, 1.0), (0.03, 1.07)):
            result[f"pilot.{kind}.rate-{rate}.steps-50.seed-0"] = {"score": score}
    for seed in range(4):
        for kind in lab.KINDS:
            lead = ngpt_lead if kind == "ngpt" else 0.0
            course = [4 - lead - (0.02 + 0.001 * seed * (kind == "ngpt")) * n for n in range(50)]
            loss = 3.0 + (cosine_loss if kind == "cosine" else 0.0) * (1 + 0.1 * seed)
            cost = runs[kind]["equal lengths"] * (1 + 0.1 * seed)
            result[f"trained.{kind}.rate-0.01.steps-50.seed-{seed}"] = runs[kind] | {
                "course": course, "loss": loss, "equal lengths": cost,
            }  # fmt: skip
    return result


def holds(checks: list[Check]) -> list[bool | None]:
    return [check.holds for check in checks]


def test_length_has_no_say_in_cosine_attention(runs: dict[str, dict[str, Any]]) -> None:
    assert abs(runs["cosine"]["equal lengths"]) < 1e-5
    assert abs(runs["dot"]["equal lengths"]) > 1e-5
    assert runs["dot"]["parameters"] == pytest.approx(runs["ngpt"]["parameters"], rel=0.05)


def test_the_cost_of_equal_lengths_is_measured_in_the_model(
    known: tuple[str, Transformer],
) -> None:
    kind, model = known
    tokens, targets = largest_so_far(8, seeded_generator(3))
    joined = torch.stack((tokens, targets), -1).flatten(1)[:, :TIME]
    cost = cost_of_equal_lengths(model, joined)["equal lengths"]
    assert (abs(cost) < 1e-4) == (kind == "sphere")


def test_trained_verdicts_follow_the_numbers(runs: dict[str, Any]) -> None:
    runs = {kind: dict(row) for kind, row in runs.items()}
    runs["dot"]["equal lengths"], runs["ngpt"]["equal lengths"] = 0.02, 0.001
    assert holds(lab.trained_checks(trained_numbers(runs))) == [True] * 4
    slow = trained_numbers(runs, ngpt_lead=-0.3, cosine_loss=0.2)
    assert holds(lab.trained_checks(slow)) == [True, True, False, False]
    assert lab.cost_of_next_rate(slow, "dot") == pytest.approx(0.07)
    near = trained_numbers(runs, cosine_loss=0.05)
    assert holds(lab.trained_checks(near)) == [True] * 4
    runs["cosine"]["equal lengths"], runs["ngpt"]["equal lengths"] = 0.02, 0.05
    assert holds(lab.trained_checks(trained_numbers(runs))) == [False, False, True, True]


def test_steps_to_a_loss() -> None:
    assert steps_to_loss({"course": [3.0, 2.5, 2.0]}, 2.6) == 2
    assert steps_to_loss({"course": [3.0, 2.5, 2.0]}, 1.0) == 3


def test_it_can_be_drawn_and_summarized(runs: dict[str, Any]) -> None:
    given = real_numbers(USUAL) | trained_numbers(runs)
    assert set(lab.draw_geometry_figures(given)) == {
        "geometry-real",
        "geometry-shares",
        "geometry-trained",
    }
    assert "85% from zero" in lab.summarize_geometry(given).en
    assert len(lab.judge_geometry(given)) == 10


@pytest.mark.long
def test_a_real_model_needs_direction() -> None:
    row = lab.measure_real_text("stories15m", 0)  # tells its story at the speed of the machine
    losses = row["losses"]
    assert losses["zero equal direction all"] - losses["as is"] > 1.0
    assert row["apart"] < lab.ROUNDING
    assert row["sphere"] < lab.EXACT < row["sphere before"]
