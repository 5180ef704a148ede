"""GPT and BERT: what is asked of them, by brute force; and a verdict that follows the numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

from sightline.core.model import Transformer
from sightline.lab.experiment import Plan, TunedRate
from sightline.lab.experiments import gpt_vs_bert as lab
from sightline.lab.learning import build_seeded, seeded_generator, shakespeare
from sightline.lab.measures import fill_write_embed as asked
from sightline.lab.results import to_json_numbers

MASK = 12


def model(kind: str) -> Transformer:
    return build_seeded(lab.gpt_or_bert_config(kind, MASK + 1), 0).eval()


def tokens(rows: int = 3) -> torch.Tensor:
    return torch.randint(MASK, (rows, asked.CONTEXT), generator=seeded_generator(0, 1))


@dataclass
class Planted:
    """A model by counts of character pairs instead of training: GPT from the left; an ideal BERT
    from both sides, which for such a model is Bayes' rule. `blind` knows nothing. Its vectors have
    the character, or, seeing the right side, how many letters follow."""

    table: torch.Tensor  # log p(next | character)
    kind: str
    blind: bool = False
    sees_words: bool = False
    noise: float = 0.0
    seed: int = 0

    @property
    def config(self) -> Any:
        return SimpleNamespace(
            decoder=True if self.kind == "gpt" else None,
            last=SimpleNamespace(embedding=SimpleNamespace(vocab_size=len(self.table) + 1)),
        )

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = len(self.table)
        if self.blind:
            return self.noise * torch.randn(
                *tokens.shape, mask + 1, generator=seeded_generator(self.seed, 9)
            )
        padded = torch.cat((self.table, torch.full((1, mask), -math.log(mask))))
        following = padded[tokens]
        if self.kind == "bert":
            before = following.roll(1, dims=1)
            after = torch.cat((self.table, torch.zeros(mask, 1)), 1).T[tokens].roll(-1, dims=1)
            before[:, 0] = 0
            after[:, -1] = 0
            following = before + after
        return torch.nn.functional.pad(following, (0, 1), value=-30.0)

    def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
        blur = torch.randn(*tokens.shape, 90, generator=seeded_generator(self.seed, len(tokens)))
        if not self.sees_words:
            return torch.nn.functional.one_hot(tokens, 90).float() + 0.5 * blur
        letters = asked.letter_table()[tokens]
        ahead = torch.zeros(tokens.shape, dtype=torch.long)
        for at in range(tokens.shape[1] - 2, -1, -1):
            ahead[:, at] = torch.where(letters[:, at + 1], ahead[:, at + 1] + 1, 0)
        return torch.nn.functional.one_hot(ahead.clamp(max=asked.LONGEST), 90).float() + 0.5 * blur

    def parameters(self) -> list[torch.Tensor]:
        return [self.table]


@lru_cache(maxsize=1)
def plays() -> tuple[Any, int, torch.Tensor]:
    """The text, the id of the mask, and the log probabilities of character pairs."""
    text, mask = shakespeare(asked.CONTEXT, lab.ROWS, 0)
    ids = torch.from_numpy(np.asarray(text.train.read(0, 300_000), dtype=np.int64))
    counts = torch.ones(mask, mask)
    counts.index_put_((ids[:-1], ids[1:]), torch.ones(()), accumulate=True)
    return text, mask, (counts / counts.sum(1, keepdim=True)).log()


def world(*, seeds: int = 3, **changed: Planted) -> dict[str, Any]:
    """Planted models, measured and saved as trained ones are. The seeds blur the tables a little."""
    text, mask, table = plays()
    result: dict[str, Any] = {}
    for seed in range(100, 100 + seeds):
        for kind in lab.KINDS:
            blurred = table + 0.05 * torch.randn(table.shape, generator=seeded_generator(seed, 3))
            usual = Planted(blurred.log_softmax(-1), kind, sees_words=kind == "bert", seed=seed)
            model = (
                replace(changed[kind], table=usual.table, seed=seed) if kind in changed else usual
            )
            result[f"{kind}.steps-1.rate-0.02.seed-{seed}"] = to_json_numbers(
                lab.probe_model(cast(Transformer, model), text, mask, seed)
            )
    return result


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


@pytest.fixture
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer gaps, sweeps and passages."""
    for name, value in {"GAPS": 64, "SEARCHED": 16, "SWEEPS": 1, "PASSAGES": 12}.items():
        monkeypatch.setattr(asked, name, value)
    monkeypatch.setattr(lab, "GAPS", 64)
    monkeypatch.setattr(lab, "PROMPTS", 12)
    monkeypatch.setattr(lab, "PILOT_WINDOWS", 32)


