"""Heads attend to different things: which heads of real models follow which relation, judged on
sentences that did not choose them, against chance and every fixed offset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import (
    Check,
    Experiment,
    ExperimentPart,
    Numbers,
    Plan,
    Tier,
    Words,
)
from sightline.lab.statistics import (
    Decision,
    Interval,
    decide_count_above,
    decide_count_below,
)
from sightline.lab.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sightline.lens.heads.referents import From, Referents
    from sightline.lens.heads.relations import Relation
    from sightline.lens.trace.subject import Subject

CAUSAL: Mapping[Tier, str] = {
    "quick": "stories15m",
    "default": "smollm2-135m-instruct",
    "full": "smollm2-135m-instruct",
}
ENCODER = "minilm"
ENCODERS: Mapping[Tier, Sequence[str]] = {
    "quick": (ENCODER,),
    "default": (ENCODER, "bert-tiny", "enja"),
    "full": (ENCODER, "bert-tiny", "enja"),
}
KINDS = {
    "pronoun": Words("from a pronoun to the noun that agrees with it", "代名詞から一致する名詞へ"),
    "verb": Words("from a verb to its subject", "動詞から主語へ"),
    "predicate": Words("from a predicate adjective to its noun", "述語の形容詞からその名詞へ"),
    "adjective": Words("from an adjective to the noun after it", "形容詞から後ろの名詞へ"),
    "determiner": Words("from a noun to its determiner", "名詞から冠詞へ"),
    "preposition": Words("from a noun to its preposition", "名詞から前置詞へ"),
    "place": Words("from a verb to its place", "動詞から場所へ"),
    "synonym": Words("from a word to its synonym", "単語から同義語へ"),
}
AHEAD = ("adjective", "place")  # judged in the encoder, because a causal model cannot look ahead
BASELINES = ("chance", "offset_rate", "position_rate")
FOLDS = 5
EVEN = 0.5  # a head that ignores the adjective, or does not know it, is right half of the time


def heads_look_at_parts(plan: Plan) -> Sequence[ExperimentPart]:
    causal, encoders = CAUSAL[plan.tier], ENCODERS[plan.tier]
    models = (causal, ENCODER)
    return [
        *(
            ExperimentPart(
                f"{model}.relations.folds-{FOLDS}.seed-{plan.seed}",
                lambda model=model: relation_rows(loaded(model), plan.seed),
            )
            for model in models
        ),
        *(
            ExperimentPart(
                f"{model}.referents.from-{word}",
                lambda model=model, word=word: referent_row(loaded(model), word),
            )
            for model, word in referent_sources(causal, encoders)
        ),
        *(
            ExperimentPart(
                f"{model}.roles.seed-{plan.seed}",
                lambda model=model: role_counts(loaded(model), plan.seed),
            )
            for model in models
        ),
    ]


def referent_sources(causal: str, encoders: Sequence[str]) -> list[tuple[str, From]]:
    """Encoders look from "it"; the causal model has read the adjective only at the adjective."""
    return [*((model, "it") for model in encoders), (causal, "adjective")]


def loaded(name: str) -> Subject:
    from sightline.loading import load

    return load(name)


# ----------------------------------------------------------------------------------- measurements


def relation_rows(subject: Subject, seed: int) -> list[dict[str, Any]]:
    """For each relation the rates of all heads, the baselines, and the hits of heads on sentences
    that did not choose them."""
    from sightline.lens.heads.relations import relations_of

    found = relations_of(subject, language="en")
    fields = ("relation", "looks", "finds", "links", "rates", *BASELINES)
    rows = {row["relation"]: row for row in found.to_dict()["relations"]}
    return [
        {name: rows[one.relation][name] for name in fields}
        | {"nearest_rate": one.nearest_rate, "best": rows[one.relation]["top"][0]}
        | held_out_hits(one, seed)
        for one in found.relations
    ]


def held_out_hits(relation: Relation, seed: int) -> dict[str, int]:
    """Hits by cross-validation: the sentences of each fold are judged by the head that is best on
    all others. `missed` links are those where the nearest agreeing noun is wrong."""
    import torch

    sentences = sorted(set(relation.sentences))
    order = torch.randperm(len(sentences), generator=torch.Generator().manual_seed(seed)).tolist()
    fold_of = {sentences[place]: n % FOLDS for n, place in enumerate(order)}
    folds = torch.tensor([fold_of[sentence] for sentence in relation.sentences])
    hits = relation.hits.flatten(0, 1)
    right = torch.zeros(len(folds))
    for fold in range(FOLDS):
        judged = folds == fold
        chosen = int(hits[:, ~judged].sum(-1).argmax())
        right[judged] = hits[chosen, judged]
    missed = torch.tensor([guess is False for guess in relation.guessed])
    return {
        "hits": int(right.sum()),
        "missed": int(missed.sum()),
        "hits_of_missed": int(right[missed].sum()),
    }


def referent_row(subject: Subject, look_from: From) -> dict[str, Any]:
    from sightline.lens.heads.referents import referents_of

    return judged_referents(referents_of(subject, look_from=look_from))


def judged_referents(found: Referents) -> dict[str, Any]:
    """The head with the most consistent shift on the pairs for choosing, judged on the fresh ones;
    and how many heads resolve both of the classical pairs (tired/wide, large/small)."""
    import torch

    fresh = torch.tensor([pair.fresh for pair in found.pairs])
    shifts, right, wrong = (x.flatten(0, 1) for x in (found.shifts, found.right, found.wrong))
    chosen = int((shifts[:, ~fresh].mean(-1) / shifts[:, ~fresh].std(-1).clamp(min=1e-9)).argmax())
    layer, head = divmod(chosen, found.margins.shape[1])
    return {
        "layer": layer,
        "head": head,
        "pairs": int(fresh.sum()),
        "shifted": int((shifts[chosen, fresh] > 0).sum()),
        "right": int(right[chosen, fresh].sum()),
        "wrong": int(wrong[chosen, fresh].sum()),
        "heads": len(shifts),
        "resolve_both": int(right[:, :2].all(-1).sum()),
        "margins": found.margins[layer, head, fresh].tolist(),
    }


def role_counts(subject: Subject, seed: int) -> dict[str, int]:
    """The number of heads per role."""
    from sightline.lens.heads.profile import heads_of

    heads = heads_of(subject, seed=seed).heads
    roles = sorted({head.role for head in heads})
    return {role: sum(head.role == role for head in heads) for role in roles}


# ---------------------------------------------------------------------------------------- verdict


def judge_heads_look_at(numbers: Numbers) -> Sequence[Check]:
    return [
        *(relation_check(numbers, kind) for kind in KINDS),
        *referent_checks(numbers),
        *role_checks(numbers),
    ]


def model_rows(numbers: Numbers, what: str) -> dict[str, Any]:
    """The numbers of one kind of part by the model's name."""
    return {name.split(".")[0]: row for name, row in numbers.items() if f".{what}." in name}


