"""The views of a trace as data: `view_of(trace, "map", layer=5, head=1)`. `terminal` and `figure`
render them."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from sightline.errors import InputError, nearest
from sightline.lens.draw.default_head import alignment_layer
from sightline.lens.draw.selection import MAX_SIZE, Selection, select_head
from sightline.lens.draw.view import (
    Array,
    View,
    attention_map,
    bin_size,
    bin_values,
    token_label,
    token_labels,
    view_caption,
)
from sightline.lens.geometry.shares import Origin
from sightline.lens.trace.layer import checked_index
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace

MAX_SMALL_MAP = 48  # rows and columns of a thumbnail
MAX_LINES = 160  # tokens in the lines view
MAX_POINTS = 256  # tokens on the sphere
MAX_SAMPLES = 1024  # vectors that the axes of the sphere are computed from
SINK_SHARE = 0.8  # of a rollout: a token with a larger share is a sink
QUERY_AXIS = "query"
KEY_AXIS = "key"


def view_of(
    trace: Trace,
    kind: str = "map",
    *,
    layer: int | None = None,
    head: int | None = None,
    stack: str | None = None,
    subject: Subject | None = None,
    max_size: int | None = MAX_SIZE,
    origin: Origin | None = None,
    sink: bool = True,
) -> View:
    """One of VIEWS. Without layer and head, the head with most structure besides sinks and fixed
    offsets is shown; with a layer only, the mean of its heads where that is meaningful.
    `logit-lens` needs the model as `subject`; `origin` and `sink` are those of `trace.geometry`."""
    if kind not in VIEWS:
        raise InputError(f"no view is called {kind!r}", fix=nearest(kind, VIEWS))
    if subject is None and kind == "logit-lens":
        raise InputError(
            "a logit lens without the model",
            expected="its model",
            fix='view_of(trace, "logit-lens", subject=model), or sightline trace',
        )
    view = VIEWS[kind](Selection(trace, layer, head, stack, subject, max_size, origin, sink))
    return replace(view, notes=(*view.notes, *trace.notes))


def map_view(selection: Selection) -> View:
    """softmax(q kᵀ · scale): attention weights of every query over the keys."""
    selection = select_head(selection, mean=True)
    values, across = attention_map(selection.look, selection.head, max_size=selection.max_size)
    return View(
        kind="map",
        title=f"Attention weights: {selection.place()}",
        caption=view_caption(selection.trace, selection.place()),
        rows=token_labels(selection.rows, across[0]),
        columns=token_labels(selection.trace.tokens_of(selection.stack), across[1]),
        row_axis=QUERY_AXIS,
        column_axis=KEY_AXIS,
        values=values,
        across=across,
        notes=binning_note(across),
        about=selection.about(),
    )


def binning_note(across: tuple[int, int]) -> tuple[str, ...]:
    """A note about binning, if there is any."""
    if across == (1, 1):
        return ()
    return (f"{across[0]} tokens share a row (their mean), {across[1]} a column (their sum)",)


def lines_view(selection: Selection) -> View:
    """The map as lines from each query to its keys."""
    view = map_view(replace(selection, max_size=selection.at_most(MAX_LINES)))
    return replace(view, kind="lines")


def heads_view(selection: Selection) -> View:
    """Every head of every traced layer, small: `[layers, heads, rows, columns]`."""
    trace = selection.trace
    name = selection.trace.stack_named(selection.stack)
    selection = replace(
        selection,
        layer=min((site[1] for site in trace.looks if site[0] == name and not site[2]), default=0),
    )
    if selection.head is not None:
        checked_index("head", selection.head, selection.look.heads)
    looks = {
        site[1]: look
        for site, look in sorted(trace.looks.items())
        if site[0] == name and not site[2]
    }
    max_size = selection.at_most(MAX_SMALL_MAP)
    count = max(look.heads for look in looks.values())
    maps = [
        [attention_map(look, n, max_size=max_size) for n in range(look.heads)]
        for look in looks.values()
    ]
    across = maps[0][0][1]
    blank = np.full_like(maps[0][0][0], np.nan)
    values = np.stack(
        [
            np.stack([*(thumbnail for thumbnail, _ in row), *[blank] * (count - len(row))])
            for row in maps
        ]
    )
    size = f"{len(looks)} layers × {count} heads"
    return View(
        kind="heads",
        title=f"Every head: {size}",
        caption=view_caption(trace, size),
        rows=tuple(str(n) for n in looks),
        columns=tuple(str(n) for n in range(count)),
        row_axis="layer",
        column_axis="head",
        values=values,
        across=across,
        notes=(
            "in each small map, rows are queries and columns keys",
            *binning_note(across),
        ),
        about={
            "layers": list(looks),
            "tokens": [token.text for token in trace.tokens_of(selection.stack)],
            "stack": name,
        },
    )


def geometry_view(selection: Selection) -> View:
    """score = |q| |k| cos θ · scale: lengths as bars, cosines as a map, and the shares of both."""
    selection = select_head(selection, mean=False)
    assert selection.layer is not None
    assert selection.head is not None
    geometry = selection.trace.geometry(
        selection.layer,
        selection.head,
        stack=selection.stack,
        origin=selection.origin,
        sink=selection.sink,
    )
    split = geometry.split
    cosine = torch.where(geometry.allowed, split.cosine, math.nan).cpu().numpy()
    across = (
        bin_size(cosine.shape[0], selection.max_size),
        bin_size(cosine.shape[1], selection.max_size),
    )
    lengths = {"query": geometry.query_length, "key": geometry.key_length}
    shares = geometry.shares
    about = {
        "shares": {name: getattr(shares, name) for name in shares.__slots__},
        "origin": geometry.origin,
        "sink": geometry.sink,
        "centred": geometry.origin == "mean",
    }
    return View(
        kind="geometry",
        title=f"Length and direction: {selection.place()}",
        caption=view_caption(selection.trace, selection.place()),
        rows=token_labels(selection.rows, across[0]),
        columns=token_labels(selection.trace.tokens_of(selection.stack), across[1]),
        row_axis=QUERY_AXIS,
        column_axis=KEY_AXIS,
        values=bin_values(cosine, across, add=False),
        value_name="cos θ" if geometry.origin == "zero" else "cos θ, keys centred",
        signed=True,
        across=across,
        notes=(
            geometry.line(),
            *(
                ()
                if across == (1, 1)
                else (f"each cell is the mean of {across[0]} × {across[1]} pairs",)
            ),
        ),
        extra={
            name: _mean_lengths(length.cpu().numpy(), step)
            for (name, length), step in zip(lengths.items(), across, strict=True)
        },
        about={**selection.about(), **about},
    )


def _mean_lengths(numbers: Array, step: int) -> Array:
    return bin_values(numbers[None], (1, step), add=False)[0]


def sphere_view(selection: Selection) -> View:
    """Queries and keys as directions: unit vectors, projected on their three main axes and
    normalized.

    Keys are centred first: attention is invariant to a vector added to all keys.
    """
    selection = select_head(selection, mean=False)
    assert selection.head is not None
    look = selection.look.only(selection.head)
    first_query = max(0, look.queries - (selection.at_most(MAX_POINTS) or look.queries))
    tokens = selection.trace.tokens_of(selection.stack)
    first_key = max(0, len(tokens) - (selection.at_most(MAX_POINTS) or len(tokens)))
    key = look.key[0, 0].float()
    query_points, key_points, kept = project_to_sphere(
        normalize(look.query[0, 0].float()), normalize(key - key.mean(0))
    )
    weights = look.weights(rows=slice(first_query, None))[0, :, first_key:].float().cpu().numpy()
    cut_note = (
        (f"the last {len(tokens) - first_key} of {len(tokens)} tokens",)
        if first_key or first_query
        else ()
    )
    dim = look.query.shape[-1]
    return View(
        kind="sphere",
        title=f"Queries and keys on a sphere: {selection.place()}",
        caption=view_caption(selection.trace, selection.place()),
        rows=token_labels(selection.rows[first_query:]),
        columns=token_labels(tokens[first_key:]),
        row_axis="query (ring)",
        column_axis="key (star)",
        values=weights,
        notes=(
            (
                f"3 of {dim} dimensions keep {kept:.0%} of the variance of the directions; keys"
                " centred"
            ),
            *cut_note,
        ),
        extra={"query": query_points[first_query:], "key": key_points[first_key:]},
        about={**selection.about(), "kept": kept},
    )


def normalize(x: torch.Tensor) -> torch.Tensor:
    """x / |x|; a zero stays zero."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def project_to_sphere(query: torch.Tensor, key: torch.Tensor) -> tuple[Array, Array, float]:
    """Queries and keys on their three main axes, normalized to the unit sphere, and the share of
    Σ|x|² on these axes.

    The axes are the first three eigenvectors of Σ q qᵀ / queries + Σ k kᵀ / keys, as on the page
    (assets/sphere_points.js). They pass through the origin, so no mean is subtracted.
    """
    strength, vectors = torch.linalg.eigh(second_moment(query) + second_moment(key))
    axes = vectors.T.flip(0)[:3]
    axes = axes * torch.where(axes.sum(1, keepdim=True) < 0, -1.0, 1.0)  # fixes the sign
    kept = float(strength[-3:].sum() / strength.sum().clamp(min=1e-300))
    flat = [torch.nn.functional.pad(x.double() @ axes.T, (0, 3 - len(axes))) for x in (query, key)]
    query_points, key_points = (normalize(x).float().cpu().numpy() for x in flat)
    return query_points, key_points, kept


