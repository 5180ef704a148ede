"""Beam search against all sequences there are, a slow textbook version, and transformers."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

import sightline as sl
from sightline.errors import InputError
from sightline.generation.beam import Hypothesis, largest, search
from tests.families.oracle import ours, reference, tokens
from tests.support.decoder_configs import GPT2, LLAMA
from tests.support.encoder_decoder_configs import BART, T5
from tests.support.tiny import make

END = 2
SMALL = {"width": 8, "layers": 1, "heads": 2, "max_positions": 16}
TOYS = {
    "gpt": replace(sl.gpt(**SMALL, vocab_size=4), head=sl.LanguageHead(bias=True)),
    "llama": sl.llama(**SMALL, vocab_size=5, tied=False),
    "transformer": sl.encoder_decoder(**SMALL, vocab_size=4, tied=False, share_embeddings=False),
}
SOURCE = torch.tensor([[1, 3, 0, 3, 2]])
Toy = Callable[[tuple[int, ...]], list[float]]


@cache
def toy(name: str, seed: int) -> tuple[sl.Transformer, dict[str, Tensor], Toy]:
    """A model with pronounced opinions, its source, and the log-probabilities of what follows,
    without a cache."""
    model = make(TOYS[name], seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)
    source = {"source": SOURCE} if model.config.encoder else {}

    @cache
    def after(new: tuple[int, ...]) -> list[float]:
        with torch.no_grad():
            return model(torch.tensor([[1, 0, *new]]), **source)[0, -1].log_softmax(-1).tolist()

    return model, source, after


def every_sequence(after: Toy, vocab_size: int, longest: int) -> dict[tuple[int, ...], float]:
    """Σ log p of every sequence that ends, or is cut at the longest length."""
    result = {}
    for length in range(1, longest + 1):
        for sequence in itertools.product(range(vocab_size), repeat=length):
            if END not in sequence[:-1] and (sequence[-1] == END or length == longest):
                result[sequence] = sum(
                    after(sequence[:n])[token] for n, token in enumerate(sequence)
                )
    return result


@pytest.mark.parametrize("penalty", [1.0, 2.0, -0.5])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", TOYS)
def test_with_a_beam_for_everything_it_is_the_best_of_all_sequences(
    name: str, seed: int, penalty: float
) -> None:
    model, source, after = toy(name, seed)
    vocab_size = model.config.last.embedding.vocab_size
    totals = every_sequence(after, vocab_size, 4)
    ranked = sorted(
        ((total / len(tokens) ** penalty, tokens) for tokens, total in totals.items()), reverse=True
    )
    (result,) = search(
        model,
        torch.tensor([[1, 0]]),
        beams=vocab_size**4,
        max_tokens=4,
        end=(END,),
        length_penalty=penalty,
        count=vocab_size**4,
        early_stopping="never",
        **source,
    )
    assert len(result) == len(ranked), "every sequence once"
    assert result[0].tokens == ranked[0][1]
    assert [h.score for h in result] == pytest.approx([score for score, _ in ranked], abs=1e-4)
    assert all(h.finished == (h.tokens[-1] == END) for h in result)


def textbook(
    after: Toy, *, beams: int, longest: int, penalty: float, early: bool
) -> list[tuple[float, tuple[int, ...]]]:
    """Slow and plain: every continuation of every beginning, sorted; an end among the best `beams`
    is done."""
    running: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    done: list[tuple[float, tuple[int, ...]]] = []
    for length in range(1, longest + 1):
        everything = sorted(
            ((t + lp, (*s, token)) for t, s in running for token, lp in enumerate(after(s))),
            reverse=True,
        )
        complete = [(t, s) for t, s in everything[:beams] if s[-1] == END or length == longest]
        done = sorted(done + [(t / len(s) ** penalty, s) for t, s in complete], reverse=True)[
            :beams
        ]
        running = [(t, s) for t, s in everything if s[-1] != END][:beams]
        if len(done) == beams and (early or running[0][0] / length**penalty <= done[-1][0]):
            break
    return done


@pytest.mark.parametrize("early", [False, True])
@pytest.mark.parametrize(("beams", "penalty"), [(1, 1.0), (2, 0.3), (3, 1.7)])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("name", TOYS)
def test_with_few_beams_it_is_the_textbook(
    name: str, seed: int, beams: int, penalty: float, early: bool
) -> None:
    model, source, after = toy(name, seed)
    expected = textbook(after, beams=beams, longest=6, penalty=penalty, early=early)
    (result,) = search(
        model,
        torch.tensor([[1, 0]]),
        beams=beams,
        max_tokens=6,
        end=(END,),
        length_penalty=penalty,
        early_stopping=early,
        count=beams,
        **source,
    )
    assert [h.tokens for h in result] == [tokens for _, tokens in expected]
    assert [h.score for h in result] == pytest.approx([score for score, _ in expected], abs=1e-5)


# ----------------------------------------------------------------------------------- transformers

MODELS = {
    "gpt2": ("GPT2LMHeadModel", GPT2),
    "llama": ("LlamaForCausalLM", LLAMA),
    "bart": ("BartForConditionalGeneration", BART),
    "t5": ("T5ForConditionalGeneration", T5),
}
LONGEST = 10
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "early": {"early_stopping": True, "count": 4},
    "short": {"length_penalty": 0.2, "count": 3},
    "long": {"length_penalty": 2.0, "count": 4},
    "never": {"length_penalty": 1.5, "early_stopping": "never", "count": 2},
    "two ends": {"end": (5, 9), "count": 4},
    "no end": {"end": (), "count": 2},
}


@cache
def pair(name: str) -> tuple[Any, sl.Transformer]:
    model = reference(*MODELS[name])
    return model, ours(model).transformer


def theirs(
    model: Any, prompt: Tensor, *, end: tuple[int, ...], count: int = 1, **options: Any
) -> tuple[list[list[int]], list[float]]:
    """`generate` as it is, without the forced tokens of a checkpoint's defaults."""
    model.generation_config = __import__("transformers").GenerationConfig(
        num_beams=4,
        do_sample=False,
        num_return_sequences=count,
        eos_token_id=list(end) or None,
        pad_token_id=0,
        decoder_start_token_id=3,
        **options,
    )
    with torch.no_grad():
        out = model.generate(
            **_words(model, prompt),
            max_new_tokens=LONGEST,
            return_dict_in_generate=True,
            output_scores=True,
        )
    begun = 2 if model.config.is_encoder_decoder else prompt.shape[1]
    return out.sequences[:, begun:].tolist(), out.sequences_scores.tolist()


