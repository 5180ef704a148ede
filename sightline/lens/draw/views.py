"""Each picture as plain data: `view_of(trace, "map", layer=5, head=1)`. Rendering it is the
terminal's or the figure's work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from sightline.errors import InputError, nearest
from sightline.lens.draw.default_head import alignment_layer
from sightline.lens.draw.selection import SHOWN, Asked, with_head
from sightline.lens.draw.view import Array, View, caption, label, labels, map_of, pooled, step_of
from sightline.lens.trace.layer import checked
from sightline.lens.trace.subject import Subject
from sightline.lens.trace.trace import Trace

THUMB, LINES, STARS = (
    48,
    160,
    256,
)  # the most rows and columns of a small map, tokens with lines, tokens on a sphere
SAMPLED = 1024  # vectors from which the axes of a sphere are found
SWALLOWED = 0.8  # of a rollout, by one token
LOOKS = "query: the token that looks"
LOOKED_AT = "key: the token that is looked at"


def view_of(
    trace: Trace,
    kind: str = "map",
    *,
    layer: int | None = None,
    head: int | None = None,
    stack: str | None = None,
    subject: Subject | None = None,
    most: int | None = SHOWN,
) -> View:
    """One of VIEWS. Without layer and head, the head that does most besides sinks and fixed
    distances is shown; with a layer alone, the mean of its heads where that has a meaning.
    `logit-lens` needs the model as `subject`."""
    if kind not in VIEWS:
        raise InputError(f"no view is called {kind!r}", fix=nearest(kind, VIEWS))
    if subject is None and kind == "logit-lens":
        raise InputError(
            "a logit lens of a trace alone",
            expected="its model",
            fix='view_of(trace, "logit-lens", subject=model), or sightline trace',
        )
    made = VIEWS[kind](Asked(trace, layer, head, stack, subject, most))
    return replace(made, notes=(*made.notes, *trace.notes))


def map_view(asked: Asked) -> View:
    """softmax(q kᵀ · scale): who looks at whom."""
    asked = with_head(asked, mean=True)
    values, across = map_of(asked.look, asked.head, at_most=asked.most)
    return View(
        kind="map",
        title=f"Where each token looks: {asked.place()}",
        caption=caption(asked.trace, asked.place()),
        rows=labels(asked.rows, across[0]),
        columns=labels(asked.trace.tokens_of(asked.stack), across[1]),
        row_axis=LOOKS,
        column_axis=LOOKED_AT,
        values=values,
        across=across,
        notes=binned(across),
        about=asked.about(),
    )


def binned(across: tuple[int, int]) -> tuple[str, ...]:
    """What was taken together, in words."""
    if across == (1, 1):
        return ()
    return (f"{across[0]} tokens share a row (their mean), {across[1]} a column (their sum)",)


def lines_view(asked: Asked) -> View:
    """The same as a line from each token to those it looks at."""
    view = map_view(replace(asked, most=asked.at_most(LINES)))
    return replace(view, kind="lines")


def heads_view(asked: Asked) -> View:
    """Every head of every traced layer, small: `[layers, heads, rows, columns]`."""
    trace = asked.trace
    name = asked.trace.stack_named(asked.stack)
    asked = replace(
        asked,
        layer=min((site[1] for site in trace.looks if site[0] == name and not site[2]), default=0),
    )
    if asked.head is not None:
        checked("head", asked.head, asked.look.heads)
    looks = {
        site[1]: look
        for site, look in sorted(trace.looks.items())
        if site[0] == name and not site[2]
    }
    most = asked.at_most(THUMB)
    count = max(look.heads for look in looks.values())
    maps = [[map_of(look, n, at_most=most) for n in range(look.heads)] for look in looks.values()]
    across = maps[0][0][1]
    blank = np.full_like(maps[0][0][0], np.nan)
    values = np.stack(
        [np.stack([*(one for one, _ in row), *[blank] * (count - len(row))]) for row in maps]
    )
    where = f"{len(looks)} layers × {count} heads"
    return View(
        kind="heads",
        title=f"Every head: {where}",
        caption=caption(trace, where),
        rows=tuple(str(n) for n in looks),
        columns=tuple(str(n) for n in range(count)),
        row_axis="layer",
        column_axis="head",
        values=values,
        across=across,
        notes=(
            "in each small map: a row is a token that looks, a column one that is looked at",
            *binned(across),
        ),
        about={
            "layers": list(looks),
            "tokens": [token.text for token in trace.tokens_of(asked.stack)],
            "stack": name,
        },
    )


def geometry_view(asked: Asked) -> View:
    """score = |q| |k| cos θ · scale: the lengths as bars, the cosines as a map, and what tells keys
    apart."""
    asked = with_head(asked, mean=False)
    assert asked.layer is not None
    assert asked.head is not None
    found = asked.trace.geometry(asked.layer, asked.head, stack=asked.stack)
    split = found.raw if found.on_sphere else found.centred
    cosine = torch.where(found.allowed, split.cosine, math.nan).cpu().numpy()
    across = step_of(cosine.shape[0], asked.most), step_of(cosine.shape[1], asked.most)
    lengths = {"query": found.query_length, "key": found.key_length}
    shares = found.shares
    about = {
        "shares": {name: getattr(shares, name) for name in shares.__slots__},
        "centred": not found.on_sphere,
    }
    return View(
        kind="geometry",
        title=f"Length and direction: {asked.place()}",
        caption=caption(asked.trace, asked.place()),
        rows=labels(asked.rows, across[0]),
        columns=labels(asked.trace.tokens_of(asked.stack), across[1]),
        row_axis=LOOKS,
        column_axis=LOOKED_AT,
        values=pooled(cosine, across, add=False),
        value_name="cos θ" if found.on_sphere else "cos θ, keys centred",
        signed=True,
        across=across,
        notes=(
            found.line(),
            *(
                ()
                if across == (1, 1)
                else (f"each cell is the mean of {across[0]} × {across[1]} pairs",)
            ),
        ),
        extra={
            name: _averaged(length.cpu().numpy(), step)
            for (name, length), step in zip(lengths.items(), across, strict=True)
        },
        about={**asked.about(), **about},
    )


def _averaged(numbers: Array, step: int) -> Array:
    return pooled(numbers[None], (1, step), add=False)[0]


def sphere_view(asked: Asked) -> View:
    """Queries and keys as directions: unit vectors, the three axes that keep most of them, put back
    on the sphere.

    Keys are centred first: one vector added to all of them is nothing that attention sees.
    """
    asked = with_head(asked, mean=False)
    assert asked.head is not None
    look = asked.look.only(asked.head)
    first = max(0, look.queries - (asked.at_most(STARS) or look.queries))
    tokens = asked.trace.tokens_of(asked.stack)
    begin = max(0, len(tokens) - (asked.at_most(STARS) or len(tokens)))
    key = look.key[0, 0].float()
    query_points, key_points, kept = projected(
        unit(look.query[0, 0].float()), unit(key - key.mean(0))
    )
    weights = look.weights(rows=slice(first, None))[0, :, begin:].float().cpu().numpy()
    cut = (f"the last {len(tokens) - begin} of {len(tokens)} tokens",) if begin or first else ()
    dim = look.query.shape[-1]
    return View(
        kind="sphere",
        title=f"Queries and keys on a sphere: {asked.place()}",
        caption=caption(asked.trace, asked.place()),
        rows=labels(asked.rows[first:]),
        columns=labels(tokens[begin:]),
        row_axis="query (ring)",
        column_axis="key (star)",
        values=weights,
        notes=(
            (
                f"3 of {dim} dimensions keep {kept:.0%} of the variance of the directions; keys"
                " centred"
            ),
            *cut,
        ),
        extra={"query": query_points[first:], "key": key_points[begin:]},
        about={**asked.about(), "kept": kept},
    )


def unit(x: torch.Tensor) -> torch.Tensor:
    """x / |x|; a zero stays zero."""
    return x / x.norm(dim=-1, keepdim=True).clamp(min=1e-12)


def projected(query: torch.Tensor, key: torch.Tensor) -> tuple[Array, Array, float]:
    """Queries and keys on their three main axes, on the unit sphere again, and the part of Σ|x|²
    that these axes hold.

    The axes are the first three eigenvectors of Σ q qᵀ / queries + Σ k kᵀ / keys, on the page as
    well (assets/sky.js). They go through the centre, where no direction is, so nothing else is
    subtracted.
    """
    strength, vectors = torch.linalg.eigh(moment(query) + moment(key))
    axes = vectors.T.flip(0)[:3]
    axes = axes * torch.where(
        axes.sum(1, keepdim=True) < 0, -1.0, 1.0
    )  # an axis has no sign of its own
    kept = float(strength[-3:].sum() / strength.sum().clamp(min=1e-300))
    flat = [torch.nn.functional.pad(x.double() @ axes.T, (0, 3 - len(axes))) for x in (query, key)]
    query_points, key_points = (unit(x).float().cpu().numpy() for x in flat)
    return query_points, key_points, kept


def moment(x: torch.Tensor) -> torch.Tensor:
    """Σ x xᵀ / count; of a long text over vectors at equal distances, some thousand of them."""
    sample = x[:: max(1, len(x) // SAMPLED)].double()
    return sample.T @ sample / len(sample)


def logit_lens_view(asked: Asked) -> View:
    """What the model would say after each layer."""
    from sightline.lens.attributions.logit_lens import logit_lens

    assert asked.subject is not None
    trace = asked.trace
    found = logit_lens(asked.subject, trace, top_k=1)
    last = len(found.top) - 1
    name = trace.stack_named(None)
    shown = (
        [n for n in range(last) if (name, n, False) in trace.looks]
        if trace.looks
        else list(range(last))
    )
    if asked.layer is not None:
        shown = [checked("layer", asked.layer, last)]
    rows = [*shown, last]
    words = [[label(found.words[int(id)]) for id in row[:, 0]] for row in found.top[rows]]
    return View(
        kind="logit-lens",
        title="What the model would say after each layer",
        caption=caption(trace, "logit lens"),
        rows=(*(f"into {n}" for n in shown), "output"),
        columns=labels(trace.tokens),
        row_axis="the stream that enters a layer",
        column_axis="token read",
        values=found.top_probability[rows][..., 0].float().cpu().numpy(),
        value_name="probability of the likeliest next token",
        notes=(f"the stream through {found.applied}",),
        cells=tuple(map(tuple, words)),
        about={"layers": shown},
    )


def alignment_view(asked: Asked) -> View:
    """Cross-attention: which token of the source each token of the target was made from.

    Row t belongs to the token that was produced there, whose input is the one before it. Without a
    layer, the last but one.
    """
    trace = asked.trace
    if trace.source is None:
        one = next(iter(trace.config.stacks))
        raise InputError(
            f"an alignment of a model with one stack ({one})",
            expected="an encoder–decoder",
            fix='view="map"',
        )
    look = trace.look(alignment_layer(trace) if asked.layer is None else asked.layer, cross=True)
    head = None if asked.head is None else checked("head", asked.head, look.heads)
    asked = replace(asked, layer=look.site[1], head=head, stack="decoder")
    values, across = map_of(look, head, at_most=asked.most)
    return View(
        kind="alignment",
        title=f"Where each word came from: {asked.place()}",
        caption=caption(trace, asked.place()),
        rows=labels(trace.produced[-look.queries :], across[0]),
        columns=labels(trace.source, across[1]),
        row_axis="target: the token that was produced",
        column_axis="source",
        values=values,
        across=across,
        notes=binned(across),
        about=asked.about(),
    )


def rollout_view(asked: Asked) -> View:
    """Attention through all layers up to one: R_n = (½ I + ½ mean_h A_n) R_{n−1}.

    Without a layer, the deepest at which no token has swallowed nearly all: a sink does, layer
    after layer.
    """
    from sightline.lens.attributions.rollout import rollout

    trace = asked.trace
    last = trace.config.stacks[trace.stack_named(asked.stack)].layers - 1
    found = rollout(trace, stack=asked.stack).maps
    tokens = trace.tokens_of(asked.stack)
    swallowed = found.mean(1)  # [layer, key]
    if asked.layer is None:
        layer = max(
            (n for n in range(last + 1) if float(swallowed[n].max()) < SWALLOWED), default=last
        )
    else:
        layer = checked("layer", asked.layer, last + 1)
    sink = label(tokens[int(swallowed[last].argmax())].text)
    deeper = (
        f"after layer {last}, {float(swallowed[last].max()):.1%} of everything comes from {sink}"
    )
    asked = replace(asked, layer=layer, head=None)
    values = found[layer].float().cpu().numpy()
    across = step_of(values.shape[0], asked.most), step_of(values.shape[1], asked.most)
    values = np.where(values > 0, values, np.nan).astype(np.float32)
    return View(
        kind="rollout",
        title=f"What each token is made of, after layer {layer}",
        caption=caption(
            trace, f"rollout of layers 0 to {layer}, mean of heads, ½ kept at each step"
        ),
        rows=labels(tokens, across[0]),
        columns=labels(tokens, across[1]),
        row_axis=f"token after layer {layer}",
        column_axis="token that entered",
        values=pooled(values, across),
        value_name="share of the token",
        across=across,
        notes=(*((deeper,) if layer < last else ()), *binned(across)),
        about=asked.about(),
    )


VIEWS: dict[str, Callable[[Asked], View]] = {
    "map": map_view,
    "heads": heads_view,
    "lines": lines_view,
    "geometry": geometry_view,
    "sphere": sphere_view,
    "logit-lens": logit_lens_view,
    "alignment": alignment_view,
    "rollout": rollout_view,
}
