"""Train a tokenizer from text files: byte-level BPE (GPT-2's), or Unigram over the same letters for
bytes.

    tokenizer = train(["novel.txt"], vocab_size=8000)
    save(tokenizer, "my-tokenizer/")             Tokenizer.from_folder and transformers open it

Every byte is a token, so there is no text that these tokenizers cannot write. Files are read a part
at a time: the memory that training takes grows with the number of different words, not with the
files.
"""

from __future__ import annotations

import codecs
import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from sightline.errors import CheckpointError, InputError, nearest
from sightline.files.atomic import write_text
from sightline.text.engines.engine import guarded

Kind = Literal["bpe", "unigram"]
Progress = Callable[[str, int, int], None]
"""What is being done, bytes done, bytes in all."""

END = "<|endoftext|>"
PAD = "<|pad|>"
SPECIAL = (END, PAD, "<|im_start|>", "<|im_end|>")
LEAST = 256 + len(SPECIAL)
MOST = 1_000_000
READ = 64 * 1024  # bytes at once, and so the longest part that training sees
NAMES = ("tokenizer.json", "tokenizer_config.json")


def train(
    files: Sequence[Path | str],
    *,
    vocab_size: int = 8000,
    kind: Kind = "bpe",
    progress: Progress | None = None,
) -> tokenizers.Tokenizer:
    """Learn `vocab_size` tokens, the 256 bytes and four special ones among them; refuse if the
    texts do not have so many."""
    check(vocab_size, kind)
    paths = [readable(Path(file)) for file in files]
    if not paths:
        raise InputError("no text to learn from", expected="at least one file")
    text = Text(paths, progress or (lambda what, done, total: None))
    made, trainer = (_bpe if kind == "bpe" else _unigram)(vocab_size)
    _run(made, trainer, text)
    found = made.get_vocab_size()
    if found < vocab_size:
        seen = f"the texts have only {found:,} tokens to learn, {vocab_size:,} were asked for"
        raise InputError(seen, expected="more text or fewer tokens", fix=_possible(found, kind))
    return made


def _run(made: tokenizers.Tokenizer, trainer: Any, text: Text) -> None:
    """The Rust call; what was wrong with a file comes before what Rust says about it."""
    try:
        guarded(
            "training", "be learned", lambda: made.train_from_iterator(iter(text), trainer=trainer)
        )
    except CheckpointError as error:
        raise text.failure or InputError(error.seen, fix="more text, or fewer tokens") from None
    if text.failure is not None:
        raise text.failure


def _possible(found: int, kind: Kind) -> str:
    """A size that will do (Unigram leaves more out the fewer are wanted), if there is one."""
    size = found if kind == "bpe" else found * 9 // 10
    return f"--vocab {size}" if size >= least(kind) else "give more text"


def least(kind: str) -> int:
    """The smallest vocabulary: every byte, the special tokens, and for Unigram one piece more,
    which the library wants."""
    return LEAST + (kind == "unigram")


def check(vocab_size: int, kind: str) -> None:
    """The size and the kind."""
    if kind not in get_args(Kind):
        raise InputError(
            f"no kind of tokenizer is called {kind[:40]!r}", fix=nearest(kind[:40], get_args(Kind))
        )
    low = least(kind)
    if not low <= vocab_size <= MOST:
        expected = f"{low} (every byte and {low - 256} more) to {MOST:,}"
        raise InputError(
            f"a vocabulary of {vocab_size:,}",
            expected=expected,
            fix=f"--vocab {low if vocab_size < low else 8000}",
        )


def readable(path: Path) -> Path:
    """A file that is there and not empty."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror})", expected="a text file"
        ) from None
    if not path.is_file():
        raise InputError(
            f"{path}: is no file",
            expected="a text file",
            fix=f"{path}{os.sep}*.txt" if path.is_dir() else "",
        )
    if size == 0:
        raise InputError(f"{path}: is empty", expected="a text file")
    return path


class Text:
    """The files as parts of text, none longer than READ characters, cut between words where there
    are any.

    An error cannot pass through the Rust library as it is, so it waits in `failure`.
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
                    f"{path}: is no text in UTF-8",
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
    """Cut before the last space or line's end, or at the end of a text without any."""
    at = max(text.rfind(" "), text.rfind("\n"))
    return (text[:at], text[at:]) if at > 0 else (text, "")


def _bpe(vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    """Merges of pairs that come at least twice."""
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _by_bytes(models.BPE()), trainer


def _unigram(vocab_size: int) -> tuple[tokenizers.Tokenizer, Any]:
    """The likeliest pieces."""
    trainer = trainers.UnigramTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    return _by_bytes(models.Unigram()), trainer


def _by_bytes(model: Any) -> tokenizers.Tokenizer:
    """GPT-2's words, and letters for bytes."""
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def save(tokenizer: tokenizers.Tokenizer, folder: Path | str) -> Path:
    """Write tokenizer.json and tokenizer_config.json into a folder that has no tokenizer yet."""
    folder = writable(Path(folder))
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


def writable(folder: Path) -> Path:
    """A folder, there already or not, without a tokenizer."""
    there = next((name for name in NAMES if (folder / name).exists()), None)
    if there is not None:
        raise InputError(
            f"{folder}: has a {there} already",
            expected="a folder without a tokenizer",
            fix="give another folder",
        )
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: is a file", expected="a folder")
    return folder
