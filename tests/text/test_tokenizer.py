"""Tokenizers: every kind of file against the library it comes from, and the inputs that break
tokenizers."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import tokenizers
import transformers
from tokenizers import models, normalizers, pre_tokenizers, processors, trainers

from sightline.errors import CheckpointError, InputError
from sightline.text.engines.sentencepiece import encoded_spans
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.gguf import from_metadata, to_metadata
from sightline.text.vocabulary.patterns import check_pattern
from sightline.text.vocabulary.pre_tokenizers import NAMES, QWEN2, pre_tokenizer
from sightline.text.vocabulary.sentencepiece_model import (
    parse_sentencepiece,
    serialise,
    without_prefix_space,
)
from sightline.text.vocabulary.vocabulary import Vocabulary
from tests.support.tokenizer_files import (
    CORPUS,
    HOSTILE,
    opened,
    sentencepiece_model,
    spelling,
)

TEXTS = [
    "hello world",
    "The CAT sat, didn't it?",
    "  leading and  doubled   spaces \n\n\tand tabs ",
    "日本語の猫 と 犬",
    "emoji 😀 and family 👨‍👩‍👧",
    "1234567 3.14",
    "e\u0301 é ﬁ ½ \u202e",
    "nul \x00 byte",
    "x",
    " ",
]


def byte_bpe(folder: Path) -> Path:
    """GPT-2's two files, from a small text."""
    tokenizer = tokenizers.ByteLevelBPETokenizer()
    tokenizer.train_from_iterator(
        CORPUS, vocab_size=400, special_tokens=["<|endoftext|>"], show_progress=False
    )
    tokenizer.save_model(str(folder))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "GPT2Tokenizer",
                "bos_token": "<|endoftext|>",
                "eos_token": "<|endoftext|>",
            }
        )
    )
    return folder


def word_piece(folder: Path, *, lower: bool) -> Path:
    """BERT's vocab.txt."""
    tokenizer = tokenizers.BertWordPieceTokenizer(lowercase=lower)
    tokenizer.train_from_iterator(CORPUS, vocab_size=300, show_progress=False)
    tokenizer.save_model(str(folder))
    (folder / "tokenizer_config.json").write_text(
        json.dumps(
            {"tokenizer_class": "BertTokenizer", "do_lower_case": lower, "mask_token": "[MASK]"}
        )
    )
    return folder


def test_a_folder_without_a_tokenizer_has_none(tmp_path: Path) -> None:
    assert Tokenizer.from_folder(tmp_path) is None


# ── the same as the library each comes from ──


def test_berts_vocabulary_alone_knows_its_special_tokens(tmp_path: Path) -> None:
    """vocab.txt without tokenizer.json, special_tokens_map.json and tokenizer_config.json."""
    words = [
        "[PAD]",
        "[unused0]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        "sat",
        "##s",
        ".",
        "é",
        "e",
        "on",
    ]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    ours, theirs = (
        Tokenizer.from_folder(tmp_path),
        transformers.BertTokenizer.from_pretrained(tmp_path),
    )
    assert ours is not None
    assert (
        (ours.pad, ours.unknown, ours.mask)
        == (theirs.pad_token_id, theirs.unk_token_id, theirs.mask_token_id)
        == (0, 2, 5)
    )
    assert (ours.bos, ours.eos) == (theirs.bos_token_id, theirs.eos_token_id)
    for text in ("the cats sat.", "The [MASK] sat on é", "[CLS] the [SEP] zzz [PAD] [UNK]", ""):
        assert ours.encode(text, special=True, control=True) == theirs(text)["input_ids"], text
    (tmp_path / "special_tokens_map.json").write_text('{"mask_token": "[unused0]"}')
    named = Tokenizer.from_folder(tmp_path)
    assert named is not None
    assert named.mask == 1


