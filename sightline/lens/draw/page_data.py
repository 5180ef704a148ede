"""A trace as a page carries it: q and k, all that stands between them and the softmax, and a small
picture of every head.

The maps are not in it. The page makes any row or tile of them when it is looked at
(assets/attention.js), as `Look` does here:

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
from sightline.lens.trace.layer import Look, Site, checked
from sightline.lens.trace.subject import Token
from sightline.lens.trace.trace import Trace

BUDGET = 40 << 20  # bytes of q and k in one page, as base64
EXACT = 4 << 20  # up to here they stay float32
THUMB = 64  # the small pictures have so many rows and columns
THUMB_ROWS = (
    8  # rows of the map that one row of a small picture looks at: all of them up to 512 tokens,
)
THUMB_SAMPLE = 3  # and so many of a longer text
BIAS = 1 << 23  # numbers of a bias that has no formula
VIEWS = ("map", "heads", "lines", "geometry", "sphere", "text")

Plain = dict[str, Any]
# Arrays as base64, each in a script element of its own, so that it is decoded only when needed.
Pile = list[str]


def trace_data(
    trace: Trace,
    pile: Pile,
    *,
    view: str,
    layer: int | None,
    head: int | None,
    row: int | None = None,
    budget: int = BUDGET,
) -> Plain:
    """What the page has to know of a trace. Arrays go on the pile and are named by their place in
    it. Without a row it opens on the last, or on the first of a translation."""
    asked = asked_site(trace, view, layer)
    if head is not None:
        head = checked("head", head, trace.looks[asked].heads)
    if row is not None:
        row = checked("row", row, trace.looks[asked].queries)
    elif view == "alignment":
        row = 0  # the last row is the token that was not produced any more
    inside = layers_that_fit(trace, asked, budget)
    form = (
        "float32"
        if sum(4 * numbers_in(look) * 4 // 3 for look in trace.looks.values()) < EXACT
        else "int16"
    )
    kinds = sorted(
        {(site[0], site[2]) for site in trace.looks},
        key=lambda kind: (kind != (asked[0], asked[2]), kind),
    )
    return {
        "model": trace.name,
        "tokens": tokens_out(trace.tokens),
        "source": None if trace.source is None else tokens_out(trace.source),
        "produced": None if trace.source is None else tokens_out(trace.produced),
        "language": language(
            trace.text + trace.source_text or "".join(token.text for token in trace.tokens)
        ),
        "start": {
            "view": "map" if view == "alignment" else view,
            "layer": asked[1],
            "head": head or 0,
            "row": row,
        },
        "attentions": [
            attention_out(trace, stack, cross, pile, inside=inside, form=form)
            for stack, cross in kinds
        ],
    }


def asked_site(trace: Trace, view: str, layer: int | None) -> Site:
    """The attention layer that the page opens on: the one named, or the middle one; of
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
        ).site  # raises where there is none
    if cross:
        return stack, alignment_layer(trace), cross
    there = sorted(place[1] for place in trace.looks if (place[0], place[2]) == (stack, cross))
    return stack, there[len(there) // 2], cross


def layers_that_fit(trace: Trace, asked: Site, budget: int) -> set[Site]:
    """The layers whose q and k are in the page: the asked one, and those nearest to it that fit the
    budget beside it."""
    nearest = sorted(trace.looks, key=lambda site: (abs(site[1] - asked[1]), site != asked, site))
    inside = set[Site]()
    used = 0
    for site in nearest:
        used += 2 * numbers_in(trace.looks[site]) * 4 // 3
        if inside and used > budget:
            break
        inside.add(site)
    return inside


def numbers_in(look: Look) -> int:
    return look.query.numel() + look.key.numel()


# ---------------------------------------------------------------------------------- one attention


def attention_out(
    trace: Trace, stack: str, cross: bool, pile: Pile, *, inside: set[Site], form: str
) -> Plain:
    """All layers of one kind of attention: the encoder's, the decoder's, or the decoder's to the
    encoder."""
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
            n: look_out(look, pile, form) for n, look in looks.items() if look.site in inside
        },
        "thumbs": {n: thumbs_out(look, pile) for n, look in looks.items()},
    }


