"""Induction heads: the task has no fixed distance, one small model of each kind is really trained,
and the verdict follows the numbers."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch

from sightline.core.model import Transformer
from sightline.lab.experiment import Plan, TunedRate, verdict_of
from sightline.lab.experiments import induction_heads
from sightline.lab.measures import composition, repeats
from sightline.lab.results import to_json_numbers

RATE = 4e-3


@pytest.fixture(scope="module")
def models() -> dict[int, tuple[Transformer, dict[str, Any]]]:
    """Two layers through their phase change, and one layer for a while; one seed."""
    return {
        layers: repeats.train_and_watch(layers, steps, rate=RATE, seed=0, every=16)
        for layers, steps in ((2, 256), (1, 96))
    }


@pytest.fixture(scope="module")
def numbers(models: dict[int, tuple[Transformer, dict[str, Any]]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for layers, (model, row) in models.items():
        if layers == 2:
            row["composition"] = composition.measure_composition(model, rows())
        result[f"layers-{layers}.seed-0"] = to_json_numbers(row)
    return result


def rows() -> torch.Tensor:
    return repeats.held_out_rows(256, 0)


def seeds_of(numbers: dict[str, Any], count: int = 6) -> dict[str, Any]:
    """The measured runs as if of several seeds, which differ a little."""
    result: dict[str, Any] = {"pilot.layers-2.rate-0.001.seed-0": {"score": 1.0}}
    for seed in range(count):
        for name, row in numbers.items():
            copied = copy.deepcopy(row)
            for key in ("late", "induction"):
                copied[key] = [value * (1 - 0.003 * seed) for value in copied[key]]
            for part in ("without", "composition"):
                for key in [key for key in copied.get(part, ()) if "heads" not in key]:
                    copied[part][key] *= 1 - 0.003 * seed
            result[name.replace("seed-0", f"seed-{100 + seed}")] = copied
    return result


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in induction_heads.judge_induction_heads(numbers)]


def test_rows_repeat_at_different_distances() -> None:
    made = repeats.repeating_rows(200, torch.Generator().manual_seed(0))
    periods = [next(p for p in range(1, 64) if (row[p:] == row[:-p]).all()) for row in made]
    assert min(periods) == repeats.SHORTEST
    assert max(periods) == repeats.LONGEST
    assert all(
        len(set(row[:period].tolist())) == period for row, period in zip(made, periods, strict=True)
    )
    assert len(set(periods)) > 20


def test_early_targets_are_new_and_late_ones_repeat() -> None:
    for row in repeats.repeating_rows(100, torch.Generator().manual_seed(1)):
        targets = row[1:].tolist()
        assert len(set(targets[repeats.EARLY]) | {int(row[0])}) == repeats.SHORTEST
        assert all(token in row[: 63 - 8].tolist() for token in targets[repeats.LATE])


def test_the_feed_forward_adds_nothing() -> None:
    model = repeats.attention_alone(2, 0)
    seen = torch.stack(
        [
            block.feed_forward(torch.randn(1, 5, repeats.WIDTH))
            for block in (model.decoder[0], model.decoder[1])
        ]
    )
    assert not seen.any()
    assert not any(
        p.requires_grad
        for name, p in model.named_parameters()
        if "feed_forward." in name and "residual" not in name
    )


def test_losses_are_those_of_numpy() -> None:
    model, tokens = (
        repeats.attention_alone(1, 3),
        repeats.repeating_rows(4, torch.Generator().manual_seed(2)),
    )
    logits = model(tokens[:, :-1]).detach().double().numpy()
    odds = np.exp(logits - logits.max(-1, keepdims=True))
    chosen = np.take_along_axis(
        odds / odds.sum(-1, keepdims=True), tokens[:, 1:, None].numpy(), -1
    )[..., 0]
    nats = -np.log(chosen).mean(0)
    assert repeats.early_and_late_loss(model, tokens) == pytest.approx(
        (nats[:7].mean(), nats[-8:].mean()), rel=1e-5
    )


def test_cut_links_are_gone_and_rows_still_sum_to_one() -> None:
    weights = torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)).softmax(-1)
    links = torch.zeros(2, 4, 4, dtype=torch.bool)
    links[0, 3, 1] = links[1, 2, 0] = True
    result = repeats.cut_links(weights, [0, 2], links)
    expected = weights.double().numpy().copy()
    for row, query, key in ((0, 3, 1), (1, 2, 0)):
        for head in (0, 2):
            expected[row, head, query, key] = 0
            expected[row, head, query] /= expected[row, head, query].sum()
    assert result.numpy() == pytest.approx(expected, abs=1e-6)


def test_links_that_are_cut_are_those_behind_the_same_token() -> None:
    """At the second A of A B C A, the key that is cut is B's; beside it is the first A's."""
    from sightline.lens.heads.patterns import induction_pattern

    links = induction_pattern(torch.tensor([7, 8, 9, 7]))
    assert links.nonzero().tolist() == [[3, 1]]
    assert links.roll(-1, dims=1).nonzero().tolist() == [[3, 0]]


def test_two_layers_get_there_and_one_does_not(numbers: dict[str, Any]) -> None:
    result = holds(seeds_of(numbers))
    has_others = numbers["layers-2.seed-0"]["composition"]["other heads"] > 0
    assert result[:5] == [True] * 5
    assert result[5] is (True if has_others else None)
    assert result[6:] == [True] * 3
    two = numbers["layers-2.seed-0"]
    assert two["head"][0] == 1  # the second layer
    assert two["induction"][0] < 0.1 < 0.5 < two["induction"][-1]


def test_heads_that_do_not_matter_are_seen(
    models: dict[int, tuple[Transformer, dict[str, Any]]],
    numbers: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The same model with the roles exchanged: nothing that matters is cut as a previous-token
    head, and everything as another."""
    monkeypatch.setattr(
        composition, "heads_by_role", lambda model: ([], list(range(repeats.HEADS)))
    )
    wrong = composition.measure_composition(models[2][0], rows())
    edited = copy.deepcopy(numbers)
    edited["layers-2.seed-0"]["composition"] = wrong
    assert holds(seeds_of(edited))[5:7] == [False, False]


