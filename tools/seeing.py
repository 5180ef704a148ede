"""Generates the figures and tables of docs/seeing.md: `python -m tools.seeing`. SmolLM2 and MiniLM,
two minutes on two cores."""

from __future__ import annotations

import random
import re
import statistics
from itertools import product
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
from sightline.lens.interventions.keys import ORIGINS, PARTS, change_keys
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
    """Direction and length by layer: the shares from both origins, with and without the first
    token, and for a language model the loss without either."""
    from matplotlib.figure import Figure

    trace = model.trace(SENTENCE)
    every, others = (geometry_by_layer(trace, sink=sink) for sink in (True, False))
    figure = Figure(figsize=(8, 3), layout="constrained")
    axes, norms = figure.subplots(1, 2)
    layers = [layer.site[1] for layer in every]
    for (origin, which), shares in direction_shares(every, others).items():
        label = f"from {origin}, {which}"
        axes.plot(layers, [100 * share for share in shares], label=label, linewidth=1.2)
    axes.axhline(100, color="0.5", linestyle=":", linewidth=1)
    axes.set(xlabel="layer", ylabel="direction, %", title="Share of direction in the variance")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=7)
    looks = list(trace.looks.values())
    for label, part in (
        ("|k| of the first token", slice(1)),
        ("|k| of the others", slice(1, None)),
    ):
        lengths = [float(look.key[0, :, part].norm(dim=-1).mean()) for look in looks]
        norms.plot(layers, lengths, label=label)
    norms.set(xlabel="layer", title="Mean lengths of the keys", ylim=(0, None))
    norms.legend(frameon=False, fontsize=7)
    figure.suptitle(f"{model.name}: “{SENTENCE}”", fontsize=9)
    figure.savefig(FIGURES / f"geometry-{model.name}.svg", metadata={"Date": None})
    table = share_table(model, direction_shares(every, others))
    losses = "" if model.config.decoder is None else f"\n\n{loss_table(model)}"
    return f"![geometry](figures/geometry-{model.name}.svg)\n\n{table}{losses}"


def direction_shares(
    every: list[LayerGeometry], others: list[LayerGeometry]
) -> dict[tuple[str, str], list[float]]:
    """The share of direction of each layer, by origin and by the keys that take part."""
    return {
        (origin, which): [getattr(layer, part).direction for layer in layers]
        for which, layers in (("all keys", every), ("without the first", others))
        for origin, part in (("zero", "raw"), ("the mean key", "centred"))
    }


def share_table(model: Model, shares: dict[tuple[str, str], list[float]]) -> str:
    """The mean over the layers, and their range."""
    cells = {
        name: f"{statistics.mean(row):.0%} ({min(row):.0%} to {max(row):.0%})"
        for name, row in shares.items()
    }
    lines = [
        f"| {model.name}: direction's share | lengths from zero | from the mean key |",
        "|---|--:|--:|",
    ]
    rows = [
        f"| {which} | {cells['zero', which]} | {cells['the mean key', which]} |"
        for which in ("all keys", "without the first")
    ]
    return "\n".join(lines + rows)


def loss_table(model: Model) -> str:
    """The loss of the sentence after each change of the keys of all layers."""

    def loss(edits: Edits) -> str:
        assert model.tokenizer is not None
        ids = model.tokenizer.encode(SENTENCE, special=True)
        logits = logits_with(model, ids, edits)
        return f"{float(F.cross_entropy(logits[:-1], torch.tensor(ids[1:]))):.2f}"

    def row(keep: bool) -> str:
        changes = [
            loss(change_keys(model, part, origin=origin, keep_first=keep))
            for part, origin in product(PARTS, ORIGINS)
        ]
        return " | ".join(changes)

    return (
        "| nats per token, intact "
        + loss(Edits())
        + " | equal lengths, from zero | from the mean | equal directions, from zero | from the"
        " mean |\n|---|--:|--:|--:|--:|\n"
        f"| of all keys | {row(False)} |\n| the first kept | {row(True)} |"
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
