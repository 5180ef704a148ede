"""How a checkpoint wants to be run: what is read, from which file, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sightline.checkpoints.defaults import Defaults, read_defaults
from sightline.checkpoints.source import Source
from sightline.errors import CheckpointError

MARIAN = {
    "bad_words_ids": [[39]],
    "bos_token_id": 0,
    "decoder_start_token_id": 39,
    "eos_token_id": 0,
    "forced_eos_token_id": 0,
    "max_length": 512,
    "num_beams": 6,
    "pad_token_id": 39,
    "renormalize_logits": True,
}


def read(
    at: Path, *, output: dict[str, Any] | None = None, **keys: Any
) -> tuple[Defaults, list[str]]:
    """The defaults of a folder with this generation_config.json and these keys in config.json."""
    if output is not None:
        (at / "generation_config.json").write_text(json.dumps(output))
    source = Source(at, "folder", keys, {})
    return read_defaults(source, 40), source.notes


def test_marian_may_never_write_padding(tmp_path: Path) -> None:
    result, notes = read(tmp_path, output=MARIAN)
    assert result == Defaults(
        begin=0, end=(0,), pad=39, decoder_start=39, banned=(39,), forced_end=0, num_beams=6
    )
    assert notes == []


def test_bart_forces_both_ends(tmp_path: Path) -> None:
    result, _ = read(
        tmp_path,
        output={
            "forced_bos_token_id": 0,
            "forced_eos_token_id": [2],
            "length_penalty": 2.0,
            "num_beams": 4,
        },
    )
    assert (result.forced_begin, result.forced_end, result.length_penalty, result.num_beams) == (
        0,
        2,
        2.0,
        4,
    )


def test_nothing_said_is_nothing_read(tmp_path: Path) -> None:
    assert read(tmp_path) == (Defaults(), [])
    assert read(
        tmp_path, output={"bad_words_ids": None, "suppress_tokens": None, "num_beams": None}
    ) == (Defaults(), [])


def test_old_checkpoints_say_it_in_their_config(tmp_path: Path) -> None:
    result, _ = read(tmp_path, bad_words_ids=[[39], [7]], num_beams=6, forced_bos_token_id=5)
    assert (result.banned, result.num_beams, result.forced_begin) == ((39, 7), 6, 5)
    newer, _ = read(tmp_path, output={"num_beams": 2}, num_beams=6)
    assert newer.num_beams == 2


def test_suppressed_tokens_are_banned_too_and_phrases_are_named(tmp_path: Path) -> None:
    result, notes = read(
        tmp_path, output={"bad_words_ids": [[3], [4, 5], [6]], "suppress_tokens": [6, 7, -1]}
    )
    assert result.banned == (3, 6, 7)
    assert len(notes) == 1
    assert "1 of bad_words_ids are longer than one token" in notes[0]


def test_an_id_that_a_small_copy_cannot_have_is_left_out_of_config_alone(tmp_path: Path) -> None:
    result, notes = read(tmp_path, bad_words_ids=[[58100]], forced_eos_token_id=58100, num_beams=3)
    assert result == Defaults(num_beams=3)
    assert [note.split()[1] for note in notes] == ["forced_eos_token_id", "bad_words_ids"]
    with pytest.raises(CheckpointError, match="bad_words_ids is 58100; expected an id below 40"):
        read(tmp_path, output={"bad_words_ids": [[58100]]})


def test_a_begin_or_end_outside_the_vocabulary_in_generation_config_is_a_note(
    tmp_path: Path,
) -> None:
    result, notes = read(
        tmp_path, output={"bos_token_id": 40, "eos_token_id": [2, 99], "pad_token_id": 3}
    )
    assert result == Defaults(end=(2,), pad=3)
    assert notes == [
        "generation_config.json: bos_token_id 40 is not in the vocabulary of 40, and is ignored",
        "generation_config.json: eos_token_id 99 is not in the vocabulary of 40, and is ignored",
    ]
    with pytest.raises(CheckpointError, match="eos_token_id is 'x'"):
        read(tmp_path, output={"eos_token_id": [2, "x"]})


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("bad_words_ids", [3], r"bad_words_ids is \[3\]; expected a list of lists of ids"),
        ("bad_words_ids", [[]], "a list of lists of ids"),
        ("bad_words_ids", "no", "a list of lists of ids"),
        ("bad_words_ids", [["a"]], "bad_words_ids is 'a'"),
        ("suppress_tokens", [40], "suppress_tokens is 40"),
        ("forced_bos_token_id", True, "forced_bos_token_id is True"),
        ("forced_eos_token_id", 40, "forced_eos_token_id is 40"),
        ("num_beams", 0, "num_beams is 0; expected an integer, 1 or more"),
        ("num_beams", 1.5, "num_beams is 1.5"),
        ("length_penalty", 1e9, "length_penalty is 1000000000.0"),
        ("top_k", -1, "top_k is -1; expected an integer, 0 or more"),
    ],
)
def test_what_no_search_could_obey_is_refused(
    name: str, value: Any, message: str, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match=message) as refusal:
        read(tmp_path, output={name: value})
    assert "\n" not in str(refusal.value)
