"""GPT and BERT of the same size on the same text: which is better at filling gaps, in one forward
pass or by search, at generating text and embedding it.

    GPT     p(x_t | x_<t)                     every token is a target, with left context only
    BERT    p(x_t | x with some masked)       15 % are targets, with context from both sides

The blocks are the same; the mask and the task differ. Both are trained on Shakespeare's characters
and measured on held-out plays.
"""

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
from sightline.lab.measures.fill_write_embed import (
    CONTEXT,
    GAPS,
    PILOT_WINDOWS,
    PROMPTS,
    character_nats,
    held_out_windows,
    measure_embeddings,
    measure_fill,
    measure_writing,
)
from sightline.lab.statistics import Interval, decide_above, decide_below, paired_difference
from sightline.lab.style import COLOURS, new_figure
from sightline.lab.tuning import Grid, pilot_parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sightline.config import ModelConfig
    from sightline.core.model import Transformer
    from sightline.training.data.packed import PackedText

KINDS = ("gpt", "bert")
STEPS: dict[Tier, int] = {"quick": 100, "default": 1000, "full": 8000}
SEEDS: dict[Tier, int] = {"quick": 2, "default": 8, "full": 8}
PILOT_STEPS: dict[Tier, int] = {"quick": 60, "default": 400, "full": 2000}
PILOTS: dict[Tier, int] = {"quick": 1, "default": 2, "full": 2}
RATES: dict[Tier, tuple[float, ...]] = {  # of Muon; AdamW, for the embeddings, has a quarter of it
    "quick": (0.005, 0.02, 0.08),
    "default": (0.005, 0.01, 0.02, 0.04, 0.08),
    "full": (0.005, 0.01, 0.02, 0.04, 0.08),
}
EQUAL = 0.05  # BERT's head has a transform of width² more, 4% of these models
WIDTH = 64
LAYERS = 2
HEADS = 2
ROWS = 32


def gpt_vs_bert_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    """Each kind is tuned for its own task: the nats of the next or of the masked character."""
    return pilot_parts(
        Grid(KINDS, RATES[tier], PILOTS[tier], f"steps-{PILOT_STEPS[tier]}"),
        lambda kind, rate, seed: {"score": pilot_loss(kind, PILOT_STEPS[tier], rate, seed)},
    )


