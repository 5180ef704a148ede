"""The equations of one block: attention, cross-attention, feed-forward, each with its residual and
norms.

pre         x + f(norm(x))
post        norm(x + f(x))
sandwich    x + norm(f(norm(x)))
output      x + norm(f(x))
sphere      unit(x + α (unit(f(x)) − x))
parallel    x + attention(norm(x)) + feed_forward(norm(x))
"""

from __future__ import annotations

from dataclasses import dataclass

from sightline.config import AttentionConfig, BlockConfig, NoNorm, RelativeBias
from sightline.explain.attention import AttentionLines
from sightline.explain.definitions import activation
from sightline.explain.lines import Dimension, Line, Section, Weight
from sightline.explain.pieces import LinearTerm, NormUse, StackContext

SUBSCRIPTS = "₁₂₃₄₅₆"
PLACES = {
    "pre": ("before",),
    "post": ("after",),
    "sandwich": ("before", "inside"),
    "output": ("inside",),
    "sphere": (),
}
FEED_FORWARD = "feed_forward"
ON_SPHERE = (
    ("α, s", "nGPT's learned step sizes and scales, one number per dimension"),
    ("W", "every matrix is normalised to unit length along d_model after each optimiser step"),
)


@dataclass(frozen=True, slots=True)
class ResidualNorms:
    """The norms around one sub-layer: after(x + inside(f(before(x))))"""

    before: NormUse
    inside: NormUse
    after: NormUse

    def added(self, f: str) -> str:
        return f"x = {self.after(f'x + {self.inside(f)}')}"


def residuals(scene: StackContext, block: BlockConfig) -> dict[str, ResidualNorms]:
    """The norms of each sub-layer, numbered in the order of the data flow."""
    names = ["attention", *(["cross"] if block.cross_attention else []), FEED_FORWARD]
    marks = iter(SUBSCRIPTS)
    norms_of: dict[str, ResidualNorms] = {}
    for name in names:
        uses: list[NormUse] = []
        for place in ("before", "inside", "after"):
            norm = (
                block.attention_norm
                if name == "attention" and block.attention_norm is not None
                else block.norm
            )
            is_placed = place in PLACES[block.placement] and not isinstance(norm, NoNorm)
            path = f"{scene.layer}.{name}_residual.{place}"
            uses.append(
                NormUse(
                    norm if is_placed else NoNorm(),
                    next(marks) if is_placed else "",
                    "norm",
                    path,
                    scene.width,
                )
            )
        norms_of[name] = ResidualNorms(*uses)
    return norms_of


def block_sections(scene: StackContext, index: int) -> list[Section]:
    """The sections of block `index` of the repeating pattern."""
    block = scene.config.blocks[index]
    around = residuals(scene, block)
    named = {"attention": attention_lines(scene, index, around["attention"])}
    if block.cross_attention is not None:
        named["cross_attention"] = cross_lines(scene, block, block.cross_attention, around["cross"])
    named[FEED_FORWARD] = feed_forward_lines(scene, block, around[FEED_FORWARD])
    pattern = len(scene.config.blocks)
    layers = scene.config.layers
    times = layers // pattern + (index < layers % pattern)
    return [Section(scene.name, name, tuple(lines), index, times) for name, lines in named.items()]


def attention_lines(scene: StackContext, index: int, around: ResidualNorms) -> list[Line]:
    block = scene.config.blocks[index]
    first = next(
        (
            n
            for n, b in enumerate(scene.config.blocks)
            if isinstance(b.attention.positions, RelativeBias)
        ),
        None,
    )
    sphere = block.placement == "sphere"
    layer = AttentionLines(
        scene, block.attention, around.before, on_sphere=sphere, brings_table=index == first
    )
    return layer.lines() + closing(
        scene,
        block,
        around,
        layer.output(),
        SubLayerOutput("concat(z)", "o", "α_A", "attention_step"),
    )


def cross_lines(
    scene: StackContext, block: BlockConfig, form: AttentionConfig, around: ResidualNorms
) -> list[Line]:
    layer = AttentionLines(scene, form, around.before, cross=True)
    return layer.lines() + closing(
        scene, block, around, layer.output(), SubLayerOutput("concat(z)", "o")
    )


def feed_forward_lines(
    scene: StackContext, block: BlockConfig, around: ResidualNorms
) -> list[Line]:
    """`u = act(x W_1)`, or gated `u = act(x W_G) ⊙ (x W_1)`; then `u W_2`."""
    config = block.feed_forward
    path = f"{scene.layer}.feed_forward"
    x = around.before("x")
    hidden = Dimension("d_ff", config.hidden)
    tokens = scene.tokens.size
    shape = (scene.tokens, hidden)
    where = (activation(config.activation),)
    up = LinearTerm("1", "up", f"{path}.up", scene.width, hidden, config.bias)
    gate = LinearTerm("G", "gate", f"{path}.gate", scene.width, hidden, config.bias)
    down = LinearTerm("2", "down", f"{path}.down", hidden, scene.width, config.bias)
    act = config.activation
    norms = (around.before,)
    if block.placement == "sphere":
        gate_scale = Weight("s_v", "gate_scale", f"{path}.gate_scale.weight", (hidden,))
        up_scale = Weight("s_u", "up_scale", f"{path}.up_scale.weight", (hidden,))
        lines = [
            gate.line(
                f"g = {act}(√d_model s_v ⊙ ({gate(x)}))",
                shape,
                tokens,
                scales=(gate_scale,),
                where=where,
            ),
            up.line(f"u = g ⊙ s_u ⊙ ({up(x)})", shape, tokens, scales=(up_scale,)),
        ]
    elif config.gated:
        lines = [
            gate.line(f"g = {act}({gate(x)})", shape, tokens, norms=norms, where=where),
            up.line(f"u = g ⊙ ({up(x)})", shape, tokens),
        ]
    else:
        lines = [up.line(f"u = {act}({up(x)})", shape, tokens, norms=norms, where=where)]
    return lines + closing(
        scene, block, around, down, SubLayerOutput("u", "f", "α_M", "feed_forward_step")
    )


@dataclass(frozen=True, slots=True)
class SubLayerOutput:
    """The input of a sub-layer's output projection, the result's name, and nGPT's step size."""

    inner: str
    name: str
    step: str = ""
    step_path: str = ""


def closing(
    scene: StackContext,
    block: BlockConfig,
    around: ResidualNorms,
    linear: LinearTerm,
    answer: SubLayerOutput,
) -> list[Line]:
    """The output projection, the residual sum and the norms around them."""
    f = linear(answer.inner)
    stream = scene.stream
    tokens = scene.tokens.size
    name = answer.name
    if block.placement == "sphere":
        step = Weight(
            answer.step, "step", f"{scene.layer}.{answer.step_path}.weight", (scene.width,)
        )
        return [
            linear.line(f"{name} = unit({f})", stream, tokens),
            Line(
                f"x = unit(x + {answer.step} ⊙ ({name} − x))",
                stream,
                weights=(step,),
                where=ON_SPHERE,
            ),
        ]
    if block.parallel:
        alone = linear.line(f"{name} = {f}", stream, tokens)
        return [alone] if name == "o" else [alone, Line("x = x + o + f", stream)]
    return [linear.line(around.added(f), stream, tokens, norms=(around.inside, around.after))]