def test_queries_instead_of_keys_are_seen(
    models: dict[int, tuple[Transformer, dict[str, Any]]],
    numbers: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A world in which layer 0 acts through the queries: what is recorded as one is the other."""
    model, real = models[2][0], composition.link_weight

    def exchanged(model: Transformer, tokens: Any, links: Any, head: int, edits: Any) -> float:
        other = {"key": "query", "query": "key"}
        swapped: Any = {
            (stack, layer, other.get(name, name)): edit
            for (stack, layer, name), edit in edits.items()
        }
        return real(model, tokens, links, head, swapped)

    monkeypatch.setattr(composition, "link_weight", exchanged)
    monkeypatch.setattr(
        composition,
        "recorded",
        lambda model, tokens, name, edits, real=composition.recorded: real(
            model, tokens, {"key": "query", "query": "key"}[name], edits
        ),
    )
    edited = copy.deepcopy(numbers)
    edited["layers-2.seed-0"]["composition"] = composition.measure_composition(model, rows())
    assert holds(seeds_of(edited))[6] is False


def test_untrained_models_do_none_of_it(numbers: dict[str, Any]) -> None:
    """Measured before training, and judged."""
    model = repeats.attention_alone(2, 0)
    edited = copy.deepcopy(numbers)
    two = edited["layers-2.seed-0"]
    two["without"] = repeats.without_links(model, rows())
    two["composition"] = composition.measure_composition(model, rows())
    look = repeats.measure_at_step(model, rows(), rows()[:1, : 2 * repeats.PICTURED], 0)
    two["induction"] = [max(look["induction"])] * len(two["step"])
    two["late"] = [look["late"]] * len(two["step"])
    result = holds(seeds_of(edited))
    assert result[0] is False
    assert result[3] is False
    assert result[4] is False
    assert result[6] is False
    assert result[8] is not None


def test_outputs_of_cut_heads_are_their_means() -> None:
    output = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    cut = composition.replace_by_mean(output, [1]).numpy()
    expected = output.numpy().copy()
    expected[:, 1] = expected[:, 1].mean(axis=(0, 1), keepdims=True)
    assert cut == pytest.approx(expected, abs=1e-6)
    assert composition.replace_by_mean(output, ()).equal(output)


def test_the_film_ends_on_the_diagonal(numbers: dict[str, Any]) -> None:
    """Computed from the saved map: at the second half, token i looks at i − period + 1."""
    two = numbers["layers-2.seed-0"]
    period = len(two["tokens"]) // 2
    assert two["tokens"][:period] == two["tokens"][period:]
    first, last = (np.array(two["film"][n]["map"]) for n in (0, -1))
    on = [last[i, i - period + 1] for i in range(period, 2 * period - 1)]
    assert (
        np.mean(on)
        > 0.5
        > 5 * np.mean([first[i, i - period + 1] for i in range(period, 2 * period - 1)])
    )


@pytest.mark.parametrize(
    ("edit", "check"),
    [
        (lambda two, one: two.update(late=np.linspace(4, 0.1, len(two["step"])).tolist()), 1),
        (lambda two, one: two.update(late=[4.0, *[0.1] * (len(two["step"]) - 1)]), 1),
        (lambda two, one: two.update(induction=[*[0.0] * (len(two["step"]) - 1), 0.9]), 2),
        (lambda two, one: one.update(induction=two["induction"]), 7),
        (lambda two, one: one.update(late=[value / 2 for value in two["late"]]), 8),
    ],
)
def test_curves_that_contradict_are_not_supported(
    numbers: dict[str, Any], edit: Any, check: int
) -> None:
    two, one = (copy.deepcopy(row) for row in numbers.values())
    edit(two, one)
    checks = induction_heads.judge_induction_heads(
        seeds_of(dict(zip(numbers, (two, one), strict=True)))
    )
    assert checks[check].holds is False
    assert verdict_of(checks) == "not supported"


def test_seeds_that_disagree_leave_it_open(numbers: dict[str, Any]) -> None:
    result = seeds_of(numbers)
    for seed in (100, 101, 102):
        result[f"layers-2.seed-{seed}"]["induction"][-1] = 0.2
    assert holds(result)[0] is None


def test_a_head_that_never_forms_has_no_step(numbers: dict[str, Any]) -> None:
    assert math.isnan(induction_heads.formation_time(numbers["layers-1.seed-0"]))


def test_summary_and_figures(numbers: dict[str, Any]) -> None:
    words = induction_heads.summarize_induction_heads(seeds_of(numbers, 2))
    assert "exceeds 0.5" in words.en
    assert "ステップ" in words.ja
    drawn = induction_heads.draw_induction_heads(seeds_of(numbers, 2))
    assert set(drawn) == {"induction-heads", "induction-heads-film"}
    assert len(drawn["induction-heads-film"].axes) == len(numbers["layers-2.seed-0"]["film"])


def test_part_names_state_the_tuned_rates() -> None:
    rates = {f"layers-{n}": TunedRate(f"layers-{n}", 0.001 * n, False, ()) for n in (1, 2)}
    for tier in ("quick", "default", "full"):
        names = [part.name for part in induction_heads.induction_parts(Plan(tier, 100, rates))]
        assert len(set(names)) == len(names) == 2 * induction_heads.SEEDS[tier]
        assert ".rate-0.002." in names[0]
    assert 3 < induction_heads.pilot_loss(1, 3, 0.004, 0) < 6
