"""Memory: the KV cache, training, and the attention kernel that decides what training keeps.

KV cache    layers · h_kv · (d_k + d_v) · bytes per token; a window of w keeps at most w tokens;
            cross-attention stores the source once
training    16 bytes per parameter in fp32 (weight, gradient, AdamW's two moments) + what the
            backward pass needs of the forward pass
"""

from __future__ import annotations

from dataclasses import dataclass

from sightline.config import (
    ALiBi,
    AttentionConfig,
    BlockConfig,
    Cosine,
    HeadNorm,
    LanguageHead,
    MaskedHead,
    ModelConfig,
    NoNorm,
    Norm,
    RelativeBias,
    Rotary,
    StackConfig,
)
from sightline.explain.counts import check_sizes, total_parameters

FLOAT = 4  # bytes of a number in training
STATES = 4  # weight, gradient, first and second moment


def cache_bytes_per_token(config: ModelConfig, *, number_bytes: int = 2) -> int:
    """Cache bytes per token while no window is full: layers · h_kv · (d_k + d_v) · bytes."""
    stack = config.decoder
    return (
        0
        if stack is None
        else number_bytes
        * sum(times * cached_numbers(block.attention) for block, times in block_counts(stack))
    )


def cache_bytes(
    config: ModelConfig,
    *,
    time: int,
    source: int | None = None,
    batch: int = 1,
    number_bytes: int = 2,
    windowed: bool = True,
) -> int:
    """The size of the cache after `time` tokens. `windowed` drops tokens outside a sliding window
    (`Cache.windowed`)."""
    stack = config.decoder
    total = 0
    check_sizes(config, time=time, source=source, batch=batch)
    for block, times in block_counts(stack) if stack else ():
        window = block.attention.window if windowed else None
        total += (
            times
            * cached_numbers(block.attention)
            * (time if window is None else min(time, window))
        )
        if block.cross_attention is not None:
            total += (
                times * cached_numbers(block.cross_attention) * (time if source is None else source)
            )
    return total * batch * number_bytes


def cached_numbers(form: AttentionConfig) -> int:
    """Numbers per token and layer: h_kv (d_k + d_v)"""
    return form.kv_heads * (form.head_dim + form.value_width)


