"""CTranslate2 as a contestant. Its vocabulary consists of the token ids, so that no tokenizer is
involved."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2  # pyright: ignore[reportMissingImports]
import numpy as np
from ctranslate2.converters import TransformersConverter  # pyright: ignore[reportMissingImports]

from bench.native.channel import serve

THREADS = int(sys.argv[1]) if len(sys.argv) > 1 else 2
state: dict[str, Any] = {}


class TokenIdConverter(TransformersConverter):  # pyright: ignore[reportUntypedBaseClass]
    """Converts a Hugging Face folder; the vocabulary is "0", "1", …, and the last id is the end
    token. Marian's last id is padding, which CTranslate2 removes; its end token is the first."""

    def load_tokenizer(self, tokenizer_class: Any, model_name_or_path: str, **kwargs: Any) -> Any:
        keys = json.loads((Path(model_name_or_path) / "config.json").read_text())
        words = [str(n) for n in range(keys["vocab_size"])]
        if keys["model_type"] == "marian":
            words[-1] = "<pad>"
        end = words[keys["eos_token_id"]] if keys["model_type"] == "marian" else words[-1]
        special = {f"{name}_token": end for name in ("bos", "eos", "unk", "pad")}
        return SimpleNamespace(
            get_vocab=lambda: {word: n for n, word in enumerate(words)}, **special
        )


def convert(path: str, kind: str) -> Path:
    """The model in CTranslate2's format, converted once."""
    folder = Path(path).with_name(f"{Path(path).name}-ctranslate2-{kind}")
    if not (folder / "model.bin").is_file():
        TokenIdConverter(path).convert(str(folder), quantization=kind, force=True)
    return folder


def load(question: dict[str, Any]) -> dict[str, Any]:
    state.clear()
    folder = convert(question["path"], question["kind"])
    kind = question["kind"]
    forms = {
        "language": ctranslate2.Generator,
        "encoder": ctranslate2.Encoder,
        "translator": ctranslate2.Translator,
    }
    state["model"] = forms[question.get("form", "language")](
        str(folder), compute_type=kind, inter_threads=1, intra_threads=THREADS
    )
    return {"bytes": (folder / "model.bin").stat().st_size - question.get("unread", 0)}


def generate(prompt: list[int], count: int) -> tuple[list[int], list[float]]:
    """Greedy tokens, and the time at which each was generated."""
    times: list[float] = []
    options = {
        "max_length": count,
        "min_length": count,
        "include_prompt_in_result": False,
        "beam_size": 1,
    }
    results = state["model"].generate_batch(
        [[str(n) for n in prompt]],
        callback=lambda step: times.append(time.perf_counter()),
        **options,
    )
    return results[0].sequences_ids[0], times


def decode(question: dict[str, Any]) -> dict[str, Any]:
    """Time from the first token to the last, without prefill."""
    tokens, times = generate(question["prompt"], question["count"] + 1)
    return {"seconds": times[-1] - times[0], "tokens": tokens}


def prefill(question: dict[str, Any]) -> dict[str, Any]:
    """Prefill and the first token; the logits of the other positions are not computed."""
    start = time.perf_counter()
    generate(question["prompt"], 1)
    return {"seconds": time.perf_counter() - start}


def surprise(question: dict[str, Any]) -> dict[str, Any]:
    tokens: list[int] = question["tokens"]
    logs = np.array(
        state["model"]
        .forward_batch([tokens[:-1]], return_log_probs=True)
        .to_device(ctranslate2.Device.cpu)
    )
    return {
        "nats": -float(logs[0, np.arange(len(tokens) - 1), tokens[1:]].astype(np.float64).sum())
    }


def encode(question: dict[str, Any]) -> dict[str, Any]:
    """Mean-pooled embeddings; the texts are batched by length, longest first."""
    rows: list[list[int]] = question["ids"]
    start = time.perf_counter()
    vectors = [np.empty(0)] * len(rows)
    order = sorted(range(len(rows)), key=lambda n: -len(rows[n]))
    for first in range(0, len(order), 32):
        part = order[first : first + 32]
        states = np.array(state["model"].forward_batch([rows[n] for n in part]).last_hidden_state)
        for n, hidden in zip(part, states, strict=True):
            vectors[n] = hidden[: len(rows[n])].mean(axis=0)
    return {"seconds": time.perf_counter() - start, "first": vectors[0].tolist()}


def translate(question: dict[str, Any]) -> dict[str, Any]:
    count = question["count"]
    start = time.perf_counter()
    sources = [[str(n) for n in row] for row in question["sources"]]
    options = {
        "beam_size": question["beams"],
        "max_decoding_length": count,
        "min_decoding_length": count,
    }
    results = state["model"].translate_batch(sources, max_input_length=0, **options)
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "tokens": [[int(word) for word in result.hypotheses[0]] for result in results],
    }


def version(question: dict[str, Any]) -> dict[str, Any]:
    return {"version": ctranslate2.__version__}


if __name__ == "__main__":
    serve(
        {
            name.__name__: name
            for name in (load, decode, prefill, surprise, encode, translate, version)
        }
    )
