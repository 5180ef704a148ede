"""Models that exist, trained further: the loss falls, the rest stays, and Hugging Face opens the
result."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import sightline as sl
from sightline.checkpoints.formats.safetensors import open_safetensors
from sightline.errors import CheckpointError, ConfigError, InputError
from sightline.recipes import RECIPES
from sightline.recipes.finetune import Finetune
from sightline.training.config import Muon
from sightline.training.data.batch import IGNORED
from sightline.training.run import Evaluated
from tests.recipes.tiny_models import LINE, close, goes_down, gpt2, llama, opened, run, t5
from tests.tasks.tiny_folders import bert

IDS = torch.tensor([[0, 20, 30, 40, 50, 60, 70]])


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIGHTLINE_HOME", str(tmp_path / "home"))


@pytest.fixture
def text(tmp_path: Path) -> Path:
    (tmp_path / "text.txt").write_text(LINE * 60)
    return tmp_path / "text.txt"


def small(model: Path | str, **changes: Any) -> Finetune:
    usual = {
        "steps": 24,
        "warmup": 2,
        "eval_every": 12,
        "save_every": 8,
        "batch": 128,
        "context": 32,
        "lr": 0.02,
    }
    return Finetune(**usual | changes, model=str(model))


def weights(path: Path) -> dict[str, torch.Tensor]:
    return {name: entry.read() for name, entry in open_safetensors(path).items()}


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("make", [llama, gpt2])
def test_a_text(make: Any, lora: int, text: Path, tmp_path: Path) -> None:
    base, out = make(tmp_path / "base"), tmp_path / "run"
    events = run(small(base, text=text, lora=lora, matrices="all"), out)
    assert goes_down(
        events, by=0.98 if lora else 0.9
    )  # adapters alone have a frozen, random model to work with
    assert any(isinstance(event, Evaluated) for event in events)
    result = sl.load(out / "model")
    assert result.family == sl.load(base).family
    with torch.no_grad():
        close(result.transformer(IDS), opened(out / "model")(IDS).logits)
    assert (out / "model" / "tokenizer.json").read_bytes() == (base / "tokenizer.json").read_bytes()
    assert (out / "adapter").exists() == bool(lora)
    assert result.generate("the cat", max_tokens=4, temperature=0).text


def test_what_is_frozen_stays_to_the_bit(text: Path, tmp_path: Path) -> None:
    base, out = llama(tmp_path / "base"), tmp_path / "run"
    run(small(base, text=text, lora=2), out)
    before, after = (
        weights(base / "model.safetensors"),
        weights(out / "model" / "model.safetensors"),
    )
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed == {f"model.layers.0.self_attn.{name}.weight" for name in ("q_proj", "v_proj")}
    own = weights(max((out / "checkpoints").glob("step-*")) / "model.safetensors")
    assert torch.equal(
        own["decoder.0.attention.query.weight"], before["model.layers.0.self_attn.q_proj.weight"]
    )
    adapter = weights(out / "adapter" / "adapter_model.safetensors")
    a, b = (
        adapter[f"base_model.model.model.layers.0.self_attn.q_proj.lora_{side}.weight"]
        for side in "AB"
    )
    query = "model.layers.0.self_attn.q_proj.weight"
    torch.testing.assert_close(before[query] + 2 * b @ a, after[query], atol=1e-6, rtol=1e-6)
    assert json.loads((out / "adapter" / "adapter_config.json").read_text())[
        "base_model_name_or_path"
    ] == str(base)


@pytest.mark.parametrize("lora", [0, 3])
def test_resumed_is_uninterrupted(lora: int, text: Path, tmp_path: Path) -> None:
    base = llama(tmp_path / "base")
    recipe = small(base, text=text, lora=lora, steps=9, save_every=3, eval_every=4)
    run(recipe, tmp_path / "whole")
    asked = iter([False] * 5)
    run(recipe, tmp_path / "parts", stop=lambda: next(asked, True))
    assert len(list((tmp_path / "parts" / "checkpoints").glob("step-*"))) < 4
    run(recipe, tmp_path / "parts")
    for name in ("model.safetensors", "optimizer.safetensors"):
        whole, parts = (
            weights(tmp_path / place / "checkpoints" / "step-00000009" / name)
            for place in ("whole", "parts")
        )
        assert whole.keys() == parts.keys()
        assert all(torch.equal(whole[key], parts[key]) for key in whole)
    same = [
        (tmp_path / place / "model" / "model.safetensors").read_bytes()
        for place in ("whole", "parts")
    ]
    assert same[0] == same[1]


def test_a_gguf_file_is_as_good_as_a_folder(text: Path, tmp_path: Path) -> None:
    base = sl.load(llama(tmp_path / "base")).save(tmp_path / "base.gguf", dtype="float32")
    out = tmp_path / "run"
    assert goes_down(run(small(base, text=text), out))
    with torch.no_grad():
        close(sl.load(out / "model").transformer(IDS), opened(out / "model")(IDS).logits)


def test_masked_words(tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "run"
    bert(base, "BertForMaskedLM")
    (tmp_path / "text.txt").write_text("the cat sat on the mat. the dog sat on the log.\n" * 60)
    recipe = small(base, text=tmp_path / "text.txt", lora=0, lr=3e-3, steps=40)
    batch = recipe.job().task.batch(0)
    assert 0 < int((batch.targets != IGNORED).sum()) < 0.2 * batch.tokens.numel()
    assert goes_down(run(recipe, out))
    ids = IDS % 80
    with torch.no_grad():
        close(
            sl.load(out / "model").transformer(ids),
            opened(out / "model", "AutoModelForMaskedLM")(ids).logits,
        )


def test_conversations(tmp_path: Path) -> None:
    base, out = llama(tmp_path / "base"), tmp_path / "run"
    talk = [{"role": "user", "content": "cat?"}, {"role": "assistant", "content": "the cat"}]
    (tmp_path / "chats.jsonl").write_text(
        "".join(json.dumps({"messages": talk}) + "\n" for _ in range(30))
    )
    events = run(small(base, chats=tmp_path / "chats.jsonl", lora=0, context=48, steps=40), out)
    assert goes_down(events, by=0.6)
    assert any(isinstance(event, Evaluated) for event in events)
    assert sl.load(out / "model").chat(talk[:1], max_tokens=6, temperature=0).text == "the cat"


def test_pairs(tmp_path: Path) -> None:
    base, out = t5(tmp_path / "base"), tmp_path / "run"
    (tmp_path / "pairs.tsv").write_text("a cat\tthe cat\non a mat\ton the mat\n" * 20)
    recipe = small(base, pairs=tmp_path / "pairs.tsv", lora=0, steps=30, lr=5e-3)
    batch = recipe.job().task.batch(0)
    assert batch.source is not None
    assert bool(
        (batch.tokens[:, 0] == 1).all()
    )  # the decoder's own first token, then what T5 would be shown
    assert goes_down(run(recipe, out))
    result = sl.load(out / "model").transformer
    with torch.no_grad():
        theirs = opened(out / "model", "AutoModelForSeq2SeqLM")(
            input_ids=IDS, decoder_input_ids=IDS[:, :4]
        ).logits
        close(result(IDS[:, :4], source=IDS), theirs)


@pytest.mark.parametrize("lora", [0, 4])
@pytest.mark.parametrize("make", [llama, "bert"])
def test_labels(make: Any, lora: int, tmp_path: Path) -> None:
    base, out = tmp_path / "base", tmp_path / "run"
    bert(base, "BertForMaskedLM") if make == "bert" else make(base)
    rows = ["a good film,good", "a bad film,bad", "good,good", "the bad cat,bad"] * 10
    (tmp_path / "labels.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    events = run(small(base, labels=tmp_path / "labels.csv", lora=lora, lr=0.01, steps=40), out)
    assert goes_down(events)
    result = sl.load(out / "model")
    assert result.labels == ["bad", "good"]
    assert [one.label for one in result.classify(["a good film", "the bad cat"])] == ["good", "bad"]
    theirs = opened(out / "model", "AutoModelForSequenceClassification")
    assert theirs.config.id2label == {0: "bad", 1: "good"}
    ids = IDS % 80 + 5
    with torch.no_grad():
        close(result.transformer(ids), theirs(ids).logits)
    if lora:
        output = json.loads((out / "adapter" / "adapter_config.json").read_text())
        assert output["task_type"] == "SEQ_CLS"
        assert output["modules_to_save"] == (
            ["bert.pooler.dense", "classifier"] if make == "bert" else ["score"]
        )


def test_a_pooler_is_kept_and_a_classifier_goes_on(tmp_path: Path) -> None:
    base = tmp_path / "base"
    labels = {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
    bert(base, "BertForSequenceClassification", **labels)
    (tmp_path / "two.csv").write_text("text,label\na cat,good\na dog,bad\n")
    (tmp_path / "three.csv").write_text("text,label\na cat,good\na dog,bad\na log,neither\n")
    before = sl.load(base).transformer
    goes_on = small(base, labels=tmp_path / "two.csv", lora=0).job().make()
    assert all(
        torch.equal(p, dict(before.named_parameters())[name])
        for name, p in goes_on.named_parameters()
    )
    new = dict(small(base, labels=tmp_path / "three.csv", lora=0).job().make().named_parameters())
    assert torch.equal(
        new["output.transform.weight"], dict(before.named_parameters())["output.transform.weight"]
    )
    assert new["output.labels.weight"].shape[0] == 3


def test_muon_trains_all_weights(tmp_path: Path) -> None:
    base = t5(tmp_path / "base")
    (tmp_path / "pairs.tsv").write_text("a cat\tthe cat\non a mat\ton the mat\n" * 20)
    recipe = small(base, pairs=tmp_path / "pairs.tsv", lora=0, muon=True, steps=30)
    optimizer = Finetune(lora=0, muon=True).training().optimizer
    assert isinstance(optimizer, Muon)
    assert (optimizer.lr, optimizer.rest.lr) == (0.01, 1e-3)
    assert isinstance(recipe.training().optimizer, Muon)
    assert goes_down(run(recipe, tmp_path / "run"))
    with pytest.raises(ConfigError, match=r"muon with adapters.* Fix: lora=0, or muon=no"):
        small(base, pairs=tmp_path / "pairs.tsv", lora=4, muon=True)


def test_the_command_line_knows_it(text: Path) -> None:
    made = RECIPES["finetune"].from_settings(
        {"model": "gpt2", "text": str(text), "lora": "16", "matrices": "all"}
    )
    assert isinstance(made, Finetune)
    assert (made.lora, made.matrices, made.text) == (16, "all", text)
    assert made.training().optimizer.lr == 2e-4  # pyright: ignore[reportAttributeAccessIssue]
    assert Finetune(lora=0).training().optimizer.lr == 5e-5  # pyright: ignore[reportAttributeAccessIssue]


def test_refusals(text: Path, tmp_path: Path) -> None:
    base = llama(tmp_path / "base")
    with pytest.raises(
        ConfigError, match="nothing to learn from; expected one of text, chats, pairs, labels"
    ):
        small(base).job()
    with pytest.raises(ConfigError, match="text and labels; expected one of"):
        small(base, text=text, labels=text).job()
    with pytest.raises(ConfigError, match="no model to start from"):
        small("", text=text).job()
    with pytest.raises(CheckpointError, match="no file or folder"):
        small(tmp_path / "nowhere", text=text).job()
    with pytest.raises(ConfigError, match="at most 64, the model's context"):
        small(base, text=text, context=100).job()
    with pytest.raises(ConfigError, match="leave dropout out"):
        small(base, text=text, dropout=0.1)
    with pytest.raises(ConfigError, match="lora is -1"):
        small(base, text=text, lora=-1)
    with pytest.raises(InputError, match="not an encoder–decoder"):
        small(base, pairs=text).job()
    with pytest.raises(InputError, match="neither a language model nor a masked one"):
        small(t5(tmp_path / "t5"), text=text).job()
    (tmp_path / "a.csv").write_text("text,label\na,b\nc,d\n")
    with pytest.raises(InputError, match="an encoder–decoder, for labels"):
        small(tmp_path / "t5", labels=tmp_path / "a.csv").job()
    (tmp_path / "base" / "tokenizer.json").unlink()
    with pytest.raises(InputError, match="without tokenizer"):
        small(base, text=text).job()