def _words(model: Any, prompt: Tensor) -> dict[str, Tensor]:
    mask = (prompt != 0).long()
    if not model.config.is_encoder_decoder:
        return {"input_ids": prompt, "attention_mask": mask}
    return {
        "input_ids": prompt,
        "attention_mask": mask,
        "decoder_input_ids": torch.tensor([[3, 7]]).expand(len(prompt), -1),
    }


def mine(transformer: sl.Transformer, prompt: Tensor, **options: Any) -> list[Hypothesis]:
    options = {"beams": 4, "max_tokens": LONGEST} | options
    padding = prompt == 0 if bool((prompt == 0).any()) else None
    if transformer.config.encoder is None:
        rows = search(transformer, prompt, padding=padding, **options)
    else:
        begun = torch.tensor([[3, 7]]).expand(len(prompt), -1)
        rows = search(transformer, begun, source=prompt, source_padding=padding, **options)
    return [hypothesis for row in rows for hypothesis in row]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", MODELS)
def test_it_is_what_transformers_generates(name: str, way: str) -> None:
    model, transformer = pair(name)
    padded = way in ("plain", "long", "two ends")
    prompt = tokens(40, 8, seed=3)
    if (
        padded
    ):  # where transformers expects it: a decoder's prompt on the left, a source on the right
        prompt[1, slice(5, 8) if model.config.is_encoder_decoder else slice(3)] = 0
    options = {"end": likely_end(name)} | WAYS[way]
    expected, scores = theirs(model, prompt, **options)
    result = mine(transformer, prompt, **options)
    assert len(result) == len(expected)
    for hypothesis, row in zip(result, expected, strict=True):
        assert list(hypothesis.tokens) == row[: len(hypothesis.tokens)]
        assert all(token in (0, *options["end"]) for token in row[len(hypothesis.tokens) :]), (
            "only padding follows"
        )
    assert [h.score for h in result] == pytest.approx(scores, abs=1e-4)


