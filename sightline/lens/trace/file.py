"""A trace as one file: tensors as safetensors, the rest as JSON in the file's head. Reading it
needs neither the model nor pickle.

The head has a SHA-256 of the JSON and of every tensor: a file in which anything was changed is
refused. What it says is checked all the same, for files of earlier versions have no sum, and
strangers can write one that fits.
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
from safetensors.torch import save_file
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

FORM = "sightline trace 2"
WITHOUT_SUM = "sightline trace 1"  # as earlier versions wrote it
AGAIN = "model.trace(text).save(file)"
Tensors = dict[str, Tensor]


def save_trace(trace: Trace, file: Path) -> Path:
    """Written beside its place first, then moved there, so that a file is whole or not there."""
    tensors: Tensors = {"logits": trace.logits}
    looks = [_look_out(f"look.{n}", look, tensors) for n, look in enumerate(trace.looks.values())]
    kept = [
        {"place": list(place), "tensor": _put(tensors, f"kept.{n}", value)}
        for n, (place, value) in enumerate(trace.kept.items())
    ]
    said = {
        "name": trace.name,
        "config": to_plain(trace.config),
        "text": trace.text,
        "source_text": trace.source_text,
        "tokens": [asdict(token) for token in trace.tokens],
        "source": None if trace.source is None else [asdict(token) for token in trace.source],
        "rows": [trace.rows.start, trace.rows.stop],
        "looks": looks,
        "kept": kept,
        "notes": list(trace.notes),
    }
    whole = {
        name: value.detach().clone(memory_format=torch.contiguous_format)
        for name, value in tensors.items()
    }
    try:
        text = json.dumps(said)
        with atomic_write(file) as part:
            save_file(
                whole, part.name, {"form": FORM, "trace": text, "sha256": digest(FORM, text, whole)}
            )
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{file} cannot be written: {_short(error)}", fix="give a place that can be written to"
        ) from None
    return file


def open_trace(file: Path) -> Trace:
    """What `save_trace` wrote; anything else is refused."""
    head, tensors = _opened(file)
    form = head.get("form")
    if form not in (FORM, WITHOUT_SUM):
        raise InputError(f"{file} is no trace", expected=f"{FORM!r} in its head", fix=AGAIN)
    try:
        text = head["trace"]
        if form == FORM or "sha256" in head:
            _require(
                head.get("sha256") == digest(form, text, tensors),
                "its content is not what its SHA-256 says",
            )
        return _trace_in(json.loads(text), tensors)
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
            f"{file} is a damaged trace: {_short(error)}",
            expected="all that trace.save wrote",
            fix=AGAIN,
        ) from None


def digest(form: str, text: str, tensors: Tensors) -> str:
    """SHA-256 of all that a trace's file says."""
    found = hashlib.sha256(json.dumps([form, text]).encode())
    for name, tensor in sorted(tensors.items()):
        found.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        found.update(tensor.contiguous().flatten().view(torch.uint8).numpy().data)
    return found.hexdigest()


def _require(holds: bool, otherwise: str) -> None:
    if not holds:
        raise InputError(otherwise)


def _opened(file: Path) -> tuple[dict[str, str], Tensors]:
    """The file's head and its tensors."""
    if not file.is_file():
        raise InputError(f"{file} is no file", expected="one that trace.save wrote", fix=AGAIN)
    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            return opened.metadata() or {}, {
                name: opened.get_tensor(name).clone() for name in names
            }  # aligned, for the same bits
    except (OSError, SafetensorError) as error:
        raise InputError(
            f"{file} is no trace: {_short(error)}",
            expected="a file that trace.save wrote",
            fix=AGAIN,
        ) from None


def _short(error: BaseException) -> str:
    """An error's words, in one line."""
    words = (
        error.seen
        if isinstance(error, SightlineError)
        else getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    )
    return " ".join(words.split())[:200]


