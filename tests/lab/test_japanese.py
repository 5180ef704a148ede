"""The Japanese report: figure texts and number columns are translated."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sightline.lab import report, style
from sightline.lab.japanese import PHRASES, to_japanese

PLACE = Path(__file__).parents[2] / "docs" / "laboratory"
NAMES = {
    "ALiBi",
    "BERT",
    "CNN",
    "CPU",
    "Chinchilla",
    "FLOP",
    "GELU",
    "GPT",
    "Kaplan",
    "KV",
    "LN",
    "LSTM",
    "MiB",
    "Post",
    "Pre",
    "RBF",
    "ReLU",
    "RoPE",
    "SwiGLU",
    "Transformer",
    "YaRN",
    "instruct",
    "minilm",
    "nGPT",
    "smollm2",
    "SmolLM2",
    "stories15m",
    "std",
    "float32",
    "float64",
    "cos",
    "Transformers",
    "love",
    "T5",
    "mathdefault",
    "xP",
    "ms",
    "GD",
    "GRU",
    "Taylor",
    "log",
    "S2",
    "IO",
    "it",
    "chrono",
    "elu",
    "softmax",
}


def english_words(text: str) -> set[str]:
    """Words of two letters or more that are neither names nor formulas."""
    words = re.findall(r"(?<![\w^])[A-Za-z][A-Za-z0-9]+(?![\w(])", text)
    return set(words) - NAMES


@pytest.mark.parametrize(
    ("english", "japanese"),
    [
        ("first 8 digits", "最初の8桁"),
        ("4,096 of 14,880", "4,096（全体 14,880）"),
        ("raw − scaled 0.1 [0.05, 0.2] nats", "スケーリングなし − あり 0.1 [0.05, 0.2] ナット"),
        ("Memory of causal attention, 4 heads of 128", "因果的注意のメモリ（幅128のヘッド4個）"),
        ("monkey steps", "monkey steps"),
    ],
)
def test_whole_phrases_are_translated(english: str, japanese: str) -> None:
    assert to_japanese(english) == japanese


def test_no_phrase_translates_twice() -> None:
    for japanese in PHRASES.values():
        assert to_japanese(japanese) == japanese


def test_the_number_column_of_the_page_is_japanese() -> None:
    rows = re.findall(
        r"^\| (.+) \| (?:はい|いいえ|判定保留) \| (.*) \|$", page(), flags=re.MULTILINE
    )
    assert len(rows) > 80
    for statement, numbers in rows:
        assert not english_words(numbers), (statement, numbers)


@pytest.mark.parametrize("path", sorted((PLACE / "figures").glob("*.ja.svg")), ids=lambda p: p.stem)
def test_the_texts_of_a_figure_are_japanese(path: Path) -> None:
    texts = re.findall(r"<text[^>]*>([^<]+)</text>", path.read_text(encoding="utf-8"))
    assert texts
    for text in texts:
        assert not english_words(text), text


def test_there_is_a_japanese_figure_for_each_english_one() -> None:
    names = {path.name for path in (PLACE / "figures").iterdir()}
    english = {name for name in names if not name.endswith(".ja.svg")}
    assert {name.replace(".svg", ".ja.svg") for name in english} == names - english


def page() -> str:
    return (PLACE / "ja.md").read_text(encoding="utf-8")


def test_without_a_font_the_figures_are_english_and_the_report_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(report, "has_japanese_font", lambda: False)
    assert report.ENGLISH_FIGURES in report.overview_texts([], "ja")
    assert report.ENGLISH_FIGURES not in report.overview_texts([], "en")
    monkeypatch.setattr(report, "has_japanese_font", lambda: True)
    assert report.ENGLISH_FIGURES not in report.overview_texts([], "ja")


def test_ticks_titles_and_legends_are_translated() -> None:
    drawing, (axes,) = style.new_figure()
    axes.plot([0, 1], [0, 1], label="uniform guess")
    axes.set(xlabel="step", title="Recall")
    axes.set_xticks([0, 1], labels=["first key", "other keys"])
    axes.legend()
    style.translate_figure(drawing)
    assert (axes.get_xlabel(), axes.get_title()) == ("ステップ", "想起")
    assert [label.get_text() for label in axes.get_xticklabels()] == ["先頭のキー", "他のキー"]
    legend = axes.get_legend()
    assert legend is not None
    assert legend.get_texts()[0].get_text() == "一様な推測"
