"""Translators undo a rotation of the stream; where nothing is to be undone they do not help."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sightline.lab.experiment import Plan
from sightline.lab.experiments import tuned_lens as lab
from sightline.lab.measures.translators import (
    Reading,
    Readout,
    Translators,
    divergences,
    held_out_divergences,
)
from sightline.lab.tuning import tuned_rates

WIDTH, SIZE, TOKENS, ROWS = 12, 40, 600, 3
RATES = {"tuned": 0.05, "shuffled": 0.05}


def reading(last: torch.Tensor, *, turned: bool) -> Reading:
    """Rows of the stream: the last one, rotated by a fixed rotation, with less noise per row."""
    rotation = torch.linalg.qr(
        torch.randn(WIDTH, WIDTH, generator=torch.Generator().manual_seed(5))
    ).Q
    seen = last @ rotation if turned else last
    noise = torch.randn(ROWS, *last.shape, generator=torch.Generator().manual_seed(len(last)))
    amounts = torch.tensor([0.6, 0.3, 0.1]) if turned else torch.zeros(ROWS)
    return Reading(seen + amounts[:, None, None] * noise, last)


def world(seed: int, *, turned: bool) -> tuple[Readout, Reading, Reading]:
    torch.manual_seed(seed)
    readout = Readout(lambda x: x, 0.7 * torch.randn(SIZE, WIDTH))
    first, second = torch.randn(TOKENS, WIDTH), torch.randn(TOKENS // 2, WIDTH)
    return readout, reading(first, turned=turned), reading(second, turned=turned)


def numbers_of(*, turned: bool) -> dict[str, Any]:
    return {
        f"run.seed-{seed}": lab.compare_lenses(*world(seed, turned=turned), RATES, 60, seed)
        for seed in range(100, 103)
    }


def test_the_raw_lens_is_the_identity() -> None:
    readout, training, held_out = world(0, turned=True)
    raw = Translators.identity(ROWS, WIDTH)
    assert torch.equal(raw(training.streams), training.streams)
    probs = readout.log_probs(held_out.last[:1]), readout.log_probs(held_out.streams[0, :1])
    by_hand = float((probs[0].exp() * (probs[0] - probs[1])).sum())
    result = divergences(readout, held_out.streams[:1, :1], held_out.last[:1])
    assert float(result) == pytest.approx(by_hand, rel=1e-5)
    assert len(held_out_divergences(readout, held_out, raw)) == ROWS


def test_what_is_rotated_can_be_translated() -> None:
    numbers = numbers_of(turned=True)
    assert [check.holds for check in lab.judge_tuned_lens(numbers)] == [True] * 3
    assert set(lab.draw_tuned_lens(numbers)) == {"tuned-lens"}
    assert "raw" in lab.summarize_tuned_lens(numbers).en


def test_where_the_raw_lens_is_exact_the_claim_fails() -> None:
    numbers = numbers_of(turned=False)
    better, *_, nearer = lab.judge_tuned_lens(numbers)
    assert better.holds is False
    assert nearer.holds is not True


def test_translators_that_learn_no_more_than_frequencies_fail() -> None:
    """A stream without information: both arms learn the mean, the tuned one fits noise as well."""
    numbers: dict[str, Any] = {}
    for seed in range(100, 104):
        readout, training, held_out = world(seed, turned=True)
        training, held_out = (
            Reading(torch.randn_like(reading.streams), reading.last)
            for reading in (training, held_out)
        )
        numbers[f"run.seed-{seed}"] = lab.compare_lenses(
            readout, training, held_out, RATES, 30, seed
        )
    _, reads, nearer = lab.judge_tuned_lens(numbers)
    assert reads.holds is not True
    assert nearer.holds is not True
    swapped = {name: {**row, "tuned": row["raw"]} for name, row in numbers.items()}
    assert lab.judge_tuned_lens(swapped)[1].holds is False


def test_each_arm_has_its_rate() -> None:
    pilots = lab.tuned_lens_pilots("quick")
    assert len(pilots) == len(lab.ARMS) * len(lab.RATES) * lab.PILOT_SEEDS
    scores = {
        part.name: {"score": abs(float(part.name.split("rate-")[1].split(".stories")[0]) - 0.003)}
        for part in pilots
    }
    rates = tuned_rates(scores)
    assert {arm: tuned.rate for arm, tuned in rates.items()} == dict.fromkeys(lab.ARMS, 0.003)
    assert "tuned-0.003.shuffled-0.003" in lab.tuned_lens_parts(Plan("quick", 100, rates))[0].name
