"""Heads attend to different things: which heads of real models follow which relation, compared with
chance and with every fixed offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = {
    "quick": ("minilm",),
    "default": ("minilm", "smollm2-135m-instruct"),
    "full": ("minilm", "smollm2-135m-instruct", "stories15m"),
}
KINDS = {
    "pronoun": Words("from a pronoun to its referent", "代名詞から指示対象へ"),
    "verb": Words("from a verb to its subject", "動詞から主語へ"),
    "adjective": Words("between an adjective and its noun", "形容詞と名詞のあいだ"),
}
SIGNIFICANCE = 0.05


def heads_look_at_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    seed = plan.seed
    relations = [
        ExperimentPart(f"{model}.relations", lambda model=model: best_relation_heads(model))
        for model in MODELS[tier]
    ]
    return relations + [
        ExperimentPart(f"{model}.roles.seed-{seed}", lambda model=model: count_roles(model, seed))
        for model in MODELS[tier]
    ]


def best_relation_heads(name: str) -> list[dict[str, Any]]:
    """For each relation the best head, its hit rate, and the hit rates of all heads."""
    from sightline.lens.heads.relations import relations_of
    from sightline.loading import load

    rows = relations_of(load(name), language="en").to_dict()["relations"]
    fields = ("relation", "looks", "finds", "links", "chance", "offset", "offset_rate", "rates")
    return [{key: row[key] for key in fields} | {"best": row["top"][0]} for row in rows]


def count_roles(name: str, seed: int) -> dict[str, Any]:
    """The number of heads per role, and the best score of each role."""
    from sightline.lens.heads.profile import heads_of
    from sightline.loading import load

    heads = heads_of(load(name), seed=seed)
    names = sorted({head.role for head in heads.heads})
    best = {role: heads.score(heads.top(role, 1)[0], role) for role in names if role != "unclear"}
    return {
        "counts": {role: sum(head.role == role for head in heads.heads) for role in names},
        "best": best,
    }


def judge_heads_look_at(numbers: Numbers) -> Sequence[Check]:
    checks = [relation_check(numbers, kind, statement) for kind, statement in KINDS.items()]
    counts = {name: row["counts"] for name, row in numbers.items() if ".roles." in name}
    near = all(row.get("previous", 0) + row.get("next", 0) > 0 for row in counts.values())
    kinds = {
        name: len([role for role in row if role not in ("unclear", "sink")])
        for name, row in counts.items()
    }
    role_counts = ", ".join(f"{name.split('.')[0]} {count}" for name, count in kinds.items())
    neighbours = Words(
        "every model has heads that attend to neighbours",
        "どのモデルにも隣のトークンに注目するヘッドがある",
    )
    several = Words(
        "the heads of one model have at least four different roles",
        "一つのモデルのヘッドには少なくとも四種類の役割がある",
    )
    return [
        *checks,
        Check(neighbours, near, format_roles(counts)),
        Check(several, min(kinds.values()) >= 4, role_counts),
    ]


def relation_check(numbers: Numbers, kind: str, statement: Words) -> Check:
    """Whether some head follows the relation more often than chance and than the best fixed
    offset."""
    rows = [
        (name.split(".")[0], row)
        for name, part in numbers.items()
        if name.endswith(".relations")
        for row in part
    ]
    of_kind = [(model, row) for model, row in rows if row["relation"].startswith(kind)]
    model, row = min(of_kind, key=lambda pair: p_value(pair[1]))
    best = row["best"]
    measured = (
        f"{model}, layer {best['layer']}, head {best['head']}: {best['rate']:.0%} of {row['links']}"
        f" (chance {row['chance']:.0%}, best offset {row['offset_rate']:.0%}, p"
        f" {p_value(row):.1g})"
    )
    text = Words(
        f"some head attends {statement.en}, at any distance",
        f"{statement.ja}、距離によらず注目するヘッドがある",
    )
    return Check(
        text, p_value(row) < SIGNIFICANCE or None, measured
    )  # not found in these models does not refute it


def p_value(row: Mapping[str, Any]) -> float:
    """The larger of the two corrected p-values."""
    return max(row["best"]["p_chance"], row["best"]["p_offset"])


def format_roles(counts: Mapping[str, Mapping[str, int]]) -> str:
    return "; ".join(
        f"{name.split('.')[0]}: {row.get('previous', 0)} previous, {row.get('next', 0)} next"
        for name, row in counts.items()
    )


def draw_heads_look_at(numbers: Numbers) -> Mapping[str, Figure]:
    models = [name for name in numbers if name.endswith(".relations")]
    figure, panels = new_figure(len(models), width=5.0)
    for axes, name in zip(panels, models, strict=True):
        for place, row in enumerate(numbers[name]):
            rates = [rate for layer in row["rates"] for rate in layer]
            ends = (place - 0.3, place + 0.3)
            axes.scatter(
                rates,
                [place] * len(rates),
                s=10,
                color=COLOURS[0],
                alpha=0.25,
                linewidth=0,
                label=legend_label("one head", place),
            )
            axes.scatter(
                [row["best"]["rate"]],
                [place],
                s=60,
                color=COLOURS[1],
                marker="*",
                label=legend_label("best head", place),
                zorder=3,
            )
            axes.plot([row["chance"]] * 2, ends, color="0.5", label=legend_label("chance", place))
            axes.plot(
                [row["offset_rate"]] * 2,
                ends,
                color="0",
                linestyle=":",
                label=legend_label("best offset", place),
            )
        axes.set(
            xlim=(0, 1),
            xlabel="hit rate of a head",
            title=name.split(".")[0],
            yticks=range(len(numbers[name])),
        )
        axes.set_yticklabels([f"{row['looks']} → {row['finds']}" for row in numbers[name]])
    figure.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=8,
    )
    return {"heads-look-at": figure}


def legend_label(label: str, place: int) -> str | None:
    """The label for the first row only, so that the legend has it once."""
    return label if place == 0 else None


EXPERIMENT = Experiment(
    name="heads-look-at",
    title=Words("What heads attend to", "ヘッドは何に注目するか"),
    claim=Words(
        "Heads attend to different things: from pronouns to referents, from verbs to subjects, from"
        " adjectives to nouns, from tokens to neighbours.",
        "ヘッドはそれぞれ別のものに注目する。代名詞から指示対象、動詞から主語、形容詞から名詞、トークンから隣のトークン。",
    ),
    source="Vaswani et al. 2017, figures 3–5; Clark et al. 2019",
    equation="rate_h = share of links whose strongest key, sinks left out, is the right word",
    look_for=Words(
        "stars far to the right of the grey and the dotted line", "灰色と点線の右に離れた星"
    ),
    parts=heads_look_at_parts,
    judge=judge_heads_look_at,
    draw=draw_heads_look_at,
    corrections=(
        Words(
            "A picture of one head proves nothing: among hundreds of heads one always looks"
            " right. So p"
            " is corrected for the number of heads.",
            "一つのヘッドの一枚の図は何も証明しない。数百のうち一つは必ずそれらしく見える。だから p"
            " は全ヘッドで補正する。",
        ),
    ),
)
