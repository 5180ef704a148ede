"""The independent oracle: every equation again in float64 NumPy, from the papers and not from
`sightline.core`.

One function per equation, one sequence at a time, loops where they read better. Padding is not
masked here but *taken out*: a padded sequence must give what its real tokens alone would give. Head
`h` of a layer is row `h` of a `[heads, time, dim]` array.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

import sightline as sl

Array = np.ndarray
State = Mapping[str, Array]


def under(state: State, path: str) -> State:
    """The parameters below a path, by the rest of their name."""
    return {
        name[len(path) + 1 :]: value for name, value in state.items() if name.startswith(path + ".")
    }


def linear(params: State, name: str, x: Array) -> Array:
    """`x Wᵀ + b`; b may be missing."""
    return x @ params[f"{name}.weight"].T + params.get(f"{name}.bias", 0.0)


# --- norms
# -------------------------------------------------------------------------------------------------------------------------


def layer_norm(x: Array, gain: Array, bias: Array | float, eps: float) -> Array:
    """`γ (x − μ) / √(σ² + ε) + β`, σ² the mean squared deviation (Ba et al. 2016, eq. 4)."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return gain * (x - mean) / np.sqrt(variance + eps) + bias


def rms_norm(x: Array, gain: Array, eps: float) -> Array:
    """`γ x / √(mean(x²) + ε)` (Zhang and Sennrich 2019, eq. 4)."""
    return gain * x / np.sqrt((x * x).mean(-1, keepdims=True) + eps)


def unit(x: Array, axis: int = -1) -> Array:
    """`x / |x|`: a point on the unit hypersphere."""
    return x / np.sqrt((x * x).sum(axis, keepdims=True))


def norm(config: sl.config.Norm, params: State, x: Array) -> Array:
    if isinstance(config, sl.LayerNorm):
        return layer_norm(x, params["weight"], params["bias"] if config.bias else 0.0, config.eps)
    if isinstance(config, sl.RMSNorm):
        return rms_norm(x, params["weight"] + (1.0 if config.plus_one else 0.0), config.eps)
    return x


# --- positions
# ---------------------------------------------------------------------------------------------------------------------


