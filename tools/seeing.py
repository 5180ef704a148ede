"""Generates the figures and tables of docs/seeing.md: `python -m tools.seeing`. SmolLM2 and MiniLM,
two minutes on two cores."""

from __future__ import annotations

import random
import re
import statistics
from pathlib import Path

import torch
from torch.nn import functional as F

import sightline as sl
from sightline.cli.ui import heads_figure
from sightline.demo.tour import SENTENCE
from sightline.lens.draw.figure import write_figure
from sightline.lens.draw.views import view_of
from sightline.lens.geometry.decompose import LayerGeometry, geometry_by_layer
from sightline.lens.heads.profile import HeadMap, heads_of
from sightline.lens.heads.relations import relations_of
from sightline.lens.interventions.edits import Edits, ablate, logits_with
from sightline.model import Model

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "seeing.md"
FIGURES = ROOT / "docs" / "figures"
DRAWS = 10  # random triples of heads
TEN = (
    "The cat sat on the mat.",
    "I like apples better than oranges.",
    "She has been studying English for three years.",
    "It is raining today.",
    "He went to the station by bus.",
    "What time is it now?",
    "My father is a doctor.",
    "I don't know where he lives.",
    "Please open the window.",
    "This book is more interesting than that one.",
)


def roles(model: Model) -> tuple[HeadMap, str]:
    """The map of roles as a figure, and the strongest head of each role."""
    head_map = heads_of(model)
    heads_figure.save_heads_figure(head_map, FIGURES / f"heads-{model.name}.svg")
    lines = ["| role | heads | strongest | score |", "|---|--:|---|--:|"]
    names = sorted(
        {head.role for head in head_map.heads},
        key=lambda role: -sum(head.role == role for head in head_map.heads),
    )
    for role in names:
        count = sum(head.role == role for head in head_map.heads)
        best = head_map.top(role, 1) if role != "unclear" else []
        where = (
            f"layer {best[0].layer}, head {best[0].head} | {head_map.score(best[0], role):.2f}"
            if best
            else "– | –"
        )
        lines.append(f"| {role} | {count} | {where} |")
    return head_map, f"![roles](figures/heads-{model.name}.svg)\n\n" + "\n".join(lines)


def repeated(model: Model, *, length: int = 40, seed: int = 1) -> list[int]:
    """Random tokens, repeated once."""
    pick = random.Random(seed)
    half = [
        pick.randrange(1000, model.config.last.embedding.vocab_size - 1000) for _ in range(length)
    ]
    return half + half


def second_half_loss(model: Model, ids: list[int], edits: Edits) -> float:
    """Nats per token in the repetition."""
    logits = logits_with(model, ids, edits)
    half = len(ids) // 2
    return float(F.cross_entropy(logits[half:-1], torch.tensor(ids[half + 1 :])))


def without(heads: list[tuple[int, int]]) -> Edits:
    edits = Edits()
    for layer, head in heads:
        edits = edits | ablate(layer, head)
    return edits


def induction(model: Model, head_map: HeadMap) -> str:
    """The loss on repeated text without the induction heads, and without equally many random
    heads."""
    top = [(head.layer, head.head) for head in head_map.top("induction", 3)]
    ids = repeated(model)
    pick = random.Random(0)
    others = [
        (head.layer, head.head)
        for head in head_map.heads
        if head.role not in ("induction", "previous")
    ]
    whole = second_half_loss(model, ids, Edits())
    ablated = second_half_loss(model, ids, without(top))
    losses = [second_half_loss(model, ids, without(pick.sample(others, 3))) for _ in range(DRAWS)]
    names = ", ".join(f"{layer}.{head}" for layer, head in top)
    return (
        f"| without | nats per token on the repetition |\n|---|--:|\n| nothing | {whole:.2f} |\n|"
        f" the three strongest induction heads ({names}) | **{ablated:.2f}** |\n| three heads at"
        f" random, {DRAWS} draws | {statistics.mean(losses):.2f} (at most {max(losses):.2f}) |"
    )


