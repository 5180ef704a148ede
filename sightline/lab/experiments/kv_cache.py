"""What a KV cache saves: time per token against memory, and how fewer key-value heads and 8-bit
storage shrink it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, ExperimentPart, Numbers, Plan, Words
from sightline.lab.statistics import Interval, lies_above, lies_below
from sightline.lab.style import COLOURS, new_figure, plain_log_ticks, plot_mean

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from sightline.core.model import Transformer

LENGTHS = {
    "quick": (64, 128, 256, 512),
    "default": (64, 128, 256, 512, 1024),
    "full": (64, 128, 256, 512, 1024, 2048),
}
SEEDS = {"quick": 3, "default": 5, "full": 10}
STEPS = 5
WIDTH = 256
LAYERS = 4
HEADS = 8
VOCABULARY = 512
FORMS = {"8 key heads": 8, "2 key heads": 2, "1 key head": 1}


def kv_cache_parts(plan: Plan) -> Sequence[ExperimentPart]:
    tier = plan.tier
    seed = plan.seed
    seeds = range(seed, seed + SEEDS[tier])
    timings = [
        ExperimentPart(
            f"time.{length}.seed-{n}",
            lambda length=length, n=n: time_next_token(length, n),
            alone=True,
        )
        for length in LENGTHS[tier]
        for n in seeds
    ]
    return [
        ExperimentPart(f"same.seed-{seed}", lambda: compare_logits(seed)),
        ExperimentPart("bytes.512", lambda: cache_sizes(512)),
        *timings,
    ]


def small_decoder(seed: int, kv_heads: int = HEADS, positions: int = 4096) -> Transformer:
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
    """Median seconds for the next token after `length` tokens, with the cache and with a full
    forward pass."""
    import torch

    from sightline.core.cache.kv_cache import Cache

    model = small_decoder(seed)
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (1, length + STEPS), generator=random)
    cache = Cache.growing(model.config)
    cached = list[float]()
    whole = list[float]()
    with torch.inference_mode():
        model.hidden(tokens[:, :length], cache=cache)
        for n in range(length, length + STEPS):
            start = time.perf_counter()
            model.head(model.hidden(tokens[:, n : n + 1], cache=cache))
            cached.append(time.perf_counter() - start)
            start = time.perf_counter()
            model.head(model.hidden(tokens[:, : n + 1])[:, -1:])
            whole.append(time.perf_counter() - start)
    return {"cached": statistics.median(cached), "whole": statistics.median(whole)}


def compare_logits(seed: int) -> dict[str, float]:
    """The largest difference of the logits, token by token against a full forward pass."""
    import torch

    from sightline.core.cache.kv_cache import Cache

    model = small_decoder(seed)
    tokens = torch.randint(0, VOCABULARY, (1, 48), generator=torch.Generator().manual_seed(seed))
    cache = Cache.growing(model.config)
    with torch.inference_mode():
        steps = torch.cat([model(tokens[:, n : n + 1], cache=cache) for n in range(48)], dim=1)
        difference = (steps - model(tokens)).abs().max()
    return {"apart": float(difference)}


def cache_sizes(length: int) -> dict[str, Any]:
    """Bytes of the cache after `length` tokens, measured and by the formula."""
    import torch

    from sightline.core.cache.kv_cache import Cache

    tokens = torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    sizes: dict[str, Any] = {
        "length": length,
        "formula": 2 * LAYERS * HEADS * (WIDTH // HEADS) * length * 4,
    }
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


def seconds_at(numbers: Numbers, length: int, how: str) -> list[float]:
    return [row[how] for name, row in numbers.items() if name.startswith(f"time.{length}.")]


def measured_lengths(numbers: Numbers) -> list[int]:
    return sorted({int(name.split(".")[1]) for name in numbers if name.startswith("time.")})


def judge_kv_cache(numbers: Numbers) -> Sequence[Check]:
    first = measured_lengths(numbers)[0]
    last = measured_lengths(numbers)[-1]
    growth = {
        how: ratios(seconds_at(numbers, last, how), seconds_at(numbers, first, how))
        for how in ("cached", "whole")
    }
    speedup = ratios(seconds_at(numbers, last, "whole"), seconds_at(numbers, last, "cached"))
    difference = next(row["apart"] for name, row in numbers.items() if name.startswith("same."))
    sizes = next(row for name, row in numbers.items() if name.startswith("bytes."))
    exact = (
        sizes["8 key heads"]
        == sizes["formula"]
        == 4 * sizes["2 key heads"]
        == 8 * sizes["1 key head"]
    )
    small = sizes["8 key heads, 8 bits"] / sizes["formula"]
    return [
        Check(
            Words(
                "the logits are the same with and without the cache",
                "ロジットはキャッシュの有無で変わらない",
            ),
            difference < 1e-4,
            f"difference {difference:.1e}",
        ),
        Check(
            Words(
                f"with the cache, a token at position {last} costs less than twice one at {first}",
                f"キャッシュがあれば{last}番目のトークンの時間も{first}番目の2倍未満",
            ),
            lies_below(growth["cached"], 2),
            f"{growth['cached']}×",
        ),
        Check(
            Words(
                f"without it, more than {last // first // 2} times as much",
                f"なければ{last // first // 2}倍より長くかかる",
            ),
            lies_above(growth["whole"], last // first / 2),
            f"{growth['whole']}×",
        ),
        Check(
            Words("decoding is faster with the cache", "キャッシュを使う方がデコードは速い"),
            lies_above(speedup, 1),
            f"{speedup}× faster at {last}",
        ),
        Check(
            Words(
                "its bytes are 2 · layers · kv_heads · head_dim · time · 4",
                "バイト数は 2・layers・kv_heads・head_dim・time・4",
            ),
            exact,
            ", ".join(f"{name} {sizes[name] / 2**20:.2f} MiB" for name in FORMS),
        ),
        Check(
            Words("8-bit storage takes less than a third of it", "8ビットなら3分の1未満"),
            small < 1 / 3,
            f"{small:.0%}",
        ),
    ]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    return Interval.of([a / b for a, b in zip(ours, theirs, strict=True)])


def draw_kv_cache(numbers: Numbers) -> Mapping[str, Figure]:
    figure, (times, memory) = new_figure(2)
    lengths = measured_lengths(numbers)
    for number, (how, label) in enumerate(
        (("cached", "with the cache"), ("whole", "full forward pass"))
    ):
        times_ms = [
            Interval.of([1e3 * value for value in seconds_at(numbers, length, how)])
            for length in lengths
        ]
        plot_mean(
            times, [float(length) for length in lengths], times_ms, label=label, number=number
        )
    times.set(
        xscale="log",
        yscale="log",
        xlabel="tokens before it",
        ylabel="ms per token",
        title="Time of the next token",
    )
    times.set_xscale("log", base=2)
    plain_log_ticks(times.yaxis)
    times.legend(frameon=False)
    sizes = next(row for name, row in numbers.items() if name.startswith("bytes."))
    names = [*FORMS, "8 key heads, 8 bits"]
    memory.barh(names, [sizes[name] / 2**20 for name in names], color=COLOURS[0])
    memory.set(xlabel=f"MiB after {sizes['length']} tokens", title="Memory of the cache")
    memory.invert_yaxis()
    return {"kv-cache": figure}


EXPERIMENT = Experiment(
    name="kv-cache",
    title=Words("What a KV cache saves", "KVキャッシュは何を節約するか"),
    claim=Words(
        "Keys and values of earlier tokens never change; with them cached, the next token costs"
        " about"
        " the same at any text length.",
        "過去のトークンのキーとバリューは変わらない。キャッシュしておけば、"
        "文がどれだけ長くても次のトークンの計算コストはほぼ一定になる。",
    ),
    source="Shazeer 2019; Pope et al. 2022",
    equation="bytes = 2 · layers · kv_heads · head_dim · time · bytes per number",
    look_for=Words(
        "one line stays flat, the other climbs with the length",
        "一方の線は平らで、もう一方は長さとともに上がる",
    ),
    parts=kv_cache_parts,
    judge=judge_kv_cache,
    draw=draw_kv_cache,
)
