"""What commands print: text from a model or a file can show on a terminal, but never steer it."""

from __future__ import annotations

import io
import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from rich.cells import cell_len

import sightline as sl
from sightline.cli.main import main
from sightline.cli.ui.output import TextWriter, write_json
from sightline.text.tokenizer import Tokenizer
from tests.cli import terminal
from tests.families.oracle import reference
from tests.support.gguf_files import finish, llama_writer
from tests.support.npz_files import META, archive, bart
from tests.tasks import tiny_folders

TITLE = "\x1b]0;owned\x07"  # would rename the window
HOSTILE = [TITLE, "\x9b2J", "\u202eevil", "[bold]b[/nope]", "\x1b[8mhidden", "a\rb"]
STEERING = re.compile(
    r"\x1b\]|\x1b\[8m|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def hostile_tokenizer(place: Path) -> Path:
    """Every token that can be generated holds something that steers a terminal."""
    words = ["[PAD]", "[UNK]", "[MASK]", *HOSTILE]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({word: id for id, word in enumerate(words)}, unk_token="[UNK]")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    names = {"unk_token": "[UNK]", "pad_token": "[PAD]", "mask_token": "[MASK]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, **names).save_pretrained(place)
    return place


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A decoder, a filler, a classifier, a translator, each as a stranger would make it."""
    place = tmp_path_factory.mktemp("hostile")
    tokenizer = Tokenizer.from_folder(hostile_tokenizer(place / "tokenizer"))
    assert tokenizer is not None
    tokenizer.chat_template = "{{ messages[-1].content }}"
    torch.manual_seed(0)
    size = {
        "width": 16,
        "layers": 1,
        "heads": 2,
        "vocab_size": tokenizer.vocab_size,
        "max_positions": 64,
    }
    result = {
        "decoder": sl.Model(sl.build(sl.gpt(**size)).eval(), tokenizer).save(place / "decoder")
    }
    result["filler"] = hostile_tokenizer(place / "filler")
    reference(
        "BertForMaskedLM", tiny_folders.SIZES | {"vocab_size": tokenizer.vocab_size}
    ).save_pretrained(result["filler"])
    result["classifier"] = place / "classifier"
    labels = dict(enumerate(HOSTILE))
    tiny_folders.bert(
        result["classifier"],
        "BertForSequenceClassification",
        id2label=labels,
        label2id={v: k for k, v in labels.items()},
    )
    sounds = {
        "phoneme_chars": "____\x1b]\x9b\u202e",
        "source": f"{TITLE}[bold]x[/nope]\nforged",
        "grapheme_chars": "____abc",
    }
    result["npz"] = archive(place / "model.npz", bart(), META | sounds)
    writer = llama_writer(place / "model.gguf")
    writer.add_tensor(f"{TITLE}[bold]x[/nope].rope_freqs.weight", torch.zeros(4).numpy())
    finish(writer)
    result["gguf"] = place / "model.gguf"
    return {name: str(path) for name, path in result.items()}


COMMANDS: dict[str, tuple[str, ...]] = {
    "generate": ("generate", "decoder", "x", "--max-tokens", "6"),
    "generate with beams": ("generate", "decoder", "x", "--beams", "3", "--max-tokens", "6"),
    "generate with alternatives": (
        "generate",
        "decoder",
        "x",
        "--show",
        "alternatives",
        "--max-tokens",
        "6",
    ),
    "chat": ("chat", "decoder", "x", "--max-tokens", "6"),
    "score": ("score", "decoder", " ".join(HOSTILE), "--show", "tokens"),
    "tokenizer show": ("tokenizer", "show", "decoder", TITLE),
    "trace": ("trace", "decoder", " ".join(HOSTILE)),
    "heads": ("heads", "decoder", " ".join(HOSTILE)),
    "fill": ("fill", "filler", "[MASK] x [MASK]"),
    "classify": ("classify", "classifier", "the cat"),
    "translate": ("translate", "npz", "abc", "--max-tokens", "6"),
    "translate with alignment": ("translate", "npz", "abc", "--alignment", "--max-tokens", "6"),
    "info of npz": ("info", "npz"),
    "info of a folder": ("info", "decoder"),
    "explain": ("explain", "decoder"),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_of_a_models_text_steers_the_terminal(name: str, folders: dict[str, str]) -> None:
    command, *line = COMMANDS[name]
    code, raw = terminal.run(command, *(folders.get(word, word) for word in line))
    assert code == 0, raw
    assert STEERING.search(raw) is None, raw


@pytest.mark.parametrize(
    "command",
    ["generate", "generate with beams", "chat", "fill", "classify", "translate", "info of npz"],
)
def test_what_would_steer_is_shown(command: str, folders: dict[str, str]) -> None:
    name, *line = COMMANDS[command]
    _, raw = terminal.run(name, *(folders.get(word, word) for word in line))
    assert re.search(r"\\x1b|\\x9b|\\u202e", raw)


def test_markup_in_names_is_text(folders: dict[str, str]) -> None:
    _, raw = terminal.run("info", folders["npz"])
    assert "[bold]x[/nope]\\nforged" in raw
    _, raw = terminal.run("classify", folders["classifier"], "the cat")
    assert "[bold]b[/nope]" in raw


def test_errors_of_an_untrusted_file_are_one_line_without_controls(folders: dict[str, str]) -> None:
    for command in ("info", "generate"):
        code, raw = terminal.run(
            command, folders["gguf"], *(["x"] if command == "generate" else [])
        )
        assert code == 2
        assert raw.count("\n") == 1
        assert STEERING.search(raw) is None


def test_generated_text_in_a_pipe_is_exact(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["generate", folders["decoder"], "x", "--max-tokens", "6"]) == 0
    assert (
        capsys.readouterr().out
        == sl.load(folders["decoder"]).generate("x", max_tokens=6).text + "\n"
    )
    assert main(["translate", folders["npz"], "abc", "--max-tokens", "6"]) == 0
    assert (
        capsys.readouterr().out
        == sl.load(folders["npz"]).translate("abc", max_tokens=6).text + "\n"
    )


def test_labels_in_a_pipe_are_clean(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["classify", folders["classifier"], "the cat"]) == 0
    assert STEERING.search(capsys.readouterr().out) is None


def test_json_is_exact_and_steers_nothing(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    write_json(HOSTILE)
    out = capsys.readouterr().out
    assert json.loads(out) == HOSTILE
    assert STEERING.search(out) is None
    _, raw = terminal.run("classify", folders["classifier"], "the cat", "--json")
    assert set(json.loads(raw[: raw.rindex("]") + 1])[0]["probabilities"]) == set(HOSTILE)


# ----------------------------------------------------------------------------- text as it is made

WORDS = "The quick brown fox jumps over the lazy dog, and then it sleeps until the sun comes up again over the hill. "


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """What a terminal of so many columns gets of pieces."""

    def shown(*pieces: str, columns: int = 20) -> str:
        out = Tty()
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.setattr(sys, "stdout", out)
        writer = TextWriter()
        for piece in pieces:
            writer.write(piece)
        writer.end()
        return out.getvalue()

    return shown


@pytest.mark.parametrize("size", [1, 3, 7, 200])
@pytest.mark.parametrize("columns", [20, 40])
def test_streamed_text_breaks_between_words(
    size: int, columns: int, screen: Callable[..., str]
) -> None:
    text = WORDS * 3
    lines = screen(
        *(text[n : n + size] for n in range(0, len(text), size)), columns=columns
    ).splitlines()
    assert " ".join(" ".join(lines).split()) == text.strip()
    assert all(cell_len(line.rstrip()) <= columns for line in lines)
    firsts = [line.split()[0] for line in lines[1:]]
    assert all(
        cell_len(f"{line.rstrip()} {first}") > columns
        for line, first in zip(lines, firsts, strict=False)
    ), "lines are full"


def test_words_longer_than_a_line_and_wide_letters_are_the_terminals_to_break(
    screen: Callable[..., str],
) -> None:
    assert screen("x" * 50) == "x" * 50 + "\n"
    assert screen("猫は" * 30) == "猫は" * 30 + "\n"
    assert screen("    indented\n\n  code\t1") == "    indented\n\n  code\t1\n"


def test_generate_breaks_between_words_on_a_terminal(tmp_path: Path) -> None:
    tiny_folders.word_pieces(tmp_path / "tokenizer")
    tokenizer = Tokenizer.from_folder(tmp_path / "tokenizer")
    assert tokenizer is not None
    torch.manual_seed(0)
    model = sl.build(
        sl.gpt(width=16, layers=1, heads=2, vocab_size=tokenizer.vocab_size, max_positions=256)
    ).eval()
    folder = sl.Model(model, tokenizer).save(tmp_path / "model")
    made = (
        sl.load(folder)
        .generate("the cat", max_tokens=60, temperature=1.0, ignore_eos=True, seed=0)
        .text
    )
    code, raw = terminal.run(
        "generate",
        str(folder),
        "the cat",
        "--max-tokens",
        "60",
        "--temperature",
        "1",
        "--ignore-eos",
        columns=40,
        NO_COLOR="1",
    )
    assert code == 0
    *lines, _, figures = raw.splitlines()
    assert "60 tokens" in f"{_} {figures}"
    assert all(cell_len(line) <= 40 for line in lines)
    assert " ".join(lines).split() == made.split()
