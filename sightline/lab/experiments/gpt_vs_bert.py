"""GPT and BERT of the same size on the same text: which is better at filling gaps, generating text
and embedding it.

    GPT     p(x_t | x_<t)                     every token is a target, with left context only
    BERT    p(x_t | x with some masked)       15 % are targets, with context from both sides

The blocks are the same; the mask and the task differ. Both are trained on Shakespeare's characters
and measured on held-out plays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.measures.fill_write_embed import (
    CONTEXT,
    GAPS,
    PROMPTS,
    fill_nats,
    held_out_windows,
    measure_embeddings,
    measure_fill,
    measure_writing,
)
from sightline.lab.statistics import Interval, lies_above, lies_below, paired_difference
from sightline.lab.style import COLOURS, new_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sightline.config import ModelConfig

KINDS = ("gpt", "bert")
STEPS = {"quick": 160, "default": 1000, "full": 8000}
SEEDS = {"quick": 3, "default": 4, "full": 8}
WIDTH = 64
LAYERS = 2
HEADS = 2
ROWS = 32


def gpt_vs_bert_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    seed = plan.seed
    steps = STEPS[tier]
    return [
        ExperimentPart(
            f"{kind}.steps-{steps}.seed-{n}", lambda kind=kind, n=n: train_and_probe(kind, steps, n)
        )
        for n in range(seed, seed + SEEDS[tier])
        for kind in KINDS
    ]


def gpt_or_bert_config(kind: str, vocabulary: int) -> ModelConfig:
    """RoPE, RMSNorm, SwiGLU for both; `vocabulary` counts the mask token."""
    from dataclasses import replace

    from sightline.architectures import llama
    from sightline.config import MaskedHead, ModelConfig, RMSNorm

    gpt = llama(
        width=WIDTH, layers=LAYERS, heads=HEADS, vocab_size=vocabulary, max_positions=CONTEXT
    )
    assert gpt.decoder is not None
    head = MaskedHead(norm=RMSNorm(), bias=False, transform_bias=False)
    return (
        gpt if kind == "gpt" else ModelConfig(encoder=replace(gpt.decoder, causal=False), head=head)
    )


def train_and_probe(kind: str, steps: int, seed: int) -> dict[str, Any]:
    """Train one model on the plays, then measure all tasks."""
    import torch

    from sightline.lab.learning import (
        GeneratedTask,
        build_seeded,
        seeded_generator,
        shakespeare,
        training_steps,
    )
    from sightline.training.config import AdamW, Muon
    from sightline.training.data.masked import MaskedText

    text, mask = shakespeare(CONTEXT, ROWS, seed)
    task = text if kind == "gpt" else GeneratedTask(MaskedText(text, mask, mask + 1).batch)
    optimizer = Muon(lr=0.02, rest=AdamW(lr=5e-3))
    windows = held_out_windows(text, GAPS)
    transformer = build_seeded(gpt_or_bert_config(kind, mask + 1), seed)
    halfway = 0.0
    for _, event in training_steps(transformer, task, steps=steps, optimizer=optimizer, seed=seed):
        if event.step == (steps + 1) // 2:
            with torch.no_grad():
                halfway = fill_nats(transformer, windows, mask)
    transformer.eval()
    with torch.no_grad():
        return {
            "parameters": sum(p.numel() for p in transformer.parameters()),
            "fill halfway": halfway,
            **measure_fill(transformer, windows, mask),
            **measure_writing(transformer, text, windows[:PROMPTS], seeded_generator(seed, 7)),
            **measure_embeddings(transformer, text, windows),
        }


# ---------------------------------------------------------------------------------------- verdict


def values_of_kind(numbers: Numbers, kind: str, what: str) -> list[float]:
    """One quantity for all seeds."""
    return [row[what] for name, row in numbers.items() if name.startswith(f"{kind}.")]


def bert_minus_gpt(numbers: Numbers, what: str) -> Interval:
    """BERT − GPT, paired by seed."""
    return paired_difference(
        values_of_kind(numbers, "bert", what), values_of_kind(numbers, "gpt", what)
    )


def is_ahead(end: Interval, halfway: Interval) -> bool | None:
    """Whether a difference is below 0; undecided while it is above 0 but still falling."""
    holds = lies_below(end, 0)
    return None if holds is False and end.mean < halfway.mean else holds


def distance_to_real_text(numbers: Numbers, kind: str, what: str = "written") -> list[float]:
    """Distance between generated and real text, in nats per character under a trigram model."""
    return [
        abs(a - b)
        for a, b in zip(
            values_of_kind(numbers, kind, what), values_of_kind(numbers, kind, "real"), strict=True
        )
    ]


def judge_gpt_vs_bert(numbers: Numbers) -> Sequence[Check]:
    sizes = {kind: values_of_kind(numbers, kind, "parameters")[0] for kind in KINDS}
    ratio = sizes["bert"] / sizes["gpt"]
    fill, following, word, play = (
        bert_minus_gpt(numbers, what) for what in ("fill", "next", "word", "play")
    )
    nearest = [
        min(pair)
        for pair in zip(
            distance_to_real_text(numbers, "bert"),
            distance_to_real_text(numbers, "bert", "written by sweeps"),
            strict=True,
        )
    ]
    writing = paired_difference(nearest, distance_to_real_text(numbers, "gpt"))
    return [
        Check(
            Words("parameter counts are equal within 5%", "パラメータ数は同じ（差は5%以内）"),
            abs(ratio - 1) < 0.05,
            f"BERT / GPT {ratio:.3f}",
        ),
        Check(
            Words(
                "fill: BERT predicts a masked character better than GPT does from the left"
                " (undecided"
                " while BERT still gains on GPT)",
                "穴埋め：マスクされた文字は、左だけを見る GPT より BERT がよく予測する"
                "（差が縮まっている間は判定保留）",
            ),
            is_ahead(fill, bert_minus_gpt(numbers, "fill halfway")),
            f"BERT − GPT {fill} nats; halfway {bert_minus_gpt(numbers, 'fill halfway')}",
        ),
        Check(
            Words(
                "generate: GPT predicts the next character better",
                "生成：次の文字は GPT がよく予測する",
            ),
            lies_above(following, 0),
            f"BERT − GPT {following} nats",
        ),
        Check(
            Words(
                "text sampled from GPT is closer to real text than text sampled from BERT, by"
                " either"
                " sampling method",
                "GPT が生成する文は、どちらのサンプリング方法による BERT の文よりも実際の文に近い",
            ),
            lies_above(writing, 0),
            f"distance to real text, BERT's better method − GPT: {writing} nats",
        ),
        Check(
            Words(
                "embed: BERT's vector of a word's first letter tells more about the word",
                "埋め込み：語の最初の文字のベクトルは、BERT の方が語の情報を多く含む",
            ),
            lies_above(word, 0),
            f"accuracy of the word's length, BERT − GPT {word}",
        ),
        Check(
            Words(
                "its mean vector classifies plays no worse (within 0.1)",
                "平均ベクトルによる戯曲の分類は劣らない（差は0.1以内）",
            ),
            lies_above(play, -0.1),
            f"BERT − GPT {play}",
        ),
    ]


def summarize_gpt_vs_bert(numbers: Numbers) -> Words:
    quantities = ("fill", "next", "word", "play", "fill few")
    gpt, bert = (
        {what: Interval.of(values_of_kind(numbers, kind, what)).mean for what in quantities}
        for kind in KINDS
    )
    search = Interval.of(values_of_kind(numbers, "gpt", "fill by search")).mean
    guess = Interval.of(values_of_kind(numbers, "bert", "play guess")).mean
    return Words(
        f"A masked character costs BERT {bert['fill']:.2f} nats and GPT, from the left,"
        f" {gpt['fill']:.2f}; the next character {bert['next']:.2f} and {gpt['next']:.2f}. GPT"
        " can fill"
        f" gaps too, by trying every character with all that follows: {search:.2f} nats where BERT"
        f" needs {bert['fill few']:.2f}, at the price of one pass per character. A linear"
        f" probe predicts a word's length from its first letter in {bert['word']:.0%} (BERT) and"
        f" {gpt['word']:.0%} (GPT), and the play from a passage in {bert['play']:.0%} and"
        f" {gpt['play']:.0%} (majority class: {guess:.0%}). In the same number of steps BERT has"
        " one"
        " target in seven characters, GPT one per character: BERT learns more slowly.",
        f"マスクされた文字は BERT で {bert['fill']:.2f} nats、左だけを見る GPT で {gpt['fill']:.2f}"
        f" nats。次の文字は {bert['next']:.2f} と {gpt['next']:.2f}。GPT"
        f" も全ての文字を続きごと試せば穴を埋められる（{search:.2f} nats、同じ問題で BERT は"
        f" {bert['fill few']:.2f}）。ただし文字の数だけ計算が要る。"
        f"語の最初の文字から語の長さを予測する線形プローブの正答率は BERT {bert['word']:.0%}、"
        f"GPT {gpt['word']:.0%}。"
        f"戯曲の分類は {bert['play']:.0%} と {gpt['play']:.0%}（最頻クラス {guess:.0%}）。"
        "同じステップ数でも BERT は7文字に1文字しか教師信号がなく、GPT は全ての文字にあるので、BERT"
        " の学習は遅い。",
    )


def draw_gpt_vs_bert(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (nats, writing, vectors) = new_figure(3, width=3.9)
    draw_paired_bars(nats, numbers, {"masked": "fill", "next": "next"})
    few = Interval.of(values_of_kind(numbers, "gpt", "fill by search"))
    nats.scatter(
        [-0.19],
        [few.mean],
        marker="*",
        s=90,
        color="0",
        zorder=3,
        label="GPT, trying every character",
    )
    nats.set(ylabel="nats per character", title="Fill and predict (lower is better)")
    ways = (("gpt", "written"), ("bert", "written"), ("bert", "written by sweeps"))
    for place, (kind, what) in enumerate(ways):
        draw_bar(
            writing,
            place,
            Interval.of(values_of_kind(numbers, kind, what)),
            COLOURS[KINDS.index(kind)],
            None,
        )
    writing.axhline(
        Interval.of(values_of_kind(numbers, "gpt", "real")).mean,
        color="0",
        linestyle=":",
        label="real text",
    )
    writing.set(ylabel="nats per character, trigram model", title="Generated text", xticks=range(3))
    writing.set_xticklabels(["GPT", "BERT,\nmask at the end", "BERT,\nsweeps"])
    writing.set_ylim(bottom=0)
    draw_paired_bars(
        vectors,
        numbers,
        {"word's length\nfrom its first letter": "word", "play from\na passage": "play"},
    )
    for place, what in enumerate(("word guess", "play guess")):
        guess = Interval.of(values_of_kind(numbers, "gpt", what)).mean
        vectors.plot(
            [place - 0.4, place + 0.4],
            [guess, guess],
            color="0",
            linestyle=":",
            label="majority class" if place == 0 else None,
        )
    vectors.set(ylabel="accuracy", ylim=(0, 1), title="Embeddings, by a linear probe")
    for axes in (nats, writing, vectors):
        axes.set_axisbelow(True)
        axes.set_ylim(top=1.0 if axes is vectors else 1.4 * axes.get_ylim()[1])
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    return {"gpt-vs-bert": figure}


def draw_paired_bars(axes: Axes, numbers: Numbers, quantities: Mapping[str, str]) -> None:
    """GPT beside BERT for each quantity."""
    for number, kind in enumerate(KINDS):
        for place, what in enumerate(quantities.values()):
            draw_bar(
                axes,
                place + 0.38 * (number - 0.5),
                Interval.of(values_of_kind(numbers, kind, what)),
                COLOURS[number],
                kind.upper() if place == 0 else None,
            )
    axes.set(xticks=range(len(quantities)))
    axes.set_xticklabels(list(quantities))


def draw_bar(axes: Axes, place: float, interval: Interval, colour: str, label: str | None) -> None:
    """A bar with its interval."""
    axes.bar([place], [interval.mean], width=0.36, color=colour, label=label)
    axes.errorbar(
        [place],
        [interval.mean],
        yerr=[[interval.mean - interval.low], [interval.high - interval.mean]],
        color="0.2",
        capsize=3,
        linewidth=1,
    )


EXPERIMENT = Experiment(
    name="gpt-vs-bert",
    title=Words("GPT and BERT of the same size", "同じ大きさの GPT と BERT"),
    claim=Words(
        "The same blocks with a different mask and task: BERT, with context from both sides,"
        " fills and"
        " embeds better; GPT generates better.",
        "同じブロックでもマスクと課題が違えば得意なことが違う。両側を見る BERT"
        " は穴埋めと埋め込みに、GPT は生成に優れる。",
    ),
    source="Devlin et al. 2019; Radford et al. 2018; Wang and Cho 2019",
    equation="GPT: Σ_t log p(x_t | x_<t);   BERT: Σ_{t masked} log p(x_t | x without the masked)",
    look_for=Words(
        "which is lower for masked characters and which for the next one; whose generated text"
        " is near"
        " the dotted line",
        "穴埋めと次の文字で損失が低いのはどちらか。点線に近い文を生成するのはどちらか",
    ),
    parts=gpt_vs_bert_parts,
    judge=judge_gpt_vs_bert,
    draw=draw_gpt_vs_bert,
    summarize=summarize_gpt_vs_bert,
    corrections=(
        Words(
            "GPT-3 and BERT have learned absolute positions, not sinusoids. The two models here"
            " both use RoPE.",
            "GPT-3 と BERT の位置は正弦波ではなく学習された絶対位置。ここの二つのモデルはどちらも"
            " RoPE を使う。",
        ),
    ),
)
