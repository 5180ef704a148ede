"""Speculation changes the cost, never the text: greedy token by token, sampling by enumerating
everything that can happen."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.errors import InputError
from sightline.generation.sampling import Sampling, temperature, top_k
from sightline.generation.speculative import (
    Chance,
    Speculation,
    after_changes,
    decode_lookup,
    decode_with_draft,
    prompt_lookup,
)
from tests.support.tiny import GENERATORS, inputs, make

NAMES = ["learned", "rotary", "window", "transformer", "t5"]


def sharpened(config: sl.ModelConfig, seed: int, by: float = 2.0) -> sl.Transformer:
    """A model with pronounced opinions."""
    model = make(config, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(by)
    return model


def near(model: sl.Transformer, noise: float) -> sl.Transformer:
    """A draft: almost the same model."""
    draft = sl.build(model.config).eval()
    draft.load_state_dict(model.state_dict())
    torch.manual_seed(5)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter.add_(torch.randn_like(parameter) * noise)
    return draft


@torch.no_grad()
def greedy(
    model: sl.Transformer, prompt: Tensor, count: int, end: tuple[int, ...] = (), **source: Tensor
) -> list[int]:
    """Plain: the whole text again for every token, without a cache."""
    text = prompt
    while text.shape[1] < prompt.shape[1] + count and (
        text.shape[1] == prompt.shape[1] or int(text[0, -1]) not in end
    ):
        text = torch.cat((text, model(text, **source)[:, -1:].argmax(-1)), dim=1)
    return text[0, prompt.shape[1] :].tolist()


def case(name: str) -> tuple[sl.Transformer, Tensor, dict[str, Tensor]]:
    given = {key: x[:1] for key, x in inputs(GENERATORS[name]).items()}
    return sharpened(GENERATORS[name], 0), given.pop("tokens"), given


@pytest.mark.parametrize("most", [0, 8])
@pytest.mark.parametrize("name", NAMES)
def test_lookup_equals_greedy(name: str, most: int) -> None:
    model, prompt, source = case(name)
    expected = greedy(model, prompt, 16, **source)
    result = decode_lookup(model, prompt, max_tokens=16, most=most, ngram=2, **source)
    assert result.tokens == expected
    assert result.passes + result.accepted == 16
    assert 0 <= result.accepted <= result.proposed
    assert (result.proposed == 0) == (most == 0)


@pytest.mark.parametrize("noise", [0.0, 0.05])
@pytest.mark.parametrize("name", NAMES)
def test_a_draft_equals_greedy(name: str, noise: float) -> None:
    model, prompt, source = case(name)
    expected = greedy(model, prompt, 16, **source)
    result = decode_with_draft(
        model, prompt, draft=near(model, noise), max_tokens=16, most=3, **source
    )
    assert result.tokens == expected
    assert result.passes + result.accepted == 16
    if noise == 0:
        assert result == Speculation(expected, proposed=12, accepted=12, passes=4), (
            "3 kept and 1 more in every pass"
        )


@pytest.mark.parametrize("name", ["rotary", "t5"])
def test_it_stops_where_greedy_stops(name: str) -> None:
    model, prompt, source = case(name)
    whole = greedy(model, prompt, 8, **source)
    for end in sorted(set(whole)):
        expected = greedy(model, prompt, 8, (end,), **source)
        assert decode_lookup(model, prompt, max_tokens=8, end=(end,), **source).tokens == expected
        result = decode_with_draft(model, prompt, draft=model, max_tokens=8, end=(end,), **source)
        assert result.tokens == expected
        assert result.accepted <= len(expected)


def test_a_repetition_costs_few_passes() -> None:
    model, prompt, _ = case("rotary")
    text = torch.tensor([greedy(model, prompt, 30)])
    result = decode_lookup(model, text, max_tokens=32)
    assert result.tokens == greedy(model, text, 32)
    assert len({*result.tokens}) < 20, "this model repeats itself"
    assert result.passes <= 24


def test_a_draft_whose_positions_end_guesses_less() -> None:
    model, prompt, _ = case("learned")
    short = replace(
        GENERATORS["learned"], decoder=replace(GENERATORS["learned"].decoder, max_positions=16)
    )
    result = decode_with_draft(model, prompt, draft=sharpened(short, 1), max_tokens=30)
    assert result.tokens == greedy(model, prompt, 30)
    assert 0 < result.proposed <= 6 * 4


# ----------------------------------------------------------------------------------------- lookup


def test_lookup_finds_the_longest_and_latest_ending() -> None:
    assert prompt_lookup([1, 2, 3, 9, 9, 1, 2, 3], most=2) == [9, 9]
    assert prompt_lookup([1, 2, 3, 4, 7, 2, 3, 5, 1, 2, 3], most=2) == [4, 7], (
        "three tokens before two"
    )
    assert prompt_lookup([1, 2, 4, 1, 2, 5, 1, 2], 2, most=1) == [5], "the later of two"
    assert prompt_lookup([6, 1, 2, 1, 2], most=5) == [1, 2, 1, 2, 1], "a repetition goes on"
    assert prompt_lookup([3, 3], most=3) == [3, 3, 3]
    assert (
        prompt_lookup([1, 2, 3], most=3)
        == prompt_lookup([1], most=3)
        == prompt_lookup([], most=3)
        == []
    )


# ---------------------------------------------------------------------- the distribution, exactly


class Script(Chance):
    """Instead of throwing dice: follow a script of outcomes, then always the first; remember what
    else could have been."""

    def __init__(self, outcomes: list[int]) -> None:
        self.outcomes, self.weight, self.choices = list(outcomes), 1.0, list[list[float]]()

    def happens(self, probability: float) -> bool:
        return self._next([1 - min(1.0, probability), min(1.0, probability)]) == 1

    def pick(self, probabilities: Tensor) -> int:
        assert float(probabilities.sum()) == pytest.approx(1)
        return self._next(probabilities.tolist())

    def _next(self, weights: list[float]) -> int:
        n = len(self.choices)
        outcome = (
            self.outcomes[n]
            if n < len(self.outcomes)
            else next(n for n, weight in enumerate(weights) if weight > 0)
        )
        self.outcomes[n:] = [outcome, *self.outcomes[n + 1 :]]
        self.choices.append(weights)
        self.weight *= weights[outcome]
        return outcome


def every_outcome(run: Callable[[Chance], Speculation]) -> Iterator[tuple[Speculation, float]]:
    """Each thing that can happen, with its probability: an odometer over the possible outcomes of
    every throw."""
    outcomes: list[int] | None = []
    while outcomes is not None:
        script = Script(outcomes)
        yield run(script), script.weight
        outcomes = _following(script)


def _following(script: Script) -> list[int] | None:
    for n in reversed(range(len(script.choices))):
        later = [
            k for k, weight in enumerate(script.choices[n]) if k > script.outcomes[n] and weight > 0
        ]
        if later:
            return [*script.outcomes[:n], later[0]]
    return None


TOY = replace(
    sl.gpt(width=8, layers=1, heads=2, vocab_size=3, max_positions=16),
    head=sl.LanguageHead(bias=True),
)
PROMPT = torch.tensor([[0, 1, 2, 0, 1]])
DISTRIBUTIONS = {
    "warm": (temperature(1.3),),
    "two tokens": (top_k(2),),
    "sampling": Sampling(temperature=0.8, repetition_penalty=1.5).changes(5),
}


def target(
    model: sl.Transformer, distribution: Any, length: int, end: tuple[int, ...]
) -> dict[tuple[int, ...], float]:
    """p(y₁) p(y₂ | y₁) … for every text, from the model alone."""
    result: dict[tuple[int, ...], float] = defaultdict(float)
    for new in itertools.product(range(3), repeat=length):
        ends = [n for n, token in enumerate(new) if token in end]
        text, weight = new[: ends[0] + 1] if ends else new, 1.0
        for n, token in enumerate(text):
            before = [*PROMPT[0].tolist(), *text[:n]]
            with torch.no_grad():
                weight *= float(distribution(model(torch.tensor([before]))[0, -1], before)[token])
        result[tuple(text)] = weight
    return result


@pytest.mark.parametrize(("way", "end"), [("warm", ()), ("sampling", (2,)), ("two tokens", ())])
@pytest.mark.parametrize("by", ["draft", "lookup"])
def test_sampling_keeps_the_distribution_exactly(by: str, way: str, end: tuple[int, ...]) -> None:
    model, draft, distribution = (
        sharpened(TOY, 0),
        sharpened(TOY, 4),
        after_changes(DISTRIBUTIONS[way]),
    )

    def run(chance: Chance) -> Speculation:
        if by == "lookup":
            return decode_lookup(
                model, PROMPT, max_tokens=3, end=end, distribution=distribution, chance=chance
            )
        return decode_with_draft(
            model,
            PROMPT,
            draft=draft,
            max_tokens=3,
            most=2,
            end=end,
            distribution=distribution,
            chance=chance,
        )

    result: dict[tuple[int, ...], float] = defaultdict(float)
    for speculation, weight in every_outcome(run):
        result[tuple(speculation.tokens)] += weight
    expected = target(model, distribution, 3, end)
    assert sum(result.values()) == pytest.approx(1, abs=1e-9)
    assert set(result) <= set(expected)
    for text, probability in expected.items():
        assert result[text] == pytest.approx(probability, abs=1e-6)


def test_the_same_seed_says_the_same() -> None:
    model, prompt, _ = case("rotary")
    warm = after_changes((temperature(2.0),))
    output = [
        decode_with_draft(
            model,
            prompt,
            draft=near(model, 0.05),
            max_tokens=20,
            distribution=warm,
            chance=Chance(seed),
        ).tokens
        for seed in (1, 1, 2)
    ]
    assert output[0] == output[1] != output[2]


def test_refusals() -> None:
    model, prompt, _ = case("rotary")
    with pytest.raises(
        InputError, match=r"rows accept different numbers of guesses.* Fix: prompt\[:1\]"
    ):
        decode_lookup(model, prompt.expand(2, -1), max_tokens=3)
    with pytest.raises(InputError, match="max_tokens is 0"):
        decode_lookup(model, prompt, max_tokens=0)
    with pytest.raises(InputError, match="a model of 29 tokens, a draft of 3"):
        decode_with_draft(model, prompt, draft=sharpened(TOY, 0), max_tokens=3)