def second_moment(x: torch.Tensor) -> torch.Tensor:
    """Σ x xᵀ / count, over about MAX_SAMPLES evenly spaced vectors of a long text."""
    sample = x[:: max(1, len(x) // MAX_SAMPLES)].double()
    return sample.T @ sample / len(sample)


def logit_lens_view(selection: Selection) -> View:
    """The most likely next token after each layer."""
    from sightline.lens.attributions.logit_lens import logit_lens

    assert selection.subject is not None
    trace = selection.trace
    lens = logit_lens(selection.subject, trace, top_k=1)
    last = len(lens.top) - 1
    name = trace.stack_named(None)
    layers = (
        [n for n in range(last) if (name, n, False) in trace.looks]
        if trace.looks
        else list(range(last))
    )
    if selection.layer is not None:
        layers = [checked_index("layer", selection.layer, last)]
    rows = [*layers, last]
    words = [[token_label(lens.words[int(id)]) for id in row[:, 0]] for row in lens.top[rows]]
    return View(
        kind="logit-lens",
        title="Logit lens: the most likely next token after each layer",
        caption=view_caption(trace, "logit lens"),
        rows=(*(f"into {n}" for n in layers), "output"),
        columns=token_labels(trace.tokens),
        row_axis="residual stream entering layer",
        column_axis="input token",
        values=lens.top_probability[rows][..., 0].float().cpu().numpy(),
        value_name="probability of the most likely next token",
        notes=(f"the stream through {lens.applied}",),
        cells=tuple(map(tuple, words)),
        about={"layers": layers},
    )


def alignment_view(selection: Selection) -> View:
    """Cross-attention of every target token over the source tokens.

    Row t is labelled with the token produced there, whose input is the token before it. The default
    layer is the second to last.
    """
    trace = selection.trace
    if trace.source is None:
        one = next(iter(trace.config.stacks))
        raise InputError(
            f"an alignment of a model with one stack ({one})",
            expected="an encoder–decoder",
            fix='view="map"',
        )
    look = trace.look(
        alignment_layer(trace) if selection.layer is None else selection.layer, cross=True
    )
    head = None if selection.head is None else checked_index("head", selection.head, look.heads)
    selection = replace(selection, layer=look.site[1], head=head, stack="decoder")
    values, across = attention_map(look, head, max_size=selection.max_size)
    return View(
        kind="alignment",
        title=f"Cross-attention: {selection.place()}",
        caption=view_caption(trace, selection.place()),
        rows=token_labels(trace.produced[-look.queries :], across[0]),
        columns=token_labels(trace.source, across[1]),
        row_axis="target token produced",
        column_axis="source",
        values=values,
        across=across,
        notes=binning_note(across),
        about=selection.about(),
    )


def rollout_view(selection: Selection) -> View:
    """Attention through all layers up to one: R_n = (½ I + ½ mean_h A_n) R_{n−1}.

    The default layer is the deepest one before a sink dominates.
    """
    from sightline.lens.attributions.rollout import rollout

    trace = selection.trace
    last = trace.config.stacks[trace.stack_named(selection.stack)].layers - 1
    maps = rollout(trace, stack=selection.stack).maps
    tokens = trace.tokens_of(selection.stack)
    key_share = maps.mean(1)  # [layer, key]
    if selection.layer is None:
        layer = max(
            (n for n in range(last + 1) if float(key_share[n].max()) < SINK_SHARE), default=last
        )
    else:
        layer = checked_index("layer", selection.layer, last + 1)
    sink = token_label(tokens[int(key_share[last].argmax())].text)
    sink_note = (
        f"after layer {last}, {float(key_share[last].max()):.1%} of the total comes from {sink}"
    )
    selection = replace(selection, layer=layer, head=None)
    values = maps[layer].float().cpu().numpy()
    across = (
        bin_size(values.shape[0], selection.max_size),
        bin_size(values.shape[1], selection.max_size),
    )
    values = np.where(values > 0, values, np.nan).astype(np.float32)
    return View(
        kind="rollout",
        title=f"Attention rollout up to layer {layer}",
        caption=view_caption(
            trace, f"rollout of layers 0 to {layer}, mean of heads, ½ kept at each step"
        ),
        rows=token_labels(tokens, across[0]),
        columns=token_labels(tokens, across[1]),
        row_axis=f"token after layer {layer}",
        column_axis="input token",
        values=bin_values(values, across),
        value_name="share",
        across=across,
        notes=(*((sink_note,) if layer < last else ()), *binning_note(across)),
        about=selection.about(),
    )


VIEWS: dict[str, Callable[[Selection], View]] = {
    "map": map_view,
    "heads": heads_view,
    "lines": lines_view,
    "geometry": geometry_view,
    "sphere": sphere_view,
    "logit-lens": logit_lens_view,
    "alignment": alignment_view,
    "rollout": rollout_view,
}
