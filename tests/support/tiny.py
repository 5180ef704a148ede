"""Tiny models that together use every choice of the configuration, for the laws."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

import sightline as sl

SIZE = {"width": 24, "layers": 2, "heads": 4, "vocab_size": 29, "max_positions": 48}
BATCH, TIME, SOURCE = 3, 11, 7


def each_block(config: sl.ModelConfig, **changes: object) -> sl.ModelConfig:
    """The same model with these changes in every self-attention."""

    def change(stack: sl.StackConfig | None) -> sl.StackConfig | None:
        if stack is None:
            return None
        return replace(
            stack,
            blocks=tuple(
                replace(b, attention=replace(b.attention, **changes)) for b in stack.blocks
            ),
        )

    return replace(config, encoder=change(config.encoder), decoder=change(config.decoder))


def alternating(config: sl.ModelConfig, window: int) -> sl.ModelConfig:
    """Every other layer with a window and its own rotary base, as Gemma 2 and ModernBERT have
    it."""
    decoder = config.decoder
    assert decoder is not None
    (block,) = decoder.blocks
    near = replace(
        block, attention=replace(block.attention, window=window, positions=sl.Rotary(base=500.0))
    )
    return replace(config, decoder=replace(decoder, layers=4, blocks=(near, block)))


def positions() -> dict[str, sl.ModelConfig]:
    """A decoder for each way to say where a token stands."""
    forms = {
        "none": sl.NoPosition(),
        "learned": sl.Learned(),
        "learned-offset": sl.Learned(offset=2),
        "sinusoidal": sl.Sinusoidal(),
        "sinusoidal-halves": sl.Sinusoidal(interleaved=False),
        "rotary": sl.Rotary(),
        "rotary-partial": sl.Rotary(dim=4),
        "rotary-linear": sl.Rotary(scaling=sl.LinearScaling(factor=2.0)),
        "rotary-ntk": sl.Rotary(scaling=sl.NTKScaling(factor=2.0)),
        "rotary-yarn": sl.Rotary(scaling=sl.YaRNScaling(factor=4.0, original_positions=16)),
        "rotary-llama3": sl.Rotary(scaling=sl.Llama3Scaling(factor=8.0, original_positions=32)),
        "alibi": sl.ALiBi(),
        "relative": sl.RelativeBias(buckets=8, max_distance=16),
    }
    return {name: sl.gpt(**SIZE, positions=form) for name, form in forms.items()}


def blocks() -> dict[str, sl.ModelConfig]:
    """A decoder for each norm, placement, feed-forward, attention."""
    rotary = sl.Rotary()
    result = {
        f"{norm}-{placement}": sl.gpt(**SIZE, norm=norm, placement=placement)
        for norm in ("layer", "rms")
        for placement in ("pre", "post", "sandwich", "output")
    }
    result |= {
        form: sl.llama(**SIZE, feed_forward=form)
        for form in (
            "relu",
            "gelu",
            "silu",
            "relu_squared",
            "reglu",
            "geglu",
            "geglu_tanh",
            "swiglu",
        )
    }
    result |= {
        "no-norm": sl.gpt(**SIZE, norm="none"),
        "rms-plus-one": sl.llama(**SIZE, norm=sl.RMSNorm(plus_one=True)),
        "layer-no-bias": sl.gpt(**SIZE, norm=sl.LayerNorm(bias=False)),
        "parallel": sl.gpt(**SIZE, parallel=True, positions=sl.Rotary(dim=2)),
        "grouped": sl.llama(**SIZE, kv_heads=2),
        "multi-query": sl.llama(**SIZE, kv_heads=1),
        "head-dim": sl.llama(**SIZE, head_dim=10),
        "cosine": sl.llama(**SIZE, attention="cosine"),
        "cosine-fixed": sl.llama(
            **SIZE, attention=sl.Cosine(scale=5.0, learnable=False), kv_heads=2
        ),
        "qk-norm": sl.llama(**SIZE, query_key_norm=sl.HeadNorm(), kv_heads=2),
        "qk-norm-joined": sl.llama(**SIZE, query_key_norm=sl.HeadNorm(per_head=False), kv_heads=2),
        "window": sl.llama(**SIZE, window=4),
        "window-alternating": alternating(sl.llama(**SIZE), 3),
        "unscaled": sl.llama(**SIZE, attention=sl.Dot(scale=0.5)),
        "value-dim": each_block(sl.llama(**SIZE), value_dim=9),
        "soft-cap": each_block(sl.llama(**SIZE), softcap=2.0),
        "sinks": each_block(sl.llama(**SIZE, kv_heads=2), sinks=True),
        "alibi-grouped": sl.llama(
            **(SIZE | {"heads": 6}), kv_heads=2, positions=sl.ALiBi(), window=6
        ),
        "free-output": sl.llama(**SIZE, tied=False),
        "logit-cap": replace(
            sl.llama(**SIZE, positions=rotary), head=sl.LanguageHead(softcap=3.0, bias=True)
        ),
        "ngpt": sl.ngpt(**SIZE),
        "ngpt-grouped": sl.ngpt(**SIZE, kv_heads=2, tied=True),
        "ngpt-alibi": sl.ngpt(**SIZE, positions=sl.ALiBi()),
    }
    return result


def without_first_norm(config: sl.ModelConfig) -> sl.ModelConfig:
    """No norm before the first layer's attention, as ModernBERT has it."""
    encoder = config.encoder
    assert encoder is not None
    (block,) = encoder.blocks
    return replace(
        config, encoder=replace(encoder, blocks=(replace(block, attention_norm=sl.NoNorm()), block))
    )


