"""Files that earlier versions wrote still open and give the same numbers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import sightline as sl
from sightline.cli.main import main
from sightline.engine import store
from sightline.engine.engine import Rows
from sightline.lab import results

FILES = Path(__file__).parent / "files"
STORE_KEY = {"files": [], "of": "a sample"}
STORE_LOGITS = {
    "float32": [0.19681226, -0.03145954, 0.20540163, -0.05166759, 0.05772064, 0.04572177],
    "int8": [0.19739416, -0.03544252, 0.2063649, -0.05077688, 0.05582614, 0.03836991],
    "int4": [0.20156249, -0.03673187, 0.20585342, -0.04998257, 0.06730247, 0.04287],
}


def test_a_model_folder_loads_and_scores_as_before() -> None:
    model = sl.load(FILES / "run" / "model", verify=True)
    logprobs = model.score("the cat sat").logprobs
    assert logprobs[1:4] == pytest.approx([-3.0860012, -3.0116241, -2.9054472], abs=1e-5)


def test_a_run_loads_by_its_folder_and_resumes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, text = tmp_path / "run", tmp_path / "text.txt"
    shutil.copytree(FILES / "run", run)
    shutil.copy(FILES / "text.txt", text)
    assert sl.load(run).generate("the cat", max_tokens=4).tokens == [3, 3, 3, 3]
    settings = (
        "width=16 layers=2 heads=2 context=32 batch=2 steps=6 save_every=2 eval_every=2 warmup=1"
    )
    args = ["train", "shakespeare", "--set", *settings.split(), f"text={text}", "--out", str(run)]
    assert main([*args, "--accept-changes", "--json"]) == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["step"] for event in events if event["kind"] == "step"] == [5, 6]


def test_a_trace_opens_with_the_same_weights() -> None:
    trace = sl.Trace.open(FILES / "trace.safetensors")
    assert trace.text == "the cat sat"
    expected = torch.tensor([0.06263041, 0.16130291, 0.16527751, 0.0665998])
    torch.testing.assert_close(trace.weights(layer=1, head=0)[-1][:4], expected, atol=1e-6, rtol=0)


def test_a_lab_result_reads() -> None:
    result = results.read_result(FILES / "three-words.quick.seed-0.json")
    assert (result.experiment, result.tier, result.seed) == ("three-words", "quick", 0)


@pytest.mark.parametrize("precision", STORE_LOGITS)
def test_packed_weights_open_and_run(precision: str) -> None:
    decoder = sl.llama(width=32, layers=1, heads=2, vocab_size=40, max_positions=16).decoder
    assert decoder is not None
    entry = store.read(FILES / "store" / f"{precision}.packed", STORE_KEY, decoder)
    assert entry is not None
    logits = entry.engine.run([Rows(entry.engine.begin(), [1, 5, 2, 7], 1)])
    assert logits[-1][:6].tolist() == pytest.approx(STORE_LOGITS[precision], abs=1e-5)
