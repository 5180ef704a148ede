"""Generation against transformers and sentence-transformers: `python -m bench.generation`. Two
threads, float32, alternating.

gpt-2        the shape of GPT-2 small, 128 prompt + 128 new tokens, greedy, against transformers'
             generate with sdpa
marian       the shape of Opus-MT, 20 source + 32 target tokens: one sentence and eight, greedy and
             four beams, against transformers
minilm       embeddings of 500 sentences, against sentence-transformers (the catalogue's model)
cache        512 tokens after 128 with the cache, against a full forward pass per token
flat         time per token at positions 64 … 2048
batch        16 requests in one batch, against sequential decoding
"""

from __future__ import annotations

import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import sightline as sl
from bench.measure import RESULTS, Ratio, race, save
from sightline.core.cache.kv_cache import Cache
from sightline.core.packed_weights import pack
from sightline.generation.batch import Batch
from sightline.generation.beam import search
from sightline.generation.decode import Request, decode, last_logits, prefill

PROMPT = 128
NEW = 128
SOURCE = 20
TARGET = 32


def gpt2(length: int = 1024) -> sl.Transformer:
    """GPT-2 small's shape with random weights."""
    torch.manual_seed(0)
    return sl.build(
        sl.gpt(width=768, layers=12, heads=12, vocab_size=50257, max_positions=length)
    ).eval()


def gpt2_race() -> Ratio:
    from transformers import GPT2Config, GPT2LMHeadModel

    ours = pack(gpt2())
    theirs = GPT2LMHeadModel(GPT2Config()).eval()
    prompt = torch.randint(0, 50257, (1, PROMPT))

    def run_ours() -> None:
        assert len(list(decode(ours, Request(prompt=prompt[0].tolist(), max_tokens=NEW)))) == NEW

    def run_theirs() -> None:
        output = theirs.generate(
            prompt, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, pad_token_id=0
        )
        assert output.shape[1] == PROMPT + NEW

    return race(
        f"GPT-2 small shape, {PROMPT} + {NEW} tokens, greedy", run_ours, run_theirs, rounds=5
    )


def marian_races() -> list[Ratio]:
    """Both models have the same random weights and must generate the same tokens."""
    from transformers import MarianConfig, MarianMTModel

    config = MarianConfig(
        vocab_size=58101,
        d_model=512,
        encoder_layers=6,
        decoder_layers=6,
        encoder_attention_heads=8,
        decoder_attention_heads=8,
        encoder_ffn_dim=2048,
        decoder_ffn_dim=2048,
        max_position_embeddings=512,
        pad_token_id=58100,
        eos_token_id=0,
        decoder_start_token_id=58100,
        scale_embedding=True,
        activation_function="swish",
        forced_eos_token_id=None,
    )
    torch.manual_seed(0)
    theirs = MarianMTModel(config).eval()
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        ours = pack(sl.load(folder).transformer)
    return [marian_race(ours, theirs, sentences, beams) for sentences in (1, 8) for beams in (1, 4)]


def marian_race(ours: sl.Transformer, theirs: object, sentences: int, beams: int) -> Ratio:
    source = torch.randint(
        1, 58000, (sentences, SOURCE), generator=torch.Generator().manual_seed(1)
    )

    def run_ours() -> list[list[int]]:
        if beams > 1:
            start = torch.full((sentences, 1), 58100)
            return [
                list(best.tokens)
                for (best,) in search(
                    ours, start, beams=beams, max_tokens=TARGET, end=(), source=source
                )
            ]
        if sentences == 1:
            return [
                [
                    event.token
                    for event in decode(
                        ours, Request(prompt=[58100], max_tokens=TARGET, source=source[0].tolist())
                    )
                ]
            ]
        batch = Batch(ours)
        outputs = {
            batch.submit(Request(prompt=[58100], max_tokens=TARGET, source=row)): []
            for row in source.tolist()
        }
        for sequence, event in batch.run():
            outputs[sequence].append(event.token)  # pyright: ignore
        return list(outputs.values())

    def run_theirs() -> list[list[int]]:
        output = theirs.generate(  # pyright: ignore
            source,
            max_new_tokens=TARGET,
            min_new_tokens=TARGET,
            do_sample=False,
            num_beams=beams,
            bad_words_ids=None,
        )
        return output[:, 1:].tolist()

    if beams == 1:
        assert run_ours() == run_theirs(), "both must generate the same tokens"
    name = (
        f"Marian-base shape, {sentences} sentence{'s' * (sentences > 1)},"
        f" {'greedy' if beams == 1 else f'{beams} beams'}"
    )
    return race(name, run_ours, run_theirs, rounds=9)


def sentences(count: int) -> list[str]:
    """Texts of 4 to 60 words with the lengths of natural sentences: most are short."""
    words = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8").split()
    words = [word for word in words if word.isalpha()]
    draw = random.Random(0)
    return [
        " ".join(draw.choices(words, k=min(60, max(4, round(draw.lognormvariate(2.7, 0.6))))))
        for _ in range(count)
    ]


