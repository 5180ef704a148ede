"""A trace as one safetensors file, with everything else as JSON in its metadata. Reading needs
neither the model nor pickle.

The metadata has a SHA-256 of the JSON and of every tensor: a file with any change is refused. The
content is validated all the same, since files of earlier versions have no digest, and an untrusted
file can have a valid one.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from sightline.config import ModelConfig
from sightline.config.values import from_plain, to_plain
from sightline.core.attention import Scoring
from sightline.core.masks import Mask
from sightline.core.positions import ALiBiBias, Bias, TensorBias
from sightline.errors import InputError, SightlineError
from sightline.files.atomic import atomic_write
from sightline.lens.trace.layer import Look, TableBias
from sightline.lens.trace.subject import Token
from sightline.lens.trace.trace import Trace
from sightline.record import Place

FORMAT = "sightline trace 2"
FORMAT_WITHOUT_DIGEST = "sightline trace 1"  # written by earlier versions
FIX = "model.trace(text).save(file)"
Tensors = dict[str, Tensor]


def save_trace(trace: Trace, file: Path) -> Path:
    """Write a trace atomically: to a temporary file that is then renamed."""
    tensors: Tensors = {"logits": trace.logits}
    layers = [
        _layer_to_json(f"look.{n}", look, tensors) for n, look in enumerate(trace.looks.values())
    ]
    recorded = [
        {"place": list(place), "tensor": _store_tensor(tensors, f"kept.{n}", value)}
        for n, (place, value) in enumerate(trace.kept.items())
    ]
    data = {
        "name": trace.name,
        "config": to_plain(trace.config),
        "text": trace.text,
        "source_text": trace.source_text,
        "tokens": [asdict(token) for token in trace.tokens],
        "source": None if trace.source is None else [asdict(token) for token in trace.source],
        "rows": [trace.rows.start, trace.rows.stop],
        "looks": layers,
        "kept": recorded,
        "notes": list(trace.notes),
    }
    contiguous = {
        name: value.detach().clone(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }
    try:
        text = json.dumps(data)
        with atomic_write(file) as part:
            # not `save_file`: it renames a file of its own over ours, which is then not on disk yet
            digest = trace_digest(FORMAT, text, contiguous)
            part.write(save(contiguous, {"form": FORMAT, "trace": text, "sha256": digest}))
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{file} cannot be written: {_one_line(error)}",
            fix="give a place that can be written to",
        ) from None
    return file


def open_trace(file: Path) -> Trace:
    """Read a file of `save_trace`; anything else is refused."""
    head, tensors = _read_file(file)
    form = head.get("form")
    if form not in (FORMAT, FORMAT_WITHOUT_DIGEST):
        raise InputError(f"{file} is not a trace", expected=f"{FORMAT!r} in its metadata", fix=FIX)
    try:
        text = head["trace"]
        if form == FORMAT or "sha256" in head:
            _require(
                head.get("sha256") == trace_digest(form, text, tensors),
                "its content does not match its SHA-256",
            )
        return _trace_from_json(json.loads(text), tensors)
    except (
        SightlineError,
        ArithmeticError,
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise InputError(
            f"{file} is a damaged trace: {_one_line(error)}",
            expected="a complete file of trace.save",
            fix=FIX,
        ) from None


def trace_digest(form: str, text: str, tensors: Tensors) -> str:
    """SHA-256 of the format, the JSON and every tensor."""
    digest = hashlib.sha256(json.dumps([form, text]).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        digest.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InputError(otherwise)


def _read_file(file: Path) -> tuple[dict[str, str], Tensors]:
    """The file's metadata and its tensors."""
    if not file.is_file():
        raise InputError(f"{file} is not a file", expected="one that trace.save wrote", fix=FIX)
    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            return opened.metadata() or {}, {
                name: opened.get_tensor(name).clone() for name in names
            }  # clones are aligned, so that kernels give the same bits
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{file} is not a trace: {_one_line(error)}",
            expected="a file that trace.save wrote",
            fix=FIX,
        ) from None


def _one_line(error: BaseException) -> str:
    """The message of an error, in one line."""
    words = (
        error.seen
        if isinstance(error, SightlineError)
        else getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    )
    return " ".join(words.split())[:200]


