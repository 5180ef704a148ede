"""The papers' own counts beside ours."""

from __future__ import annotations

from dataclasses import replace

import pytest

import sightline as sl
from sightline.explain import explain, listing, terminal, to_markdown, total_parameters
from sightline.explain.published import COUNTS, published

UNITS = {"M": 1e6, "B": 1e9}


def number(text: str) -> float:
    return float(text[:-1]) * UNITS[text[-1]]


def by_formula(width: int, layers: int, *, context: int) -> int:
    """Twelve matrices' worth of weights a block and 13 vectors, embeddings, the final norm."""
    return layers * (12 * width**2 + 13 * width) + (50257 + context) * width + 2 * width


def test_gpt3_is_the_published_175_billion() -> None:
    total = total_parameters(sl.PUBLISHED["gpt3"]())
    assert total == by_formula(12288, 96, context=2048) == 174_604_259_328
    stack = sl.PUBLISHED["gpt3"]().last
    assert (stack.layers, stack.width, stack.max_positions) == (96, 12288, 2048)
    assert (stack.block(0).attention.heads, stack.block(0).attention.head_dim) == (96, 128)
    assert isinstance(stack.embedding.positions, sl.Learned)
    assert stack.embedding.vocab_size == 50257


@pytest.mark.parametrize("name", sl.PUBLISHED)
def test_every_published_model_has_its_papers_count(name: str) -> None:
    """Within 8%: rounding, or a mistake that the paper's authors admit."""
    ours = total_parameters(sl.PUBLISHED[name]())
    assert number(COUNTS[name].count) == pytest.approx(ours, rel=0.08)
    assert COUNTS[name].why


def test_counts_that_are_only_rounded_round_to_the_papers() -> None:
    for name in ("gpt3-small", "gpt3-large", "gpt3-2.7b", "gpt3-6.7b", "gpt3-xl", "llama-3-8b"):
        text = COUNTS[name].count
        digits = len(text.partition(".")[2]) - 1 if "." in text else 0
        ours = total_parameters(sl.PUBLISHED[name]()) / UNITS[text[-1]]
        assert f"{ours:.{digits}f}{text[-1]}" == text, name


def test_the_vocabularies_that_the_counts_of_2017_need() -> None:
    for name, vocabulary in (("transformer-base", 41_000), ("transformer-big", 36_000)):
        config = sl.PUBLISHED[name]()
        width = config.last.width
        rest = total_parameters(config) - 37_000 * width
        assert (number(COUNTS[name].count) - rest) / width == pytest.approx(vocabulary, abs=500)


def test_gpt3s_sparse_layers_are_said_to_be_missing() -> None:
    for name in sl.PUBLISHED:
        about = explain(sl.PUBLISHED[name](), name=name)
        text = " ".join(line.plain for line in terminal.title(about, 200))
        assert ("locally banded sparse" in text) == name.startswith("gpt3")


def test_the_page_and_the_list_have_the_papers_count() -> None:
    about = explain(sl.PUBLISHED["gpt2"](), name="gpt2")
    sentence = "The paper says 117M (OpenAI's README calls the paper's counts wrong"
    assert sentence in "\n".join(
        line.plain for line in terminal.render_explanation(about, width=200)
    )
    assert sentence in to_markdown(about)
    assert about.to_plain()["parameters"]["published"]["count"] == "117M"
    assert listing.model_values(sl.PUBLISHED)[2]["published"] == "117M"


def test_a_model_that_only_has_the_name_has_no_paper() -> None:
    config = sl.PUBLISHED["gpt2"]()
    assert published("gpt2", config) == COUNTS["gpt2"]
    assert config.decoder is not None
    other = replace(config, decoder=replace(config.decoder, layers=3))
    assert published("gpt2", other) is None
    assert explain(other, name="gpt2").to_plain()["parameters"]["published"] is None
