"""GPT and BERT of one size on one text: what each is good at. Fill a gap, go on writing, give
vectors.

    GPT     p(x_t | x_<t)                     every token is asked for, from the left alone
    BERT    p(x_t | x with some hidden)       15 % are asked for, from both sides

The blocks are the same; the mask and the task differ. Both read Shakespeare's characters, and are
measured on plays held out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.measures.fill_write_embed import (
    CONTEXT,
    GAPS,
    PROMPTS,
    continued,
    embedded,
    filled,
    gap,
    held_out_windows,
)
from sightline.lab.statistics import Interval, above, below, differences
from sightline.lab.style import COLOURS, figure

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


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    steps = STEPS[tier]
    return [
        Part(f"{kind}.steps-{steps}.seed-{n}", lambda kind=kind, n=n: measured(kind, steps, n))
        for n in range(seed, seed + SEEDS[tier])
        for kind in KINDS
    ]


def model(kind: str, vocabulary: int) -> ModelConfig:
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


def measured(kind: str, steps: int, seed: int) -> dict[str, Any]:
    """Train one on the plays, then all that it can be asked."""
    import torch

    from sightline.lab.learning import Drill, learn, made, plays, random_of
    from sightline.training.config import AdamW, Muon
    from sightline.training.data.masked import MaskedText

    text, mask = plays(CONTEXT, ROWS, seed)
    task = text if kind == "gpt" else Drill(MaskedText(text, mask, mask + 1).batch)
    optimizer = Muon(lr=0.02, rest=AdamW(lr=5e-3))
    windows = held_out_windows(text, GAPS)
    transformer = made(model(kind, mask + 1), seed)
    halfway = 0.0
    for _, event in learn(transformer, task, steps=steps, optimizer=optimizer, seed=seed):
        if event.step == (steps + 1) // 2:
            with torch.no_grad():
                halfway = gap(transformer, windows, mask)
    transformer.eval()
    with torch.no_grad():
        return {
            "parameters": sum(p.numel() for p in transformer.parameters()),
            "fill halfway": halfway,
            **filled(transformer, windows, mask),
            **continued(transformer, text, windows[:PROMPTS], random_of(seed, 7)),
            **embedded(transformer, text, windows),
        }


# ------------------------------------------------------------------------------------ the verdict


def of(numbers: Numbers, kind: str, what: str) -> list[float]:
    """One number of all seeds."""
    return [row[what] for name, row in numbers.items() if name.startswith(f"{kind}.")]


def apart(numbers: Numbers, what: str) -> Interval:
    """BERT − GPT, seed by seed."""
    return differences(of(numbers, "bert", what), of(numbers, "gpt", what))


def ahead(end: Interval, halfway: Interval) -> bool | None:
    """Whether a difference is below 0; while it falls, one that is not may yet be."""
    holds = below(end, 0)
    return None if holds is False and end.mean < halfway.mean else holds


def strange(numbers: Numbers, kind: str, what: str = "written") -> list[float]:
    """How far the written text is from the real one, as the trigrams see both."""
    return [
        abs(a - b) for a, b in zip(of(numbers, kind, what), of(numbers, kind, "real"), strict=True)
    ]


def judge(numbers: Numbers) -> Sequence[Check]:
    sizes = {kind: of(numbers, kind, "parameters")[0] for kind in KINDS}
    ratio = sizes["bert"] / sizes["gpt"]
    fill, following, word, play = (
        apart(numbers, what) for what in ("fill", "next", "word", "play")
    )
    nearest = [
        min(pair)
        for pair in zip(
            strange(numbers, "bert"), strange(numbers, "bert", "written by sweeps"), strict=True
        )
    ]
    writing = differences(nearest, strange(numbers, "gpt"))
    return [
        Check(
            Words("they are of one size, within 5%", "大きさは同じ（差は5%以内）"),
            abs(ratio - 1) < 0.05,
            f"BERT / GPT {ratio:.3f}",
        ),
        Check(
            Words(
                "fill: BERT is surer of a hidden character than GPT from the left (open while it"
                " still gains on GPT)",
                "穴埋め：隠れた文字は、左だけを見る GPT より BERT がよく当てる"
                "（差が縮まっている間は未決）",
            ),
            ahead(fill, apart(numbers, "fill halfway")),
            f"BERT − GPT {fill} nats; halfway {apart(numbers, 'fill halfway')}",
        ),
        Check(
            Words(
                "generate: GPT is surer of the next character", "生成：次の文字は GPT がよく当てる"
            ),
            above(following, 0),
            f"BERT − GPT {following} nats",
        ),
        Check(
            Words(
                "what GPT writes is nearer to real text than what BERT writes, by either way of"
                " drawing from it",
                "GPT の書く文は、どちらの引き方による BERT の文よりも本物に近い",
            ),
            above(writing, 0),
            f"distance of BERT's nearer one − GPT's {writing} nats",
        ),
        Check(
            Words(
                "embed: BERT's vector of a word's first letter knows the word better",
                "埋め込み：語の最初の文字のベクトルは、BERT の方が語をよく知る",
            ),
            above(word, 0),
            f"length of the word read rightly, BERT − GPT {word}",
        ),
        Check(
            Words(
                "its mean vector tells plays apart no worse (within 0.1)",
                "平均ベクトルで戯曲を見分ける力は劣らない（差は0.1以内）",
            ),
            above(play, -0.1),
            f"BERT − GPT {play}",
        ),
    ]


def told(numbers: Numbers) -> Words:
    asked = ("fill", "next", "word", "play", "fill few")
    gpt, bert = (
        {what: Interval.of(of(numbers, kind, what)).mean for what in asked} for kind in KINDS
    )
    search = Interval.of(of(numbers, "gpt", "fill by search")).mean
    guess = Interval.of(of(numbers, "bert", "play guess")).mean
    return Words(
        f"A hidden character costs BERT {bert['fill']:.2f} nats and GPT, from the left,"
        f" {gpt['fill']:.2f}; the next one {bert['next']:.2f} and {gpt['next']:.2f}. GPT can fill"
        f" gaps too, by trying every character with all that follows: {search:.2f} nats where BERT"
        f" needs {bert['fill few']:.2f}, at the price of a pass for each character. A probe reads a"
        f" word's length from its first letter rightly in {bert['word']:.0%} (BERT) and"
        f" {gpt['word']:.0%} (GPT), and the play from a passage in {bert['play']:.0%} and"
        f" {gpt['play']:.0%} (a guess: {guess:.0%}). In as many steps BERT is asked for one"
        " character in seven, GPT for each: BERT learns more slowly.",
        f"隠れた文字は BERT で {bert['fill']:.2f} nats、左だけを見る GPT で {gpt['fill']:.2f}"
        f" nats。次の文字は {bert['next']:.2f} と {gpt['next']:.2f}。GPT"
        f" も全ての文字を続きごと試せば穴を埋められる（{search:.2f} nats、同じ問題で BERT は"
        f" {bert['fill few']:.2f}）。ただし文字の数だけ計算が要る。"
        f"語の長さを最初の文字から読む正答率は BERT {bert['word']:.0%}、GPT {gpt['word']:.0%}。"
        f"戯曲の見分けは {bert['play']:.0%} と {gpt['play']:.0%}（当てずっぽう {guess:.0%}）。"
        "同じステップ数でも BERT は7文字に1文字しか問われず、GPT は全ての文字を問われるので、BERT"
        " の学習は遅い。",
    )


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    made, (nats, writing, vectors) = figure(3, width=3.9)
    bars(nats, numbers, {"a gap": "fill", "the next one": "next"})
    few = Interval.of(of(numbers, "gpt", "fill by search"))
    nats.scatter(
        [-0.19],
        [few.mean],
        marker="*",
        s=90,
        color="0",
        zorder=3,
        label="GPT, trying every character",
    )
    nats.set(ylabel="nats a character", title="Fill and go on (lower is better)")
    ways = (("gpt", "written"), ("bert", "written"), ("bert", "written by sweeps"))
    for place, (kind, what) in enumerate(ways):
        point(
            writing, place, Interval.of(of(numbers, kind, what)), COLOURS[KINDS.index(kind)], None
        )
    writing.axhline(
        Interval.of(of(numbers, "gpt", "real")).mean, color="0", linestyle=":", label="real text"
    )
    writing.set(ylabel="nats a character, by trigrams", title="What they write", xticks=range(3))
    writing.set_xticklabels(["GPT", "BERT,\nmask at the end", "BERT,\nsweeps"])
    writing.set_ylim(bottom=0)
    bars(
        vectors,
        numbers,
        {"word's length\nfrom its first letter": "word", "play from\na passage": "play"},
    )
    for place, what in enumerate(("word guess", "play guess")):
        guess = Interval.of(of(numbers, "gpt", what)).mean
        vectors.plot(
            [place - 0.4, place + 0.4],
            [guess, guess],
            color="0",
            linestyle=":",
            label="a guess" if place == 0 else None,
        )
    vectors.set(ylabel="share read rightly", ylim=(0, 1), title="Vectors, by a linear probe")
    for axes in (nats, writing, vectors):
        axes.set_axisbelow(True)
        axes.set_ylim(top=1.0 if axes is vectors else 1.4 * axes.get_ylim()[1])
        axes.legend(frameon=False, fontsize=8, loc="upper left")
    return {"gpt-vs-bert": made}


def bars(axes: Axes, numbers: Numbers, asked: Mapping[str, str]) -> None:
    """GPT beside BERT for each thing asked."""
    for number, kind in enumerate(KINDS):
        for place, what in enumerate(asked.values()):
            point(
                axes,
                place + 0.38 * (number - 0.5),
                Interval.of(of(numbers, kind, what)),
                COLOURS[number],
                kind.upper() if place == 0 else None,
            )
    axes.set(xticks=range(len(asked)))
    axes.set_xticklabels(list(asked))


def point(axes: Axes, place: float, found: Interval, colour: str, label: str | None) -> None:
    """A bar with its interval."""
    axes.bar([place], [found.mean], width=0.36, color=colour, label=label)
    axes.errorbar(
        [place],
        [found.mean],
        yerr=[[found.mean - found.low], [found.high - found.mean]],
        color="0.2",
        capsize=3,
        linewidth=1,
    )


EXPERIMENT = Experiment(
    name="gpt-vs-bert",
    title=Words("GPT and BERT of one size", "同じ大きさの GPT と BERT"),
    claim=Words(
        "The same blocks with another mask and task: BERT, which sees both sides, fills and embeds"
        " better; GPT writes better.",
        "同じブロックでもマスクと課題が違えば得意なことが違う。両側を見る BERT"
        " は穴埋めと埋め込みに、GPT は書くことに優れる。",
    ),
    source="Devlin et al. 2019; Radford et al. 2018; Wang and Cho 2019",
    equation="GPT: Σ_t log p(x_t | x_<t);   BERT: Σ_{t hidden} log p(x_t | x without the hidden)",
    look_for=Words(
        "who is lower at the gap, who at the next character; whose texts lie on the dotted line",
        "穴と次の文字で低いのはどちらか。点線に近い文を書くのはどちらか",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
    told=told,
    corrections=(
        Words(
            "GPT-3 and BERT have learned absolute positions, not sinusoids. The two models here"
            " have RoPE, both alike.",
            "GPT-3 と BERT の位置は正弦波ではなく学習された絶対位置。ここの二つのモデルはどちらも"
            " RoPE を使う。",
        ),
    ),
)
