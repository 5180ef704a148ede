"""Results print in one line, and their HTML tables are escaped, bounded and free of scripts."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

import sightline as sl
from sightline.lens.attributions.logit_lens import LogitLens
from sightline.lens.draw.result_table import MAX_LENGTH, result_table
from sightline.lens.trace.subject import Token
from tests.lens.asked import Tiny, ids_of, tiny

HOSTILE = '<script>alert(1)</script>&"' + "'\n\x1b[31m"


@pytest.fixture(scope="module")
def subject() -> Tiny:
    return tiny("rotary")


@pytest.fixture(scope="module")
def trace(subject: Tiny) -> sl.Trace:
    return sl.lens.trace_of(subject, ids_of("rotary"))


def hostile_lens(subject: Tiny) -> LogitLens:
    lens = sl.lens.logit_lens(subject, ids_of("rotary"), top_k=2)
    tokens = tuple(Token(token.id, HOSTILE) for token in lens.tokens)
    return replace(lens, tokens=tokens, words=dict.fromkeys(lens.words, HOSTILE))


def test_results_print_in_one_short_line(subject: Tiny, trace: sl.Trace) -> None:
    ids = ids_of("rotary")
    results = [
        trace,
        trace.look(0),
        trace.geometry(0, 1),
        trace.geometry(0, 1).raw,
        sl.lens.rotation_of(trace, 0, 1),
        sl.lens.logit_lens(subject, ids),
        sl.lens.attribution(subject, ids),
        sl.lens.gradient_input(subject, ids),
        sl.lens.rollout(trace),
        sl.lens.attention_measures(trace),
        sl.lens.norm_growth(subject, ids),
        sl.lens.redundancy_of(subject, ids),
        sl.lens.diff(subject, subject, [ids]),
        sl.lens.ablation_sweep(subject, ids, lambda logits: float(logits[-1].max())),
    ]
    for result in results:
        text = repr(result)
        assert "\n" not in text
        assert len(text) < 200
        assert text.startswith(f"<{type(result).__name__}")


def test_tables_escape_token_texts(subject: Tiny, trace: sl.Trace) -> None:
    lens = hostile_lens(subject)
    saliency = sl.lens.gradient_input(subject, ids_of("rotary"))
    saliency = replace(saliency, tokens=tuple(Token(0, HOSTILE) for _ in saliency.tokens))
    for result in (lens, saliency, trace.geometry(0, 1)):
        table = result._repr_html_()
        assert table.startswith("<table>")
        assert "<script" not in table
        assert "\x1b" not in table
        assert len(table) <= MAX_LENGTH


def test_a_large_table_is_cut_and_says_so() -> None:
    table = result_table("t", [str(n) for n in range(90)], [["&" * 500] * 90] * 400)
    assert len(table) <= MAX_LENGTH
    assert "50 more columns" in table
    assert "more rows" in table


def test_plot_returns_a_figure(trace: sl.Trace) -> None:
    from matplotlib.figure import Figure

    assert isinstance(trace.plot(layer=0, head=1), Figure)


def test_lens_names_are_lazy_and_complete() -> None:
    code = (
        "import sys, sightline.lens as lens; from sightline.lens import ablate;"
        "assert 'scipy' not in sys.modules and 'matplotlib' not in sys.modules;"
        "assert 'sightline.lens.heads.profile' not in sys.modules;"
        "assert dir(lens) == sorted(lens.__all__);"
        "assert all(getattr(lens, name) is not None for name in lens.__all__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        sl.lens.nothing  # noqa: B018
