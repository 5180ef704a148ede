"""A full model as equations: embedding, blocks, final norm, head.

`sections(config, time=T, source=S)` is the single description that counts, FLOPs, Markdown and
terminal output are made from.
"""

from __future__ import annotations

import math

from sightline.config import (
    Classifier,
    LanguageHead,
    Learned,
    MaskedHead,
    ModelConfig,
    NoNorm,
    Pooler,
    Sinusoidal,
    StackConfig,
)
from sightline.explain import definitions
from sightline.explain.blocks import block_sections
from sightline.explain.definitions import UNIT, activation, short_number
from sightline.explain.lines import Dimension, Line, Section, Shape, Weight
from sightline.explain.pieces import LinearTerm, NormUse, StackContext


def sections(config: ModelConfig, *, time: int, source: int) -> list[Section]:
    """Every equation of the model, in the order of the data flow."""
    all_sections: list[Section] = []
    for scene in scenes(config, time=time, source=source):
        shared = config.share_embeddings and scene.name == "decoder"
        all_sections.append(embedding_section(scene, shared=shared))
        for index in range(len(scene.config.blocks)):
            all_sections += block_sections(scene, index)
        all_sections += final_section(
            scene, gives_memory=scene.name == "encoder" and config.decoder is not None
        )
    return all_sections + head_section(config, scenes(config, time=time, source=source)[-1])


def scenes(config: ModelConfig, *, time: int, source: int) -> list[StackContext]:
    """The stacks: the encoder of an encoder–decoder reads S tokens, any other stack T."""
    if config.encoder is None or config.decoder is None:
        return [
            StackContext(name, stack, Dimension("T", time)) for name, stack in config.stacks.items()
        ]
    encoder = config.encoder
    decoder = config.decoder
    read = Dimension("S", source)
    memory_width = Dimension(
        "d_model" if encoder.width == decoder.width else "d_enc", encoder.width
    )
    return [
        StackContext("encoder", encoder, read),
        StackContext("decoder", decoder, Dimension("T", time), (read, memory_width)),
    ]


def embedding_section(scene: StackContext, *, shared: bool) -> Section:
    """norm(scale · W_E[t] + position + type)"""
    config = scene.config.embedding
    path = f"{scene.name}.embedding"
    tokens = Weight(
        "W_E", "tokens", f"{path}.tokens.weight", (Dimension("V", config.vocab_size), scene.width)
    )
    terms = [times(config.scale, scene.config, "W_E[t]")]
    weights = [] if shared else [tokens]
    lines = list[Line]()
    if isinstance(config.positions, Learned):
        offset = config.positions.offset
        rows = Dimension("P", scene.config.max_positions + offset)
        weights.append(Weight("W_P", "positions", f"{path}.positions.weight", (rows, scene.width)))
        terms.append(f"W_P[p + {offset}]" if offset else "W_P[p]")
    if isinstance(config.positions, Sinusoidal):
        lines.append(
            Line(
                sinusoid_equation(config.positions),
                scene.stream,
                where=(definitions.sinusoid_definition(config.positions),),
            )
        )
        terms.append("PE[p]")
    if config.types:
        weights.append(
            Weight(
                "W_T",
                "types",
                f"{path}.types.weight",
                (Dimension("types", config.types), scene.width),
            )
        )
        terms.append("W_T[type]")
    lines.append(
        Line(
            f"x = {' + '.join(terms)}",
            scene.stream,
            weights=tuple(weights),
            reuses="shared" if shared else "",
        )
    )
    norm = NormUse(config.norm, "_E", "norm", f"{path}.norm", scene.width)
    if not isinstance(config.norm, NoNorm):
        lines.append(
            Line(f"x = {norm('x')}", scene.stream, weights=norm.weights, where=(norm.definition,))
        )
    if scene.config.on_sphere:
        lines.append(Line("x = unit(x)", scene.stream, where=(UNIT,)))
    return Section(scene.name, "embedding", tuple(lines))


def sinusoid_equation(form: Sinusoidal) -> str:
    return (
        "PE[p] = (sin p ω₀, cos p ω₀, sin p ω₁, …)"
        if form.interleaved
        else "PE[p] = (sin p ω₀, sin p ω₁, …, cos p ω₀, …)"
    )


def times(scale: float, stack: StackConfig, x: str) -> str:
    """`x`, `√d_model x`, `x / √d_model` or `0.5 x`"""
    if scale == 1.0:
        return x
    if math.isclose(scale, math.sqrt(stack.width), rel_tol=1e-9):
        return f"√d_model {x}"
    return (
        f"{x} / √d_model"
        if math.isclose(scale, stack.width**-0.5, rel_tol=1e-9)
        else f"{short_number(scale)} {x}"
    )


def final_section(scene: StackContext, *, gives_memory: bool) -> list[Section]:
    """The final norm; the output of an encoder that feeds a decoder is called y."""
    norm = NormUse(scene.config.final_norm, "_F", "norm", f"{scene.name}.norm", scene.width)
    result = "y" if gives_memory else "x"
    if isinstance(scene.config.final_norm, NoNorm) and not gives_memory:
        return []
    where = (norm.definition,) if norm.weights else ()
    line = Line(f"{result} = {norm('x')}", scene.stream, weights=norm.weights, where=where)
    return [Section(scene.name, "final_norm" if norm.weights else "memory", (line,))]