@cache
def likely_end(name: str) -> tuple[int, ...]:
    """A token that the search would otherwise use often, so that some beams end early and others do
    not."""
    result = mine(pair(name)[1], tokens(40, 8, seed=3), end=(), count=4)
    return (
        Counter(token for h in result for token in h.tokens[3:] if token != 0).most_common(1)[0][0],
    )


# ---------------------------------------------------------------------- groups, changes, refusals


def diverse(
    after: Toy, *, beams: int, groups: int, longest: int, diversity: float
) -> list[tuple[float, tuple[int, ...]]]:
    """Slow and plain: rank = Σ log p − diversity · (earlier groups' beams with this token at this
    step); no text ends."""
    width = beams // groups
    state: list[list[tuple[float, float, tuple[int, ...]]]] = [
        [(0.0, 0.0, ())] for _ in range(groups)
    ]
    for _ in range(longest):
        for g in range(groups):
            used = [s[-1] for earlier in state[:g] for _, _, s in earlier]
            options = [
                (rank + lp - diversity * used.count(token), total + lp, (*s, token))
                for rank, total, s in state[g]
                for token, lp in enumerate(after(s))
            ]
            state[g] = sorted(options, reverse=True)[:width]
    return sorted(((total / longest, s) for group in state for _, total, s in group), reverse=True)