def _trace_from_json(data: dict[str, Any], tensors: Tensors) -> Trace:
    """The trace that the JSON describes."""
    layers = [_layer_from_json(look, tensors) for look in data["looks"]]
    logits = _take(tensors, "logits")
    _require(logits.is_floating_point(), "the logits are not floating-point numbers")
    for name in ("name", "text", "source_text"):
        _require(isinstance(data[name], str), f"its {name} is not a string")
    notes = tuple(data.get("notes", ()))  # files of earlier versions have none
    _require(all(isinstance(note, str) for note in notes), "its notes are not strings")
    trace = Trace(
        name=data["name"],
        config=from_plain(ModelConfig, data["config"]),
        tokens=_parse_tokens(data["tokens"]),
        answer=lambda: logits,
        looks={look.site: look for look in layers},
        text=data["text"],
        source=None if data["source"] is None else _parse_tokens(data["source"]),
        source_text=data["source_text"],
        rows=range(*data["rows"]),
        kept={
            _parse_place(entry["place"]): _take(tensors, entry["tensor"]) for entry in data["kept"]
        },
        notes=notes,
    )
    _check_trace(trace)
    return trace


def _check_trace(trace: Trace) -> None:
    """Check that rows are tokens, and that every layer exists in the model and has one key per
    token."""
    rows = trace.rows
    stacks = trace.config.stacks
    _require(
        0 <= rows.start <= rows.stop <= len(trace.tokens) and rows.step == 1,
        "its rows are not a range of its tokens",
    )
    for (stack, layer, cross), look in trace.looks.items():
        _require(
            stack in stacks and 0 <= layer < stacks[stack].layers,
            f"the model has no layer {layer} in its {stack}",
        )
        block = stacks[stack].block(layer)
        attention = block.cross_attention if cross else block.attention
        _require(
            attention is not None
            and (attention.heads, attention.kv_heads) == (look.heads, look.key.shape[1]),
            "its number of heads is not the model's",
        )
        query_tokens = trace.tokens_of(stack)
        key_tokens = trace.source if cross else trace.tokens_of(stack)
        _require(
            key_tokens is not None and look.key.shape[2] == len(key_tokens),
            f"{stack} layer {layer} does not have one key per token",
        )
        queries = len(query_tokens) if query_tokens is not trace.tokens else len(rows)
        _require(look.queries == queries, f"{stack} layer {layer} does not have one query per row")


def _parse_place(data: list[Any]) -> Place:
    stack, layer, name = data
    _require(
        isinstance(stack, str) and isinstance(name, str) and (layer is None or type(layer) is int),
        "a recorded place is malformed",
    )
    return stack, layer, name


def _parse_tokens(data: list[dict[str, Any]]) -> tuple[Token, ...]:
    tokens = tuple(Token(**token) for token in data)
    for token in tokens:
        _require(
            type(token.id) is int and isinstance(token.text, str), "a token has no id or no text"
        )
        _require(
            all(place is None or type(place) is int for place in (token.start, token.end)),
            "a token's span is malformed",
        )
    return tokens


