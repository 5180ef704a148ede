"""Train a tokenizer from text files: byte-level BPE (GPT-2's), or Unigram over the same letters for
bytes.

    tokenizer = train_tokenizer(["novel.txt"], vocab_size=8000)
    save_tokenizer(tokenizer, "my-tokenizer/")   Tokenizer.from_folder and transformers open it

Every byte is a token, so these tokenizers can encode any text. Files are read in parts: memory
grows with the number of different words, not with the size of the files."""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from sightline.errors import CheckpointError, InputError, nearest
from sightline.files.atomic import write_text
from sightline.text.engines.engine import call_native

Kind = Literal["bpe", "unigram"]
Progress = Callable[[str, int, int], None]
"""Current step, bytes done, total bytes."""

END = "<|endoftext|>"
PAD = "<|pad|>"
SPECIAL = (END, PAD, "<|im_start|>", "<|im_end|>")
SMALLEST = 256 + len(SPECIAL)
LARGEST = 1_000_000
READ = 64 * 1024  # bytes at once: the longest part that training gets
NAMES = ("tokenizer.json", "tokenizer_config.json")


def train_tokenizer(
    files: Sequence[Path | str],
    *,
    vocab_size: int = 8000,
    kind: Kind = "bpe",
    uncased: bool = False,
    progress: Progress | None = None,
) -> tokenizers.Tokenizer:
    """Learn `vocab_size` tokens, including the 256 bytes and four special ones; an InputError if
    the texts do not have as many. `uncased` gives a word the same tokens wherever it stands: text
    is lower-cased, and a text's first word gets the space that later words have."""
    check_vocabulary(vocab_size, kind)
    paths = [check_text_file(Path(file)) for file in files]
    if not paths:
        raise InputError("no text to learn from", expected="at least one file")
    text = TextParts(paths, progress or (lambda what, done, total: None))
    tokenizer, trainer = (_bpe if kind == "bpe" else _unigram)(vocab_size)
    if uncased:
        tokenizer.normalizer = normalizers.Lowercase()
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([_prefix_space(), _split_bytes()])
    _run(tokenizer, trainer, text)
    size = tokenizer.get_vocab_size()
    if size < vocab_size:
        seen = f"the texts have only {size:,} tokens to learn, {vocab_size:,} were requested"
        raise InputError(seen, expected="more text or fewer tokens", fix=_possible_size(size, kind))
    return tokenizer


def _run(tokenizer: tokenizers.Tokenizer, trainer: Any, text: TextParts) -> None:
    """The Rust call; an error in a file takes precedence over Rust's error about it."""
    try:
        call_native(
            "training",
            "be learned",
            lambda: tokenizer.train_from_iterator(iter(text), trainer=trainer),
        )
    except CheckpointError as error:
        raise text.failure or InputError(error.seen, fix="more text, or fewer tokens") from None
    if text.failure is not None:
        raise text.failure


def _possible_size(learned: int, kind: Kind) -> str:
    """A size that works (Unigram prunes more for smaller vocabularies), if there is one."""
    size = learned if kind == "bpe" else learned * 9 // 10
    return f"--vocab {size}" if size >= smallest_vocabulary(kind) else "give more text"


def smallest_vocabulary(kind: str) -> int:
    """The smallest vocabulary: every byte, the special tokens, and for Unigram one more piece,
    which the library requires."""
    return SMALLEST + (kind == "unigram")


def check_vocabulary(vocab_size: int, kind: str) -> None:
    """Check the size and the kind."""
    if kind not in get_args(Kind):
        raise InputError(
            f"no kind of tokenizer is called {kind[:40]!r}", fix=nearest(kind[:40], get_args(Kind))
        )
    low = smallest_vocabulary(kind)
    if not low <= vocab_size <= LARGEST:
        expected = f"{low} (every byte and {low - 256} more) to {LARGEST:,}"
        raise InputError(
            f"a vocabulary of {vocab_size:,}",
            expected=expected,
            fix=f"--vocab {low if vocab_size < low else 8000}",
        )


