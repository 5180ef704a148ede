"""What a KV cache saves: time for each token, against the memory that it takes; and how fewer key
heads and 8 bits shrink it."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from sightline.lab.experiment import Check, Experiment, Numbers, Part, Tier, Words
from sightline.lab.statistics import Interval, above, below
from sightline.lab.style import COLOURS, figure, line, plain_numbers

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


def parts(tier: Tier, seed: int) -> Sequence[Part]:
    seeds = range(seed, seed + SEEDS[tier])
    found = [
        Part(f"time.{length}.seed-{n}", lambda length=length, n=n: timed(length, n), alone=True)
        for length in LENGTHS[tier]
        for n in seeds
    ]
    return [
        Part(f"same.seed-{seed}", lambda: same(seed)),
        Part("bytes.512", lambda: sizes(512)),
        *found,
    ]


def model(seed: int, kv_heads: int = HEADS, positions: int = 4096) -> Transformer:
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


def timed(length: int, seed: int) -> dict[str, float]:
    """Seconds for the next token behind `length` others: with the cache, and by a whole pass. The
    medians of some steps."""
    import torch

    from sightline.core.cache.kv_cache import Cache

    made = model(seed)
    random = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCABULARY, (1, length + STEPS), generator=random)
    cache = Cache.growing(made.config)
    cached = list[float]()
    whole = list[float]()
    with torch.inference_mode():
        made.hidden(tokens[:, :length], cache=cache)
        for n in range(length, length + STEPS):
            start = time.perf_counter()
            made.head(made.hidden(tokens[:, n : n + 1], cache=cache))
            cached.append(time.perf_counter() - start)
            start = time.perf_counter()
            made.head(made.hidden(tokens[:, : n + 1])[:, -1:])
            whole.append(time.perf_counter() - start)
    return {"cached": statistics.median(cached), "whole": statistics.median(whole)}


def same(seed: int) -> dict[str, float]:
    """The largest difference of the logits, token by token against one pass."""
    import torch

    from sightline.core.cache.kv_cache import Cache

    made = model(seed)
    tokens = torch.randint(0, VOCABULARY, (1, 48), generator=torch.Generator().manual_seed(seed))
    cache = Cache.growing(made.config)
    with torch.inference_mode():
        steps = torch.cat([made(tokens[:, n : n + 1], cache=cache) for n in range(48)], dim=1)
        apart = (steps - made(tokens)).abs().max()
    return {"apart": float(apart)}


def sizes(length: int) -> dict[str, Any]:
    """Bytes of the cache behind so many tokens, as counted and as the formula says."""
    import torch

    from sightline.core.cache.kv_cache import Cache

    tokens = torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(0))
    found: dict[str, Any] = {
        "length": length,
        "formula": 2 * LAYERS * HEADS * (WIDTH // HEADS) * length * 4,
    }
    with torch.inference_mode():
        for name, kv_heads in FORMS.items():
            made = model(0, kv_heads)
            cache = Cache.preallocated(made.config, length)
            made.hidden(tokens, cache=cache)
            found[name] = cache.bytes
        made = model(0)
        small = Cache.quantised(made.config)
        made.hidden(tokens, cache=small)
        found["8 key heads, 8 bits"] = small.bytes
    return found


def of_length(numbers: Numbers, length: int, how: str) -> list[float]:
    return [row[how] for name, row in numbers.items() if name.startswith(f"time.{length}.")]


def lengths_in(numbers: Numbers) -> list[int]:
    return sorted({int(name.split(".")[1]) for name in numbers if name.startswith("time.")})


def judge(numbers: Numbers) -> Sequence[Check]:
    first = lengths_in(numbers)[0]
    last = lengths_in(numbers)[-1]
    growth = {
        how: ratios(of_length(numbers, last, how), of_length(numbers, first, how))
        for how in ("cached", "whole")
    }
    saved = ratios(of_length(numbers, last, "whole"), of_length(numbers, last, "cached"))
    apart = next(row["apart"] for name, row in numbers.items() if name.startswith("same."))
    kept = next(row for name, row in numbers.items() if name.startswith("bytes."))
    exact = (
        kept["8 key heads"] == kept["formula"] == 4 * kept["2 key heads"] == 8 * kept["1 key head"]
    )
    small = kept["8 key heads, 8 bits"] / kept["formula"]
    return [
        Check(
            Words("the logits are the same with and without", "ロジットはキャッシュの有無で同じ"),
            apart < 1e-4,
            f"apart by {apart:.1e}",
        ),
        Check(
            Words(
                f"with the cache, a token at {last} costs less than twice one at {first}",
                f"キャッシュがあれば{last}番目でも{first}番目の2倍未満",
            ),
            below(growth["cached"], 2),
            f"{growth['cached']}×",
        ),
        Check(
            Words(
                f"without, it costs more than {last // first // 2} times as much",
                f"なければ{last // first // 2}倍より高くつく",
            ),
            above(growth["whole"], last // first / 2),
            f"{growth['whole']}×",
        ),
        Check(
            Words("the cache saves more than it costs", "キャッシュは得になる"),
            above(saved, 1),
            f"{saved}× faster at {last}",
        ),
        Check(
            Words(
                "its bytes are 2 · layers · key heads · head_dim · time · 4",
                "バイト数は 2・層・鍵ヘッド・head_dim・長さ・4",
            ),
            exact,
            ", ".join(f"{name} {kept[name] / 2**20:.2f} MiB" for name in FORMS),
        ),
        Check(
            Words("8 bits take less than a third of it", "8ビットなら3分の1未満"),
            small < 1 / 3,
            f"{small:.0%}",
        ),
    ]


def ratios(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    return Interval.of([a / b for a, b in zip(ours, theirs, strict=True)])


def draw(numbers: Numbers) -> Mapping[str, Figure]:
    made, (times, memory) = figure(2)
    lengths = lengths_in(numbers)
    for number, (how, label) in enumerate(
        (("cached", "with the cache"), ("whole", "a whole pass"))
    ):
        found = [
            Interval.of([1e3 * value for value in of_length(numbers, length, how)])
            for length in lengths
        ]
        line(times, [float(length) for length in lengths], found, label=label, number=number)
    times.set(
        xscale="log",
        yscale="log",
        xlabel="tokens before it",
        ylabel="ms a token",
        title="Time of the next token",
    )
    times.set_xscale("log", base=2)
    plain_numbers(times.yaxis)
    times.legend(frameon=False)
    kept = next(row for name, row in numbers.items() if name.startswith("bytes."))
    names = [*FORMS, "8 key heads, 8 bits"]
    memory.barh(names, [kept[name] / 2**20 for name in names], color=COLOURS[0])
    memory.set(xlabel=f"MiB behind {kept['length']} tokens", title="Memory of the cache")
    memory.invert_yaxis()
    return {"kv-cache": made}


EXPERIMENT = Experiment(
    name="kv-cache",
    title=Words("What a KV cache saves", "KVキャッシュは何を節約するか"),
    claim=Words(
        "Keys and values of earlier tokens never change; kept, they let the next token cost about"
        " the same however long the text is.",
        "過去のトークンの鍵と値は変わらない。取っておけば、"
        "文がどれだけ長くても次のトークンの費用はほぼ一定になる。",
    ),
    source="Shazeer 2019; Pope et al. 2022",
    equation="bytes = 2 · layers · kv_heads · head_dim · time · bytes per number",
    look_for=Words(
        "one line stays flat, the other climbs with the length",
        "一方の線は平らで、もう一方は長さとともに上がる",
    ),
    parts=parts,
    judge=judge,
    draw=draw,
)
