"""Heads look at different things: which heads of real models find which relation, against chance
and against any fixed distance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.style import COLOURS, figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MODELS = {
    "quick": ("minilm",),
    "default": ("minilm", "smollm2-135m-instruct"),
    "full": ("minilm", "smollm2-135m-instruct", "stories15m"),
}
KINDS = {
    "pronoun": Words("from a pronoun to what it stands for", "代名詞から指示対象へ"),
    "verb": Words("from a verb to its subject", "動詞から主語へ"),
    "adjective": Words("between an adjective and its noun", "形容詞と名詞のあいだ"),
}
SURE = 0.05


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    found = [
        Part(f"{model}.relations", lambda model=model: relations(model)) for model in MODELS[tier]
    ]
    return found + [
        Part(f"{model}.roles.seed-{seed}", lambda model=model: roles(model, seed))
        for model in MODELS[tier]
    ]


def relations(name: str) -> list[dict[str, Any]]:
    """For each relation the best head, how often it finds the word, and the rates of all heads."""
    from sightline.lens.heads.relations import relations_of
    from sightline.model import load

    rows = relations_of(load(name), language="en").to_dict()["relations"]
    kept = ("relation", "looks", "finds", "links", "chance", "offset", "offset_rate", "rates")
    return [{key: row[key] for key in kept} | {"best": row["top"][0]} for row in rows]


def roles(name: str, seed: int) -> dict[str, Any]:
    """How many heads have which role, and the best score of each."""
    from sightline.lens.heads.profile import heads_of
    from sightline.model import load

    found = heads_of(load(name), seed=seed)
    names = sorted({head.role for head in found.heads})
    best = {role: found.score(found.top(role, 1)[0], role) for role in names if role != "unclear"}
    return {
        "counts": {role: sum(head.role == role for head in found.heads) for role in names},
        "best": best,
    }


def judge(numbers: Numbers) -> Sequence[Check]:
    checks = [relation_check(numbers, kind, says) for kind, says in KINDS.items()]
    counts = {name: row["counts"] for name, row in numbers.items() if ".roles." in name}
    near = all(row.get("previous", 0) + row.get("next", 0) > 0 for row in counts.values())
    kinds = {
        name: len([role for role in row if role not in ("unclear", "sink")])
        for name, row in counts.items()
    }
    said = ", ".join(f"{name.split('.')[0]} {count}" for name, count in kinds.items())
    neighbours = Words(
        "every model has heads for the neighbours", "どのモデルにも隣の語を見るヘッドがある"
    )
    several = Words(
        "heads of one model do at least four different things",
        "一つのモデルのヘッドは少なくとも四種類の働きをする",
    )
    return [
        *checks,
        Check(neighbours, near, said_roles(counts)),
        Check(several, min(kinds.values()) >= 4, said),
    ]


def relation_check(numbers: Numbers, kind: str, says: Words) -> Check:
    """Whether a head of some model finds the relation more often than a blind choice and than the
    best fixed distance."""
    rows = [
        (name.split(".")[0], row)
        for name, part in numbers.items()
        if name.endswith(".relations")
        for row in part
    ]
    of_kind = [(model, row) for model, row in rows if row["relation"].startswith(kind)]
    model, row = min(of_kind, key=lambda pair: sureness(pair[1]))
    best = row["best"]
    found = (
        f"{model}, layer {best['layer']}, head {best['head']}: {best['rate']:.0%} of {row['links']}"
        f" (blind {row['chance']:.0%}, best distance {row['offset_rate']:.0%}, p"
        f" {sureness(row):.1g})"
    )
    text = Words(
        f"some head looks {says.en}, whatever the distance",
        f"{says.ja}、距離によらず見るヘッドがある",
    )
    return Check(
        text, sureness(row) < SURE or None, found
    )  # not found by these models is not refuted


def sureness(row: Mapping[str, Any]) -> float:
    """The larger of the two corrected p-values."""
    return max(row["best"]["p_chance"], row["best"]["p_offset"])


def said_roles(counts: Mapping[str, Mapping[str, int]]) -> str:
    return "; ".join(
        f"{name.split('.')[0]}: {row.get('previous', 0)} previous, {row.get('next', 0)} next"
        for name, row in counts.items()
    )


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    models = [name for name in numbers if name.endswith(".relations")]
    made, panels = figure(len(models), width=5.0)
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
                label=named("a head", place),
            )
            axes.scatter(
                [row["best"]["rate"]],
                [place],
                s=60,
                color=COLOURS[1],
                marker="*",
                label=named("the best head", place),
                zorder=3,
            )
            axes.plot([row["chance"]] * 2, ends, color="0.5", label=named("blind choice", place))
            axes.plot(
                [row["offset_rate"]] * 2,
                ends,
                color="0",
                linestyle=":",
                label=named("best distance", place),
            )
        axes.set(
            xlim=(0, 1),
            xlabel="how often a head finds the word",
            title=name.split(".")[0],
            yticks=range(len(numbers[name])),
        )
        axes.set_yticklabels([f"{row['looks']} → {row['finds']}" for row in numbers[name]])
    made.legend(
        *panels[0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=8,
    )
    return {"heads-look-at": made}


def named(label: str, place: int) -> str | None:
    """A name for the legend, once."""
    return label if place == 0 else None


EXPERIMENT = Experiment(
    name="heads-look-at",
    title=Words("What heads look at", "ヘッドは何を見るか"),
    claim=Words(
        "Heads look at different things: pronouns at what they stand for, verbs at subjects,"
        " adjectives at nouns, words at neighbours.",
        "ヘッドはそれぞれ別のものを見る。代名詞は指示対象を、動詞は主語を、形容詞は名詞を、語は隣の語を。",
    ),
    source="Vaswani et al. 2017, figures 3–5; Clark et al. 2019",
    equation="rate_h = share of links whose strongest key, sinks left out, is the right word",
    look_for=Words(
        "stars far to the right of the grey and the dotted line", "灰色と点線の右に離れた星"
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    corrections=(
        Words(
            "One picture of one head proves nothing: of hundreds of heads one always looks right."
            " So all heads are counted in p.",
            "一つのヘッドの一枚の図は何も証明しない。数百のうち一つは必ずそれらしく見える。だから p"
            " は全ヘッドで補正する。",
        ),
    ),
)
