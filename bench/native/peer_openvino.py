"""OpenVINO GenAI as a contestant. It reads llama.cpp's files (llama and qwen architectures), so the
weights are bit for bit the same."""

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
state: dict[str, Any] = {}


def load(question: dict[str, Any]) -> dict[str, Any]:
    """Load the file that the llama.cpp contestant wrote next to the given one."""
    state.clear()
    path = Path(question["path"]).with_suffix(f".{question['kind']}.gguf")
    if not path.is_file():
        raise ValueError(f"{path.name} does not exist: llama.cpp writes it")
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.enable_prefix_caching = False  # otherwise repeated prompts skip the prefill
    # The pipeline requires a tokenizer, although its inputs are token ids.
    tokenizer = [openvino_genai.Tokenizer(question["words"])] if question["words"] else []
    state["model"] = openvino_genai.LLMPipeline(
        str(path), *tokenizer, "CPU", scheduler_config=scheduler, INFERENCE_NUM_THREADS=THREADS
    )
    dtype = openvino.Core().get_property("CPU", "INFERENCE_PRECISION_HINT").to_string()
    return {"bytes": path.stat().st_size - question.get("unread", 0), "computes": dtype}


def generate(prompt: list[int], count: int) -> tuple[list[int], Any]:
    """Greedy tokens, and OpenVINO's own metrics."""
    ids = np.array([prompt], dtype=np.int64)
    inputs = openvino_genai.TokenizedInputs(
        openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids))
    )
    config = openvino_genai.GenerationConfig(
        max_new_tokens=count, min_new_tokens=count, do_sample=False, ignore_eos=True
    )
    result = state["model"].generate(inputs, config)
    return list(result.tokens[0]), result.perf_metrics.raw_metrics


def decode(question: dict[str, Any]) -> dict[str, Any]:
    """Time from the first token to the last, without prefill."""
    tokens, metrics = generate(question["prompt"], question["count"] + 1)
    times = metrics.m_new_token_times  # in milliseconds
    return {"seconds": float(times[-1] - times[0]) / 1e3, "tokens": tokens}


def prefill(question: dict[str, Any]) -> dict[str, Any]:
    """Prefill and the first token."""
    start = time.perf_counter()
    generate(question["prompt"], 1)
    return {"seconds": time.perf_counter() - start}


def version(question: dict[str, Any]) -> dict[str, Any]:
    return {"version": openvino_genai.__version__}


if __name__ == "__main__":
    serve({name.__name__: name for name in (load, decode, prefill, version)})
