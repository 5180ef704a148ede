"""A trace as one file: tensors as safetensors, the rest as JSON in the file's head. Reading it needs neither the model nor pickle."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from sightline.atomic import replacing
from sightline.config import ModelConfig
from sightline.config.values import from_plain, to_plain
from sightline.core.attention import Scoring
from sightline.core.masks import Mask
from sightline.core.positions import ALiBiBias, Bias, GivenBias
from sightline.errors import InputError, SightlineError
from sightline.lens.look import Look, TableBias
from sightline.lens.subject import Token
from sightline.lens.trace import Trace
from sightline.record import Place

FORM = "sightline trace 1"
AGAIN = "model.trace(text).save(file)"
Tensors = dict[str, Tensor]


def save_trace(trace: Trace, file: Path) -> Path:
    """Written beside its place first, then moved there, so that a file is whole or not there."""
    tensors: Tensors = {"logits": trace.logits}
    looks = [_look_out(f"look.{n}", look, tensors) for n, look in enumerate(trace.looks.values())]
    kept = [{"place": list(place), "tensor": _put(tensors, f"kept.{n}", value)} for n, (place, value) in enumerate(trace.kept.items())]
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
    whole = {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in tensors.items()}
    try:
        with replacing(file) as part:
            save_file(whole, part.name, {"form": FORM, "trace": json.dumps(said)})
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} cannot be written: {_short(error)}", fix="give a place that can be written to") from None
    return file


def open_trace(file: Path) -> Trace:
    """What `save_trace` wrote; anything else is refused."""
    head, tensors = _opened(file)
    if head.get("form") != FORM:
        raise InputError(f"{file} is no trace", expected=f"{FORM!r} in its head", fix=AGAIN)
    try:
        return _trace_in(json.loads(head["trace"]), tensors)
    except (SightlineError, ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise InputError(f"{file} is a damaged trace: {_short(error)}", expected="all that trace.save wrote", fix=AGAIN) from None


def _opened(file: Path) -> tuple[dict[str, str], Tensors]:
    """The file's head and its tensors."""
    if not file.is_file():
        raise InputError(f"{file} is no file", expected="one that trace.save wrote", fix=AGAIN)
    try:
        with safe_open(file, framework="pt") as opened:
            names = opened.keys()
            return opened.metadata() or {}, {name: opened.get_tensor(name).clone() for name in names}  # aligned, for the same bits
    except (OSError, SafetensorError) as error:
        raise InputError(f"{file} is no trace: {_short(error)}", expected="a file that trace.save wrote", fix=AGAIN) from None


def _short(error: BaseException) -> str:
    """An error's words, in one line."""
    words = error.seen if isinstance(error, SightlineError) else getattr(error, "strerror", None) or f"{type(error).__name__}: {error}"
    return " ".join(words.split())[:200]


def _trace_in(said: dict[str, Any], tensors: Tensors) -> Trace:
    """The trace that a head describes."""
    looks, logits = [_look_in(look, tensors) for look in said["looks"]], _take(tensors, "logits")
    return Trace(
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
        notes=tuple(said.get("notes", ())),  # files of earlier versions have none
    )


def _place(said: list[Any]) -> Place:
    stack, layer, name = said
    return stack, layer, name


def _tokens(said: list[dict[str, Any]]) -> tuple[Token, ...]:
    return tuple(Token(**token) for token in said)


def _take(tensors: Tensors, name: str) -> Tensor:
    if name not in tensors:
        raise InputError(f"the tensor {name} is missing")
    return tensors[name]


def _put(tensors: Tensors, name: str, value: Tensor) -> str:
    tensors[name] = value
    return name


def _look_out(name: str, look: Look, tensors: Tensors) -> dict[str, Any]:
    """One layer: tensors into the pile, the rest as JSON."""
    scoring, mask = look.scoring, look.scoring.mask
    parts = {"query": look.query, "key": look.key, "value": look.value, "sinks": scoring.sinks, "given": look.given}
    parts |= {"query_at": mask.query_at, "key_at": mask.key_at, "query_in": mask.query_in, "key_in": mask.key_in}
    return {
        "site": list(look.site),
        "tensors": {part: _put(tensors, f"{name}.{part}", value) for part, value in parts.items() if value is not None},
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
    if (query.shape[2], key.shape[2], query.shape[3]) != (query_at.shape[1], key_at.shape[1], key.shape[3]):
        raise InputError(f"{said['site']} has tensors of shapes that do not fit each other")
    mask = Mask(query_at, key_at, said["causal"], said["window"], said["offset"], parts.get("query_in"), parts.get("key_in"))
    scoring = Scoring(mask, said["scale"], _bias_in(said["bias"], tensors), said["softcap"], parts.get("sinks"))
    stack, layer, cross = said["site"]
    return Look((stack, layer, cross), query, key, parts.get("value"), scoring, parts.get("given"))


def _bias_out(name: str, bias: Bias | None, tensors: Tensors) -> dict[str, Any] | None:
    """A bias is a function of positions; what makes it is written, not its values."""
    if bias is None:
        return None
    if isinstance(bias, ALiBiBias):
        return {"kind": "alibi", "slopes": list(bias.slopes)}
    if isinstance(bias, TableBias):
        table = _put(tensors, name, bias.weight)
        return {"kind": "relative", "table": table, "max_distance": bias.max_distance, "causal": bias.causal}
    if isinstance(bias, GivenBias):
        return {"kind": "given", "values": _put(tensors, name, bias.values)}
    raise InputError(f"a bias of kind {type(bias).__name__}", expected="ALiBi's, T5's or a given one", fix="trace without the edit")


def _bias_in(said: dict[str, Any] | None, tensors: Tensors) -> Bias | None:
    if said is None:
        return None
    if said["kind"] == "alibi":
        return ALiBiBias(tuple(said["slopes"]))
    if said["kind"] == "given":
        return GivenBias(_take(tensors, said["values"]))
    return TableBias(_take(tensors, said["table"]), said["max_distance"], said["causal"])