def relation_check(numbers: Numbers, kind: str) -> Check:
    """Whether heads chosen on other sentences follow the relation more often than a random choice
    and than the fixed offset and the fixed position that are best on these very sentences."""
    model, row = judged_row(numbers, kind)
    decision = relation_decision(row)
    nearest = "" if row["nearest_rate"] is None else f", nearest noun {row['nearest_rate']:.0%}"
    beyond = f"; {row['hits_of_missed']} of its {row['missed']} errors right" if nearest else ""
    statement = Words(
        f"heads attend {KINDS[kind].en}, more often than chance, any fixed offset or position",
        f"{KINDS[kind].ja}、チャンスレベルやどの固定距離・固定位置よりも多く注目するヘッドがある",
    )
    measured = (
        f"{model}: {row['hits']} of {row['links']}, {decision.interval}"
        f" (chance {row['chance']:.0%}, best offset {row['offset_rate']:.0%}, best position"
        f" {row['position_rate']:.0%}{nearest}{beyond})"
    )
    return Check.over_seeds(statement, measured, decision)


def judged_row(numbers: Numbers, kind: str) -> tuple[str, Mapping[str, Any]]:
    """The model that judges this relation, and its numbers."""
    rows = model_rows(numbers, "relations")
    model = ENCODER if kind in AHEAD else next(name for name in rows if name != ENCODER)
    return model, next(row for row in rows[model] if row["relation"] == kind)


def relation_decision(row: Mapping[str, Any]) -> Decision:
    """The bound is the best of the baselines, none of which reads the words."""
    return decide_count_above(row["hits"], row["links"], max(row[name] for name in BASELINES))