@pytest.mark.usefixtures("_few", "as_users_run_it")
def test_a_real_run_has_all_numbers() -> None:
    """A few steps of both, judged, summarised and drawn."""
    result = {
        f"{kind}.steps-3.rate-0.02.seed-100": to_json_numbers(
            lab.train_and_probe(kind, 3, 0.02, 100)
        )
        for kind in lab.KINDS
    }
    checks = lab.judge_gpt_vs_bert(result)
    assert checks[0].holds
    assert len(checks) == 7
    assert set(lab.draw_gpt_vs_bert(result)) == {"gpt-vs-bert"}
    assert "nats" in lab.summarize_gpt_vs_bert(result).en
    assert 3 < lab.pilot_loss("bert", 2, 0.02, 0) < 6


def holds(numbers: dict[str, Any]) -> list[bool | None]:
    return [check.holds for check in lab.judge_gpt_vs_bert(numbers)]


@pytest.mark.usefixtures("_few")
def test_ideal_models_of_character_pairs() -> None:
    """BERT fills better than GPT from the left, but not better than GPT by search, which then is
    the same by Bayes' rule; where both are ideal, neither predicts the last character better."""
    result = holds(world())
    assert result[1] is True
    assert result[2] is not True
    assert result[3] is not True
    assert result[5] is True
    numbers = world(seeds=1)
    gpt, bert = numbers.values()
    assert gpt["fill by search"] == pytest.approx(bert["fill few"], abs=1e-3)


@pytest.mark.usefixtures("_few")
def test_a_blind_bert_fills_worse_and_a_good_gpt_generates_better() -> None:
    table = plays()[2]
    result = holds(world(bert=Planted(table, "bert", blind=True, noise=0.3)))
    assert result[1] is False
    assert result[2:5] == [True] * 3
    assert result[5] is not True


@pytest.mark.usefixtures("_few")
def test_a_blind_gpt_wins_nothing() -> None:
    table = plays()[2]
    result = holds(
        world(
            gpt=Planted(table, "gpt", blind=True, noise=0.3, sees_words=True),
            bert=Planted(table, "bert"),
        )
    )
    assert result[1] is True
    assert result[2:6] == [False] * 4


@pytest.mark.usefixtures("_few")
def test_vectors_that_know_nothing_do_not_tell_the_play(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Planted, "hidden", lambda self, tokens: torch.zeros(*tokens.shape, 4))
    assert holds(world())[5:] != [True, True]
    assert holds(world())[6] is not True


def test_part_names_state_the_tuned_rate() -> None:
    rates = {kind: TunedRate(kind, 0.01 * n, False, ()) for n, kind in enumerate(lab.KINDS, 1)}
    names = [part.name for part in lab.gpt_vs_bert_parts(Plan("default", 1000, rates))]
    assert len(set(names)) == len(names) == 16
    assert names[0] == "gpt.steps-1000.rate-0.01.seed-1000"
    assert (
        len(lab.gpt_vs_bert_pilots("default"))
        == 2 * len(lab.RATES["default"]) * lab.PILOTS["default"]
    )
