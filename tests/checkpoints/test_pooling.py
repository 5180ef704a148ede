"""sentence-transformers folders: what is read, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from sightline.checkpoints.pooling import Pooling, read_pooling
from sightline.errors import CheckpointError

MEAN = {
    "word_embedding_dimension": 24,
    "pooling_mode_cls_token": False,
    "pooling_mode_mean_tokens": True,
}


def modules(
    *kinds: str, package: str = "sentence_transformers.models", pooling: str = "1_Pooling"
) -> list[dict[str, Any]]:
    places = ["", pooling, "2_Normalize"]
    return [
        {"idx": n, "name": str(n), "path": places[n], "type": f"{package}.{kind}"}
        for n, kind in enumerate(kinds)
    ]


def folder(
    at: Path, *, listed: Any = None, pooling: dict[str, Any] | None = None, **files: dict[str, Any]
) -> Path:
    """A sentence-transformers folder without weights."""
    (at / "1_Pooling").mkdir(parents=True)
    (at / "modules.json").write_text(
        json.dumps(modules("Transformer", "Pooling", "Normalize") if listed is None else listed)
    )
    (at / "config.json").write_text(json.dumps({"hidden_size": 24}))
    (at / "1_Pooling" / "config.json").write_text(json.dumps(MEAN if pooling is None else pooling))
    for name, content in files.items():
        (at / f"{name}.json").write_text(json.dumps(content))
    return at


def test_a_folder_of_another_kind_has_no_pooling(tmp_path: Path) -> None:
    assert read_pooling(tmp_path) is None


def test_mean_and_length_one(tmp_path: Path) -> None:
    at = folder(
        tmp_path / "m", sentence_bert_config={"max_seq_length": 256, "do_lower_case": False}
    )
    assert read_pooling(at) == Pooling(how="mean", normalize=True, max_length=256)


@pytest.mark.parametrize(
    ("pooling", "how"),
    [
        (
            {
                "word_embedding_dimension": 24,
                "pooling_mode_cls_token": True,
                "pooling_mode_mean_tokens": False,
            },
            "first",
        ),
        (
            {
                "word_embedding_dimension": 24,
                "pooling_mode_lasttoken": True,
                "include_prompt": True,
            },
            "last",
        ),
        ({"embedding_dimension": 24, "pooling_mode": "mean", "include_prompt": True}, "mean"),
        ({"embedding_dimension": 24, "pooling_mode": ["cls"]}, "first"),
    ],
)
def test_both_spellings_of_the_mode(tmp_path: Path, pooling: dict[str, Any], how: str) -> None:
    listed = modules(
        "Transformer",
        "Pooling",
        package="sentence_transformers.sentence_transformer.modules.pooling",
    )
    assert read_pooling(folder(tmp_path / "m", listed=listed, pooling=pooling)) == Pooling(
        how=how, normalize=False
    )  # type: ignore[arg-type]


def test_what_is_done_to_the_text(tmp_path: Path) -> None:
    prompts = {
        "__version__": {},
        "prompts": {"query": "query: ", "passage": ""},
        "default_prompt_name": "query",
    }
    at = folder(
        tmp_path / "m",
        sentence_roberta_config={"max_seq_length": None, "do_lower_case": True},
        config_sentence_transformers=prompts,
    )
    assert read_pooling(at) == Pooling(how="mean", normalize=True, lowercase=True, prompt="query: ")


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "two modes": ({"pooling": MEAN | {"pooling_mode_cls_token": True}}, "pooling by cls and mean"),
    "no mode": ({"pooling": {"word_embedding_dimension": 24}}, "pooling by nothing"),
    "max": ({"pooling": {"embedding_dimension": 24, "pooling_mode": "max"}}, "pooling by max"),
    "a mode that is a number": (
        {"pooling": {"embedding_dimension": 24, "pooling_mode": [7]}},
        "pooling by 7",
    ),
    "a flag that is a word": (
        {"pooling": MEAN | {"pooling_mode_cls_token": "no"}},
        "true or false",
    ),
    "an unknown key": ({"pooling": MEAN | {"pooling_mode_median": True}}, "pooling_mode_median"),
    "a prompt left out of the mean": (
        {"pooling": MEAN | {"include_prompt": False}},
        "include_prompt is False",
    ),
    "another width": (
        {"pooling": MEAN | {"word_embedding_dimension": 25}},
        "width is 24, pooling expects 25",
    ),
    "a dense layer": (
        {"listed": modules("Transformer", "Pooling", "Dense")},
        "lists Transformer, Pooling, Dense",
    ),
    "no pooling": ({"listed": modules("Transformer")}, "lists Transformer"),
    "no list": ({"listed": {}}, "no modules"),
    "code of its own": (
        {"listed": modules("Transformer", "Pooling", package="custom_st")},
        "a module is",
    ),
    "a path out of the folder": (
        {"listed": modules("Transformer", "Pooling", pooling="../1_Pooling")},
        "the modules are in",
    ),
    "a missing folder": (
        {"listed": modules("Transformer", "Pooling", pooling="3_Pooling")},
        "is missing",
    ),
    "an unknown limit": ({"sentence_bert_config": {"max_seq_length": 8, "stride": 2}}, "stride"),
    "another task": (
        {"sentence_bert_config": {"transformer_task": "fill-mask"}},
        "transformer_task is 'fill-mask'",
    ),
    "a prompt that is not there": (
        {"config_sentence_transformers": {"prompts": {}, "default_prompt_name": "query"}},
        "lacks 'query'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path: Path, name: str) -> None:
    files, message = REFUSED[name]
    with pytest.raises(CheckpointError, match=message):
        read_pooling(folder(tmp_path / "m", **files))


def test_links_lead_only_into_the_folder_or_the_cache(tmp_path: Path) -> None:
    blobs, outside = tmp_path / "hub" / "blobs", tmp_path / "outside.json"
    blobs.mkdir(parents=True)
    at = folder(tmp_path / "hub" / "snapshots" / "abc")
    link = at / "1_Pooling" / "config.json"
    for target in (blobs / "1234", outside):
        target.write_text(json.dumps(MEAN))
    link.unlink()
    link.symlink_to(blobs / "1234")
    assert read_pooling(at) == Pooling(how="mean", normalize=True)
    link.unlink()
    link.symlink_to(outside)
    with pytest.raises(CheckpointError, match="a link out of the folder"):
        read_pooling(at)
