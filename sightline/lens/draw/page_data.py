"""The data of a trace in a page: q and k, everything between them and the softmax, and a thumbnail
of every head.

The maps are not included. The page computes rows and tiles on demand (assets/attention.js), as
`Look` does here:

    scores  = cap(q kᵀ · scale) + bias
    weights = softmax(scores)
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from sightline.core.attention import attention_weights
from sightline.core.positions import ALiBiBias, Bias, RelativeTable
from sightline.errors import InputError
from sightline.lens.draw.default_head import alignment_layer
from sightline.lens.trace.layer import Look, Site, checked_index
from sightline.lens.trace.subject import Token
from sightline.lens.trace.trace import Trace

BUDGET = 40 << 20  # bytes of q and k in one page, as base64
FLOAT32_LIMIT = 4 << 20  # smaller data is stored as float32, larger as int16
THUMBNAIL = 64  # rows and columns of a thumbnail
THUMBNAIL_ROWS = 8  # rows of the map per thumbnail row, all of them up to 512 tokens,
THUMBNAIL_SAMPLE = 3  # and this many of a longer text
MAX_BIAS = 1 << 23  # values of a bias without a formula
VIEWS = ("map", "heads", "lines", "geometry", "sphere", "text")

Json = dict[str, Any]
# base64, each in a separate script element, decoded only when needed
Arrays = list[str]


def trace_data(
    trace: Trace,
    arrays: Arrays,
    *,
    view: str,
    layer: int | None,
    head: int | None,
    row: int | None = None,
    budget: int = BUDGET,
) -> Json:
    """The JSON data of a trace. Arrays are appended to `arrays` and referred to by index. The
    default row is the last, or the first of a translation."""
    initial = initial_site(trace, view, layer)
    if head is not None:
        head = checked_index("head", head, trace.looks[initial].heads)
    if row is not None:
        row = checked_index("row", row, trace.looks[initial].queries)
    elif view == "alignment":
        row = 0  # the last row is the token after the text
    included = layers_that_fit(trace, initial, budget)
    form = (
        "float32"
        if sum(4 * query_key_numbers(look) * 4 // 3 for look in trace.looks.values())
        < FLOAT32_LIMIT
        else "int16"
    )
    kinds = sorted(
        {(site[0], site[2]) for site in trace.looks},
        key=lambda kind: (kind != (initial[0], initial[2]), kind),
    )
    return {
        "model": trace.name,
        "tokens": tokens_json(trace.tokens),
        "source": None if trace.source is None else tokens_json(trace.source),
        "produced": None if trace.source is None else tokens_json(trace.produced),
        "language": language(
            trace.text + trace.source_text or "".join(token.text for token in trace.tokens)
        ),
        "start": {
            "view": "map" if view == "alignment" else view,
            "layer": initial[1],
            "head": head or 0,
            "row": row,
        },
        "attentions": [
            attention_json(trace, stack, cross, arrays, included=included, form=form)
            for stack, cross in kinds
        ],
    }


def initial_site(trace: Trace, view: str, layer: int | None) -> Site:
    """The attention layer that the page opens with: the given one, or the middle one; for
    cross-attention the one that aligns best."""
    if view not in (*VIEWS, "alignment"):
        raise InputError(
            f"the page has no view {view!r}",
            expected=" or ".join((*VIEWS, "alignment")),
            fix='view="map"',
        )
    if not trace.looks:
        raise InputError(
            "a trace without attention", expected="one with q and k", fix="model.trace(text)"
        )
    stack = trace.stack_named(None)
    cross = view == "alignment"
    if layer is not None or not any(
        (place[0], place[2]) == (stack, cross) for place in trace.looks
    ):
        return trace.look(
            0 if layer is None else layer, cross=cross
        ).site  # raises if there is none
    if cross:
        return stack, alignment_layer(trace), cross
    there = sorted(place[1] for place in trace.looks if (place[0], place[2]) == (stack, cross))
    return stack, there[len(there) // 2], cross


def layers_that_fit(trace: Trace, initial: Site, budget: int) -> set[Site]:
    """The layers whose q and k are in the page: the initial one, and the nearest that fit the
    budget."""
    nearest = sorted(
        trace.looks, key=lambda site: (abs(site[1] - initial[1]), site != initial, site)
    )
    included = set[Site]()
    used = 0
    for site in nearest:
        used += 2 * query_key_numbers(trace.looks[site]) * 4 // 3
        if included and used > budget:
            break
        included.add(site)
    return included


def query_key_numbers(look: Look) -> int:
    return look.query.numel() + look.key.numel()


# ---------------------------------------------------------------------------------- one attention


def attention_json(
    trace: Trace, stack: str, cross: bool, arrays: Arrays, *, included: set[Site], form: str
) -> Json:
    """All layers of one kind of attention: encoder, decoder, or cross."""
    layers = sorted(site[1] for site in trace.looks if (site[0], site[2]) == (stack, cross))
    looks = {layer: trace.looks[stack, layer, cross] for layer in layers}
    source = trace.source is not None and (stack == "encoder" or cross)
    return {
        "name": "cross" if cross else stack,
        "layers": layers,
        "heads": max(look.heads for look in looks.values()),
        "queries": "produced" if cross else "source" if source else "tokens",
        "keys": "source" if source else "tokens",
        "looks": {
            n: layer_json(look, arrays, form) for n, look in looks.items() if look.site in included
        },
        "thumbs": {n: thumbnails_json(look, arrays) for n, look in looks.items()},
    }


def layer_json(look: Look, arrays: Arrays, form: str) -> Json:
    """q, k and scoring of one layer."""
    scoring = look.scoring
    mask = look.scoring.mask
    finite = bool(look.query.isfinite().all() and look.key.isfinite().all())
    form = form if finite else "float32"
    return {
        "heads": look.heads,
        "kvHeads": look.key.shape[1],
        "queries": look.queries,
        "keys": look.key.shape[2],
        "dim": look.query.shape[3],
        "form": form,
        "query": vectors_json(look.query[0], arrays, form),
        "key": vectors_json(look.key[0], arrays, form),
        "scale": float(scoring.scale),
        "softcap": scoring.softcap,
        "sinks": None if scoring.sinks is None else scoring.sinks.detach().float().tolist(),
        "causal": mask.causal,
        "window": mask.window,
        "queryAt": positions_json(mask.query_at),
        "keyAt": positions_json(mask.key_at),
        "queryIn": None if mask.query_document is None else mask.query_document[0].tolist(),
        "keyIn": None if mask.key_document is None else mask.key_document[0].tolist(),
        "bias": bias_json(look, scoring.bias, arrays),
    }


def vectors_json(vectors: Tensor, arrays: Arrays, form: str) -> int | list[int]:
    """`[heads, time, dim]` as float32; or as int16 with one float32 step per vector, as small as
    float16 and five times as precise."""
    values = vectors.detach().float().cpu().numpy()
    if form == "float32":
        return add_array(arrays, values)
    steps = np.maximum(
        np.abs(values).max(-1, keepdims=True) / 32767, np.finfo(np.float32).tiny
    ).astype(np.float32)
    return [add_array(arrays, np.rint(values / steps).astype(np.int16)), add_array(arrays, steps)]


def positions_json(at: Tensor) -> int | list[int]:
    """Positions: the first one if they are consecutive, else a list."""
    places = at[0].tolist()
    first = places[0] if places else 0
    return first if places == list(range(first, first + len(places))) else places


def bias_json(look: Look, bias: Bias | None, arrays: Arrays) -> Json | None:
    """ALiBi's slopes; T5's values by distance, constant beyond `max_distance`; the values of any
    other bias."""
    if bias is None:
        return None
    mask = look.scoring.mask
    if isinstance(bias, ALiBiBias):
        return {"kind": "alibi", "slopes": list(bias.slopes)}
    if isinstance(bias, RelativeTable):
        most = bias.max_distance
        by_distance = bias(
            torch.full((1, 1), most, device=bias.weight.device),
            torch.arange(2 * most + 1, device=bias.weight.device)[None],
        )
        return {
            "kind": "distance",
            "most": most,
            "values": add_array(arrays, by_distance[0, :, 0].detach().float().cpu().numpy()),
        }
    values = bias(mask.query_at, mask.key_at)
    if values.numel() > MAX_BIAS:
        raise InputError(
            f"a bias of {values.numel():,} numbers",
            expected=f"at most {MAX_BIAS:,} in a page",
            fix="trace a shorter text",
        )
    heads = look.heads if values.shape[1] > 1 else 1
    whole = values[0].expand(heads, look.queries, look.key.shape[2])
    return {
        "kind": "given",
        "heads": heads,
        "values": add_array(arrays, whole.detach().float().cpu().numpy()),
    }


def thumbnails_json(look: Look, arrays: Arrays) -> Json:
    """Thumbnails of every head's map, √weight as a byte; a cell is the maximum of its weights."""
    columns = min(THUMBNAIL, look.key.shape[2])
    step = math.ceil(look.queries / THUMBNAIL)
    rows = math.ceil(look.queries / max(1, step))
    pixels = torch.zeros(look.heads, rows, columns)
    sampled_rows = THUMBNAIL_ROWS if step <= THUMBNAIL_ROWS else THUMBNAIL_SAMPLE
    for first in sorted({step * n // sampled_rows for n in range(sampled_rows)}):
        every = slice(first, None, step)
        scoring = look.scoring.tile(every, slice(0, look.key.shape[2]))
        weights = F.adaptive_max_pool2d(
            attention_weights(look.query[:, :, every], look.key, scoring)[0].float(),
            (len(range(look.queries)[every]), columns),
        )
        pixels[:, : weights.shape[1]] = torch.maximum(pixels[:, : weights.shape[1]], weights)
    bytes_ = (pixels.nan_to_num(0).clamp(0, 1).sqrt() * 255).round().to(torch.uint8)
    sizes = {
        "heads": look.heads,
        "queries": look.queries,
        "keys": look.key.shape[2],
        "rows": rows,
        "columns": columns,
    }
    return sizes | {"pixels": add_array(arrays, bytes_.numpy())}


# ----------------------------------------------------------------------------------- arrays, text


def add_array(arrays: Arrays, array: NDArray[Any]) -> int:
    """Append an array, little-endian as browsers expect; returns its index."""
    arrays.append(
        base64.b64encode(
            np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).tobytes()
        ).decode()
    )
    return len(arrays) - 1


def tokens_json(tokens: Sequence[Token]) -> Json:
    """Texts, and the indices of tokens that repeat the previous one: parts of one split
    character."""
    repeats_previous = [
        a.text == b.text and a.start is not None and a.start == b.start and a.end == b.end
        for a, b in pairwise(tokens)
    ]
    return {
        "texts": [token.text for token in tokens],
        "repeats": [n + 1 for n, repeats in enumerate(repeats_previous) if repeats],
    }


def language(text: str) -> str:
    """A language tag for the choice of fonts: Han characters differ in Japanese, which kana
    identify."""
    if re.search("[\u3040-\u30ff]", text):
        return "ja"
    if re.search("[\uac00-\ud7af]", text):
        return "ko"
    return "und" if re.search("[^\u0000-\u024f\u2000-\u22ff]", text) else "en"