def referent_checks(numbers: Numbers) -> list[Check]:
    rows = model_rows(numbers, "referents")
    causal = next(name for name in rows if f"{name}.referents.from-adjective" in numbers)
    it = rows[ENCODER]
    shifts = Words(
        "“too tired” or “too wide” moves the attention of “it” towards the noun that is meant"
        " (in an encoder)",
        "“too tired” か “too wide” かで、“it” の注目は指される名詞の側へ動く（エンコーダ）",
    )
    resolves = Words(
        "but rarely far enough: the head chooses the right noun in both sentences of fewer than"
        " half of the pairs",
        "ただし足りない：2文とも正しい名詞を選ぶのは半分に満たない",
    )
    adjective = Words(
        "in a causal model, the adjective itself prefers the noun that it fits",
        "因果的モデルでは、形容詞自身が、合う方の名詞をより強く見る",
    )
    both = sum(row["resolve_both"] for name, row in rows.items() if name != causal)
    heads = sum(row["heads"] for name, row in rows.items() if name != causal)
    return [
        shift_check(shifts, ENCODER, it),
        Check.over_seeds(
            resolves,
            f"{it['right']} of {it['pairs']} pairs; {both} of {heads} heads resolve both"
            " classical pairs",
            decide_count_below(it["right"], it["pairs"], EVEN),
        ),
        shift_check(adjective, causal, rows[causal]),
    ]


def shift_check(statement: Words, model: str, row: Mapping[str, Any]) -> Check:
    decision = decide_count_above(row["shifted"], row["pairs"], EVEN)
    measured = (
        f"{model}, layer {row['layer']}, head {row['head']}: {row['shifted']} of {row['pairs']}"
        f" pairs, {decision.interval}"
    )
    return Check.over_seeds(statement, measured, decision)


def role_checks(numbers: Numbers) -> list[Check]:
    """At least one head, and more than one role: that is all that the claim says."""
    counts = model_rows(numbers, "roles")
    neighbours = all(row.get("previous", 0) + row.get("next", 0) > 0 for row in counts.values())
    kinds = {name: len([role for role in row if role != "unclear"]) for name, row in counts.items()}
    return [
        Check(
            Words(
                "every model has heads that attend to neighbours",
                "どのモデルにも隣のトークンに注目するヘッドがある",
            ),
            neighbours,
            format_roles(counts),
        ),
        Check(
            Words(
                "the heads of one model have several roles",
                "一つのモデルのヘッドには複数の役割がある",
            ),
            min(kinds.values()) > 1,
            ", ".join(f"{name} {count} roles" for name, count in kinds.items()),
        ),
    ]


def format_roles(counts: Mapping[str, Mapping[str, int]]) -> str:
    return "; ".join(
        f"{name}: {row.get('previous', 0)} previous, {row.get('next', 0)} next"
        for name, row in counts.items()
    )


# --------------------------------------------------------------------------- figures and summary