def head_section(config: ModelConfig, scene: StackContext) -> list[Section]:
    """Logits of the next token, logits of masked tokens, or one vector per sequence."""
    head = config.head
    if isinstance(head, LanguageHead):
        return [Section("head", "head", tuple(language_lines(head, scene)))]
    if isinstance(head, MaskedHead):
        return [Section("head", "head", tuple(masked_lines(head, scene)))]
    if isinstance(head, Classifier):
        return [Section("head", "classifier", tuple(classifier_lines(head, scene)))]
    return (
        [Section("head", "pooler", (pooler_line(head, scene),))] if isinstance(head, Pooler) else []
    )


def language_lines(head: LanguageHead, scene: StackContext) -> list[Line]:
    """cap · tanh(s_z (scale · x W + b) / cap)"""
    x = times(head.scale, scene.config, "x")
    shape = logits_shape(scene)
    x = f"({x})" if "/" in x else x
    lines = [vocabulary_line(x, scene, tied=head.tied, bias=head.bias)]
    if scene.config.on_sphere:
        scale = Weight("s_z", "scale", "output.logit_scale.weight", shape[1:])
        lines.append(Line("logits = s_z ⊙ logits", shape, weights=(scale,)))
    if head.softcap is not None:
        cap = short_number(head.softcap)
        lines.append(Line(f"logits = {cap} tanh(logits / {cap})", shape))
    return lines


def masked_lines(head: MaskedHead, scene: StackContext) -> list[Line]:
    """norm(act(x W_H + b_H)) W_Eᵀ + b_U"""
    transform = LinearTerm(
        "H", "transform", "output.transform", scene.width, scene.width, head.transform_bias
    )
    norm = NormUse(head.norm, "_H", "norm", "output.norm", scene.width)
    inner = norm(f"{head.activation}({transform('x')})")
    first = transform.line(
        f"u = {inner}",
        scene.stream,
        scene.tokens.size,
        norms=(norm,),
        where=(activation(head.activation),),
    )
    return [first, vocabulary_line("u", scene, tied=head.tied, bias=head.bias)]


def classifier_lines(head: Classifier, scene: StackContext) -> list[Line]:
    """norm(act(y W_H + b_H)) W_C + b_C, with y every token or one vector of the sequence"""
    classes = Dimension("C", head.labels)
    tokens = scene.tokens.size if head.pool == "tokens" else 1
    rows = (scene.tokens,) if head.pool == "tokens" else ()
    names = {"tokens": "x", "first": "x₀", "last": "x₋₁", "mean": "mean(x)"}
    linear = LinearTerm("C", "labels", "output.labels", scene.width, classes, head.bias)
    if head.activation is None:
        return [linear.line(f"logits = {linear(names[head.pool])}", (*rows, classes), tokens)]
    transform = LinearTerm(
        "H", "transform", "output.transform", scene.width, scene.width, head.transform_bias
    )
    norm = NormUse(head.norm, "_H", "norm", "output.norm", scene.width)
    inner = norm(f"{head.activation}({transform(names[head.pool])})")
    first = transform.line(
        f"u = {inner}",
        (*rows, scene.width),
        tokens,
        norms=(norm,),
        where=(activation(head.activation),),
    )
    return [first, linear.line(f"logits = {linear('u')}", (*rows, classes), tokens)]


def logits_shape(scene: StackContext) -> Shape:
    return (scene.tokens, Dimension("V", scene.config.embedding.vocab_size))


def vocabulary_line(x: str, scene: StackContext, *, tied: bool, bias: bool) -> Line:
    """x W_Eᵀ with the tied embedding matrix, or x W_U with a separate one."""
    tokens, vocabulary = logits_shape(scene)
    weights = (
        ()
        if tied
        else (Weight("W_U", "vocabulary", "output.vocabulary.weight", (scene.width, vocabulary)),)
    )
    weights += (
        (Weight("b_U", "vocabulary", "output.vocabulary.bias", (vocabulary,)),) if bias else ()
    )
    equation = f"logits = {x} {'W_Eᵀ' if tied else 'W_U'}{' + b_U' if bias else ''}"
    flops = 2 * tokens.size * scene.width.size * vocabulary.size
    return Line(
        equation,
        (tokens, vocabulary),
        weights=weights,
        part="vocabulary",
        flops=flops,
        square_flops=flops,
        reuses="tied" if tied else "",
    )


def pooler_line(head: Pooler, scene: StackContext) -> Line:
    shape = (scene.width,)
    if head.how == "mean":
        return Line("c = mean(x)  over real tokens", shape)
    if head.how == "first":
        return Line("c = x[first]", shape)
    transform = LinearTerm(
        "C", "transform", "output.transform", scene.width, scene.width, bias=True
    )
    return transform.line(f"c = tanh({transform('x[first]')})", shape, 1)