def encoders() -> dict[str, sl.ModelConfig]:
    return {
        "bert": sl.bert(**SIZE),
        "bert-pooled": sl.bert(**SIZE, head="pooled"),
        "bert-mean": sl.bert(**SIZE, head="mean"),
        "bert-hidden": sl.bert(**SIZE, head="none", types=0),
        "bert-rotary-window": sl.bert(**SIZE, positions="rotary", window=4, placement="pre"),
        "bert-alibi": sl.bert(**SIZE, positions="alibi"),
        "bert-first-norm": without_first_norm(sl.bert(**SIZE, placement="pre")),
        "bert-relative": sl.bert(**SIZE, positions=sl.RelativeBias(buckets=8, max_distance=16)),
    }


def classifiers() -> dict[str, sl.ModelConfig]:
    return {
        "classifier": replace(sl.bert(**SIZE), head=sl.Classifier(labels=5, activation="tanh")),
        "classifier-mean": replace(
            sl.bert(**SIZE),
            head=sl.Classifier(
                labels=5, pool="mean", activation="gelu", norm=sl.LayerNorm(), bias=False
            ),
        ),
        "tagger": replace(sl.bert(**SIZE), head=sl.Classifier(labels=5, pool="tokens")),
        "decoder-classifier": replace(
            sl.llama(**SIZE), head=sl.Classifier(labels=5, pool="last", bias=False)
        ),
    }


def encoder_decoders() -> dict[str, sl.ModelConfig]:
    return {
        "transformer": sl.encoder_decoder(**SIZE),
        "transformer-pre": sl.encoder_decoder(
            **SIZE, placement="pre", share_embeddings=False, tied=False
        ),
        "transformer-rotary": sl.encoder_decoder(
            **SIZE, positions="rotary", norm="rms", placement="pre", kv_heads=2
        ),
        "transformer-learned": sl.encoder_decoder(
            **SIZE, positions=sl.Learned(offset=2), feed_forward="gelu"
        ),
        "t5": sl.t5(width=24, layers=2, heads=4, head_dim=6, hidden=32, vocab_size=29),
    }


DECODERS = positions() | blocks()
ENCODERS = encoders()
ENCODER_DECODERS = encoder_decoders()
CLASSIFIERS = classifiers()
GENERATORS = DECODERS | ENCODER_DECODERS
ALL = GENERATORS | ENCODERS | CLASSIFIERS
LANGUAGE_MODELS = [  # those whose output is a logit per token of the vocabulary
    name
    for name in ALL
    if name not in CLASSIFIERS and name not in ("bert-pooled", "bert-mean", "bert-hidden")
]


def make(config: sl.ModelConfig, seed: int = 0) -> sl.Transformer:
    """The model with every parameter random and of noticeable size, so that no gain is 1 and no
    bias 0."""
    torch.manual_seed(seed)
    model = sl.build(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter) * (0.3 if parameter.dim() == 1 else 0.1)
            parameter.add_(noise if not name.endswith("scale.weight") else 0.1 * noise)
    model.normalize_weights()
    return model.eval()


def inputs(
    config: sl.ModelConfig, *, batch: int = BATCH, time: int = TIME, seed: int = 1
) -> dict[str, Tensor]:
    """Random tokens, and a source where the model has an encoder to feed."""
    generator = torch.Generator().manual_seed(seed)
    result = {"tokens": torch.randint(0, 29, (batch, time), generator=generator)}
    if config.encoder is not None and config.decoder is not None:
        result["source"] = torch.randint(0, 29, (batch, SOURCE), generator=generator)
    return result


def left_padding(batch: int = BATCH, time: int = TIME) -> Tensor:
    """Row n starts with 2n padded places."""
    return torch.arange(time)[None] < 2 * torch.arange(batch)[:, None]


def distance(a: Tensor, b: Tensor) -> float:
    """Largest difference, relative to the largest number."""
    a, b = a.detach(), b.detach()
    return float((a - b).abs().max() / a.abs().max().clamp(min=1e-6))