def draw_heads_look_at(numbers: Numbers) -> Mapping[str, Figure]:
    rows = model_rows(numbers, "relations")
    figure, panels = new_figure(len(rows) + 1, width=5.0, height=4.2)
    for axes, (name, relations) in zip(panels, rows.items(), strict=False):
        for place, row in enumerate(relations):
            draw_relation(axes, place, row)
        axes.set(xlim=(0, 1), xlabel="hit rate of a head", title=name, yticks=range(len(relations)))
        axes.set_yticklabels([f"{row['looks']} → {row['finds']}" for row in relations])
        axes.invert_yaxis()
    handles = panels[0].get_legend_handles_labels()
    figure.legend(*handles, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    draw_referents(panels[-1], model_rows(numbers, "referents")[ENCODER])
    return {"heads-look-at": figure}


def draw_relation(axes: Axes, place: int, row: Mapping[str, Any]) -> None:
    """All heads as dots, the held-out rate with its interval, the baselines."""
    rates = [rate for layer in row["rates"] for rate in layer]
    axes.scatter(
        rates, [place] * len(rates), s=10, color=COLOURS[0], alpha=0.2, linewidth=0,
        label=first_label("one head", place),
    )  # fmt: skip
    held_out = Interval.count_of(row["hits"], row["links"])
    axes.errorbar(
        held_out.mean, place,
        xerr=[[held_out.mean - held_out.low], [held_out.high - held_out.mean]],
        color=COLOURS[1], marker="*", markersize=9, linewidth=1.4, zorder=3,
        label=first_label("chosen on other sentences, 95%", place),
    )  # fmt: skip
    lines = {
        "chance": (row["chance"], "0.5", "-"),
        "best offset": (row["offset_rate"], "0", ":"),
        "best position": (row["position_rate"], "0", "--"),
        "nearest noun": (row["nearest_rate"], COLOURS[2], "-"),
    }
    for label, (rate, colour, style) in lines.items():
        if rate is not None:
            ends = (place - 0.3, place + 0.3)
            label_once = first_label(label, place)
            axes.plot([rate] * 2, ends, color=colour, linestyle=style, label=label_once)


def first_label(label: str, place: int) -> str | None:
    """The label for the first row only, so that the legend has it once."""
    return label if place == 0 else None


def draw_referents(axes: Axes, row: Mapping[str, Any]) -> None:
    """One point per fresh pair: its margin with the first adjective against the second."""
    first, second = zip(*row["margins"], strict=True)
    low, high = min(*first, *second), max(*first, *second)
    axes.plot([low, high], [low, high], color="0.5", linewidth=0.8)
    axes.axhline(0, color="0.8", linewidth=0.8)
    axes.axvline(0, color="0.8", linewidth=0.8)
    axes.scatter(second, first, s=18, color=COLOURS[0])
    axes.set(
        xlabel="with the second noun's adjective",
        ylabel="log w(first noun) / w(second), with the first's",
        title=f"From “it”: {row['shifted']} of {row['pairs']} above the line",
    )


def summarize_heads_look_at(numbers: Numbers) -> Words:
    model, pronoun = judged_row(numbers, "pronoun")
    it = model_rows(numbers, "referents")[ENCODER]
    nearest = pronoun["nearest_rate"]
    rate = pronoun["hits"] / pronoun["links"]
    return Words(
        f"Each head is judged on sentences that did not choose it. From pronouns, {model}'s finds"
        f" the referent in {rate:.0%}; the nearest noun that agrees in number and animacy is it in"
        f" {nearest:.0%}: the head finds the noun that agrees, which is less than understanding."
        f" Which noun “it” is where only the last word tells, it chooses rightly in both sentences"
        f" of {it['right']} of {it['pairs']} pairs, wrongly in both of {it['wrong']}.",
        f"どのヘッドも、それを選ぶのに使わなかった文で判定する。代名詞から参照先を見つける割合は"
        f" {model} で {rate:.0%}、数と有生性の一致する最も近い名詞では {nearest:.0%}。"
        f"つまりヘッドは一致する名詞を見つけるのであり、理解しているとまでは言えない。"
        f"最後の単語だけで “it” が決まる{it['pairs']}組のうち、2文とも正しい名詞を選ぶのは"
        f"{it['right']}組、2文とも誤るのは{it['wrong']}組。",
    )


EXPERIMENT = Experiment(
    name="heads-look-at",
    title=Words("What heads attend to", "ヘッドは何に注目するか"),
    claim=Words(
        "Heads attend to different things: from pronouns to the noun that agrees, from verbs to"
        " subjects, from adjectives to nouns, from nouns to determiners and prepositions, from"
        " words to synonyms, from tokens to neighbours. What “it” is by its meaning moves them a"
        " little and rarely decides.",
        "ヘッドはそれぞれ別のものに注目する。代名詞から一致する名詞、動詞から主語、形容詞から名詞、"
        "名詞から冠詞や前置詞、単語から同義語、トークンから隣のトークン。"
        "意味で決まる “it” の指示対象には少し動くが、それで決まることは少ない。",
    ),
    source="Vaswani et al. 2017, figures 3–5; Clark et al. 2019; Levesque et al. 2012",
    equation="rate_h = share of links whose strongest key, sinks left out, is the right word",
    look_for=Words(
        "stars to the right of the grey and the black lines; points above the diagonal",
        "灰色と黒の線より右にある星、対角線より上の点",
    ),
    parts=heads_look_at_parts,
    judge=judge_heads_look_at,
    draw=draw_heads_look_at,
    summarize=summarize_heads_look_at,
    corrections=(
        Words(
            "A picture of one head proves nothing: among hundreds of heads one always looks right."
            " So heads are chosen and judged on different sentences.",
            "一つのヘッドの一枚の図は何も証明しない。数百のうち一つは必ずそれらしく見える。"
            "だからヘッドの選択と判定には別の文を使う。",
        ),
        Words(
            "A decoder cannot link “it” to “animal” because of “tired”: at “it” it has not read"
            " “tired”.",
            "デコーダが “tired” を手がかりに “it” を “animal” に結びつけることはできない。"
            "“it” の時点で “tired” をまだ読んでいない。",
        ),
    ),
)
