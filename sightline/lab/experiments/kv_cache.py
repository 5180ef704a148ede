"""What a KV cache saves: time per token against memory, and how fewer key-value heads and 8-bit
storage shrink it; and what attention's N² costs in a block of GPT-2's size. Times are CPU seconds
on one thread, compared as ratios and exponents."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.measures.attention_costs import WIDTH as BLOCK_WIDTH
from sightline.lab.measures.attention_costs import block_flops, block_seconds
from sightline.lab.measures.cpu_times import cpu_seconds, single_thread
from sightline.lab.statistics import (
    Interval,
    decide_above,
    decide_below,
    paired_ratio,
)
from sightline.lab.style import COLOURS, new_figure, plain_log_ticks, plot_mean

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from sightline.core.cache.kv_cache import Cache
    from sightline.core.model import Transformer

LENGTHS = {
    "quick": (64, 128, 256, 512),
    "default": (64, 128, 256, 512, 1024, 2048),
    "full": (64, 128, 256, 512, 1024, 2048, 4096),
}
BLOCK_LENGTHS = {
    "quick": (128, 256, 512),
    "default": (256, 512, 1024, 2048),
    "full": (256, 512, 1024, 2048, 4096),
}
SEEDS = {"quick": 3, "default": 8, "full": 16}
STEPS = 5
WIDTH = 256
LAYERS = 4
HEADS = 8
HEAD_DIM = WIDTH // HEADS
VOCABULARY = 512
TOKENS = 48
FORMS = {"8 key heads": 8, "2 key heads": 2, "1 key head": 1}
ROUNDING = 1e-10  # of logits of order 1 in float64, after some thousands of operations of 1e-16
NUMBER = 4  # bytes of a float32
KERNEL_NAMES = {"equation": "the equation", "fused": "the fused kernel"}


def kv_cache_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    seeds = range(plan.seed, plan.seed + SEEDS[tier])
    timings = [
        ExperimentPart(
            f"time.{length}.repeat-{n}",
            lambda length=length, n=n: time_next_token(length, n),
            alone=True,
        )
        for length, n in product(LENGTHS[tier], seeds)
    ]
    blocks = [
        ExperimentPart(
            f"block.{length}.repeat-{n}",
            lambda length=length, n=n: block_seconds(length, n),
            alone=True,
        )
        for length, n in product(BLOCK_LENGTHS[tier], seeds)
    ]
    return [
        ExperimentPart(f"same.repeat-{plan.seed}", lambda: compare_logits(plan.seed)),
        ExperimentPart("bytes.512", lambda: cache_sizes(512)),
        ExperimentPart(
            f"flops.{BLOCK_LENGTHS[tier]}",
            lambda: {str(length): block_flops(length) for length in BLOCK_LENGTHS[tier]},
        ),
        *timings,
        *blocks,
    ]


def small_decoder(seed: int, kv_heads: int = HEADS, positions: int = 4200) -> Transformer:
    import torch

    from sightline.architectures import llama
    from sightline.core.model import build

    torch.manual_seed(seed)
    config = llama(
        width=WIDTH,
        layers=LAYERS,
        heads=HEADS,
        kv_heads=kv_heads,
        vocab_size=VOCABULARY,
        max_positions=positions,
    )
    return build(config).eval()


def time_next_token(length: int, seed: int) -> dict[str, float]:
    """Median CPU seconds for the next token after `length` tokens, with the cache and with a full
    forward pass."""
    import torch

    from sightline.core.cache.kv_cache import Cache

    model = small_decoder(seed)
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (1, length + STEPS), generator=random)
    cache = Cache.growing(model.config)
    cached, whole = list[float](), list[float]()
    with torch.inference_mode(), single_thread():
        model.hidden(tokens[:, :length], cache=cache)
        for n in range(length, length + STEPS):
            cached.append(
                cpu_seconds(lambda n=n: model.head(model.hidden(tokens[:, n : n + 1], cache=cache)))
            )
            whole.append(
                cpu_seconds(lambda n=n: model.head(model.hidden(tokens[:, : n + 1])[:, -1:]))
            )
    return {"cached": statistics.median(cached), "whole": statistics.median(whole)}


def compare_logits(seed: int, cache: Cache | None = None) -> dict[str, float]:
    """The largest difference of the logits in float64, token by token against a full forward
    pass."""
    import torch

    from sightline.core.cache.kv_cache import Cache

    model = small_decoder(seed).double()
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (1, TOKENS), generator=random)
    cache = cache or Cache.growing(model.config)
    with torch.inference_mode():
        steps = [model(tokens[:, n : n + 1], cache=cache) for n in range(TOKENS)]
        difference = (torch.cat(steps, dim=1) - model(tokens)).abs().max()
    return {"apart": float(difference)}


def cache_sizes(length: int) -> dict[str, Any]:
    """Bytes of the cache after `length` tokens."""
    import torch

    from sightline.core.cache.kv_cache import Cache

    tokens = torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    sizes: dict[str, Any] = {"length": length}
    with torch.inference_mode():
        for name, kv_heads in FORMS.items():
            model = small_decoder(0, kv_heads)
            cache = Cache.preallocated(model.config, length)
            model.hidden(tokens, cache=cache)
            sizes[name] = cache.bytes
        model = small_decoder(0)
        small = Cache.quantised(model.config)
        model.hidden(tokens, cache=small)
        sizes["8 key heads, 8 bits"] = small.bytes
    return sizes


# ------------------------------------------------------------------------------------ the numbers


def seconds_at(numbers: Numbers, kind: str, length: int, how: str) -> list[float]:
    return [row[how] for name, row in numbers.items() if name.startswith(f"{kind}.{length}.")]


def measured_lengths(numbers: Numbers, kind: str = "time") -> list[int]:
    return sorted({int(name.split(".")[1]) for name in numbers if name.startswith(f"{kind}.")})


def exponents(numbers: Numbers, kind: str, how: str) -> Interval:
    """c of a · N^c, by least squares on logarithms, for each repeat."""
    lengths = measured_lengths(numbers, kind)
    rows = zip(*(seconds_at(numbers, kind, length, how) for length in lengths), strict=True)
    places = [math.log(length) for length in lengths]
    return Interval.of(
        [
            statistics.linear_regression(places, [math.log(value) for value in row]).slope
            for row in rows
        ]
    )


def speedup(numbers: Numbers, length: int) -> Interval:
    """Time of a full forward pass / time with the cache."""
    return paired_ratio(*(seconds_at(numbers, "time", length, how) for how in ("whole", "cached")))


def share_of_time(numbers: Numbers, length: int, kernel: str) -> Interval:
    """Attention's share of a block's time."""
    ours, linear = (seconds_at(numbers, "block", length, how) for how in (kernel, "linear"))
    return Interval.share([a / (a + b) for a, b in zip(ours, linear, strict=True)])


def only(numbers: Numbers, kind: str) -> Any:
    return next(row for name, row in numbers.items() if name.startswith(f"{kind}."))


# ---------------------------------------------------------------------------------------- verdict


def judge_kv_cache(numbers: Numbers) -> Sequence[Check]:
    return [*judge_exact(numbers), *judge_times(numbers), *judge_blocks(numbers)]


def judge_exact(numbers: Numbers) -> Sequence[Check]:
    """Logits and bytes. With 8 bits, each head's 32 numbers share a scale of 4 bytes."""
    difference = only(numbers, "same")["apart"]
    sizes = only(numbers, "bytes")
    expected = {
        name: 2 * LAYERS * heads * HEAD_DIM * sizes["length"] * NUMBER
        for name, heads in FORMS.items()
    }
    small = sizes["8 key heads, 8 bits"] / sizes["8 key heads"]
    return [
        Check(
            Words(
                "the logits are the same with and without the cache (to 1e-10, in float64)",
                "ロジットはキャッシュの有無で変わらない（float64 で誤差 1e-10 以内）",
            ),
            difference < ROUNDING,
            f"difference {difference:.1e}",
        ),
        Check(
            Words(
                "its bytes are 2 · layers · kv_heads · head_dim · time · 4",
                "バイト数は 2・layers・kv_heads・head_dim・time・4",
            ),
            {name: sizes[name] for name in FORMS} == expected,
            ", ".join(f"{name} {sizes[name] / 2**20:.2f} MiB" for name in FORMS),
        ),
        Check(
            Words(
                "8-bit storage with a scale per head takes (head_dim + 4) / (4 · head_dim) of it",
                "ヘッドごとの係数を持つ8ビット保存では (head_dim + 4) / (4・head_dim) になる",
            ),
            small == (HEAD_DIM + NUMBER) / (NUMBER * HEAD_DIM),
            f"{small:.1%}",
        ),
    ]


