"""GPT and BERT: what is asked of them, by brute force; and a verdict that follows the numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sightline.core.model import Transformer
from sightline.lab.experiments import gpt_vs_bert as lab
from sightline.lab.learning import build_seeded, seeded_generator, shakespeare
from sightline.lab.measures import fill_write_embed as asked
from sightline.lab.results import to_json_numbers

MASK = 12


def model(kind: str) -> Transformer:
    return build_seeded(lab.gpt_or_bert_config(kind, MASK + 1), 0).eval()


def tokens(rows: int = 3) -> torch.Tensor:
    return torch.randint(MASK, (rows, asked.CONTEXT), generator=seeded_generator(0, 1))


def row(kind: str, seed: int, **changed: float) -> dict[str, Any]:
    good = {
        "gpt": {"fill": 2.4, "fill halfway": 2.5, "next": 2.2, "word": 0.2, "written": 2.5},
        "bert": {"fill": 2.0, "fill halfway": 2.4, "next": 2.6, "word": 0.4, "written": 2.9},
    }
    shared = {
        "parameters": 1000,
        "real": 2.4,
        "play": 0.5,
        "fill few": 2.0,
        "fill by search": 1.9,
        "written by sweeps": 3.0,
    }
    guess = {"word guess": 0.2, "play guess": 0.25}
    found = {
        **good[kind],
        **shared,
        **guess,
        **{name: value for name, value in changed.items() if kind == "bert"},
    }
    return {
        name: value + (0.001 * seed if name != "parameters" else 0) * (1 if kind == "gpt" else 2)
        for name, value in found.items()
    }


def numbers(**changed: float) -> dict[str, Any]:
    return {
        f"{kind}.steps-1.seed-{seed}": row(kind, seed, **changed)
        for kind in lab.KINDS
        for seed in range(3)
    }


def test_who_sees_what() -> None:
    """GPT's odds do not change with what follows, BERT's do; neither sees the character itself."""
    given = tokens()
    right, itself = given.clone(), given.clone()
    right[:, 20], itself[:, 16] = (right[:, 20] + 1) % MASK, (itself[:, 16] + 1) % MASK
    with torch.no_grad():
        for kind, blind in (("gpt", True), ("bert", False)):
            odds = [
                asked.character_log_probabilities(model(kind), one, 16, MASK)
                for one in (given, right, itself)
            ]
            assert torch.equal(odds[0], odds[2])
            assert torch.equal(odds[0], odds[1]) is blind
            torch.testing.assert_close(odds[0].exp().sum(-1), torch.ones(3))


def test_search_is_bayes_rule() -> None:
    """By the whole text's probability for each character, one window at a time."""
    transformer, given, total = model("gpt"), tokens(2), 0.0
    with torch.no_grad():
        for window in given:
            whole = []
            for sign in range(MASK):
                tried = window.clone()
                tried[16] = sign
                odds = transformer(tried[None])[0, :, :MASK].double().log_softmax(-1).numpy()
                whole.append(sum(odds[n, int(tried[n + 1])] for n in range(asked.CONTEXT - 1)))
            total -= whole[int(window[16])] - np.logaddexp.reduce(whole)
        assert asked.fill_by_search(transformer, given, 16, MASK) == pytest.approx(
            total / 2, abs=1e-4
        )


def test_both_ways_of_writing_keep_the_prompt_and_leave_no_mask() -> None:
    prompts = tokens()[:, : asked.PROMPT]
    with torch.no_grad():
        for kind, write in (
            ("gpt", asked.write_left_to_right),
            ("bert", asked.write_left_to_right),
            ("bert", asked.write_by_sweeps),
        ):
            written = write(model(kind), prompts, MASK, seeded_generator(0, 2))
            assert written.shape == (3, asked.CONTEXT)
            assert torch.equal(written[:, : asked.PROMPT], prompts)
            assert int(written.max()) < MASK


def test_the_probe_against_least_squares() -> None:
    vectors = torch.randn(200, 5, generator=seeded_generator(0, 3))
    classes = vectors[:, :3].argmax(-1)
    assert asked.probe_accuracy(vectors, classes) > 0.8
    assert (
        asked.probe_accuracy(torch.randn(200, 5, generator=seeded_generator(0, 4)), classes) < 0.6
    )
    assert asked.majority_accuracy(torch.tensor([0, 1, 0, 1, 0, 2])) == pytest.approx(2 / 3)


def test_words_and_plays_of_the_text() -> None:
    """First letters by Python's own words; passages of four plays; the judge prefers real text to
    shuffled."""
    text, mask = shakespeare(asked.CONTEXT, lab.ROWS, 0)
    windows = asked.held_out_windows(text, 40)
    table = asked.letter_table()
    at, lengths = asked.first_letters(windows)
    signs = ["".join("a" if letter else " " for letter in line) for line in table[windows].tolist()]
    for (line, place), length in zip(at.tolist(), lengths.tolist(), strict=True):
        word = signs[line][place:].split(" ")[0]
        assert signs[line][place - 1] == " "
        assert min(asked.LONGEST, len(word)) == length
    pieces, which = asked.passages(text)
    assert pieces.shape == (4 * asked.PASSAGES * asked.PASSAGE, asked.CONTEXT)
    assert which.bincount().tolist() == [asked.PASSAGES] * 4
    nats = asked.trigram_judge(text, mask)
    shuffled = windows[:, torch.randperm(asked.CONTEXT, generator=seeded_generator(0, 5))]
    assert nats(windows) < 2.6 < 3 < nats(shuffled)


def test_a_real_run_has_all_numbers(monkeypatch: pytest.MonkeyPatch, as_users_run_it: None) -> None:
    """A few steps of both, judged, told and drawn."""
    for name, value in {"GAPS": 32, "SEARCHED": 2, "SWEEPS": 1, "PASSAGES": 6}.items():
        monkeypatch.setattr(asked, name, value)
    monkeypatch.setattr(lab, "GAPS", 32)
    monkeypatch.setattr(lab, "PROMPTS", 3)
    found = {
        f"{kind}.steps-3.seed-0": to_json_numbers(lab.train_and_probe(kind, 3, 0))
        for kind in lab.KINDS
    }
    checks = lab.judge_gpt_vs_bert(found)
    assert checks[0].holds
    assert len(checks) == 6
    assert set(lab.draw_gpt_vs_bert(found)) == {"gpt-vs-bert"}
    assert "nats" in lab.summarize_gpt_vs_bert(found).en


def test_the_verdict_follows_the_numbers() -> None:
    def holds(**wrong):
        return [check.holds for check in lab.judge_gpt_vs_bert(numbers(**wrong))]

    assert holds() == [True] * 6
    assert holds(fill=2.5, word=0.1, parameters=2000) == [False, False, True, True, False, True]
    assert holds(next=2.0, written=2.41, play=0.3) == [True, True, False, False, True, False]
    assert holds(fill=2.3985)[1] is None
    assert holds(**{"fill": 2.5, "fill halfway": 2.8})[1] is None