def _trace_in(said: dict[str, Any], tensors: Tensors) -> Trace:
    """The trace that a head describes."""
    looks = [_look_in(look, tensors) for look in said["looks"]]
    logits = _take(tensors, "logits")
    _require(logits.is_floating_point(), "the logits are no floating-point numbers")
    for name in ("name", "text", "source_text"):
        _require(isinstance(said[name], str), f"its {name} is no text")
    notes = tuple(said.get("notes", ()))  # files of earlier versions have none
    _require(all(isinstance(note, str) for note in notes), "its notes are no text")
    found = Trace(
        name=said["name"],
        config=from_plain(ModelConfig, said["config"]),
        tokens=_tokens(said["tokens"]),
        answer=lambda: logits,
        looks={look.site: look for look in looks},
        text=said["text"],
        source=None if said["source"] is None else _tokens(said["source"]),
        source_text=said["source_text"],
        rows=range(*said["rows"]),
        kept={_place(entry["place"]): _take(tensors, entry["tensor"]) for entry in said["kept"]},
        notes=notes,
    )
    _check_trace(found)
    return found


def _check_trace(trace: Trace) -> None:
    """Rows are tokens, and every layer is one of the model's and looks at the tokens that it can
    look at."""
    rows = trace.rows
    stacks = trace.config.stacks
    _require(
        0 <= rows.start <= rows.stop <= len(trace.tokens) and rows.step == 1,
        "its rows are not among its tokens",
    )
    for (stack, layer, cross), look in trace.looks.items():
        _require(
            stack in stacks and 0 <= layer < stacks[stack].layers,
            f"the model has no layer {layer} in its {stack}",
        )
        block = stacks[stack].block(layer)
        form = block.cross_attention if cross else block.attention
        _require(
            form is not None and (form.heads, form.kv_heads) == (look.heads, look.key.shape[1]),
            "its heads are not the model's",
        )
        queried = trace.tokens_of(stack)
        seen = trace.source if cross else trace.tokens_of(stack)
        _require(
            seen is not None and look.key.shape[2] == len(seen),
            f"{stack} layer {layer} has other keys than tokens",
        )
        asking = len(queried) if queried is not trace.tokens else len(rows)
        _require(look.queries == asking, f"{stack} layer {layer} has other queries than rows")


def _place(said: list[Any]) -> Place:
    stack, layer, name = said
    _require(
        isinstance(stack, str) and isinstance(name, str) and (layer is None or type(layer) is int),
        "a recorded place is none",
    )
    return stack, layer, name


def _tokens(said: list[dict[str, Any]]) -> tuple[Token, ...]:
    found = tuple(Token(**token) for token in said)
    for token in found:
        _require(
            type(token.id) is int and isinstance(token.text, str), "a token has no id or no text"
        )
        _require(
            all(place is None or type(place) is int for place in (token.start, token.end)),
            "a token stands nowhere",
        )
    return found


def _take(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise InputError(f"the tensor {name} is missing")
    return tensors[name]


def _put(tensors: Tensors, name: str, value: Tensor) -> str:
    tensors[name] = value
    return name


def _look_out(name: str, look: Look, tensors: Tensors) -> dict[str, Any]:
    """One layer: tensors into the pile, the rest as JSON."""
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
            part: _put(tensors, f"{name}.{part}", value)
            for part, value in parts.items()
            if value is not None
        },
        "scale": scoring.scale,
        "softcap": scoring.softcap,
        "causal": mask.causal,
        "window": mask.window,
        "offset": mask.offset,
        "bias": _bias_out(f"{name}.bias", scoring.bias, tensors),
    }