def _take(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise InputError(f"the tensor {name} is missing")
    return tensors[name]


def _store_tensor(tensors: Tensors, name: str, value: Tensor) -> str:
    tensors[name] = value
    return name


def _layer_to_json(name: str, look: Look, tensors: Tensors) -> dict[str, Any]:
    """One layer as JSON; its tensors are added to `tensors`."""
    scoring = look.scoring
    mask = look.scoring.mask
    parts = {
        "query": look.query,
        "key": look.key,
        "value": look.value,
        "sinks": scoring.sinks,
        "given": look.given,
    }
    parts |= {
        "query_at": mask.query_at,
        "key_at": mask.key_at,
        "query_in": mask.query_document,
        "key_in": mask.key_document,
    }
    return {
        "site": list(look.site),
        "tensors": {
            part: _store_tensor(tensors, f"{name}.{part}", value)
            for part, value in parts.items()
            if value is not None
        },
        "scale": scoring.scale,
        "softcap": scoring.softcap,
        "causal": mask.causal,
        "window": mask.window,
        "offset": mask.offset,
        "bias": _bias_to_json(f"{name}.bias", scoring.bias, tensors),
    }


def _layer_from_json(data: dict[str, Any], tensors: Tensors) -> Look:
    parts = {part: _take(tensors, name) for part, name in data["tensors"].items()}
    query, key, query_at, key_at = (parts[name] for name in ("query", "key", "query_at", "key_at"))
    _check_parts(str(data["site"]), parts)
    for name in ("window", "offset"):
        _require(data[name] is None or type(data[name]) is int, f"its {name} is not an integer")
    _require(type(data["causal"]) is bool, "causal is not a boolean")
    _require(
        _is_finite(data["scale"]) and (data["softcap"] is None or _is_finite(data["softcap"])),
        "a scale or soft-cap is not a finite number",
    )
    mask = Mask(
        query_at,
        key_at,
        data["causal"],
        data["window"],
        data["offset"],
        parts.get("query_in"),
        parts.get("key_in"),
    )
    bias = _bias_from_json(data["bias"], tensors)
    _check_bias(bias, (1, query.shape[1], query.shape[2], key.shape[2]))
    scoring = Scoring(mask, data["scale"], bias, data["softcap"], parts.get("sinks"))
    stack, layer, cross = data["site"]
    _require(
        isinstance(stack, str) and type(layer) is int and type(cross) is bool,
        "a layer's site is malformed",
    )
    return Look((stack, layer, cross), query, key, parts.get("value"), scoring, parts.get("given"))


def _check_parts(site: str, parts: Tensors) -> None:
    """Check that shapes and dtypes are consistent."""
    query = parts["query"]
    key = parts["key"]
    _require(query.ndim == key.ndim == 4, f"{site} has tensors of inconsistent shapes")
    (batch, heads, queries, dim), (kv_heads, keys) = query.shape, key.shape[1:3]
    value_dim = parts["value"].shape[-1:] if "value" in parts else ()
    shapes = {
        "query": (1, heads, queries, dim),
        "key": (1, kv_heads, keys, dim),
        "value": (1, kv_heads, keys, *value_dim),
    }
    shapes |= {
        "given": (1, heads, queries, keys),
        "sinks": (heads,),
        "query_at": (1, queries),
        "key_at": (1, keys),
    }
    shapes |= {"query_in": (1, queries), "key_in": (1, keys)}
    _require(parts.keys() <= shapes.keys(), f"{site} has an unknown tensor")
    fits = all(tuple(tensor.shape) == shapes[name] for name, tensor in parts.items())
    _require(
        fits and batch == 1 and kv_heads > 0 and heads % kv_heads == 0,
        f"{site} has tensors of inconsistent shapes",
    )
    for name, tensor in parts.items():
        at = name.endswith(("_at", "_in"))
        _require(
            tensor.dtype in (torch.int32, torch.int64) if at else tensor.is_floating_point(),
            f"{site}: {name} is {tensor.dtype}",
        )
    floats = {tensor.dtype for name, tensor in parts.items() if name in ("query", "key", "value")}
    _require(len(floats) == 1, f"{site}: query, key and value differ in dtype")


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e18


def _check_bias(bias: Bias | None, shape: tuple[int, int, int, int]) -> None:
    """Check a bias against the `shape` of the scores."""
    heads = shape[1]
    if isinstance(bias, ALiBiBias):
        _require(
            len(bias.slopes) == heads and all(map(_is_finite, bias.slopes)),
            "ALiBi does not have one slope per head",
        )
    elif isinstance(bias, TableBias):
        fits = (
            bias.weight.ndim == 2
            and bias.weight.shape[0] > 1
            and bias.weight.shape[1] == heads
            and bias.weight.is_floating_point()
        )
        _require(
            fits
            and type(bias.max_distance) is int
            and bias.max_distance > 0
            and type(bias.causal) is bool,
            "T5's bias is malformed",
        )
    elif isinstance(bias, TensorBias):
        values = bias.values
        fits = values.ndim == 4 and all(
            size in (1, expected) for size, expected in zip(values.shape, shape, strict=True)
        )
        _require(
            fits and values.is_floating_point(), "a bias does not have the shape of the scores"
        )


def _bias_to_json(name: str, bias: Bias | None, tensors: Tensors) -> dict[str, Any] | None:
    """A bias as JSON: its parameters, not its values, where it is a function of positions."""
    if bias is None:
        return None
    if isinstance(bias, ALiBiBias):
        return {"kind": "alibi", "slopes": list(bias.slopes)}
    if isinstance(bias, TableBias):
        table = _store_tensor(tensors, name, bias.weight)
        return {
            "kind": "relative",
            "table": table,
            "max_distance": bias.max_distance,
            "causal": bias.causal,
        }
    if isinstance(bias, TensorBias):
        return {"kind": "given", "values": _store_tensor(tensors, name, bias.values)}
    raise InputError(
        f"a bias of kind {type(bias).__name__}",
        expected="ALiBi, T5's table or given values",
        fix="trace without the edit",
    )


def _bias_from_json(data: dict[str, Any] | None, tensors: Tensors) -> Bias | None:
    if data is None:
        return None
    if data["kind"] == "alibi":
        return ALiBiBias(tuple(data["slopes"]))
    if data["kind"] == "given":
        return TensorBias(_take(tensors, data["values"]))
    _require(data["kind"] == "relative", "a bias is of an unknown kind")
    return TableBias(_take(tensors, data["table"]), data["max_distance"], data["causal"])
