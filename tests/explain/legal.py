"""Legal configurations: a few by name, and any by chance."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

import sightline as sl
from sightline.config import (
    AttentionConfig,
    BlockConfig,
    EmbeddingConfig,
    FeedForwardConfig,
    HeadNorm,
    ModelConfig,
    StackConfig,
)
from tests.support.tiny import SIZE, each_block


def patterned() -> ModelConfig:
    """Three kinds of block over seven layers, each with sizes of its own; two share one relative
    bias."""
    config = sl.gpt(**SIZE, positions=sl.RelativeBias(buckets=8, max_distance=16))
    assert config.decoder is not None
    (block,) = config.decoder.blocks
    narrow = replace(
        block,
        attention=replace(block.attention, window=3, sinks=True),
        feed_forward=FeedForwardConfig(hidden=10),
    )
    other = replace(
        block,
        placement="sandwich",
        norm=sl.RMSNorm(),
        attention=replace(block.attention, kv_heads=1, value_dim=5),
    )
    return replace(config, decoder=replace(config.decoder, layers=7, blocks=(narrow, block, other)))


def uneven() -> ModelConfig:
    """An encoder and a decoder of different width, depth, vocabulary, and a cross-attention unlike
    the self-attention."""
    encoder = sl.encoder_decoder(**SIZE).encoder
    decoder = sl.encoder_decoder(
        **(SIZE | {"width": 16, "layers": 3, "vocab_size": 29}), placement="pre", norm="rms"
    ).decoder
    assert encoder is not None
    assert decoder is not None
    (block,) = decoder.blocks
    crossing = AttentionConfig(
        heads=6,
        kv_heads=3,
        head_dim=5,
        value_dim=7,
        sinks=True,
        kind=sl.Cosine(),
        query_key_norm=HeadNorm(),
    )
    decoder = replace(decoder, blocks=(replace(block, cross_attention=crossing),))
    return ModelConfig(
        encoder=encoder, decoder=decoder, head=sl.LanguageHead(tied=False, bias=True)
    )


EXTRA = {
    "patterned": patterned(),
    "uneven": uneven(),
    "qk-layer-norm-joined": sl.gpt(
        **SIZE, query_key_norm=HeadNorm(norm=sl.LayerNorm(), per_head=False), kv_heads=2
    ),
    "qk-no-norm": sl.gpt(**SIZE, query_key_norm=HeadNorm(norm=sl.NoNorm())),
    "everything-on-scores": each_block(
        sl.gpt(**SIZE, positions="alibi", attention="cosine"),
        softcap=2.0,
        sinks=True,
        window=3,
        value_dim=9,
    ),
    "ngpt-value-dim": each_block(sl.ngpt(**SIZE, kv_heads=2), value_dim=5, sinks=True, softcap=4.0),
    "ngpt-relative": sl.ngpt(**SIZE, positions=sl.RelativeBias(buckets=8, max_distance=16)),
    "masked-untied": replace(
        sl.bert(**SIZE),
        head=sl.MaskedHead(tied=False, bias=False, transform_bias=False, norm=sl.RMSNorm()),
    ),
    "pooled-first": replace(sl.bert(**SIZE), head=sl.Pooler(how="first")),
    "shared-learned": sl.encoder_decoder(**SIZE, positions="learned", tied=False),
}

NORMS = st.sampled_from(
    [sl.LayerNorm(), sl.LayerNorm(bias=False), sl.RMSNorm(), sl.RMSNorm(plus_one=True), sl.NoNorm()]
)
ACTIVATIONS = st.sampled_from(["relu", "gelu", "gelu_tanh", "silu", "relu_squared"])
SMALL = st.integers(1, 4)


@st.composite
def attentions(draw: st.DrawFn, *, cross: bool = False, sphere: bool = False) -> AttentionConfig:
    kv_heads, positions = (
        draw(SMALL),
        sl.NoPosition()
        if cross
        else draw(st.sampled_from([sl.NoPosition(), sl.Rotary(dim=2), sl.ALiBi()])),
    )
    return AttentionConfig(
        heads=kv_heads * draw(SMALL),
        kv_heads=kv_heads,
        head_dim=2 * draw(SMALL),
        value_dim=draw(st.none() | SMALL),
        kind=sl.Dot()
        if sphere
        else draw(
            st.sampled_from([sl.Dot(), sl.Dot(scale=0.3), sl.Cosine(), sl.Cosine(learnable=False)])
        ),
        positions=positions,
        query_key_norm=None
        if sphere
        else draw(st.none() | st.builds(HeadNorm, norm=NORMS, per_head=st.booleans())),
        bias=not sphere and draw(st.booleans()),
        output_bias=not sphere and draw(st.booleans()),
        window=None if cross else draw(st.none() | SMALL),
        softcap=draw(st.none() | st.just(3.0)),
        sinks=draw(st.booleans()),
    )


@st.composite
def blocks(draw: st.DrawFn, *, cross: bool, sphere: bool) -> BlockConfig:
    placement = "sphere" if sphere else draw(st.sampled_from(["pre", "post", "sandwich", "output"]))
    feed_forward = FeedForwardConfig(
        hidden=draw(st.integers(1, 9)),
        activation=draw(ACTIVATIONS),
        gated=sphere or draw(st.booleans()),
        bias=not sphere and draw(st.booleans()),
    )
    return BlockConfig(
        attention=draw(attentions(sphere=sphere)),
        cross_attention=draw(attentions(cross=True)) if cross else None,
        feed_forward=feed_forward,
        norm=sl.NoNorm() if sphere else draw(NORMS),
        placement=placement,
        parallel=placement == "pre" and not cross and draw(st.booleans()),
    )


@st.composite
def stacks(draw: st.DrawFn, *, causal: bool, cross: bool = False) -> StackConfig:
    sphere = not cross and draw(st.booleans())
    positions = (
        sl.NoPosition()
        if sphere
        else draw(st.sampled_from([sl.NoPosition(), sl.Learned(offset=2), sl.Sinusoidal()]))
    )
    plain = EmbeddingConfig(vocab_size=draw(st.integers(1, 9)))
    pattern = draw(st.lists(blocks(cross=cross, sphere=sphere), min_size=1, max_size=3))
    return StackConfig(
        width=2 * draw(SMALL),
        layers=draw(st.integers(len(pattern), 7)),
        causal=causal,
        max_positions=12,
        embedding=plain
        if sphere
        else replace(plain, positions=positions, types=draw(st.integers(0, 2)), norm=draw(NORMS)),
        blocks=tuple(pattern),
        final_norm=sl.NoNorm() if sphere else draw(NORMS),
    )


@st.composite
def configs(draw: st.DrawFn) -> ModelConfig:
    """Any model at all."""
    kind = draw(st.sampled_from(["encoder", "decoder", "both"]))
    encoder = None if kind == "decoder" else draw(stacks(causal=False))
    decoder = None if kind == "encoder" else draw(stacks(causal=True, cross=kind == "both"))
    language = st.builds(
        sl.LanguageHead, tied=st.booleans(), bias=st.booleans(), softcap=st.none() | st.just(5.0)
    )
    masked = st.builds(
        sl.MaskedHead,
        tied=st.booleans(),
        bias=st.booleans(),
        norm=NORMS,
        transform_bias=st.booleans(),
    )
    pooler = st.builds(sl.Pooler, how=st.sampled_from(["first", "tanh", "mean"]))
    head = draw(
        masked | pooler | st.builds(sl.NoHead)
        if decoder is None
        else language | st.builds(sl.NoHead)
    )
    if encoder and decoder and draw(st.booleans()):
        vocab_size = encoder.embedding.vocab_size
        decoder = replace(
            decoder,
            width=encoder.width,
            embedding=replace(decoder.embedding, vocab_size=vocab_size),
        )
        return ModelConfig(encoder=encoder, decoder=decoder, head=head, share_embeddings=True)
    return ModelConfig(encoder=encoder, decoder=decoder, head=head)