def relations(model: Model) -> str:
    """Which heads find which relation."""
    lines = [
        ("| relation | best head | finds | chance | best fixed distance | p (all heads counted) |"),
        "|---|---|--:|--:|--:|--:|",
    ]
    for relation in relations_of(model, language="en").relations:
        best = relation.top[0]
        mark = "**" if best.is_significant else ""
        lines.append(
            f"| {relation.title} | layer {best.layer}, head {best.head} |"
            f" {mark}{best.rate:.0%}{mark} | {relation.chance:.0%} | {relation.offset_rate:.0%} |"
            f" {best.p:.1g} |"
        )
    return "\n".join(lines)


def geometry(model: Model) -> str:
    """Direction and length by layer."""
    from matplotlib.figure import Figure

    by_layer = geometry_by_layer(model.trace(SENTENCE))
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes, norms = figure.subplots(1, 2)
    layers = [layer.site[1] for layer in by_layer]
    axes.plot(
        layers,
        [100 * layer.centred.direction for layer in by_layer],
        marker="o",
        markersize=3,
        label="of the scores' variance",
    )
    axes.plot(
        layers,
        [100 * layer.centred.attention_direction for layer in by_layer],
        marker="s",
        markersize=3,
        label="of the attention (KL)",
    )
    axes.set(xlabel="layer", ylabel="direction, %", title="How much is direction", ylim=(0, 110))
    axes.legend(frameon=False)
    norms.plot(layers, [layer.query_length for layer in by_layer], label="|q|")
    norms.plot(layers, [layer.key_length for layer in by_layer], label="|k|")
    norms.set(xlabel="layer", title="Mean lengths", ylim=(0, None))
    norms.legend(frameon=False)
    figure.suptitle(f"{model.name}: “{SENTENCE}”", fontsize=9)
    figure.savefig(FIGURES / f"geometry-{model.name}.svg", metadata={"Date": None})
    return f"![geometry](figures/geometry-{model.name}.svg)\n\n{in_words(model, by_layer)}"


def in_words(model: Model, by_layer: list[LayerGeometry]) -> str:
    shares = {layer.site[1]: layer.centred.direction for layer in by_layer}
    lowest = min(shares, key=lambda layer: shares[layer])
    mean = statistics.mean(shares.values())
    return (
        f"{model.name}: {mean:.0%} direction on average over the layers, least in layer {lowest}"
        f" ({shares[lowest]:.0%})."
    )


def alignments(model: Model) -> str:
    """Ten sentences with the alignments of their translations."""
    lines = []
    for number, text in enumerate(TEN):
        trace = model.trace(text)
        write_figure(view_of(trace, "alignment"), FIGURES / f"alignment-{number}.svg")
        lines.append(f"| {text} | {trace.text} | ![alignment](figures/alignment-{number}.svg) |")
    return "| English | Japanese | alignment |\n|---|---|---|\n" + "\n".join(lines)


def put(text: str, name: str, generated: str) -> str:
    """Insert generated text between the marks of its name."""
    return re.sub(
        rf"<!-- {name} -->.*<!-- /{name} -->",
        lambda _: f"<!-- {name} -->\n{generated}\n<!-- /{name} -->",
        text,
        flags=re.DOTALL,
    )


def main() -> None:
    import matplotlib as mpl

    mpl.rcParams["svg.hashsalt"] = "sightline"
    FIGURES.mkdir(exist_ok=True)
    parts: dict[str, str] = {}
    for short, name in (("smollm2", "smollm2-135m-instruct"), ("minilm", "minilm")):
        model = sl.load(name)
        head_map, parts[f"{short}-roles"] = roles(model)
        if model.config.decoder is not None:
            parts[f"{short}-induction"] = induction(model, head_map)
        parts[f"{short}-relations"], parts[f"{short}-geometry"] = relations(model), geometry(model)
        write_figure(view_of(model.trace(SENTENCE), "map"), FIGURES / f"map-{model.name}.svg")
    parts["alignments"] = alignments(sl.load("enja"))
    text = PAGE.read_text(encoding="utf-8")
    for name, generated in parts.items():
        text = put(text, name, generated)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
