"""Patterns of a tokenizer.json run if their time is proportional to the text, and only then."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from sightline.errors import CheckpointError, InputError
from sightline.text.vocabulary.patterns import LAST_SPACES, check_pattern
from tests.support.tokenizer_files import opened, spelling

LETTERS = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
SMALL_LETTERS = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
ENDING = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
REST = r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
START = r"[^\r\n\p{L}\p{N}]?"
REAL = {
    "o200k": f"{START}{LETTERS}*{SMALL_LETTERS}+{ENDING}|{START}{LETTERS}+{SMALL_LETTERS}*{ENDING}|{REST}",
    "bloom": r" ?[^(\s|[.,!?…。，、।۔،])]+",
    "clip": r"<\|startoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    "deepseek, spaces": LAST_SPACES,
    "deepseek, signs": r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
    "deepseek, Chinese": "[一-龥ࠀ-一가-퟿]+",
    "three digits": r"\p{N}{1,3}",
    "groups of three": r"(?:\p{N}{3})+",
    "line ends": r"(?:\r?\n)+(?!\r?\n)",
}


@pytest.mark.parametrize("name", REAL)
def test_patterns_of_real_models_run(name: str) -> None:
    check_pattern("tokenizer.json", REAL[name])


@pytest.mark.parametrize(
    "pattern",
    ["a{1,30000}b", "a+b", "a*[bc]", "a++b", r"(?:ab)+c", r"\w+@", "a+b+c|a", r"(?=.*b)a", "é+b"],
)
def test_patterns_that_take_quadratic_time_are_refused(pattern: str) -> None:
    """The first took 16 seconds for 100,000 letters."""
    start = time.thread_time()
    with pytest.raises(CheckpointError, match="its time is not proportional to the text") as caught:
        check_pattern("tokenizer.json", pattern)
    assert time.thread_time() - start < 20
    assert "Fix: use the model's original tokenizer.json" in str(caught.value)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a?" * 25 + "b", "has more than 1000 ways"),
        ("(?:a|aa)" * 25 + "b", "has more than 1000 ways"),
        ("a{1,9}" * 5 + "b", "has more than 1000 ways"),
        ("x(a+|b)(a+|c)(a+|d)e", "repeats three times"),
        ("(a?a)+b", "repeats a group"),
        ("(?:a{1,16}){1,16}b", "ways|repeats"),
        ("(?:a{1,30}){1,30}b", "repeats a group"),
        (r"(?<x>a|b\g<x>c)", "refers back"),
        (r"(?<x>a)\k<x>", "refers back"),
        ("(?x)# [ \n (a+)+ ]", "a kind that is not supported"),
        ("(?~a+)", "a kind that is not supported"),
        ("(?(1)a|b)", "a kind that is not supported"),
        ("(" * 100 + ")" * 100, "a kind that is not supported"),
        ("a)", "closes a group"),
        ("(a", "opens a group"),
        ("[a", "opens a class"),
    ],
)
def test_patterns_that_cannot_be_bounded_are_refused_without_running_them(
    pattern: str, message: str
) -> None:
    start = time.thread_time()
    with pytest.raises(CheckpointError, match=message):
        check_pattern("tokenizer.json", pattern)
    assert time.thread_time() - start < 1


def test_a_counted_repeat_in_a_tokenizer_json_is_refused(tmp_path: Path) -> None:
    part = {
        "type": "Split",
        "pattern": {"Regex": "a{1,30000}b"},
        "behavior": "Isolated",
        "invert": False,
    }
    (tmp_path / "tokenizer.json").write_text(json.dumps(spelling(pre_tokenizer=part)))
    with pytest.raises(
        CheckpointError, match=r"tokenizer\.json: the pattern 'a\{1,30000\}b' takes"
    ):
        opened(tmp_path)


def test_a_tokenizer_that_looks_for_last_spaces_takes_no_endless_run_of_them(
    tmp_path: Path,
) -> None:
    made = Tokenizer(models.BPE(vocab={"a": 0, " ": 1}, merges=[]))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(LAST_SPACES), "isolated")
    made.save(str(tmp_path / "tokenizer.json"))
    ours = opened(tmp_path)
    assert ours.encode(" a " * 20_000) == [1, 0, 1] * 20_000
    for control in (False, True):
        with pytest.raises(InputError, match="a run of 100000 spaces; expected at most 10000"):
            ours.encode(" " * 100_000 + "a", control=control)
