"""GGUF files beside llama.cpp itself. Skipped where it is not installed: `python -m bench.peers llama.cpp` compiles it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from bench import peers
from tests.checkpoints.test_gguf_architectures import TOKENS, truth, write
from tests.checkpoints.tiny_gguf import DECODERS, make

ASKED = Path(__file__).with_name("ask_llama_cpp.py")
COUNT = 16

pytestmark = pytest.mark.skipif(not peers.version("llama.cpp"), reason=f"llama.cpp: {peers.missing('llama.cpp')}")


def ask(questions: list[dict[str, Any]]) -> list[Any]:
    """llama.cpp's answers, from a process of its own."""
    done = subprocess.run([str(peers.python()), str(ASKED)], input=json.dumps(questions), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def greedy(path: Path, *, start: list[int], source: torch.Tensor | None = None) -> list[int]:
    """Our tokens, up to where the best is not ahead of the next by more than llama.cpp's rounding (its GELU is a table of float16)."""
    model = sl.load(path, engine="torch", dtype="float32")
    tokens = list(start)
    for _ in range(COUNT):
        with torch.no_grad():
            logits = model.transformer(torch.tensor([tokens]), **({} if source is None else {"source": source}))[0, -1]
        best, second = logits.topk(2).values.tolist()
        if best - second < 1e-3 * float(logits.abs().max()):
            break
        tokens.append(int(logits.argmax()))
    return tokens[len(start) :]


def check_same(ours: list[int], theirs: list[int]) -> None:
    assert len(ours) >= COUNT // 2, "too few clear choices to compare: take another seed"
    assert ours == theirs[: len(ours)]


# llama.cpp leaves phi3's window out
@pytest.mark.parametrize("name", [name for name in DECODERS if name != "phi3 window"])
def test_greedy_tokens_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    write(make(name), tmp_path / "model.gguf")
    prompt = TOKENS[0].tolist()
    [theirs] = ask([{"ask": "greedy", "path": str(tmp_path / "model.gguf"), "prompt": prompt, "count": COUNT}])
    check_same(greedy(tmp_path / "model.gguf", start=prompt), theirs)


@pytest.mark.parametrize("name", ["t5", "t5 v1.1"])
def test_t5_writes_the_tokens_of_llama_cpp(name: str, tmp_path: Path) -> None:
    write(make(name), tmp_path / "model.gguf")
    [theirs] = ask([{"ask": "translate", "path": str(tmp_path / "model.gguf"), "prompt": TOKENS[0].tolist(), "count": COUNT}])
    check_same(greedy(tmp_path / "model.gguf", start=[0], source=TOKENS), theirs)


@pytest.mark.parametrize("name", ["bert", "roberta", "distilbert", "modernbert", "t5encoder"])
def test_hidden_states_of_encoders_are_those_of_llama_cpp(name: str, tmp_path: Path) -> None:
    """To the precision of its GELU, which is the tanh form in a table of float16."""
    model = make(name)
    write(model, tmp_path / "model.gguf")
    [theirs] = ask([{"ask": "states", "path": str(tmp_path / "model.gguf"), "prompt": TOKENS[0].tolist()}])
    torch.testing.assert_close(torch.tensor([theirs]), truth(model, name), rtol=0, atol=0.02)
