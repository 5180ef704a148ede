"""GGUF files beside llama.cpp itself. Skipped where it is not installed: `python -m bench.peers
llama.cpp` compiles it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import gguf
import pytest
import tokenizers
import torch
from tokenizers import models, pre_tokenizers, trainers

import sightline as sl
from bench import peers
from sightline.checkpoints.formats.gguf.header import gguf_header
from sightline.text.tokenizer import Tokenizer
from sightline.text.vocabulary.gguf import from_metadata
from sightline.text.vocabulary.pre_tokenizers import NAMES, pre_tokenizer
from tests.checkpoints.tiny_gguf import DECODERS, MODELS, make
from tests.support.gguf_architectures import TOKENS, truth, write

ASKED = Path(__file__).with_name("ask_llama_cpp.py")
COUNT = 16
T5 = ("t5", "t5 v1.1")
ENCODERS = ("bert", "roberta", "distilbert", "modernbert", "t5encoder")
COMPARED = [name for name in MODELS if name != "phi3 window"]  # a window that llama.cpp leaves out

pytestmark = pytest.mark.skipif(
    not peers.version("llama.cpp"), reason=f"llama.cpp: {peers.missing_reason('llama.cpp')}"
)


TEXTS = [
    "Hello, world!  It's 3 o'clock; they've left, I'LL wait.",
    "1 12 123 1234 12345 3.14159 -7e10 \u0661\u0662\u0663 \u00bd \u2167",
    "\u4f60\u597d\uff0c\u4e16\u754c\u3002\u6771\u4eac\u306f\u65e5\u672c\u306e\u9996\u90fd\u3067\u3059\u3002 \ud55c\uad6d\uc5b4 \ud14d\uc2a4\ud2b8",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 caf\u00e9 na\u00efve \u00c5ngstr\u00f6m \u041f\u0440\u0438\u0432\u0435\u0442 \u0645\u0631\u062d\u0628\u0627",
    "  two   three\t\ttabs \n\n\n lines\r\nend   ",
    "def f(x):\n    return x**2 + [1, 2][0]  # `code` <b>\u00a0\u3000</b>",
    "a\u3000b \u3000\u3000c\u3002\u3000",
    "$100 = 80\u20ac; 50% off!!! ... \u2026 \u201cquoted\u201d \u2018x\u2019 (y) {z} ^~|",
    " ", "\n", "   ", "x" * 40, "\u0301\u0308",
]  # fmt: skip


def ask(questions: list[dict[str, Any]]) -> list[Any]:
    """llama.cpp's answers, from a process of its own."""
    done = subprocess.run(
        [str(peers.python()), str(ASKED)],
        input=json.dumps(questions),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def greedy(path: Path, *, start: list[int], source: torch.Tensor | None = None) -> list[int]:
    """Our tokens, up to where the best is not ahead of the next by more than llama.cpp's rounding
    (its GELU is a table of float16)."""
    model = sl.load(path, engine="torch", dtype="float32")
    tokens = list(start)
    for _ in range(COUNT):
        with torch.no_grad():
            logits = model.transformer(
                torch.tensor([tokens]), **({} if source is None else {"source": source})
            )[0, -1]
        best, second = logits.topk(2).values.tolist()
        if best - second < 1e-3 * float(logits.abs().max()):
            break
        tokens.append(int(logits.argmax()))
    return tokens[len(start) :]


def check_same(ours: list[int], theirs: list[int]) -> None:
    assert len(ours) >= COUNT // 2, "too few clear choices to compare: take another seed"
    assert ours == theirs[: len(ours)]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Any]]:
    """A file of each model and what llama.cpp says of it, asked all at once."""
    folder, questions = tmp_path_factory.mktemp("models"), {}
    for name in COMPARED:
        path = folder / f"{name}.gguf"
        write(make(name), path)
        asked = "states" if name in ENCODERS else "translate" if name in T5 else "greedy"
        questions[name] = {
            "ask": asked,
            "path": str(path),
            "prompt": TOKENS[0].tolist(),
            "count": COUNT,
        }
    result = ask(list(questions.values()))
    return {
        name: (Path(question["path"]), answer)
        for (name, question), answer in zip(questions.items(), result, strict=True)
    }


@pytest.mark.parametrize("name", [name for name in DECODERS if name != "phi3 window"])
def test_greedy_tokens_are_those_of_llama_cpp(
    name: str, answers: dict[str, tuple[Path, Any]]
) -> None:
    path, theirs = answers[name]
    check_same(greedy(path, start=TOKENS[0].tolist()), theirs)


@pytest.mark.parametrize("name", T5)
def test_t5_writes_the_tokens_of_llama_cpp(name: str, answers: dict[str, tuple[Path, Any]]) -> None:
    path, theirs = answers[name]
    check_same(greedy(path, start=[0], source=TOKENS), theirs)


@pytest.mark.parametrize("name", ENCODERS)
def test_hidden_states_of_encoders_are_those_of_llama_cpp(
    name: str, answers: dict[str, tuple[Path, Any]]
) -> None:
    """To the precision of its GELU, which is the tanh form in a table of float16."""
    _, theirs = answers[name]
    torch.testing.assert_close(torch.tensor([theirs]), truth(make(name), name), rtol=0, atol=0.02)


@pytest.fixture(scope="module")
def vocabularies(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """For each of GGUF's pre-tokenizers a vocabulary that it had a part in, in a file without
    weights."""
    folder = tmp_path_factory.mktemp("vocabularies")
    return {name: vocabulary_only(folder / f"{name}.gguf", name) for name in NAMES}


def vocabulary_only(path: Path, name: str) -> Path:
    """A byte-level vocabulary of 600 pieces, trained on the texts themselves."""
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer(NAMES[name])
    letters = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=600, initial_alphabet=letters, show_progress=False)
    )
    model = json.loads(tokenizer.to_str())["model"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(name)
    writer.add_token_list(sorted(model["vocab"], key=model["vocab"].get))
    writer.add_token_types([1] * len(model["vocab"]))
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    for key in ("bos", "eos", "unk"):
        getattr(writer, f"add_{key}_token_id")(0)
    writer.add_add_bos_token(False)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_texts_have_the_ids_of_llama_cpp(vocabularies: dict[str, Path]) -> None:
    answers = ask(
        [{"ask": "encode", "path": str(path), "texts": TEXTS} for path in vocabularies.values()]
    )
    for (name, path), theirs in zip(vocabularies.items(), answers, strict=True):
        vocabulary = from_metadata(path, gguf_header(path).metadata)
        assert vocabulary is not None
        tokenizer = Tokenizer.from_gguf(vocabulary)
        for text, ids in zip(TEXTS, theirs, strict=True):
            assert tokenizer.encode(text) == ids, (name, text)
