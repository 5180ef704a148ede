"""The models that come with the package: whole, small, and good at what their card says."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest
import sacrebleu

import sightline as sl
from sightline.checkpoints.sources.catalogue import CATALOGUE, CatalogueEntry
from sightline.checkpoints.sources.fetch import folder

ROOT = Path(__file__).parents[1]
SHIPPED = [entry for entry in CATALOGUE.values() if entry.shipped]


@pytest.fixture(scope="module")
def enja() -> sl.Model:
    return sl.load("enja")


@pytest.mark.parametrize("entry", SHIPPED, ids=lambda entry: entry.name)
def test_every_file_is_the_one_that_is_listed(entry: CatalogueEntry) -> None:
    place = folder(entry.name)
    for file in entry.files:
        data = (place / file.path).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (file.size, file.sha256), file.path
    assert {path.name for path in place.iterdir()} == {file.path for file in entry.files}
    assert entry.size <= 20_000_000


def test_the_cat(enja: sl.Model) -> None:
    result = enja.translate("The cat sat on the mat.")
    assert result.text.startswith("猫")
    assert result.text.endswith("。")
    assert " " not in result.text
    source = [token.strip() for token in result.source_tokens]
    target = [token.strip() for token in result.target_tokens]
    row = result.alignment[target.index("猫")]
    assert int(row.argmax()) == source.index("cat")
    assert float(row.max()) > 0.5


@pytest.mark.parametrize(
    ("english", "part"),
    [
        ("I can't swim.", "泳げな"),
        ("Where's my umbrella?", "傘"),
        ("HE DOESN'T LIKE COFFEE!", "コーヒー"),
        ("She is reading a book", "本を読んで"),
        ("It rained yesterday, so I stayed home.", "雨"),
    ],
)
def test_capitals_punctuation_and_contractions_are_its_own_business(
    enja: sl.Model, english: str, part: str
) -> None:
    assert part in enja.translate(english).text


@pytest.mark.parametrize(
    "english", ["Kubernetes is hard.", "naïve café 😀", "xyzzy plugh 12345", "東京"]
)
def test_no_unknown_marks_whatever_is_asked(enja: sl.Model, english: str) -> None:
    result = enja.translate(english)
    assert "unk" not in result.text
    assert "�" not in result.text
    assert "⁇" not in result.text


@pytest.mark.parametrize(
    ("sentence", "word"),
    [
        ("He is taller [MASK] his brother.", "than"),
        ("I drink a cup of ___ every morning.", "coffee"),
        ("SHE ___ TO SCHOOL BY BUS.", "went"),
    ],
)
def test_bert_tiny_fills_gaps(sentence: str, word: str) -> None:
    (gap,) = sl.load("bert-tiny").fill(sentence, top_k=3)
    assert gap.candidates[0].text.strip() == word


def test_bert_tinys_card() -> None:
    card = (folder("bert-tiny") / "README.md").read_text(encoding="utf-8")
    for word in ("CC BY 2.0", "Tatoeba", "Scores", "Limits", "tools.tatoeba"):
        assert word in card


def test_the_card_has_the_required_facts() -> None:
    card = (folder("enja") / "README.md").read_text(encoding="utf-8")
    for word in ("CC BY 2.0", "Tanaka", "BLEU", "chrF", "Limits", "sacrebleu"):
        assert word in card
    assert card.count("| ") >= 20


def test_the_wheel_has_them() -> None:
    assert Path(sl.__file__).parent in folder("enja").parents


def test_the_everyday_sentences_are_a_fair_test_set() -> None:
    """Half of them turn on a word that the training corpus hardly has; none of them is a pair of
    ours that the model was trained on."""
    rows = [
        line.split("\t") for line in (ROOT / "tools" / "enja-everyday.tsv").read_text().splitlines()
    ]
    rare = [row for row in rows if len(row) == 3]
    assert len(rows) >= 100
    assert len(rare) * 2 == len(rows)
    assert all(row[2] in row[0].lower() for row in rare)
    assert len({row[0] for row in rows}) == len(rows)
    trained = {
        words(line.split("\t")[0])
        for line in (ROOT / "tools" / "enja-more.tsv").read_text().splitlines()
    }
    assert not trained & {words(row[0]) for row in rows}


@pytest.mark.long
def test_the_published_everyday_translations_are_enjas(enja: sl.Model) -> None:
    page = (ROOT / "docs" / "enja.md").read_text(encoding="utf-8")
    table = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")][
        1:
    ]
    rows = [
        line.split("\t") for line in (ROOT / "tools" / "enja-everyday.tsv").read_text().splitlines()
    ]
    assert [(cells[0], cells[2]) for cells in table] == [(row[0], row[1]) for row in rows]
    translations = [enja.translate(row[0]).text for row in rows]
    assert [cells[1] for cells in table] == translations
    chrf = sacrebleu.corpus_chrf(translations, [[row[1] for row in rows]]).score
    assert f"chrF {chrf:.1f}" in page
    assert f"{sum(cells[-1].endswith('yes') for cells in table)} of 104" in page


def words(sentence: str) -> str:
    return "".join(letter for letter in sentence.lower() if letter.isalnum())
