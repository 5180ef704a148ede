"""Ask llama.cpp about GGUF files: run by the Python of `bench.peers`, questions as JSON on the
standard input, answers on the output.

{"ask": "greedy", "path": …, "prompt": [ids], "count": 8}     the tokens that follow
{"ask": "translate", "path": …, "prompt": …, "count": …}      the same of an encoder-decoder
{"ask": "states", "path": …, "prompt": …}                     an encoder's last hidden states
{"ask": "encode", "path": …, "texts": […]}                    the ids of texts
"""

from __future__ import annotations

import ctypes
import json
import sys
from typing import Any

import llama_cpp as llama  # pyright: ignore[reportMissingImports]

FLOATS = ctypes.POINTER(ctypes.c_float)


def opened(path: str, *, vocabulary_only: bool = False) -> Any:
    wanted = llama.llama_model_default_params()
    wanted.vocab_only = vocabulary_only
    wanted.n_gpu_layers = 0
    model = llama.llama_model_load_from_file(path.encode(), wanted)
    if not model:
        sys.exit(f"llama.cpp could not read {path}")
    return model


def context_of(model: Any, *, embeddings: bool = False) -> Any:
    """Keys and values in float32, attention as it is written."""
    wanted = llama.llama_context_default_params()
    wanted.n_ctx = wanted.n_batch = wanted.n_ubatch = 64
    wanted.n_threads = wanted.n_threads_batch = 1
    wanted.type_k = wanted.type_v = llama.GGML_TYPE_F32
    wanted.flash_attn_type = 0
    wanted.embeddings = embeddings
    wanted.pooling_type = 0
    return llama.llama_init_from_model(model, wanted)


def run(call: Any, context: Any, tokens: list[int], start: int) -> None:
    batch = llama.llama_batch_init(len(tokens), 0, 1)
    batch.n_tokens = len(tokens)
    for n, token in enumerate(tokens):
        batch.token[n] = token
        batch.pos[n] = start + n
        batch.n_seq_id[n] = 1
        batch.seq_id[n][0] = 0
        batch.logits[n] = True
    failed = call(context, batch)
    llama.llama_batch_free(batch)
    if failed:
        sys.exit(f"llama.cpp gave {failed}")


def follow(context: Any, model: Any, tokens: list[int], count: int) -> list[int]:
    """Greedy decoding."""
    size = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    result: list[int] = []
    start = 0
    while len(result) < count:
        run(llama.llama_decode, context, tokens, start)
        start += len(tokens)
        logits = ctypes.cast(llama.llama_get_logits_ith(context, -1), FLOATS)
        tokens = [max(range(size), key=lambda n, logits=logits: logits[n])]
        result += tokens
    return result


def greedy(question: dict[str, Any]) -> list[int]:
    model = opened(question["path"])
    return follow(context_of(model), model, question["prompt"], question["count"])


def translate(question: dict[str, Any]) -> list[int]:
    model = opened(question["path"])
    context = context_of(model)
    run(llama.llama_encode, context, question["prompt"], 0)
    return follow(context, model, [llama.llama_model_decoder_start_token(model)], question["count"])


def states(question: dict[str, Any]) -> list[list[float]]:
    model = opened(question["path"])
    context = context_of(model, embeddings=True)
    run(llama.llama_encode, context, question["prompt"], 0)
    width = llama.llama_model_n_embd(model)
    rows = [llama.llama_get_embeddings_ith(context, n) for n in range(len(question["prompt"]))]
    return [list(ctypes.cast(row, FLOATS)[:width]) for row in rows]


def encode(question: dict[str, Any]) -> list[list[int]]:
    vocabulary = llama.llama_model_get_vocab(opened(question["path"], vocabulary_only=True))
    result: list[list[int]] = []
    for text in question["texts"]:
        data = text.encode()
        room = (llama.llama_token * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), False, False)
        result.append(list(room[:count]))
    return result


if __name__ == "__main__":
    quiet = llama.llama_log_callback(lambda level, text, data: None)
    llama.llama_log_set(quiet, ctypes.c_void_p(0))
    llama.llama_backend_init()
    asked = {"greedy": greedy, "translate": translate, "states": states, "encode": encode}
    print(json.dumps([asked[question["ask"]](question) for question in json.load(sys.stdin)]))