def test_gpt2s_files(tmp_path: Path) -> None:
    ours, theirs = (
        opened(byte_bpe(tmp_path)),
        transformers.GPT2TokenizerFast.from_pretrained(tmp_path),
    )
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text
        assert ours.decode(ours.encode(text)) == text
    assert ours.bos == ours.eos == theirs.eos_token_id
    assert ours.vocab_size == len(theirs)


@pytest.mark.parametrize("lower", [True, False])
def test_berts_file(lower: bool, tmp_path: Path) -> None:
    ours, theirs = (
        opened(word_piece(tmp_path, lower=lower)),
        transformers.BertTokenizer.from_pretrained(tmp_path),
    )
    for text in TEXTS:
        assert ours.encode(text, special=True) == theirs.encode(text), text
    assert ours.token(ours.encode("x", special=True)[0]) == "[CLS]"
    assert ours.mask == theirs.mask_token_id


@pytest.mark.parametrize("kind", ["bytes", "unigram", "wordpiece"])
def test_tokenizer_json(kind: str, tmp_path: Path) -> None:
    """With a template around the text, and truncation and padding that must not act."""
    tokenizer = {"bytes": _bytes_json, "unigram": _unigram_json, "wordpiece": _wordpiece_json}[
        kind
    ]()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 1)]
    )
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=9)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    ours, theirs = (
        opened(tmp_path),
        transformers.PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json")),
    )
    for text in TEXTS:
        assert ours.encode(text, special=True) == theirs.encode(text), text
        assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
    assert ours.decode(ours.encode("hello world", special=True)) == "hello world"


def _bytes_json() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer("qwen2")
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(
            vocab_size=400,
            initial_alphabet=alphabet,
            special_tokens=["<s>", "</s>"],
            show_progress=False,
        ),
    )
    return tokenizer


def _unigram_json() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.Unigram())
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = tokenizers.decoders.Metaspace()
    specials = ["<s>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=200, special_tokens=specials, unk_token="<unk>", show_progress=False
        ),
    )
    return tokenizer


