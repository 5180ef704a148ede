"""What each token writes: joined, the bytes of tokens are `decode`, for every engine."""

from __future__ import annotations

from pathlib import Path

import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import decoders, models

from sightline.errors import InputError
from sightline.text.engines.rust import RustEngine
from sightline.text.token_bytes import token_byte_table, token_bytes
from sightline.text.tokenizer import Tokenizer
from tests.support.stream_tokenizers import KINDS, TEXTS, tokenizer

KNOWN = [kind for kind in KINDS if kind != "suffix"]
WHOLE = ["bytes", "sentencepiece"]  # these write back every text as it was


def shown(kind: str, text: str) -> str:
    """Marian drops white space around a text."""
    return text.strip() if kind == "marian" else text


@pytest.mark.parametrize("kind", KNOWN)
def test_the_bytes_joined_are_decode(kind: str) -> None:
    made = tokenizer(kind)
    result = token_byte_table(made)
    text_ids = [id for id in range(made.vocab_size) if id not in made.special_ids]
    seen = 0

    @settings(max_examples=200, deadline=None)
    @given(text=TEXTS, ids=st.lists(st.sampled_from(text_ids), max_size=10))
    def check(text: str, ids: list[int]) -> None:
        nonlocal seen
        encoded = [id for id in made.encode(text) if id not in made.special_ids]
        for new in (ids, encoded, [*encoded, *ids]):
            try:
                joined = result.join(new).decode()
            except UnicodeDecodeError:
                continue
            seen += len(new)
            assert shown(kind, joined) == shown(kind, made.decode(new))

    check()
    assert seen > 300


@pytest.mark.parametrize("kind", WHOLE)
def test_the_bytes_of_a_text_are_its_bytes(kind: str) -> None:
    """SentencePiece puts a space before a text, which `within` shows and `opening` does not."""
    made = tokenizer(kind)
    result, within = token_byte_table(made), token_bytes(made)
    space = b" " if kind == "sentencepiece" else b""

    @settings(max_examples=200, deadline=None)
    @given(text=TEXTS.filter(lambda text: "▁" not in text and text))
    def check(text: str) -> None:
        ids = made.encode(text)
        assert b"".join(within[id] for id in ids) == space + text.encode()
        assert result.join(ids) == text.encode()

    check()


def test_each_kind_by_hand() -> None:
    for kind, piece, within, opening in [
        ("bytes", "Ġc", b" c", b" c"),
        ("bytes", "æ", b"\xe6", b"\xe6"),
        ("wordpiece", "##t", b"t", b"##t"),
        ("wordpiece", "cat", b" cat", b"cat"),
        ("sentencepiece", "▁t", b" t", b"t"),
        ("sentencepiece", "<0xE3>", b"\xe3", b"\xe3"),
        ("sentencepiece json", "<0xE3>", b"\xe3", b"\xe3"),
        ("sentencepiece json", "▁t", b" t", b"t"),
        ("sentencepiece json", "<0x20>", b" ", b""),
        ("sentencepiece json", "<0x41>", b"A", b"A"),
        ("metaspace", "▁", b" ", b""),
        ("marian", "▁t", b" t", b"t"),
        ("characters", "日", "日".encode(), "日".encode()),
    ]:
        made = tokenizer(kind)
        id, result = made.id_of(piece), token_byte_table(made)
        assert id is not None, (kind, piece)
        assert (result.within[id], result.opening.get(id, result.within[id])) == (
            within,
            opening,
        ), (
            kind,
            piece,
        )


@pytest.mark.parametrize("kind", KNOWN)
def test_control_tokens_write_nothing(kind: str) -> None:
    made = tokenizer(kind)
    texts = token_bytes(made)
    assert len(texts) == made.vocab_size
    assert all(texts[id] == b"" for id in made.special_ids)


def test_ids_without_a_piece_write_nothing() -> None:
    engine = RustEngine(
        Path("test"), tokenizers.Tokenizer(models.WordLevel(vocab={"a": 0, "b": 4}, unk_token="a"))
    )
    assert token_bytes(Tokenizer(engine)) == [b" a", b"", b"", b"", b" b"]


@pytest.mark.parametrize(
    "decoder", [decoders.BPEDecoder(), decoders.CTC(), decoders.Sequence([decoders.ByteLevel()])]
)
def test_a_decoder_that_looks_around_is_refused(decoder: object) -> None:
    vocab = {"a": 0, "b</w>": 1, "c": 2, "<pad>": 3, "|": 4, "æ": 5, "Ĺ": 6}
    made = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=[]))
    made.decoder = decoder
    with pytest.raises(InputError) as refusal:
        token_bytes(Tokenizer(RustEngine(Path("test"), made)))
    assert "depends on its neighbours" in str(refusal.value)
    assert "\n" not in str(refusal.value)