def _look_in(said: dict[str, Any], tensors: Tensors) -> Look:
    parts = {part: _take(tensors, name) for part, name in said["tensors"].items()}
    query, key, query_at, key_at = (parts[name] for name in ("query", "key", "query_at", "key_at"))
    _check_parts(str(said["site"]), parts)
    for name in ("window", "offset"):
        _require(said[name] is None or type(said[name]) is int, f"its {name} is no number")
    _require(type(said["causal"]) is bool, "a mask is neither causal nor not")
    _require(
        _is_finite(said["scale"]) and (said["softcap"] is None or _is_finite(said["softcap"])),
        "a score is scaled by no number",
    )
    mask = Mask(
        query_at,
        key_at,
        said["causal"],
        said["window"],
        said["offset"],
        parts.get("query_in"),
        parts.get("key_in"),
    )
    bias = _bias_in(said["bias"], tensors)
    _check_bias(bias, (1, query.shape[1], query.shape[2], key.shape[2]))
    scoring = Scoring(mask, said["scale"], bias, said["softcap"], parts.get("sinks"))
    stack, layer, cross = said["site"]
    _require(
        isinstance(stack, str) and type(layer) is int and type(cross) is bool,
        "a layer stands nowhere",
    )
    return Look((stack, layer, cross), query, key, parts.get("value"), scoring, parts.get("given"))


def _check_parts(site: str, parts: Tensors) -> None:
    """Shapes that fit each other, and kinds of numbers that can be computed with."""
    query = parts["query"]
    key = parts["key"]
    _require(
        query.ndim == key.ndim == 4, f"{site} has tensors of shapes that do not fit each other"
    )
    (batch, heads, queries, dim), (kv_heads, keys) = query.shape, key.shape[1:3]
    value_dim = parts["value"].shape[-1:] if "value" in parts else ()
    wanted = {
        "query": (1, heads, queries, dim),
        "key": (1, kv_heads, keys, dim),
        "value": (1, kv_heads, keys, *value_dim),
    }
    wanted |= {
        "given": (1, heads, queries, keys),
        "sinks": (heads,),
        "query_at": (1, queries),
        "key_at": (1, keys),
    }
    wanted |= {"query_in": (1, queries), "key_in": (1, keys)}
    _require(parts.keys() <= wanted.keys(), f"{site} has a tensor that no layer has")
    fits = all(tuple(tensor.shape) == wanted[name] for name, tensor in parts.items())
    _require(
        fits and batch == 1 and kv_heads > 0 and heads % kv_heads == 0,
        f"{site} has tensors of shapes that do not fit each other",
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
    """`shape` is what the scores have."""
    heads = shape[1]
    if isinstance(bias, ALiBiBias):
        _require(
            len(bias.slopes) == heads and all(map(_is_finite, bias.slopes)),
            "ALiBi's slopes are not one for each head",
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
            "T5's bias is none",
        )
    elif isinstance(bias, TensorBias):
        values = bias.values
        fits = values.ndim == 4 and all(
            size in (1, wanted) for size, wanted in zip(values.shape, shape, strict=True)
        )
        _require(fits and values.is_floating_point(), "a bias has another shape than the scores")


def _bias_out(name: str, bias: Bias | None, tensors: Tensors) -> dict[str, Any] | None:
    """A bias is a function of positions; what makes it is written, not its values."""
    if bias is None:
        return None
    if isinstance(bias, ALiBiBias):
        return {"kind": "alibi", "slopes": list(bias.slopes)}
    if isinstance(bias, TableBias):
        table = _put(tensors, name, bias.weight)
        return {
            "kind": "relative",
            "table": table,
            "max_distance": bias.max_distance,
            "causal": bias.causal,
        }
    if isinstance(bias, TensorBias):
        return {"kind": "given", "values": _put(tensors, name, bias.values)}
    raise InputError(
        f"a bias of kind {type(bias).__name__}",
        expected="ALiBi's, T5's or a given one",
        fix="trace without the edit",
    )


def _bias_in(said: dict[str, Any] | None, tensors: Tensors) -> Bias | None:
    if said is None:
        return None
    if said["kind"] == "alibi":
        return ALiBiBias(tuple(said["slopes"]))
    if said["kind"] == "given":
        return TensorBias(_take(tensors, said["values"]))
    _require(said["kind"] == "relative", "a bias is of an unknown kind")
    return TableBias(_take(tensors, said["table"]), said["max_distance"], said["causal"])