@pytest.mark.parametrize("diversity", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("seed", range(3))
def test_groups_keep_away_from_each_other(seed: int, diversity: float) -> None:
    model, _, after = toy("llama", seed)
    expected = diverse(after, beams=6, groups=3, longest=4, diversity=diversity)
    (result,) = search(
        model,
        torch.tensor([[1, 0]]),
        beams=6,
        max_tokens=4,
        end=(),
        groups=3,
        diversity=diversity,
        count=6,
    )
    assert sorted(h.tokens for h in result) == sorted(tokens for _, tokens in expected)
    assert [h.score for h in result] == pytest.approx([score for score, _ in expected], abs=1e-5)
    if diversity == 5.0:
        assert len({h.tokens[0] for h in result}) > 2


@pytest.mark.parametrize("words", [4, 11, 40, 9001])
def test_plain_beams_are_those_with_a_change_that_changes_nothing(words: int) -> None:
    """One looks at the likeliest tokens alone, the other at all of them."""
    model = make(sl.llama(**SMALL, vocab_size=words, tied=False))
    (plain,), (changed,) = (
        search(
            model,
            torch.tensor([[1, 0]]),
            beams=4,
            max_tokens=6,
            end=(END,),
            count=4,
            changes=changes,
        )
        for changes in ((), (lambda logs, _: logs,))
    )
    for one, other in zip(plain, changed, strict=True):
        assert one.tokens == other.tokens
        assert one.score == pytest.approx(other.score, abs=1e-5)


@pytest.mark.parametrize("many", [1, 64, 4095, 4096, 4097, 50257])
@pytest.mark.parametrize("count", [1, 3])
def test_the_largest_are_topk(many: int, count: int) -> None:
    numbers = torch.randn(5, many, generator=torch.Generator().manual_seed(many)).double()
    numbers[2, -1] = numbers[3, 0] = 99
    wanted = numbers.topk(min(count, many))
    values, places = largest(numbers, min(count, many))
    assert torch.equal(values, wanted.values)
    assert torch.equal(places, wanted.indices)


def test_nan_logits_are_refused_by_plain_beams_too() -> None:
    model = make(TOYS["llama"])
    with torch.no_grad():
        next(iter(model.parameters())).fill_(float("nan"))
    with pytest.raises(InputError, match="NaN"):
        search(model, torch.tensor([[1, 0]]), beams=2, max_tokens=3, end=())


def test_a_change_sees_the_text_and_can_forbid() -> None:
    model, _, _ = toy("llama", 0)
    seen = []

    def never_twice(logs: Tensor, history: Any) -> Tensor:
        seen.append(tuple(history))
        return logs.index_fill(0, torch.tensor(history), -torch.inf)

    prompt, padding = (
        torch.tensor([[4, 4, 1], [1, 2, 0]]),
        torch.tensor([[True, True, False], [False] * 3]),
    )
    rows = search(
        model,
        prompt,
        beams=3,
        max_tokens=9,
        end=(),
        count=3,
        padding=padding,
        changes=[never_twice],
    )
    assert {(1,), (1, 2, 0)} <= set(seen), "the real tokens only"
    assert rows == [[], []], "after five different tokens nothing is left to say"
    shorter = search(
        model,
        prompt,
        beams=3,
        max_tokens=2,
        end=(),
        count=3,
        padding=padding,
        changes=[never_twice],
    )
    assert all(len({*h.tokens, 1}) == 3 for h in shorter[0])
    assert sorted(h.tokens for h in shorter[1]) == [(3, 4), (4, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beams": 4, "groups": 3}, "4 beams in 3 groups"),
        ({"beams": 2, "count": 3}, "count is 3 with 2 beams"),
        ({"beams": 2, "max_tokens": 0}, "max_tokens is 0"),
        ({"beams": 2, "diversity": 1.0}, "diversity is 1.0 with 1 groups"),
        ({"beams": 2, "padding": torch.tensor([[False, True]])}, "ends in padding"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    model, _, _ = toy("gpt", 0)
    with pytest.raises(InputError, match=message):
        search(model, torch.tensor([[1, 0]]), **({"max_tokens": 3, "end": (END,)} | options))


@pytest.mark.parametrize("kind", ["growing", "preallocated", "windowed"])
@pytest.mark.parametrize("padded", [False, True])
def test_a_reordered_cache_is_the_cache_of_reordered_rows(kind: str, padded: bool) -> None:
    config = replace(TOYS["transformer"])
    if kind == "windowed":
        config = sl.llama(**SMALL, vocab_size=4, window=2)
    make_cache = {"preallocated": lambda config: sl.Cache.preallocated(config, 9)}.get(
        kind
    ) or getattr(sl.Cache, kind)
    model, rows = make(config), torch.tensor([2, 0, 0, 1])
    text = torch.tensor([[1, 0, 3, 1, 2], [2, 2, 1, 3, 0], [0, 3, 3, 2, 1]])
    padding = (
        torch.tensor([[True, True, False], [False] * 3, [True, False, False]]) if padded else None
    )
    source = (
        {
            "source": text.flip(1),
            "source_padding": None if padding is None else torch.zeros_like(text).bool(),
        }
        if config.encoder
        else {}
    )
    moved = {name: x if x is None else x[rows] for name, x in source.items()}
    result, expected = make_cache(config), make_cache(config)
    model(text[:, :3], padding=padding, cache=result, **source)
    model(
        text[rows, :3], padding=None if padding is None else padding[rows], cache=expected, **moved
    )
    result.reorder(rows)
    again = [model(text[rows, 3:], cache=cache) for cache in (result, expected)]
    assert torch.allclose(*again, atol=1e-6)
    assert result.batch == 4