def _wordpiece_json() -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(models.WordPiece(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = tokenizers.decoders.WordPiece()
    specials = ["<s>", "</s>", "<unk>"]
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(vocab_size=300, special_tokens=specials, show_progress=False),
    )
    return tokenizer


SENTENCEPIECE: dict[str, tuple[str, dict[str, Any]]] = {
    "bpe": ("bpe", {}),
    "unigram": ("unigram", {}),
    "unigram, normalised": (
        "unigram",
        {"normalization_rule_name": "nmt_nfkc", "remove_extra_whitespaces": True},
    ),
    "no bytes": ("unigram", {"byte_fallback": False}),
    "no prefix": ("bpe", {"add_dummy_prefix": False}),
    "own pieces": ("bpe", {"user_defined_symbols": ["<tag>"], "control_symbols": ["<call>"]}),
}


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepieces_file(name: str, tmp_path: Path) -> None:
    kind, options = SENTENCEPIECE[name]
    model = sentencepiece_model(kind, **options)
    (tmp_path / "tokenizer.model").write_bytes(model)
    ours, theirs = opened(tmp_path), sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in [*TEXTS, "a <tag> and <call>"]:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert len(ours.offsets(text)) == len(ids)
        if "unk" not in "".join(ours.token(id) for id in ids):
            assert ours.decode(ids) == theirs.decode(ids), text
    assert ours.encode("hello", special=True) == [1, *theirs.encode("hello")]
    assert (ours.bos, ours.eos, ours.vocab_size) == (1, 2, theirs.get_piece_size())


def test_a_part_after_a_special_token_gets_no_space_of_its_own(tmp_path: Path) -> None:
    """With a self-test sample in the model that was written with the space: sentencepiece 0.2.0
    loads no model that fails its samples."""
    model = sentencepiece_model("bpe")
    pieces = " ".join(
        sentencepiece.SentencePieceProcessor(model_proto=model).encode_as_pieces("the cat")
    ).encode()
    sample = b"\x0a\x07the cat\x12" + bytes([len(pieces)]) + pieces
    model += b"\x22" + bytes([len(sample) + 2]) + b"\x0a" + bytes([len(sample)]) + sample
    (tmp_path / "tokenizer.model").write_bytes(model)
    ours, whole = opened(tmp_path), sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in ["the cat sat", "hello world", "a"]:
        first = whole.encode(text)
        result = ours.encode(f"{text}</s>{text}", control=True)
        assert result[: len(first) + 1] == [*first, 2]
        assert "".join(ours.token(id) for id in first) == " " + text
        assert "".join(ours.token(id) for id in result[len(first) + 1 :]) == text


def test_what_we_use_of_sentencepiece_beyond_its_readme(tmp_path: Path) -> None:
    """Offsets come from `serialized_proto`, which no README of 0.2 names; if this fails,
    `encoded_spans` has to find them elsewhere."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model("bpe"))
    text = "the 猫"
    spans = encoded_spans(processor, text)
    assert [id for _, _, id in spans] == processor.encode(text)
    assert (spans[0][0], spans[-1][1]) == (0, len(text.encode()))
    assert without_prefix_space(b"\x1a\x02\x18\x01") == b"\x1a\x02\x18\x01\x1a\x02\x18\x00"


@pytest.mark.parametrize("name", SENTENCEPIECE)
def test_sentencepiece_goes_through_gguf(name: str, tmp_path: Path) -> None:
    """Its model as data, as GGUF's keys, as data, as a model again: the same ids."""
    kind, options = SENTENCEPIECE[name]
    model = sentencepiece_model(kind, **options)
    first = parse_sentencepiece(tmp_path, model)
    metadata = {key: numbers(value) for key, value in to_metadata(first).items()}
    again = from_metadata(tmp_path, metadata)
    assert again is not None
    assert serialise(again) == serialise(first)
    theirs, ours = (
        sentencepiece.SentencePieceProcessor(model_proto=model),
        Tokenizer.from_gguf(again),
    )
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text


def numbers(value: Any) -> Any:
    """Lists of numbers as the GGUF reader gives them."""
    import numpy as np

    return np.array(value) if isinstance(value, list) and not isinstance(value[0], str) else value


def test_marians_files(tmp_path: Path) -> None:
    """Two models over one vocabulary, against transformers' own."""
    models = {
        "source.spm": sentencepiece_model("unigram", byte_fallback=False),
        "target.spm": sentencepiece_model("bpe", byte_fallback=False),
    }
    pieces = ["</s>", "<unk>", ">>fra<<"]
    for name, data in models.items():
        (tmp_path / name).write_bytes(data)
        pieces += [
            piece
            for piece in parse_sentencepiece(tmp_path, data).pieces
            if piece not in pieces and piece != "<s>"
        ]
    (tmp_path / "vocab.json").write_text(
        json.dumps({piece: id for id, piece in enumerate([*pieces, "<pad>"])})
    )
    config = {
        "source_lang": "en",
        "target_lang": "fr",
        "eos_token": "</s>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours, theirs = opened(tmp_path), transformers.MarianTokenizer.from_pretrained(tmp_path)
    for text in ["hello world", "the cat didn't sit", "猫です", ">>fra<<the mat", "😀 two  spaces"]:
        ids = ours.encode(text, special=True)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=True), text
        assert len(ours.offsets(text)) == len(ids) - 1
    assert (ours.eos, ours.pad) == (0, len(pieces))
    assert 0 not in ours.encode("the </s> cat")


def test_added_tokens_follow_sentencepieces_own(tmp_path: Path) -> None:
    model = sentencepiece_model("bpe")
    size = sentencepiece.SentencePieceProcessor(model_proto=model).get_piece_size()
    (tmp_path / "tokenizer.model").write_bytes(model)
    added = {
        str(size): {"content": "<|end|>", "special": True},
        "1": {"content": "<s>", "special": True},
    }
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({"added_tokens_decoder": added, "eos_token": "<|end|>", "add_bos_token": False})
    )
    tokenizer = opened(tmp_path)
    assert tokenizer.eos == size
    assert tokenizer.encode("cat<|end|>", control=True) == [*tokenizer.encode("cat"), size]
    assert size not in tokenizer.encode("cat<|end|>", special=True)


