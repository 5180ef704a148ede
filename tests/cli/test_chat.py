"""`sightline chat` as a user meets it: on a real (pseudo) terminal, and in a pipe."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import sightline as sl
from sightline.cli.main import main
from sightline.cli.ui.chat_session import ChatSession
from sightline.conversation import Conversation
from sightline.escapes import escape_controls
from tests.cli.terminal import Terminal
from tests.support.chat_folder import make_folder

STYLE = re.compile(r"\x1b\[[0-9;]*m")
LIMIT = "(ended after 6 tokens: /set max_tokens raises the limit)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_folder(tmp_path_factory.mktemp("chat"), context=4096)


def answer(conversation: Conversation, text: str) -> str:
    """The whole answer, as it is shown."""
    return "".join(piece.text for piece in conversation.say(text)).strip()


def on_screen(conversation: Conversation, text: str) -> str:
    """The same on a terminal, which no answer may steer."""
    return escape_controls(answer(conversation, text))


@pytest.fixture
def terminals() -> Iterator[list[Terminal]]:
    opened: list[Terminal] = []
    yield opened
    for terminal in opened:
        terminal.close()


def test_a_session(folder: Path, tmp_path: Path, terminals: list[Terminal]) -> None:
    terminal = Terminal("chat", str(folder), "--max-tokens", "6", "--temperature", "0")
    terminals.append(terminal)
    model, file = sl.load(folder), tmp_path / "talk.json"
    expected = Conversation(model, max_tokens=6)
    banner = f"{folder}, context 4,096, temperature 0.0, max_tokens 6\n/help lists the commands, Ctrl-D quits\n> "
    assert terminal.wait("> ").endswith(banner)
    assert all(
        f"\n/{name} " in "\n" + terminal.say("/help")
        for name in ("help", "system", "set", "tokens", "retry", "save", "load")
    )
    assert terminal.say("/tokens") == "error: there is no answer yet. Fix: type a message first\n> "
    assert (
        terminal.say("/sytem the mat")
        == "error: unknown command /sytem. Fix: did you mean '/system'?\n> "
    )
    assert terminal.say("/system the mat") == "system message: the mat\n> "
    expected.system = "the mat"
    assert terminal.say("the cat") == f"{on_screen(expected, 'the cat')}\n{LIMIT}\n> "
    assert re.match(
        r"\d+ prompt tokens \(0 reused\), 6 new, [\d.]+ tokens/s, KV cache .* MB, context 1% full",
        terminal.say("/tokens"),
    )
    terminal.say("the dog \\", "  ")
    assert (
        terminal.say("and the log")
        == f"{on_screen(expected, 'the dog ' + chr(10) + 'and the log')}\n{LIMIT}\n> "
    )
    assert "(0 reused)" not in terminal.say("/tokens")
    terminal.say('"""/undo', "  ")
    assert (
        terminal.say('the mat"""')
        == f"{on_screen(expected, '/undo' + chr(10) + 'the mat')}\n{LIMIT}\n> "
    )
    assert terminal.say(f"/save {file}") == f"saved 7 messages to {file}\n> "
    assert Conversation.read(file, model=model).exchanges == expected.exchanges
    assert terminal.say("/undo") == "removed '/undo\\nthe mat' and its answer\n> "
    before = file.read_bytes()
    terminal.say(f"/save {file}", "[y/N] ")
    assert (
        terminal.say("") == f"error: {file} was not overwritten. Fix: /save with another name\n> "
    )
    assert file.read_bytes() == before
    assert (
        terminal.say("/set temperature hot")
        == "error: temperature 'hot'; expected a number, or none. Fix: /set temperature 0.7\n> "
    )
    assert "did you mean 'temperature'?" in terminal.say("/set temperatur 1")
    assert "temperature 1.5, max_tokens 6" in terminal.say("/set temperature 1.5")
    expected.undo()
    expected.undo()
    expected.set(temperature=1.5, seed=1)
    assert terminal.say("/retry").startswith(on_screen(expected, "the dog \nand the log"))
    assert terminal.say("/reset") == "cleared the conversation\n> "
    assert terminal.say(f"/load {file}").startswith("loaded 7 messages; ")
    terminal.type("\x04")
    assert terminal.end() == 0