def judge_times(numbers: Numbers) -> Sequence[Check]:
    """The bound ½ is halfway between a constant time (0) and one proportional to the length (1);
    a ratio of 1 is no gain."""
    first, *_, last = measured_lengths(numbers)
    cached, whole = (exponents(numbers, "time", how) for how in ("cached", "whole"))
    gains = {length: speedup(numbers, length) for length in (first, last)}
    gain = paired_ratio(
        *(
            [
                b / a
                for a, b in zip(
                    *(seconds_at(numbers, "time", length, how) for how in ("cached", "whole")),
                    strict=True,
                )
            ]
            for length in (last, first)
        )
    )
    return [
        Check.over_seeds(
            Words(
                "with the cache, the time of a token grows as N^c with c nearer to 0 than to 1"
                " (< 0.5)",
                "キャッシュがあれば1トークンの時間は N^c で増え、c は 1 より 0 に近い（< 0.5）",
            ),
            f"exponent {cached}",
            decide_below(cached, 0.5),
        ),
        Check.over_seeds(
            Words(
                "without it, nearer to 1 or above (> 0.5)",
                "なければ 1 に近いか、より大きい（> 0.5）",
            ),
            f"exponent {whole}",
            decide_above(whole, 0.5),
        ),
        Check.over_seeds(
            Words(
                f"decoding is faster with the cache at {last} tokens, and the gain grows with the"
                " length (ratios > 1)",
                f"{last}トークンではキャッシュを使う方がデコードが速く、長いほど差が開く（比 > 1）",
            ),
            ", ".join(f"{ratio} faster at {length}" for length, ratio in gains.items()),
            decide_above(gains[last], 1.0),
            decide_above(gain, 1.0),
        ),
    ]