def test_plain_characters(tmp_path: Path) -> None:
    vocab = {
        "<pad>": 0,
        "<s>": 1,
        "</s>": 2,
        "<unk>": 3,
        **{sign: 4 + place for place, sign in enumerate("0123456789+= ")},
    }
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps(
            {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
        )
    )
    tokenizer = opened(tmp_path)
    assert tokenizer.encode("7 + 8=?") == [11, 16, 14, 16, 12, 15, 3]
    assert tokenizer.encode("7 + 8=", special=True) == tokenizer.encode("7 + 8=")
    assert tokenizer.decode([1, 11, 14, 12, 2]) == "7+8"
    assert (tokenizer.pad, tokenizer.bos, tokenizer.eos, tokenizer.vocab_size) == (0, 1, 2, 17)
    made = Tokenizer.from_characters("ab", special=())
    assert made.encode("abba") == [0, 1, 1, 0]
    with pytest.raises(InputError, match="'c' is not in the vocabulary"):
        made.encode("abc")


# ── what a user types is text ──


@pytest.mark.parametrize("kind", ["bytes", "sentencepiece", "wordpiece"])
def test_special_tokens_in_a_text_are_text(kind: str, tmp_path: Path) -> None:
    if kind == "sentencepiece":
        (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model("bpe"))
    else:
        byte_bpe(tmp_path) if kind == "bytes" else word_piece(tmp_path, lower=False)
    tokenizer = opened(tmp_path)
    special = {"bytes": "<|endoftext|>", "sentencepiece": "</s>", "wordpiece": "[SEP]"}[kind]
    plain, control = (
        tokenizer.encode(f"cat {special} dog"),
        tokenizer.encode(f"cat {special} dog", control=True),
    )
    assert not set(plain) & tokenizer.special_ids - {tokenizer.unknown, tokenizer.id_of("[UNK]")}
    assert tokenizer.id_of(special) in control
    assert tokenizer.id_of(special) in tokenizer.special_ids
    assert special in tokenizer.decode(control, skip_special=False)
    assert special not in tokenizer.decode(control)
    if kind != "wordpiece":
        assert tokenizer.decode(plain) == f"cat {special} dog"


def test_tokens_are_readable_and_placed(tmp_path: Path) -> None:
    tokenizer = opened(byte_bpe(tmp_path))
    text = "hello 😀猫"
    ids, spans = tokenizer.encode(text), tokenizer.offsets(text)
    assert tokenizer.token(ids[0]) + tokenizer.token(ids[1]) == "hello "
    assert "\\xf0" in "".join(tokenizer.token(id) for id in ids)
    assert len(spans) == len(ids)
    assert {text[start:end] for start, end in spans} >= {"hello", "😀"}
    assert tokenizer.token(10**6) == "<1000000>"


def test_odd_text_and_ids_do_no_harm(tmp_path: Path) -> None:
    tokenizer = opened(byte_bpe(tmp_path))
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a\ufffdb"
    assert tokenizer.encode("") == []
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode([10**9, -1, *tokenizer.encode("cat"), 2**40]) == "cat"
    assert tokenizer.decode(tokenizer.encode("猫")[:1]) == "\ufffd"


@pytest.mark.parametrize("kind", ["bytes", "bpe", "unigram"])
@pytest.mark.parametrize("sign", ["a", "_", "^", " ", "猫"])
def test_a_long_run_takes_linear_time(kind: str, sign: str, tmp_path: Path) -> None:
    if kind == "bytes":
        byte_bpe(tmp_path)
    else:
        (tmp_path / "tokenizer.model").write_bytes(sentencepiece_model(kind))
    tokenizer, start = opened(tmp_path), time.perf_counter()
    assert tokenizer.encode(sign * 2**18)
    assert time.perf_counter() - start < 10