def sinusoidal(
    position: int, width: int, *, base: float = 10000.0, interleaved: bool = True
) -> Array:
    """`PE(pos, 2i) = sin(pos / base^(2i/d))`, `PE(pos, 2i+1) = cos(…)` (Vaswani et al. 2017, 3.5);
    or all sines first (Marian)."""
    angles = [position / base ** (2 * i / width) for i in range(width // 2)]
    sines, cosines = [math.sin(a) for a in angles], [math.cos(a) for a in angles]
    pairs = [number for pair in zip(sines, cosines, strict=True) for number in pair]
    return np.array(pairs if interleaved else sines + cosines)


def rotary_frequencies(rotary: sl.Rotary, dim: int) -> tuple[Array, float]:
    """θ_i = base^(−2i/d) (Su et al. 2021, 3.2.2), scaled for longer contexts; and what multiplies
    the rotated vectors (YaRN)."""
    scaling, base = rotary.scaling, rotary.base
    if isinstance(
        scaling, sl.NTKScaling
    ):  # θ_0 = 1 stays, the last θ becomes θ / factor: b' = b · s^(d/(d−2)) (Peng et al. 2023, 3.1)
        base = base * scaling.factor ** (dim / (dim - 2)) if dim > 2 else base
    frequency = np.array([base ** (-2 * i / dim) for i in range(dim // 2)])
    if isinstance(scaling, sl.LinearScaling):
        return frequency / scaling.factor, 1.0
    if isinstance(scaling, sl.YaRNScaling):
        default = 0.1 * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0
        return yarn(
            frequency, scaling, dim, base
        ), default if scaling.attention_factor is None else scaling.attention_factor
    if isinstance(scaling, sl.Llama3Scaling):
        return np.array([llama3(f, scaling) for f in frequency]), 1.0
    return frequency, 1.0


def yarn(frequency: Array, scaling: sl.YaRNScaling, dim: int, base: float) -> Array:
    """NTK-by-parts: pairs that turn more than β_fast times within L stay, fewer than β_slow are
    divided (Peng et al. 2023, 3.2)."""

    def pair_turning(times: float) -> float:  # the i with L θ_i / 2π = times
        return (
            dim
            * math.log(scaling.original_positions / (2 * math.pi * times))
            / (2 * math.log(base))
        )

    low, high = pair_turning(scaling.beta_fast), pair_turning(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    ramp = np.clip((np.arange(dim // 2) - low) / max(high - low, 0.001), 0, 1)
    return (1 - ramp) * frequency + ramp * frequency / scaling.factor


def llama3(frequency: float, scaling: sl.Llama3Scaling) -> float:
    """Waves longer than L/low are divided by the factor, shorter than L/high kept, between them
    blended (Llama 3.1's `apply_scaling`)."""
    turns = scaling.original_positions * frequency / (2 * math.pi)
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    kept = min(max((turns - low) / (high - low), 0.0), 1.0)
    return kept * frequency + (1 - kept) * frequency / scaling.factor


def rotate(rotary: sl.Rotary, x: Array) -> Array:
    """Pair (x_i, x_{i+d/2}) turned by position · θ_i (Su et al. 2021, eq. 34, in GPT-NeoX's order);
    numbers beyond `dim` pass."""
    dim = rotary.dim or x.shape[-1]
    frequency, factor = rotary_frequencies(rotary, dim)
    out = x.copy()
    for position in range(x.shape[-2]):
        for i in range(dim // 2):
            cos, sin = math.cos(position * frequency[i]), math.sin(position * frequency[i])
            a, b = x[..., position, i], x[..., position, i + dim // 2]
            out[..., position, i] = factor * (a * cos - b * sin)
            out[..., position, i + dim // 2] = factor * (a * sin + b * cos)
    return out


def alibi_slopes(heads: int) -> list[float]:
    """2^(−8h/H); else those of the power of two below, then every other slope of the one above
    (Press et al. 2022, note in 3)."""
    below = 2 ** int(math.log2(heads))
    slopes, above = (
        [2 ** (-8 * h / power) for h in range(1, power + 1)] for power in (below, 2 * below)
    )
    return slopes + above[::2][: heads - below]


def t5_bucket(relative: int, *, buckets: int, max_distance: int, bidirectional: bool) -> int:
    """The bucket of key − query: half of the buckets exact, half logarithmic up to the distance
    (Raffel et al. 2020, 2.1).

    Bidirectional: the second half of the table is for keys after the query. Otherwise such keys
    count as distance 0. Bucket exact + m begins where `distance ≥ exact · (max/exact)^(m/steps)`,
    compared in whole numbers.
    """
    start = 0
    if bidirectional:
        buckets //= 2
        start, distance = (buckets if relative > 0 else 0), abs(relative)
    else:
        distance = max(-relative, 0)
    exact = buckets // 2
    if distance < exact:
        return start + distance
    steps = buckets - exact
    passed = [
        m for m in range(1, steps) if distance**steps >= exact ** (steps - m) * max_distance**m
    ]
    return start + exact + len(passed)


def position_bias(
    config: sl.AttentionConfig, table: Array | None, time: int, *, causal: bool
) -> Array:
    """What positions add to the scores [heads, query, key]: ALiBi, T5's table [buckets, heads], or
    nothing."""
    bias = np.zeros((config.heads, time, time))
    where = config.positions
    for query in range(time):
        for key in range(time):
            if isinstance(where, sl.ALiBi):
                bias[:, query, key] = [
                    -slope * abs(query - key) for slope in alibi_slopes(config.heads)
                ]
            if isinstance(where, sl.RelativeBias):
                bucket = t5_bucket(
                    key - query,
                    buckets=where.buckets,
                    max_distance=where.max_distance,
                    bidirectional=not causal,
                )
                bias[:, query, key] = table[bucket]
    return bias


# --- attention
# ---------------------------------------------------------------------------------------------------------------------


def allowed(
    queries: int, keys: int, *, causal: bool = False, window: int | None = None, offset: int = 0
) -> Array:
    """May query i look at key j? Causal: j ≤ i. Window w: |i − j| < w, so w keys with itself when
    causal. Queries start at `offset`."""
    i, j = np.arange(queries)[:, None] + offset, np.arange(keys)[None, :]
    may = np.ones((queries, keys), bool)
    if causal:
        may &= j <= i
    if window is not None:
        may &= abs(i - j) < window
    return may


def softmax(scores: Array, may: Array | None = None, sink: float | None = None) -> Array:
    """`exp(s_j) / (Σ exp(s) + exp(sink))` over each row's allowed keys; 0 elsewhere, and all 0
    where nothing is allowed.

    The sink is a key that takes weight and gives no value (gpt-oss 2025; Xiao et al. 2023).
    """
    weights = np.zeros(scores.shape)
    for index in np.ndindex(*scores.shape[:-1]):
        may_see = np.ones(scores.shape[-1], bool) if may is None else may[index]
        seen = scores[index][may_see]
        if seen.size:
            top = seen.max()
            extra = 0.0 if sink is None else np.exp(sink - top)
            weights[index][may_see] = np.exp(seen - top) / (np.exp(seen - top).sum() + extra)
    return weights


def soft_cap(scores: Array, cap: float | None) -> Array:
    """`c · tanh(s / c)` (Gemma 2, 2024, section 2)."""
    return scores if cap is None else cap * np.tanh(scores / cap)


def attention(
    query: Array,
    key: Array,
    value: Array,
    *,
    scale: Array | float | None = None,
    may: Array | None = None,
    bias: Array | None = None,
    cap: float | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Array]:
    """`softmax(q kᵀ / √d_k) v` (Vaswani et al. 2017, eq. 1), each key head serving `heads /
    kv_heads` queries (Ainslie et al. 2023).

    `may` is [query, key], or [heads, query, key] where heads may look at other keys.
    """
    heads, _, head_dim = query.shape
    scales = np.broadcast_to(1 / math.sqrt(head_dim) if scale is None else scale, (heads,))
    outputs, weights = [], []
    for head in range(heads):
        group = head // (heads // len(key))
        scores = soft_cap(query[head] @ key[group].T * scales[head], cap)
        scores = scores if bias is None else scores + bias[head]
        seen = may[head] if may is not None and may.ndim == 3 else may
        weights.append(softmax(scores, seen, None if sinks is None else sinks[head]))
        outputs.append(weights[-1] @ value[group])
    return np.array(outputs), np.array(weights)


def split_heads(x: Array, heads: int) -> Array:
    """[time, heads · dim] → [heads, time, dim]."""
    return np.array(np.split(x, heads, axis=-1))


def head_norm(config: sl.HeadNorm | None, params: State, x: Array, heads: int) -> Array:
    """QK-norm of each head by itself (Henry et al. 2020; Qwen 3) or of all heads as one vector
    (OLMo 2); then split into heads."""
    if config is None or not config.per_head:
        return split_heads(x if config is None else norm(config.norm, params, x), heads)
    return norm(config.norm, under(params, "norm"), split_heads(x, heads))


def multi_head(
    config: sl.AttentionConfig,
    params: State,
    x: Array,
    context: Array,
    *,
    may: Array,
    bias: Array | None = None,
    sphere: bool = False,
) -> tuple[Array, Array]:
    """`Concat(head_1 … head_h) W_O` (Vaswani et al. 2017, 3.2.2); q and k are normed, rotated, then
    measured. Also the weights."""
    query = head_norm(
        config.query_key_norm, under(params, "query_norm"), linear(params, "query", x), config.heads
    )
    key = head_norm(
        config.query_key_norm,
        under(params, "key_norm"),
        linear(params, "key", context),
        config.kv_heads,
    )
    value = split_heads(linear(params, "value", context), config.kv_heads)
    if isinstance(config.positions, sl.Rotary):
        query, key = rotate(config.positions, query), rotate(config.positions, key)
    if sphere:  # q = unit(q) s_qk, k = unit(k) s_qk, scores times √d_k (Loshchilov et al. 2024, eqs. 15–16); stored as s / √width
        s_qk = params["measure.scale.weight"] * math.sqrt(x.shape[-1])
        query, key = (
            unit(query) * np.repeat(s_qk, config.heads // config.kv_heads, axis=0),
            unit(key) * s_qk,
        )
        scale = math.sqrt(config.head_dim)
    elif isinstance(
        config.kind, sl.Cosine
    ):  # scale · cos θ (Henry et al. 2020, eq. 3; Liu et al. 2022)
        query, key = unit(query), unit(key)
        scale = params["measure.scale"] if config.kind.learnable else config.kind.scale
    else:
        scale = config.kind.scale
    heads, weights = attention(
        query,
        key,
        value,
        scale=scale,
        may=may,
        bias=bias,
        cap=config.softcap,
        sinks=params["sinks"] if config.sinks else None,
    )
    return linear(params, "output", np.concatenate(list(heads), axis=-1)), weights


# --- feed-forward
# ------------------------------------------------------------------------------------------------------------------

_erf = np.vectorize(math.erf, otypes=[float])

ACTIVATIONS = {
    "relu": lambda x: np.maximum(x, 0),
    "gelu": lambda x: x * (1 + _erf(x / math.sqrt(2))) / 2,  # x Φ(x) (Hendrycks and Gimpel 2016)
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "silu": lambda x: x * (1 + np.tanh(x / 2)) / 2,  # x σ(x)
    "relu_squared": lambda x: np.maximum(x, 0) ** 2,  # So et al. 2021
}


def feed_forward(
    config: sl.FeedForwardConfig, params: State, x: Array, *, sphere: bool = False
) -> Array:
    """`W₂ act(W₁ x)`; gated `W₂ (act(W_g x) ⊙ W₁ x)` (Shazeer 2020); nGPT's `u s_u`, `v s_v √width`
    (Loshchilov et al. 2024, eq. 20)."""
    act = ACTIVATIONS[config.activation]
    up = linear(params, "up", x)
    if not config.gated:
        return linear(params, "down", act(up))
    gate = linear(params, "gate", x)
    if sphere:
        up, gate = (
            up * params["up_scale.weight"],
            gate * params["gate_scale.weight"] * math.sqrt(x.shape[-1]),
        )
    return linear(params, "down", act(gate) * up)


# --- blocks
# ------------------------------------------------------------------------------------------------------------------------


def residual(config: sl.BlockConfig, params: State, x: Array, f: Callable[[Array], Array]) -> Array:
    """Where the norms stand: Post-LN (2017), Pre-LN (Xiong et al. 2020), both sides (Gemma 2), the
    output alone (OLMo 2)."""

    def normed(name: str, y: Array) -> Array:
        return norm(config.norm, under(params, name), y)

    if config.placement == "post":
        return normed("after", x + f(x))
    if config.placement == "pre":
        return x + f(normed("before", x))
    if config.placement == "sandwich":
        return x + normed("inside", f(normed("before", x)))
    return x + normed("inside", f(x))


def sphere_step(params: State, name: str, h: Array, f: Callable[[Array], Array]) -> Array:
    """`a = unit(f(h))`, `h = unit(h + α (a − h))` (Loshchilov et al. 2024, eqs. 10–11); α starts at
    0.05, stored from 1/√width on."""
    alpha = 0.05 * params[f"{name}.weight"] * math.sqrt(h.shape[-1])
    return unit(h + alpha * (unit(f(h)) - h))


def block(
    config: sl.BlockConfig,
    params: State,
    x: Array,
    *,
    causal: bool,
    table: Array | None,
    memory: Array | None,
) -> Array:
    """Self-attention, cross-attention to the encoder's states if there are any, feed-forward."""
    time, sphere = len(x), config.placement == "sphere"
    may = allowed(time, time, causal=causal, window=config.attention.window)
    bias = position_bias(config.attention, table, time, causal=causal)

    def attend(y: Array) -> Array:
        return multi_head(
            config.attention, under(params, "attention"), y, y, may=may, bias=bias, sphere=sphere
        )[0]

    def cross(y: Array) -> Array:
        everything = np.ones((time, len(memory)), bool)
        return multi_head(
            config.cross_attention, under(params, "cross_attention"), y, memory, may=everything
        )[0]

    def feed(y: Array) -> Array:
        return feed_forward(config.feed_forward, under(params, "feed_forward"), y, sphere=sphere)

    if sphere:
        return sphere_step(
            params, "feed_forward_step", sphere_step(params, "attention_step", x, attend), feed
        )
    if (
        config.parallel
    ):  # x + attention(norm(x)) + feed_forward(norm'(x)) (Wang and Komatsuzaki 2021)
        first = residual(config, under(params, "attention_residual"), x, attend)
        return first + residual(config, under(params, "feed_forward_residual"), x, feed) - x
    x = residual(config, under(params, "attention_residual"), x, attend)
    if config.cross_attention is not None:
        x = residual(config, under(params, "cross_residual"), x, cross)
    return residual(config, under(params, "feed_forward_residual"), x, feed)


# --- whole models
# ------------------------------------------------------------------------------------------------------------------


def embed(config: sl.EmbeddingConfig, params: State, tokens: Array, types: Array | None) -> Array:
    """Token vector · scale + position vector + type vector, normed (Vaswani et al. 2017, 3.4;
    Devlin et al. 2019, figure 2)."""
    x = params["tokens.weight"][tokens] * config.scale
    where = config.positions
    for position in range(len(tokens)):
        if isinstance(where, sl.Learned):
            x[position] += params["positions.weight"][position + where.offset]
        if isinstance(where, sl.Sinusoidal):
            x[position] += sinusoidal(
                position, x.shape[-1], base=where.base, interleaved=where.interleaved
            )
    if config.types:
        x = x + params["types.weight"][np.zeros_like(tokens) if types is None else types]
    return norm(config.norm, under(params, "norm"), x)


def stack(
    config: sl.StackConfig,
    params: State,
    tokens: Array,
    types: Array | None = None,
    memory: Array | None = None,
) -> Array:
    """Embedding, blocks, final norm: the hidden states [time, width] of one sequence without
    padding."""
    x = embed(config.embedding, under(params, "embedding"), tokens, types)
    for layer in range(config.layers):
        table = params.get("relative.weight")
        x = block(
            config.block(layer),
            under(params, str(layer)),
            x,
            causal=config.causal,
            table=table,
            memory=memory,
        )
    return norm(config.final_norm, under(params, "norm"), x)


def output(config: sl.ModelConfig, params: State, embeddings: Array, x: Array) -> Array:
    """From hidden states to logits, to one pooled vector, or as they are."""
    head = config.head
    if isinstance(head, sl.Pooler):  # Devlin et al. 2019, 3.1; Reimers and Gurevych 2019, 3
        return {
            "first": lambda: x[0],
            "tanh": lambda: np.tanh(linear(params, "transform", x[0])),
            "mean": lambda: x.mean(0),
        }[head.how]()
    if isinstance(head, sl.NoHead):
        return x
    vocabulary, bias = (
        embeddings if head.tied else params["vocabulary.weight"],
        params.get("vocabulary.bias", 0.0),
    )
    if isinstance(head, sl.MaskedHead):  # W norm(act(W' x)) + b (Devlin et al. 2019, A.2)
        x = norm(
            head.norm,
            under(params, "norm"),
            ACTIVATIONS[head.activation](linear(params, "transform", x)),
        )
        return x @ vocabulary.T + bias
    logits = head.scale * (x @ vocabulary.T) + bias
    if config.last.on_sphere:  # logits · s_z, stored as s / √width (Loshchilov et al. 2024, eq. 3)
        logits = logits * params["logit_scale.weight"] * math.sqrt(x.shape[-1])
    return soft_cap(logits, head.softcap)


def forward(
    config: sl.ModelConfig,
    state: State,
    tokens: Array,
    padding: Array | None = None,
    types: Array | None = None,
    source: Array | None = None,
    source_padding: Array | None = None,
) -> Array:
    """A whole model on a batch: [batch, time, …] with NaN at padding, or [batch, width] from a
    pooler. Padding is simply left out."""
    name = list(config.stacks)[-1]
    rows = []
    for n, row in enumerate(tokens):
        real = np.ones(len(row), bool) if padding is None else ~padding[n]
        memory = None
        if source is not None:
            kept = source[n] if source_padding is None else source[n][~source_padding[n]]
            memory = stack(config.encoder, under(state, "encoder"), kept)
        hidden = stack(
            config.last,
            under(state, name),
            row[real],
            None if types is None else types[n][real],
            memory,
        )
        made = output(
            config, under(state, "output"), state[f"{name}.embedding.tokens.weight"], hidden
        )
        rows.append(made if made.ndim == 1 else np.full((len(row), made.shape[-1]), np.nan))
        if made.ndim == 2:
            rows[-1][real] = made
    return np.array(rows)