def judge_blocks(numbers: Numbers) -> Sequence[Check]:
    """2 is the exponent of N²; 1.5 and 2.5 are halfway to its neighbours. Attention costs as much
    as all else in the block where its share is ½."""
    lengths = measured_lengths(numbers, "block")
    last = lengths[-1]
    counted = only(numbers, "flops")
    formula = {
        str(length): {
            "equation": 4 * length**2 * BLOCK_WIDTH,
            "linear": 24 * length * BLOCK_WIDTH**2,
        }
        for length in lengths
    }
    growth = exponents(numbers, "block", "equation")
    shares = {kernel: share_of_time(numbers, last, kernel) for kernel in KERNEL_NAMES}
    operations = last / (6 * BLOCK_WIDTH + last)
    return [
        Check(
            Words(
                "in a block of width d, attention's products cost 4N²d operations and the linear"
                " layers 24Nd²: a share of N / (6d + N)",
                "幅 d のブロックで、注意機構の行列積は 4N²d、線形層は 24Nd² の演算で、"
                "その割合は N / (6d + N)",
            ),
            counted == formula,
            f"d = {BLOCK_WIDTH}, N = {last}: {operations:.1%}",
        ),
        Check.over_seeds(
            Words(
                "attention's time grows as N² (the equation, exponent between 1.5 and 2.5)",
                "注意機構の時間は N² で増える（定義式、指数は 1.5 と 2.5 の間）",
            ),
            f"exponent {growth}, fused kernel {exponents(numbers, 'block', 'fused')}",
            decide_above(growth, 1.5),
            decide_below(growth, 2.5),
        ),
        Check.over_seeds(
            Words(
                f"N² is still affordable at {last} tokens: in a block of width {BLOCK_WIDTH}, the"
                " fused kernel takes less time than the linear layers (share < 0.5)",
                f"{last}トークンでも N² は許容範囲：幅 {BLOCK_WIDTH} のブロックで、"
                "融合カーネルの時間は線形層より短い（割合 < 0.5）",
            ),
            ", ".join(f"{KERNEL_NAMES[kernel]} {share}" for kernel, share in shares.items()),
            decide_below(shares["fused"], 0.5),
        ),
    ]