# ── pre-tokenizers ──


@pytest.mark.parametrize(
    ("name", "pieces"),
    [
        ("gpt-2", ["don", "'t", "Ġ1234", "Ġ", "ĠX"]),
        ("smollm", ["don", "'t", "Ġ", "1", "2", "3", "4", "Ġ", "ĠX"]),
        ("llama-bpe", ["don", "'t", "Ġ", "123", "4", "Ġ", "ĠX"]),
        ("qwen2", ["don", "'t", "Ġ", "1", "2", "3", "4", "Ġ", "ĠX"]),
        ("default", ["don", "'", "t", "Ġ", "123", "4", "Ġ", "ĠX"]),
        ("command-r", ["don", "'t", "Ġ", "1", "2", "3", "4", "Ġ", "ĠX"]),
        ("dbrx", ["don", "'t", "Ġ", "123", "4", "Ġ", "ĠX"]),
        ("falcon", ["don", "'", "t", "Ġ", "123", "4", "Ġ", "ĠX"]),
        ("deepseek-llm", ["don", "'", "t", "Ġ", "1234", "Ġ", "ĠX"]),
        ("deepseek-coder", ["don", "'", "t", "Ġ", "1", "2", "3", "4", "Ġ", "ĠX"]),
        ("bloom", ["don't", "Ġ1234", "Ġ", "ĠX"]),
    ],
)
def test_words_are_cut_as_the_models_cut_them(name: str, pieces: list[str]) -> None:
    assert [piece for piece, _ in pre_tokenizer(name).pre_tokenize_str("don't 1234  X")] == pieces


@pytest.mark.parametrize("name", sorted(set(NAMES.values())))
def test_every_name_has_its_rule_and_comes_back(name: str, tmp_path: Path) -> None:
    """Two that cut alike differ in what the model does besides: merges that are skipped, a normal
    form."""
    tokenizer = Tokenizer.from_vocabulary(
        Vocabulary(where=tmp_path, kind="bytes", pieces=["a"], split=name)
    )
    assert tokenizer.vocabulary().split == name


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*b",
        "(.*)*x",
        r"(\s*a?)+",
        "((ab)*)*",
        r"(a)\1",
        "(?:x+y?){2,}",
        "(" * 5 + "a+" + ")+" * 5,
        "a*a*a*[bc]",
    ],
)
def test_patterns_that_explode_are_refused(pattern: str) -> None:
    with pytest.raises(CheckpointError, match=r"repeats a group|refers back|repeats three times"):
        check_pattern("tokenizer.json", pattern)


@pytest.mark.parametrize(
    "pattern",
    [QWEN2, r"(?i:'s|'t)?\p{L}+", r"[(+)]+", r"\(+", " {2,}", r"(?:\r?\n)+(?!\r?\n)", "[^]a(+]*"],
)
def test_patterns_of_real_models_are_not(pattern: str) -> None:
    check_pattern("tokenizer.json", pattern)


