"""llama.cpp as a contestant, through its C API. Its quantized files are made by its own
quantizer."""

from __future__ import annotations

import ctypes
import sys
import time
from pathlib import Path
from typing import Any

import llama_cpp as llama  # pyright: ignore[reportMissingImports]
import numpy as np

from bench.native.channel import serve

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
CONTEXT = 1024
FLOATS = ctypes.POINTER(ctypes.c_float)
FILE_TYPES = {
    "f16": llama.LLAMA_FTYPE_MOSTLY_F16,
    "q8_0": llama.LLAMA_FTYPE_MOSTLY_Q8_0,
    "q4_0": llama.LLAMA_FTYPE_MOSTLY_Q4_0,
    "q4_1": llama.LLAMA_FTYPE_MOSTLY_Q4_1,
}
state: dict[str, Any] = {}


def converted(path: str, kind: str) -> Path:
    """The model in one of llama.cpp's types, converted once. `path` is a GGUF file in float32 or
    float16."""
    place = Path(path).with_suffix(f".{kind}.gguf")
    if kind == "as it is":
        return Path(path)
    if not place.is_file():
        part = place.with_suffix(".part")
        parameters = llama.llama_model_quantize_default_params()
        parameters.nthread = THREADS
        parameters.ftype = FILE_TYPES[kind]
        if llama.llama_model_quantize(path.encode(), str(part).encode(), parameters):
            raise ValueError(f"llama.cpp could not write {place.name}")
        part.rename(place)
    return place


def load(question: dict[str, Any]) -> dict[str, Any]:
    """With `exact`, the KV cache is in float32."""
    if state:
        llama.llama_free(state["context"])
        llama.llama_model_free(state["model"])
        state.clear()
    place = converted(question["path"], question["kind"])
    model = llama.llama_model_load_from_file(
        str(place).encode(), llama.llama_model_default_params()
    )
    if not model:
        raise ValueError(f"llama.cpp could not read {place.name}")
    context = context_of(model, exact=question.get("exact", False))
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    state.update(model=model, context=context, vocabulary=vocabulary)
    return {"bytes": place.stat().st_size - question.get("unread", 0)}


def context_of(model: Any, *, exact: bool = False, streams: int = 1) -> Any:
    """Allocate a context for `streams` sequences."""
    parameters = llama.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = CONTEXT * max(1, streams // 8)
    parameters.n_seq_max = streams
    parameters.n_threads = parameters.n_threads_batch = THREADS
    if exact:
        parameters.type_k = parameters.type_v = llama.GGML_TYPE_F32
    return llama.llama_init_from_model(model, parameters)


def run(tokens: list[int], *, everywhere: bool = False) -> None:
    """One forward pass; logits of the last token, or of every token."""
    count = len(tokens)
    start = llama.llama_memory_seq_pos_max(llama.llama_get_memory(state["context"]), 0) + 1
    batch = llama.llama_batch_init(count, 0, 1)
    batch.n_tokens = count
    for n, token in enumerate(tokens):
        batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0] = token, start + n, 1, 0
        batch.logits[n] = everywhere or n == count - 1
    failed = llama.llama_decode(state["context"], batch)
    llama.llama_batch_free(batch)
    if failed:
        raise ValueError(f"llama_decode gave {failed}")


def logits(row: int = -1) -> np.ndarray[Any, Any]:
    values = llama.llama_get_logits_ith(state["context"], row)
    return np.ctypeslib.as_array(ctypes.cast(values, FLOATS), shape=(state["vocabulary"],))


def forget() -> None:
    llama.llama_memory_clear(llama.llama_get_memory(state["context"]), True)


def decode(question: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens after a prompt; prefill is not timed."""
    forget()
    run(question["prompt"])
    tokens = [int(logits().argmax())]
    start = time.perf_counter()
    for _ in range(question["count"]):
        run(tokens[-1:])
        tokens.append(int(logits().argmax()))
    return {"seconds": time.perf_counter() - start, "tokens": tokens}


def step(context: Any, rows: list[list[int]], start: int) -> list[int]:
    """New tokens of each sequence in one batch; the greedy token after each."""
    batch = llama.llama_batch_init(sum(map(len, rows)), 0, 1)
    ends = list[int]()
    n = 0
    for sequence, tokens in enumerate(rows):
        for place, token in enumerate(tokens):
            batch.token[n], batch.pos[n], batch.n_seq_id[n], batch.seq_id[n][0] = (
                token,
                start + place,
                1,
                sequence,
            )
            batch.logits[n] = place == len(tokens) - 1
            n += 1
        ends.append(n - 1)
    batch.n_tokens = n
    failed = llama.llama_decode(context, batch)
    llama.llama_batch_free(batch)
    if failed:
        raise ValueError(f"llama_decode gave {failed}")
    pointers = [llama.llama_get_logits_ith(context, end) for end in ends]
    return [
        int(np.ctypeslib.as_array(ctypes.cast(row, FLOATS), shape=(state["vocabulary"],)).argmax())
        for row in pointers
    ]


def streams(question: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens after many prompts of one length, decoded as one batch; prefill is not
    timed."""
    prompts: list[list[int]] = question["prompts"]
    context = context_of(state["model"], streams=len(prompts))
    try:
        tokens = [step(context, prompts, 0)]
        length = len(prompts[0])
        start = time.perf_counter()
        for n in range(question["count"]):
            tokens.append(step(context, [[token] for token in tokens[-1]], length + n))
        seconds = time.perf_counter() - start
    finally:
        llama.llama_free(context)
    return {"seconds": seconds, "tokens": tokens}


def prefill(question: dict[str, Any]) -> dict[str, Any]:
    """Prefill of a prompt, up to the logits of its last token."""
    forget()
    start = time.perf_counter()
    run(question["prompt"])
    logits()
    return {"seconds": time.perf_counter() - start}


def surprise(question: dict[str, Any]) -> dict[str, Any]:
    """−Σ log p of a window's tokens after the first."""
    forget()
    tokens: list[int] = question["tokens"]
    run(tokens[:-1], everywhere=True)
    nats = 0.0
    for n, target in enumerate(tokens[1:]):
        row = logits(n).astype(np.float64)
        nats += float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[target])
    return {"nats": nats}


def version(question: dict[str, Any]) -> dict[str, Any]:
    return {"version": f"{llama.__version__} of llama-cpp-python"}


if __name__ == "__main__":
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    serve({name.__name__: name for name in (load, decode, streams, prefill, surprise, version)})