def look_out(look: Look, pile: Pile, form: str) -> Plain:
    """q and k of one layer, and its scoring."""
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
        "query": vectors_out(look.query[0], pile, form),
        "key": vectors_out(look.key[0], pile, form),
        "scale": float(scoring.scale),
        "softcap": scoring.softcap,
        "sinks": None if scoring.sinks is None else scoring.sinks.detach().float().tolist(),
        "causal": mask.causal,
        "window": mask.window,
        "queryAt": positions_out(mask.query_at),
        "keyAt": positions_out(mask.key_at),
        "queryIn": None if mask.query_document is None else mask.query_document[0].tolist(),
        "keyIn": None if mask.key_document is None else mask.key_document[0].tolist(),
        "bias": bias_out(look, scoring.bias, pile),
    }


def vectors_out(vectors: Tensor, pile: Pile, form: str) -> int | list[int]:
    """`[heads, time, dim]` as float32; or as int16 with one float32 step per vector, five times as
    exact as float16 and as small."""
    values = vectors.detach().float().cpu().numpy()
    if form == "float32":
        return put(pile, values)
    steps = np.maximum(
        np.abs(values).max(-1, keepdims=True) / 32767, np.finfo(np.float32).tiny
    ).astype(np.float32)
    return [put(pile, np.rint(values / steps).astype(np.int16)), put(pile, steps)]


def positions_out(at: Tensor) -> int | list[int]:
    """Where the tokens stand: their first position if they stand in a row."""
    places = at[0].tolist()
    first = places[0] if places else 0
    return first if places == list(range(first, first + len(places))) else places


def bias_out(look: Look, bias: Bias | None, pile: Pile) -> Plain | None:
    """ALiBi's slopes; T5's numbers by distance, which past `max_distance` no longer change; the
    values of any other."""
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
            "values": put(pile, by_distance[0, :, 0].detach().float().cpu().numpy()),
        }
    values = bias(mask.query_at, mask.key_at)
    if values.numel() > BIAS:
        raise InputError(
            f"a bias of {values.numel():,} numbers",
            expected=f"at most {BIAS:,} in a page",
            fix="trace a shorter text",
        )
    heads = look.heads if values.shape[1] > 1 else 1
    whole = values[0].expand(heads, look.queries, look.key.shape[2])
    return {
        "kind": "given",
        "heads": heads,
        "values": put(pile, whole.detach().float().cpu().numpy()),
    }


def thumbs_out(look: Look, pile: Pile) -> Plain:
    """Every head's map in small, √weight as a byte; a cell shows the largest weight that falls into
    it."""
    columns = min(THUMB, look.key.shape[2])
    step = math.ceil(look.queries / THUMB)
    rows = math.ceil(look.queries / max(1, step))
    found = torch.zeros(look.heads, rows, columns)
    looked_at = THUMB_ROWS if step <= THUMB_ROWS else THUMB_SAMPLE
    for first in sorted({step * n // looked_at for n in range(looked_at)}):
        every = slice(first, None, step)
        scoring = look.scoring.tile(every, slice(0, look.key.shape[2]))
        weights = F.adaptive_max_pool2d(
            attention_weights(look.query[:, :, every], look.key, scoring)[0].float(),
            (len(range(look.queries)[every]), columns),
        )
        found[:, : weights.shape[1]] = torch.maximum(found[:, : weights.shape[1]], weights)
    small = (found.nan_to_num(0).clamp(0, 1).sqrt() * 255).round().to(torch.uint8)
    sizes = {
        "heads": look.heads,
        "queries": look.queries,
        "keys": look.key.shape[2],
        "rows": rows,
        "columns": columns,
    }
    return sizes | {"pixels": put(pile, small.numpy())}


# ------------------------------------------------------------------------------------------- text


def put(pile: Pile, array: NDArray[Any]) -> int:
    """An array on the pile, in the byte order that browsers use."""
    pile.append(
        base64.b64encode(
            np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<"), copy=False)).tobytes()
        ).decode()
    )
    return len(pile) - 1


def tokens_out(tokens: Sequence[Token]) -> Plain:
    """Texts, and which of them repeat the token before: parts of one character, each shown
    whole."""
    same = [
        a.text == b.text and a.start is not None and a.start == b.start and a.end == b.end
        for a, b in pairwise(tokens)
    ]
    return {
        "texts": [token.text for token in tokens],
        "repeats": [n + 1 for n, part in enumerate(same) if part],
    }


def language(text: str) -> str:
    """For the choice of fonts only: Chinese characters look different in Japanese, and kana give
    Japanese away."""
    if re.search("[\u3040-\u30ff]", text):
        return "ja"
    if re.search("[\uac00-\ud7af]", text):
        return "ko"
    return "und" if re.search("[^\u0000-\u024f\u2000-\u22ff]", text) else "en"