# ── hostile files ──


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_tokenizer_json_is_refused_in_one_line(name: str, tmp_path: Path) -> None:
    text, message = HOSTILE[name]
    (tmp_path / "tokenizer.json").write_text(text)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert message in str(caught.value)
    assert "tokenizer.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_panic_in_rust_is_one_line(tmp_path: Path) -> None:
    """PanicException is a BaseException: `except Exception` would let it end the server."""
    (tmp_path / "tokenizer.json").write_text(
        json.dumps(spelling(decoder={"type": "Strip", "content": "a", "start": 5, "stop": 5}))
    )
    with pytest.raises(CheckpointError, match="the tokenizer cannot decode"):
        opened(tmp_path).decode([0, 1, 0])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"vocab.json": '{"a": 0, "b": 1}', "merges.txt": "#version: 0.2\na c\n"},
            "the tokenizer cannot be built",
        ),
        (
            {"vocab.json": '{"a": 0, "b": 1}', "merges.txt": "a b c\n"},
            "the merge 'a b c' has 3 sides",
        ),
        ({"vocab.json": '{"a": 0, "b": 1}', "merges.txt": f"a {'x' * 5000} c\n"}, "x… has 3 sides"),
        ({"vocab.json": '{"a": 0, "b": 9999}', "merges.txt": ""}, "2 tokens have ids up to 9999"),
        ({"vocab.json": '{"hello": 0, "b": 1}'}, "are not single characters"),
        ({"vocab.txt": "[CLS]\n[SEP]\nhello\n"}, "[UNK] is missing"),
        ({"vocab.txt": "[UNK]\n[CLS]\n[SEP]\na\na\n"}, "a piece comes twice"),
        ({"tokenizer.model": "not a model"}, "is not a SentencePiece model"),
        ({"tokenizer.model": ""}, "is not a SentencePiece model"),
        ({"vocab.txt": "[UNK]\n[CLS]\n[SEP]\na\n", "tokenizer_config.json": "[]"}, "holds a list"),
        (
            {
                "tokenizer.json": json.dumps(spelling()),
                "tokenizer_config.json": '{"bos_token": "\\ud800"}',
            },
            "half of a surrogate pair",
        ),
    ],
)
def test_other_broken_files_are_refused(
    files: dict[str, str], message: str, tmp_path: Path
) -> None:
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(CheckpointError) as caught:
        Tokenizer.from_folder(tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_truncated_sentencepiece_model_is_refused_or_smaller(tmp_path: Path) -> None:
    data = sentencepiece_model("bpe")
    path = tmp_path / "tokenizer.model"
    for length in range(0, len(data), 211):
        path.write_bytes(data[:length])
        with suppress(CheckpointError):
            assert opened(tmp_path).vocab_size <= 340


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizer.ggml.model": "rwkv"}, "tokenizer.ggml.model is 'rwkv'"),
        ({"tokenizer.ggml.pre": "own"}, "tokenizer.ggml.pre is 'own'"),
        ({"tokenizer.ggml.tokens": 3}, "tokenizer.ggml.tokens is missing"),
        ({"tokenizer.ggml.bos_token_id": 99}, "tokenizer.ggml.bos_token_id is '99'"),
        ({"tokenizer.ggml.token_type": numbers([1])}, "tokenizer.ggml.token_type has 1 values"),
        ({"tokenizer.ggml.merges": numbers([1])}, "tokenizer.ggml.merges is not a list of strings"),
    ],
)
def test_ggufs_keys_are_checked(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    metadata = {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": ["a", "b", "ab"],
        "tokenizer.ggml.merges": ["a b"],
    }
    assert from_metadata(tmp_path, metadata) is not None
    with pytest.raises(CheckpointError, match=message):
        from_metadata(tmp_path, metadata | changes)


def test_a_piece_twice_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="the piece 'a' comes twice"):
        Tokenizer.from_vocabulary(
            Vocabulary(where=tmp_path, kind="bytes", pieces=["a", "a"], split="gpt-2")
        )


def test_word_pieces_go_through_gguf(tmp_path: Path) -> None:
    ours = opened(word_piece(tmp_path, lower=True))
    metadata = {key: numbers(value) for key, value in to_metadata(ours.vocabulary()).items()}
    again = from_metadata(tmp_path, metadata)
    assert again is not None
    for text in TEXTS:
        assert Tokenizer.from_gguf(again).encode(text, special=True) == ours.encode(
            text, special=True
        ), text


def test_the_chat_template_is_found(tmp_path: Path) -> None:
    byte_bpe(tmp_path)
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(config | {"chat_template": [{"name": "default", "template": "A"}]})
    )
    assert opened(tmp_path).chat_template == "A"
    (tmp_path / "chat_template.jinja").write_text("B")
    assert opened(tmp_path).chat_template == "B"