def test_ctrl_c_stops_the_answer_not_the_program(
    folder: Path, tmp_path: Path, terminals: list[Terminal]
) -> None:
    terminal = Terminal(
        "chat", str(folder), "--max-tokens", "4000", "--temperature", "0", NO_COLOR="1"
    )
    terminals.append(terminal)
    terminal.wait("> ")
    terminal.say("the cat", "on on")
    terminal.type("\x03")
    stopped = terminal.wait("\r\n> ", nudge=True)
    assert stopped.endswith("\n(stopped: the part shown stays in the conversation)\n> ")
    assert "\n\n" not in stopped
    terminal.say(f"/save {tmp_path / 'talk.json'}")
    _, cut = json.loads((tmp_path / "talk.json").read_text(encoding="utf-8"))["messages"]
    assert cut["ended"] == "cut"
    assert cut["content"].startswith(" on on")
    shown = re.sub(r"\^C|\s", "", stopped.partition("(")[0])
    assert shown in re.sub(r"\s", "", escape_controls(cut["content"]))
    terminal.say("/set max_tokens 3")
    terminal.say("the dog")
    assert "(0 reused), 3 new" not in terminal.say("/tokens")
    terminal.type("\x03")
    assert terminal.wait("\r\n> ", nudge=True).endswith(
        "\nCtrl-D, /exit or another Ctrl-C quits\n> "
    )
    terminal.say("/tokens")
    terminal.type("\x03")
    terminal.wait("Ctrl-C quits\r\n> ", nudge=True)
    terminal.type("\x03")
    assert terminal.end() == 0
    assert STYLE.search(terminal.raw.decode(errors="replace")) is None


def test_one_message_one_answer(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    expected = answer(Conversation(sl.load(folder), max_tokens=5, system="the mat"), "the cat")
    (tmp_path / "message.txt").write_text("the cat\n", encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n"))
    line = ["chat", str(folder), "--max-tokens", "5", "--temperature", "0", "--system", "the mat"]
    for more in (["the cat"], [], ["--file", str(tmp_path / "message.txt")]):
        assert main([*line, *more]) == 0
        captured = capsys.readouterr()
        assert captured.out == expected + "\n"
        assert "5 new" in captured.err
        assert "temperature 0.0" in captured.err
        assert "\x1b" not in captured.out + captured.err


def test_json(folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(sl.load(folder), temperature=0.9, seed=4, max_tokens=5)
    answer(conversation, "the cat")
    saved = conversation.save(tmp_path / "talk.json")
    tokens = [piece.event.token for piece in conversation.say("the dog")]
    assert main(["chat", str(folder), "the dog", "--load", str(saved), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["message"] == conversation.messages[-1]
    assert (result["tokens"], result["finish_reason"]) == (tokens, "length")
    assert (
        result["prompt_tokens"]
        == result["figures"]["prompt_tokens"]
        == conversation.figures.prompt_tokens
    )
    assert result["options"] == {"temperature": 0.9, "seed": 4, "max_tokens": 5}
    assert (
        main(["chat", str(folder), "the dog", "--load", str(saved), "--json", "--seed", "7"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["options"]["seed"] == 7


def test_the_checkpoints_own_sampling(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recommended = {
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.9,
        "top_k": 0,
        "repetition_penalty": 1.2,
    }
    settings = folder / "generation_config.json"
    settings.write_text(json.dumps(recommended))
    try:
        assert (
            main(["chat", str(folder), "the cat", "--max-tokens", "2", "--top-p", "0.5", "--json"])
            == 0
        )
    finally:
        settings.unlink()
    assert json.loads(capsys.readouterr().out)["options"] == {
        "temperature": 0.6,
        "top_p": 0.5,
        "repetition_penalty": 1.2,
        "max_tokens": 2,
    }
    assert main(["chat", str(folder), "the cat", "--max-tokens", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["options"] == {"temperature": 0.7, "max_tokens": 2}


def test_the_commands_mistakes(
    folder: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe")))
    (tmp_path / "talk.json").write_text("[]")
    mistakes = {
        ("the cat", "--temperature", "-1"): "temperature is -1.0",
        ("the cat", "--max-tokens", "0"): "max_tokens is 0",
        ("the cat", "--max-tokens", "1.5"): "not an integer",
        ("the cat", "--file", "x.txt"): "a message and a file",
        ("  ",): "an empty message",
        (): "standard input is not UTF-8",
        ("the cat", "--load", str(tmp_path / "none.json")): "none.json cannot be opened",
        ("the cat", "--load", str(tmp_path / "talk.json")): "expected a JSON object",
        ("the cat " * 3000,): "for a context of 4,096",
    }
    for line, words in mistakes.items():
        assert main(["chat", str(folder), *line]) == 2
        captured = capsys.readouterr()
        assert (captured.out, captured.err.count("\n")) == ("", 1)
        assert words in captured.err


def test_a_model_without_template(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain = make_folder(tmp_path, template=None)
    assert main(["chat", str(plain), "the cat"]) == 2
    expected = "error: this model has no chat template; expected a model for chats. Fix: use generate, which continues a text\n"
    assert capsys.readouterr().err == expected


def test_help_does_not_import_torch() -> None:
    code = "import sys; from sightline.cli.main import main; assert main(['chat', '--help']) == 0; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_a_full_context_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    talk = ChatSession(Conversation(sl.load(make_folder(tmp_path)), max_tokens=4))
    talk.handle("the cat sat on the mat " * 12)
    assert "context" not in capsys.readouterr().err
    talk.handle("the dog sat on the log " * 12)
    talk.handle("the cat sat on the log " * 12)
    output = capsys.readouterr().err.splitlines()[-1]
    assert output == "(the context of 256 tokens is full: the oldest exchange had to be dropped)"