def minilm_race() -> Ratio:
    from sentence_transformers import SentenceTransformer

    model = sl.load("minilm")
    texts = sentences(500)
    assert model.source is not None
    theirs = SentenceTransformer(str(model.source.where), device="cpu")
    difference = (torch.from_numpy(theirs.encode(texts)) - model.embed(texts)).abs().max()
    assert difference < 1e-5, f"the embeddings differ by {difference}"
    return race(
        "MiniLM, 500 sentences", lambda: model.embed(texts), lambda: theirs.encode(texts), rounds=5
    )


def seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


@torch.inference_mode()
def cache_ratio(model: sl.Transformer, new: int = 512, every: int = 32) -> dict[str, float]:
    """With the cache: all tokens. Without: a full forward pass per token, timed at every 32nd
    length and integrated by the trapezoidal rule; once with the logits of every token (the plain
    loop), once with only those of the last token (the cheapest loop without a cache)."""
    prompt = torch.randint(0, 50257, (1, PROMPT + new))
    cached = seconds(
        lambda: list(decode(model, Request(prompt=prompt[0, :PROMPT].tolist(), max_tokens=new)))
    )
    lengths = range(PROMPT, PROMPT + new + 1, every)
    full = [seconds(lambda n=n: model(prompt[:, :n])) for n in lengths]
    last = [seconds(lambda n=n: model.head(model.hidden(prompt[:, :n])[:, -1:])) for n in lengths]
    all_logits, last_logits_only = (
        sum((a + b) / 2 * every for a, b in itertools.pairwise(times)) for times in (full, last)
    )
    return {
        "with_s": cached,
        "without_s": all_logits,
        "ratio": all_logits / cached,
        "last_s": last_logits_only,
        "last_ratio": last_logits_only / cached,
    }


@torch.inference_mode()
def times_by_position(model: sl.Transformer) -> dict[int, float]:
    """Milliseconds per token at each position, the median of 15."""
    milliseconds: dict[int, float] = {}
    for position in (64, 128, 256, 512, 1024, 2048):
        request = Request(prompt=torch.randint(0, 50257, (position,)).tolist(), max_tokens=1)
        cache = Cache.growing(model.config)
        prefill(model, request, cache)
        steps = [
            seconds(lambda cache=cache: last_logits(model, torch.tensor([[7]]), cache))
            for _ in range(16)
        ]
        milliseconds[position] = 1e3 * statistics.median(steps[1:])
    return milliseconds


def batch_ratio(model: sl.Transformer, count: int = 16) -> dict[str, float]:
    """16 requests of 32 + 32 tokens."""
    requests = [
        Request(prompt=torch.randint(0, 50257, (32,)).tolist(), max_tokens=32) for _ in range(count)
    ]

    def run_batch() -> None:
        batch = Batch(model)
        for request in requests:
            batch.submit(request)
        for _ in batch.run():
            pass

    sequential = seconds(lambda: [list(decode(model, request)) for request in requests])
    batched = seconds(run_batch)
    return {"alone_s": sequential, "together_s": batched, "ratio": sequential / batched}


def draw(curve: dict[int, float]) -> str:
    """Time per token against its position."""
    import matplotlib as mpl

    mpl.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.plot(list(curve), list(curve.values()), marker="o", color="#0072B2")
    axes.set(
        xscale="log",
        xlabel="position",
        ylabel="ms per token",
        title="GPT-2 small's shape, with the cache, float32, two threads",
    )
    axes.set_xticks(list(curve), [str(n) for n in curve])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    path = RESULTS / "generation-flat.svg"
    figure.savefig(path)
    return str(path)


def main() -> None:
    torch.set_num_threads(2)
    ratios = [gpt2_race(), *marian_races(), minilm_race()]
    print(f"{'':52}{'ours':>10}{'peer':>10}{'ratio':>8}   interquartile range")
    for r in ratios:
        print(
            f"{r.name:52}{r.ours_ms:8.0f}ms{r.theirs_ms:8.0f}ms{r.ratio:7.2f}×  "
            f" {r.low:.2f}–{r.high:.2f}  {r.verdict}"
        )
    model = pack(gpt2(4096))
    cache = cache_ratio(model)
    curve = times_by_position(model)
    batch = batch_ratio(model)
    print(
        f"\n512 tokens with the cache {cache['with_s']:.1f} s, without {cache['without_s']:.1f} s:"
        f" {cache['ratio']:.1f}×",
        end="; ",
    )
    print(f"without, but only the last token's logits: {cache['last_ratio']:.1f}×")
    print("ms per token, by position:", ", ".join(f"{n}: {ms:.1f}" for n, ms in curve.items()))
    print(
        f"16 requests: sequential {batch['alone_s']:.1f} s, batched {batch['together_s']:.1f} s:"
        f" {batch['ratio']:.2f}×"
    )
    more = {"cache": cache, "ms_by_position": curve, "batch": batch}
    print("\nwritten:", save("generation", ratios, more), draw(curve))


if __name__ == "__main__":
    main()