def block_counts(stack: StackConfig) -> list[tuple[BlockConfig, int]]:
    """Each block of the repeating pattern and the number of layers that use it."""
    pattern = len(stack.blocks)
    return [
        (block, stack.layers // pattern + (n < stack.layers % pattern))
        for n, block in enumerate(stack.blocks)
    ]


@dataclass(frozen=True, slots=True)
class TrainingMemory:
    """Peak bytes of one training step, in fp32 without activation checkpointing; activations are
    estimated."""

    weights: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        return self.weights + self.gradients + self.moments + self.activations


def training_memory(
    config: ModelConfig,
    *,
    time: int,
    source: int | None = None,
    batch: int = 1,
    recompute: bool = False,
) -> TrainingMemory:
    """4 + 4 + 8 bytes per parameter, and 4 bytes per number that the backward pass needs."""
    check_sizes(config, time=time, source=source, batch=batch)
    states = FLOAT * total_parameters(config)
    numbers = activations(config, time=time, source=source, batch=batch, recompute=recompute)
    return TrainingMemory(states, states, 2 * states, FLOAT * numbers)


def activations(
    config: ModelConfig,
    *,
    time: int,
    source: int | None = None,
    batch: int = 1,
    recompute: bool = False,
) -> int:
    """Numbers that the forward pass saves for the backward pass: the inputs of matrices, norms and
    activations.

    A norm keeps 2·d_model per token; attention q, k, v, z; a feed-forward 2·d_ff (ReLU 1), gated 3;
    the head its logits. The fused kernel keeps nothing of size T × T; soft-caps, sinks, biases and
    dropout on the weights do. With `recompute` a block keeps only its input, plus the activations
    of the largest block while its gradient is computed.
    """
    both = config.encoder is not None and config.decoder is not None
    read = time if source is None else source
    total = 0
    largest = 0
    for name, stack in config.stacks.items():
        tokens = read if both and name == "encoder" else time
        ends = (
            sum(norm_keeps(norm) for norm in (stack.embedding.norm, stack.final_norm)) * stack.width
        )
        total += batch * tokens * ends
        for block, times in block_counts(stack):
            numbers = batch * tokens * block_keeps(block, stack.width) + pairs_keep(
                block, tokens, read, batch
            )
            numbers += joined_keeps(block, stack.width) + batch * cross_keeps(
                block, stack.width, time, read
            )
            total += times * (batch * tokens * stack.width if recompute else numbers)
            largest = max(largest, numbers)
    return total + (largest if recompute else 0) + batch * time * head_keeps(config)


def head_keeps(config: ModelConfig) -> int:
    """Numbers per token of the head: the logits, again for a learned scale and for a soft-cap."""
    stack = config.last
    head = config.head
    if isinstance(head, LanguageHead):
        return stack.embedding.vocab_size * (1 + stack.on_sphere + (head.softcap is not None))
    if isinstance(head, MaskedHead):
        return stack.embedding.vocab_size + stack.width * (1 + norm_keeps(head.norm))
    return 0


def norm_keeps(norm: Norm) -> int:
    """Vectors saved by a norm: its input and its output."""
    return 0 if isinstance(norm, NoNorm) else 2


def block_keeps(block: BlockConfig, width: int) -> int:
    """Numbers per token of one layer's self-attention and feed-forward; parallel ones share x."""
    return (
        2 * stream_keeps(block, width)
        - width * block.parallel
        + attention_keeps(block.attention, sphere=block.placement == "sphere")
        + hidden_keeps(block)
    )


def stream_keeps(block: BlockConfig, width: int) -> int:
    """Numbers per token around one sub-layer."""
    if block.placement == "sphere":
        return 4 * width  # the sub-layer output, the difference, the sum, the normalised sum
    norm = norm_keeps(block.norm)
    bare = isinstance(block.norm, NoNorm)
    vectors = {"pre": norm, "post": norm, "sandwich": 2 * norm - 1, "output": norm, "sphere": 0}[
        block.placement
    ]
    return width * ((1 if bare else vectors) + (block.dropout > 0))


def attention_keeps(form: AttentionConfig, *, sphere: bool = False) -> int:
    """Numbers per token: q, k, v and z, again for each transformation of them."""
    query, key, value, mixed = (
        query_numbers(form),
        *key_value_numbers(form),
        form.heads * form.value_width,
    )
    extra = head_norm_keeps(form.query_key_norm) * (query + key)
    if isinstance(form.kind, Cosine):
        extra += 2 * query + key
    if sphere:
        extra += 2 * (query + key)
    if isinstance(
        form.positions, Rotary
    ):  # v shares its memory with the unrotated q and k, which keeps them alive
        extra += query + key
    return query + key + value + mixed + extra


def joined_keeps(block: BlockConfig, width: int) -> int:
    """W_Q, W_K and W_V of one layer as one matrix."""
    form = block.attention
    return (
        0
        if form.softcap is not None or form.sinks
        else width * (query_numbers(form) + sum(key_value_numbers(form)))
    )


def query_numbers(form: AttentionConfig) -> int:
    return form.heads * form.head_dim


def key_value_numbers(form: AttentionConfig) -> tuple[int, int]:
    return form.kv_heads * form.head_dim, form.kv_heads * form.value_width


def head_norm_keeps(config: HeadNorm | None) -> int:
    return 0 if config is None or isinstance(config.norm, NoNorm) else norm_keeps(config.norm) - 1


def cross_keeps(block: BlockConfig, width: int, time: int, read: int) -> int:
    """Numbers of one layer's cross-attention: q and z for each token, k and v for each source
    token."""
    form = block.cross_attention
    if form is None:
        return 0
    from_source = sum(key_value_numbers(form))
    return (
        time * (stream_keeps(block, width) + attention_keeps(form) - from_source)
        + read * from_source
    )


def hidden_keeps(block: BlockConfig) -> int:
    """Numbers per token of the feed-forward: what goes into the activation, what comes out, the
    gate's product."""
    config = block.feed_forward
    smooth = config.activation in ("gelu", "gelu_tanh", "silu")
    arrays = (
        (4 - smooth if config.gated else 2) - (config.activation == "relu") + (config.dropout > 0)
    )
    return config.hidden * (6 if block.placement == "sphere" else arrays)


def pairs_keep(block: BlockConfig, tokens: int, read: int, batch: int) -> int:
    """Numbers of size T × T in one layer: copies of the weights, ALiBi's bias, T5's buckets (8
    bytes each), a mask (1 byte each)."""
    form = block.attention
    cross = block.cross_attention
    square = tokens * tokens
    copies = scores_keep(form)
    numbers = batch * form.heads * square * copies
    if isinstance(form.positions, ALiBi) and not copies:
        numbers += form.heads * square
    if isinstance(form.positions, RelativeBias):
        numbers += 2 * square
    if copies or (form.window is not None and form.window < tokens):
        numbers += square // FLOAT
    return numbers + (
        0 if cross is None else batch * cross.heads * tokens * read * scores_keep(cross)
    )


def scores_keep(form: AttentionConfig) -> int:
    """Copies of the weights [h, T, T] that training holds; 0 with the fused kernel."""
    if form.softcap is not None or form.sinks:
        return 2 + (form.softcap is not None) + 2 * (form.dropout > 0)
    return 3 if form.dropout else int(isinstance(form.positions, RelativeBias))


def attention_path(form: AttentionConfig, *, causal: bool, time: int) -> str:
    """The kernel that computes attention over a sequence, and the [h, T, T] copies that training
    keeps."""
    bias = (
        "ALiBi"
        if isinstance(form.positions, ALiBi)
        else "relative"
        if isinstance(form.positions, RelativeBias)
        else ""
    )
    if form.softcap is not None or form.sinks:
        kernel = "the equation, in bands of queries: the fused kernel has no soft-cap and no sinks"
    elif bias:
        kernel = f"fused kernel with the {bias} bias, in bands of queries"
    elif form.window is not None and form.window < time:
        kernel = f"fused kernel over the window of {form.window}"
    else:
        kernel = f"fused kernel, {'causal triangle' if causal else 'no mask'}"
    copies = scores_keep(form) or int(bias == "ALiBi")
    return (
        f"{kernel}; training keeps {copies} × [h, T, T] per layer"
        if copies
        else f"{kernel}; no [h, T, T] tensor in memory"
    )