def check_text_file(path: Path) -> Path:
    """The path of an existing file that is not empty."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror})", expected="a text file"
        ) from None
    if not path.is_file():
        raise InputError(
            f"{path}: is not a file",
            expected="a text file",
            fix=f"{path}{os.sep}*.txt" if path.is_dir() else "",
        )
    if size == 0:
        raise InputError(f"{path}: is empty", expected="a text file")
    return path


class TextParts:
    """The files in parts of at most READ characters, split between words where possible.

    An exception cannot pass through the Rust library, so it is kept in `failure`.
    """

    def __init__(self, paths: Sequence[Path], progress: Progress) -> None:
        self._paths = paths
        self._progress = progress
        self._total = sum(path.stat().st_size for path in paths)
        self._done = 0
        self.failure: InputError | None = None

    def __iter__(self) -> Iterator[str]:
        for path in self._paths:
            try:
                yield from self._parts(path)
            except (UnicodeDecodeError, ValueError):
                self.failure = InputError(
                    f"{path}: is not text in UTF-8",
                    expected="a text file",
                    fix="iconv -t utf-8, or leave it out",
                )
                return
            except OSError as error:
                self.failure = InputError(
                    f"{path}: cannot be read ({error.strerror})", expected="a text file"
                )
                return

    def _parts(self, path: Path) -> Iterator[str]:
        """One file."""
        decoder = codecs.getincrementaldecoder("utf-8-sig")()
        rest = ""
        with path.open("rb") as file:
            while chunk := file.read(READ):
                if b"\0" in chunk:
                    raise ValueError("binary")
                part, rest = between_words(rest + decoder.decode(chunk))
                self._done += len(chunk)
                self._progress("reading", self._done, self._total)
                yield part
        yield rest + decoder.decode(b"", final=True)


def between_words(text: str) -> tuple[str, str]:
    """Split before the last space or newline, or at the end of a text without any."""
    at = max(text.rfind(" "), text.rfind("\n"))
    return (text[:at], text[at:]) if at > 0 else (text, "")


def _bpe(vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    """BPE: merges of pairs that occur at least twice."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _byte_level(models.BPE()), trainer


def _unigram(vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    """Unigram: the most probable pieces."""
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _byte_level(models.Unigram()), trainer


def _byte_level(model: Any) -> tokenizers.Tokenizer:
    """GPT-2's pre-tokenizer and byte alphabet."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = _split_bytes()
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _split_bytes() -> Any:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _prefix_space() -> Any:
    """A space before the first word. (ByteLevel's own `add_prefix_space` would also put one after
    each special token: before the full stop of "by [MASK].")"""
    return pre_tokenizers.Metaspace(replacement=" ", prepend_scheme="first", split=False)


def save_tokenizer(tokenizer: tokenizers.Tokenizer, folder: Path | str) -> Path:
    """Write tokenizer.json and tokenizer_config.json into a folder that has no tokenizer yet."""
    folder = check_output_folder(Path(folder))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END,
        "eos_token": END,
        "pad_token": PAD,
        "additional_special_tokens": list(SPECIAL[2:]),
        "clean_up_tokenization_spaces": False,
    }
    texts = (tokenizer.to_str(pretty=True), json.dumps(config, indent=2))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in zip(NAMES, texts, strict=True):
            write_text(folder / name, text)
    except OSError as error:
        raise InputError(
            f"{folder}: cannot be written ({error.strerror})", fix="give another folder"
        ) from None
    return folder


def check_output_folder(folder: Path) -> Path:
    """A new or existing folder without a tokenizer."""
    existing = next((name for name in NAMES if (folder / name).exists()), None)
    if existing is not None:
        raise InputError(
            f"{folder}: has a {existing} already",
            expected="a folder without a tokenizer",
            fix="give another folder",
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file", expected="a folder")
    return folder
