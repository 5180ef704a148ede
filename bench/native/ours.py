"""Sightline as a contestant: the native engine in one precision at a time."""

from __future__ import annotations

import math
import sys
import time
from typing import Any

import torch

import sightline as sl
from bench.native.channel import serve
from sightline.core.lazy import LazyTransformer
from sightline.engine import store
from sightline.engine.engine import NativeEngine, Rows
from sightline.engine.matrices import check_precision
from sightline.engine.runner import NativeRunner
from sightline.generation.beam import search
from sightline.generation.decode import Request
from sightline.generation.decode import decode as events
from sightline.generation.speculative import decode_lookup

state: dict[str, Any] = {}


def load(question: dict[str, Any]) -> dict[str, Any]:
    """Pack a folder's weights in a precision. The previous model is freed first: two may not fit in
    memory."""
    state.clear()
    engine = NativeEngine.of(
        sl.load(question["path"]).transformer, check_precision(question["kind"])
    )
    store.release(engine)
    state.update(engine=engine, path=question["path"])
    return {"bytes": bytes_per_token(engine)}


def bytes_per_token(engine: NativeEngine) -> int:
    """Bytes of weights read per token: all of them, but only one row of an untied embedding."""
    embedding = engine.packed[0]
    head = engine.packed[engine.program.operations[-1].matrix]
    read = sum(matrix.read_bytes for matrix in engine.packed)
    return read - (
        0 if head is embedding else embedding.read_bytes * (embedding.rows - 1) // embedding.rows
    )


def decode(question: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens after a prompt; prefill is not timed."""
    engine: NativeEngine = state["engine"]
    sequence = engine.begin()
    token = int(engine.run([Rows(sequence, question["prompt"])])[0].argmax())
    tokens = [token]
    start = time.perf_counter()
    for _ in range(question["count"]):
        tokens.append(int(engine.run([Rows(sequence, tokens[-1:])])[0].numpy().argmax()))
    seconds = time.perf_counter() - start
    engine.forget(sequence)
    return {"seconds": seconds, "tokens": tokens}


def streams(question: dict[str, Any]) -> dict[str, Any]:
    """Greedy tokens after many prompts, decoded as one batch; prefill is not timed."""
    engine: NativeEngine = state["engine"]
    sequences = [engine.begin() for _ in question["prompts"]]
    logits = engine.run(
        [
            Rows(sequence, prompt)
            for sequence, prompt in zip(sequences, question["prompts"], strict=True)
        ]
    )
    tokens = [logits.argmax(-1).tolist()]
    start = time.perf_counter()
    for _ in range(question["count"]):
        logits = engine.run(
            [Rows(sequence, [token]) for sequence, token in zip(sequences, tokens[-1], strict=True)]
        )
        tokens.append(logits.argmax(-1).tolist())
    seconds = time.perf_counter() - start
    for sequence in sequences:
        engine.forget(sequence)
    return {"seconds": seconds, "tokens": tokens}


def lookup(question: dict[str, Any]) -> dict[str, Any]:
    """The tokens of `decode` with prompt lookup: several per pass where the text repeats itself.
    They must be the same."""
    if "lookup" not in state:
        state["lookup"] = NativeRunner(
            LazyTransformer.of(sl.load(state["path"]).transformer), state["engine"]
        )
    prompt = torch.tensor([question["prompt"]])
    times = list[float]()
    for count in (1, 1 + question["count"]):
        start = time.perf_counter()
        result = decode_lookup(state["lookup"], prompt, max_tokens=count)
        times.append(time.perf_counter() - start)
    if list(result.tokens) != decode(question)["tokens"]:
        raise ValueError("prompt lookup changed the text")
    return {"seconds": times[1] - times[0], "passes": result.passes}


def prefill(question: dict[str, Any]) -> dict[str, Any]:
    """Prefill of a prompt, up to the logits of its last token."""
    engine: NativeEngine = state["engine"]
    sequence = engine.begin()
    start = time.perf_counter()
    engine.run([Rows(sequence, question["prompt"])])
    seconds = time.perf_counter() - start
    engine.forget(sequence)
    return {"seconds": seconds}


def surprise(question: dict[str, Any]) -> dict[str, Any]:
    """−Σ log p of a window's tokens after the first."""
    engine: NativeEngine = state["engine"]
    tokens: list[int] = question["tokens"]
    sequence = engine.begin()
    logits = engine.run([Rows(sequence, tokens[:-1], logits=len(tokens) - 1)])
    engine.forget(sequence)
    nats = torch.nn.functional.cross_entropy(
        logits.double(), torch.tensor(tokens[1:]), reduction="sum"
    )
    assert math.isfinite(float(nats))
    return {"nats": float(nats)}


def load_model(question: dict[str, Any]) -> dict[str, Any]:
    """A full model with its tasks, for encoders and encoder–decoders."""
    state.clear()
    state["model"] = sl.load(question["path"], engine="native", dtype=question["kind"])
    return {}


def encode(question: dict[str, Any]) -> dict[str, Any]:
    model = state["model"]
    start = time.perf_counter()
    vectors = model.embed(question["texts"])
    return {"seconds": time.perf_counter() - start, "first": vectors[0].tolist()}


def translate(question: dict[str, Any]) -> dict[str, Any]:
    """`count` tokens per source, greedy or with beam search."""
    runner = state["model"].runner
    sources = question["sources"]
    first = question["start"]
    count = question["count"]
    start = time.perf_counter()
    if question["beams"] == 1:
        requests = [Request(prompt=[first], max_tokens=count, source=source) for source in sources]
        tokens = [[event.token for event in events(runner, request)] for request in requests]
    else:
        begin = torch.full((len(sources), 1), first)
        source = torch.tensor(sources)
        hypotheses = search(
            runner, begin, beams=question["beams"], max_tokens=count, end=(), source=source
        )
        tokens = [list(best.tokens) for (best, *_) in hypotheses]
    return {"seconds": time.perf_counter() - start, "tokens": tokens}


HANDLERS = {
    "load": load,
    "load_model": load_model,
    "decode": decode,
    "streams": streams,
    "lookup": lookup,
    "prefill": prefill,
    "surprise": surprise,
    "encode": encode,
    "translate": translate,
}

if __name__ == "__main__":
    torch.set_num_threads(int(sys.argv[1]))
    serve(HANDLERS)