def gpt_vs_bert_parts(plan: Plan) -> Sequence[ExperimentPart]:
    steps = STEPS[plan.tier]
    return [
        ExperimentPart(
            f"{kind}.steps-{steps}.rate-{plan.rate(kind):g}.seed-{n}",
            lambda kind=kind, n=n: train_and_probe(kind, steps, plan.rate(kind), n),
        )
        for n in plan.seeds(SEEDS)
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


def trained_model(
    kind: str, steps: int, rate: float, seed: int
) -> tuple[Transformer, PackedText, int]:
    """The model in evaluation mode, the plays, and the number of characters, which is also the id
    of the mask."""
    from sightline.lab.learning import GeneratedTask, build_seeded, shakespeare, training_steps
    from sightline.training.config import AdamW, Muon
    from sightline.training.data.masked import MaskedText

    text, mask = shakespeare(CONTEXT, ROWS, seed)
    task = text if kind == "gpt" else GeneratedTask(MaskedText(text, mask, mask + 1).batch)
    optimizer = Muon(lr=rate, rest=AdamW(lr=rate / 4))
    transformer = build_seeded(gpt_or_bert_config(kind, mask + 1), seed)
    for _ in training_steps(transformer, task, steps=steps, optimizer=optimizer, seed=seed):
        pass
    return transformer.eval(), text, mask


def pilot_loss(kind: str, steps: int, rate: float, seed: int) -> float:
    """Nats of GPT's next character or of BERT's masked one."""
    import torch

    transformer, text, mask = trained_model(kind, steps, rate, seed)
    at = CONTEXT - 1 if kind == "gpt" else CONTEXT // 2
    with torch.no_grad():
        return character_nats(transformer, held_out_windows(text, PILOT_WINDOWS), at, mask)


def train_and_probe(kind: str, steps: int, rate: float, seed: int) -> dict[str, Any]:
    """Train one model on the plays, then measure all tasks."""
    transformer, text, mask = trained_model(kind, steps, rate, seed)
    return probe_model(transformer, text, mask, seed)


def probe_model(transformer: Transformer, text: PackedText, mask: int, seed: int) -> dict[str, Any]:
    """Measure all tasks: fill, generate, embed."""
    import torch

    from sightline.lab.learning import seeded_generator

    windows = held_out_windows(text, GAPS)
    with torch.no_grad():
        return {
            "parameters": sum(p.numel() for p in transformer.parameters()),
            "characters": mask,
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


def distance_to_real_text(numbers: Numbers, kind: str, what: str = "written") -> list[float]:
    """Distance between generated and real text, in nats per character under a trigram model."""
    return [
        abs(a - b)
        for a, b in zip(
            values_of_kind(numbers, kind, what), values_of_kind(numbers, kind, "real"), strict=True
        )
    ]


def search_minus_bert(numbers: Numbers) -> Interval:
    """GPT by search − BERT in one pass, on the same gaps."""
    return paired_difference(
        values_of_kind(numbers, "gpt", "fill by search"),
        values_of_kind(numbers, "bert", "fill few"),
    )


def writing_gap(numbers: Numbers) -> Interval:
    """Distance to real text: BERT's better way of sampling − GPT."""
    ways = [
        distance_to_real_text(numbers, "bert", what) for what in ("written", "written by sweeps")
    ]
    nearest = [min(pair) for pair in zip(*ways, strict=True)]
    return paired_difference(nearest, distance_to_real_text(numbers, "gpt"))


def judge_gpt_vs_bert(numbers: Numbers) -> Sequence[Check]:
    """Differences are compared with 0: neither is better."""
    sizes = {kind: values_of_kind(numbers, kind, "parameters")[0] for kind in KINDS}
    ratio = sizes["bert"] / sizes["gpt"]
    return [
        Check(
            Words("parameter counts are equal within 5%", "パラメータ数は同じ（差は5%以内）"),
            abs(ratio - 1) < EQUAL,
            f"BERT / GPT {ratio:.3f}",
        ),
        *fill_checks(numbers),
        *writing_checks(numbers),
        *embedding_checks(numbers),
    ]


def fill_checks(numbers: Numbers) -> list[Check]:
    fill, search = bert_minus_gpt(numbers, "fill"), search_minus_bert(numbers)
    passes = round(values_of_kind(numbers, "gpt", "characters")[0])
    return [
        Check.over_seeds(
            Words(
                "fill in one forward pass: BERT predicts a masked character better than GPT does"
                " from the left",
                "1回の順伝播での穴埋め：マスクされた文字は、左だけを見る GPT より BERT"
                " がよく予測する",
            ),
            f"BERT − GPT {fill} nats",
            decide_below(fill, 0),
        ),
        Check.over_seeds(
            Words(
                f"fill by search: GPT, trying each of the {passes} characters with the text that"
                " follows, predicts it better than BERT in one pass",
                f"探索による穴埋め：{passes}種の文字それぞれを続きの文とともに試す GPT は、"
                "1回の順伝播の BERT よりよく予測する",
            ),
            f"GPT by search − BERT {search} nats",
            decide_below(search, 0),
        ),
    ]


def writing_checks(numbers: Numbers) -> list[Check]:
    following, writing = bert_minus_gpt(numbers, "next"), writing_gap(numbers)
    return [
        Check.over_seeds(
            Words(
                "generate: GPT predicts the next character better",
                "生成：次の文字は GPT がよく予測する",
            ),
            f"BERT − GPT {following} nats",
            decide_above(following, 0),
        ),
        Check.over_seeds(
            Words(
                "text sampled from GPT is closer to real text than text sampled from BERT, by"
                " either sampling method",
                "GPT が生成する文は、どちらのサンプリング方法による BERT の文よりも実際の文に近い",
            ),
            f"distance to real text, BERT's better method − GPT: {writing} nats",
            decide_above(writing, 0),
        ),
    ]


def embedding_checks(numbers: Numbers) -> list[Check]:
    word = bert_minus_gpt(numbers, "word")
    above = {
        kind: paired_difference(
            values_of_kind(numbers, kind, "play"), values_of_kind(numbers, kind, "play guess")
        )
        for kind in KINDS
    }
    return [
        Check.over_seeds(
            Words(
                "embed: BERT's vector of a word's first letter tells more about the word",
                "埋め込み：語の最初の文字のベクトルは、BERT の方が語の情報を多く含む",
            ),
            f"accuracy of the word's length, BERT − GPT {word}",
            decide_above(word, 0),
        ),
        Check.over_seeds(
            Words(
                "the mean vectors of both tell the play of a passage, better than the majority"
                " class",
                "どちらの平均ベクトルも、一節の戯曲を最頻クラスよりよく当てる",
            ),
            f"above the majority class: BERT {above['bert']}, GPT {above['gpt']}",
            *(decide_above(interval, 0) for interval in above.values()),
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
        f" {gpt['fill']:.2f}; the next character {bert['next']:.2f} and {gpt['next']:.2f}. GPT by"
        f" search, with one pass per character, needs {search:.2f} nats where BERT needs"
        f" {bert['fill few']:.2f} and GPT from the left {gpt['fill few']:.2f}. A linear probe"
        f" predicts a word's length from its first letter in {bert['word']:.0%} (BERT) and"
        f" {gpt['word']:.0%} (GPT), and the play from a passage in {bert['play']:.0%} and"
        f" {gpt['play']:.0%} (majority class: {guess:.0%}). In the same number of steps BERT has"
        " one target in seven characters, GPT one per character: BERT learns more slowly.",
        f"マスクされた文字は BERT で {bert['fill']:.2f} ナット、左だけを見る GPT で"
        f" {gpt['fill']:.2f} ナット。次の文字は {bert['next']:.2f} と {gpt['next']:.2f}。"
        f"文字ごとに1回の順伝播を使う探索なら GPT は {search:.2f} ナットで、同じ問題で BERT は"
        f" {bert['fill few']:.2f}、左だけを見る GPT は {gpt['fill few']:.2f}。"
        f"語の最初の文字から語の長さを予測する線形プローブの正解率は BERT {bert['word']:.0%}、"
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
        "The same blocks with a different mask and task: in one forward pass BERT, with context"
        " from both sides, fills gaps and embeds words better; GPT generates better, and by search"
        " over all characters it fills gaps better too.",
        "同じブロックでもマスクと課題が違えば得意なことが違う。1回の順伝播では、両側を見る BERT"
        " が穴埋めと語の埋め込みに、GPT は生成に優れる。全ての文字を試す探索なら、穴埋めも GPT"
        " が優れる。",
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
    pilots=gpt_vs_bert_pilots,
    settle=16,
    arms={"gpt": Words("GPT", "GPT"), "bert": Words("BERT", "BERT")},
    judge=judge_gpt_vs_bert,
    draw=draw_gpt_vs_bert,
    summarize=summarize_gpt_vs_bert,
    corrections=(
        Words(
            "That BERT fills gaps better than GPT holds for one forward pass. A model of the next"
            " token defines the probability of the whole text and so, by Bayes' rule, of a gap"
            " given both sides; it costs one pass per candidate.",
            "BERT の方が穴埋めに優れるというのは、1回の順伝播での話である。"
            "次のトークンのモデルは文全体の確率を定めるので、"
            "ベイズの定理により両側を見た穴の確率も定まる。"
            "ただし候補ごとに1回の順伝播が要る。",
        ),
        Words(
            "GPT-3 and BERT have learned absolute positions, not sinusoids. The two models here"
            " both use RoPE.",
            "GPT-3 と BERT の位置は正弦波ではなく学習された絶対位置。ここの二つのモデルはどちらも"
            " RoPE を使う。",
        ),
    ),
)