# ---------------------------------------------------------------------------------------- figures


def draw_kv_cache(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (times, memory, block) = new_figure(3)
    lengths = measured_lengths(numbers)
    for number, (how, label) in enumerate(
        (("cached", "with the cache"), ("whole", "full forward pass"))
    ):
        times_ms = [
            Interval.ratio([1e3 * value for value in seconds_at(numbers, "time", length, how)])
            for length in lengths
        ]
        plot_mean(
            times, [float(length) for length in lengths], times_ms, label=label, number=number
        )
    times.set(yscale="log", xlabel="tokens before it", ylabel="CPU ms per token")
    times.set_title("Time of the next token")
    times.set_xscale("log", base=2)
    plain_log_ticks(times.yaxis)
    times.legend(frameon=False)
    sizes = only(numbers, "bytes")
    names = [*FORMS, "8 key heads, 8 bits"]
    memory.barh(names, [sizes[name] / 2**20 for name in names], color=COLOURS[0])
    memory.set(xlabel=f"MiB after {sizes['length']} tokens", title="Memory of the cache")
    memory.invert_yaxis()
    draw_shares(block, numbers)
    return {"kv-cache": figure}


def draw_shares(axes: Axes, numbers: Numbers) -> None:
    """Attention's share of a block, in operations and in time with each kernel."""
    lengths = measured_lengths(numbers, "block")
    places = [float(length) for length in lengths]
    counted = only(numbers, "flops")
    operations = [
        Interval.of([row["equation"] / (row["equation"] + row["linear"])])
        for row in (counted[str(length)] for length in lengths)
    ]
    plot_mean(axes, places, operations, label="operations", number=0)
    for number, (kernel, name) in enumerate(KERNEL_NAMES.items(), start=1):
        shares = [share_of_time(numbers, length, kernel) for length in lengths]
        plot_mean(axes, places, shares, label=f"time, {name}", number=number)
    axes.axhline(0.5, color="0.5", linestyle=":", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="tokens, N", ylabel="attention's share of a block", ylim=(0, 1))
    axes.set_title(f"Attention in a block of width {BLOCK_WIDTH}")
    axes.legend(frameon=False)


EXPERIMENT = Experiment(
    name="kv-cache",
    title=Words("What a KV cache saves", "KVキャッシュは何を節約するか"),
    claim=Words(
        "Keys and values of earlier tokens never change; with them cached, the next token costs"
        " about the same at any text length. Attention's N² products outweigh those of the linear"
        " layers only beyond six times the width.",
        "過去のトークンのキーとバリューは変わらない。キャッシュしておけば、"
        "文がどれだけ長くても次のトークンの計算コストはほぼ一定になる。"
        "注意機構の N² の行列積が線形層を上回るのは、長さが幅の6倍を超えてからである。",
    ),
    source="Shazeer 2019; Pope et al. 2022",
    equation=(
        "bytes = 2 · layers · kv_heads · head_dim · time · bytes per number;   block: 4N²d + 24Nd²"
    ),
    look_for=Words(
        "one line stays nearly flat, the other climbs with the length; attention's share of a block"
        " stays below one half (dotted) in operations and with the fused kernel, but not where the"
        " equation writes out all N² weights",
        "一方の線はほぼ平らで、もう一方は長さとともに上がる。ブロックに占める注意機構の割合は、"
        "演算数と融合カーネルでは半分（点線）に届かないが、"
        "N² 個の重みをすべて書き出す定義式では超える",
    ),
    parts=kv_cache_parts,
    judge=judge_kv_cache,
    draw=draw_kv_cache,
)
