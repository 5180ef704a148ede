"""OpenVINO GenAI as a contestant. It reads llama.cpp's own files (llama and qwen forms), so the
weights are the same bits."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import openvino  # pyright: ignore[reportMissingImports]
import openvino_genai  # pyright: ignore[reportMissingImports]

from bench.native.channel import serve

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
held: dict[str, Any] = {}


def load(question: dict[str, Any]) -> dict[str, Any]:
    """The file that llama.cpp's contestant wrote beside the given one."""
    held.clear()
    place = Path(question["path"]).with_suffix(f".{question['kind']}.gguf")
    if not place.is_file():
        raise ValueError(f"{place.name} is not there: llama.cpp writes it")
    wanted = openvino_genai.SchedulerConfig()
    wanted.enable_prefix_caching = False  # else a prompt that was read before is not read again
    words = (
        [openvino_genai.Tokenizer(question["words"])] if question["words"] else []
    )  # it wants some, though it is given numbers
    held["model"] = openvino_genai.LLMPipeline(
        str(place), *words, "CPU", scheduler_config=wanted, INFERENCE_NUM_THREADS=THREADS
    )
    numbers = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()
    return {"bytes": place.stat().st_size - question.get("unread", 0), "computes": numbers}


def generate(prompt: list[int], count: int) -> tuple[list[int], Any]:
    """Greedy tokens, and what OpenVINO measured itself."""
    ids = np.array([prompt], dtype=np.int64)
    given = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
    wanted = openvino_genai.GenerationConfig(
        max_new_tokens=count, min_new_tokens=count, do_sample=False, ignore_eos=True
    )
    found = held["model"].generate(given, wanted)
    return list(found.tokens[0]), found.perf_metrics.raw_metrics


def decode(question: dict[str, Any]) -> dict[str, Any]:
    """From the first token to the last: the prompt is not timed."""
    tokens, measured = generate(question["prompt"], question["count"] + 1)
    times = measured.m_new_token_times  # in milliseconds
    return {"seconds": float(times[-1] - times[0]) / 1e3, "tokens": tokens}


def prefill(question: dict[str, Any]) -> dict[str, Any]:
    """A prompt, up to the first token after it."""
    start = time.perf_counter()
    generate(question["prompt"], 1)
    return {"seconds": time.perf_counter() - start}


def version(question: dict[str, Any]) -> dict[str, Any]:
    return {"version": openvino_genai.__version__}


if __name__ == "__main__":
    serve({name.__name__: name for name in (load, decode, prefill, version)})
