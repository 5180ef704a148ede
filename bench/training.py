"""Training speed against peers: `python -m bench.training`. 6 layers, width 384, context 256, batch
12, float32, two threads.

Each competitor trains in its own process, as its users would run it. They alternate, and the
ratios are computed within each round.

ours             sightline's loop on a GPT with the same architecture as the plain one (learned
                 positions, LayerNorm, GELU, tied head)
plain            bench/plain_gpt.py, eager and compiled
transformers     GPT2LMHeadModel with fused AdamW
x-transformers   Decoder with flash attention and fused AdamW
peak             GFLOP/s of torch's float32 matrix product, measured in the same run
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from bench.measure import RESULTS, Ratio, machine

WIDTH = 384
LAYERS = 6
HEADS = 6
CONTEXT = 256
ROWS = 12
VOCAB = 96
STEPS = 6
WARMUP_STEPS = 2
COMPETITORS = ("ours", "plain", "compiled", "transformers", "x-transformers")
FLOPS = (
    6 * (12 * LAYERS * WIDTH**2 + VOCAB * WIDTH) + 12 * LAYERS * WIDTH * CONTEXT // 2
)  # per token, causal


def batch() -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.randint(0, VOCAB, (ROWS, CONTEXT + 1), generator=torch.Generator().manual_seed(0))
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def ours() -> Callable[[], object]:
    import sightline as sl
    from sightline.training.config import AdamW, TrainingConfig
    from sightline.training.data.batch import Batch
    from sightline.training.loop import make_train_state
    from sightline.training.memory import keep_memory

    keep_memory()
    tokens, targets = batch()
    config = sl.gpt(
        width=WIDTH,
        layers=LAYERS,
        heads=HEADS,
        vocab_size=VOCAB,
        max_positions=CONTEXT,
        bias=False,
        feed_forward="gelu",
    )

    class ConstantTask:
        fingerprint = "one batch"

        def batch(self, step: int) -> Batch:
            return Batch(tokens=tokens, targets=targets, count=targets.numel())

        def validation(self):
            return iter(())

    state = make_train_state(
        sl.build(config), TrainingConfig(steps=10_000, optimizer=AdamW(betas=(0.9, 0.99)))
    )
    loop = state.steps(ConstantTask())
    return lambda: next(loop)


def plain(*, compiled: bool = False) -> Callable[[], object]:
    from bench.plain_gpt import PlainConfig, PlainGPT, optimizer, update

    model = PlainGPT(PlainConfig(VOCAB, CONTEXT, WIDTH, LAYERS, HEADS))
    run = torch.compile(model) if compiled else model
    adam, (tokens, targets) = optimizer(model, 1e-3), batch()
    return lambda: update(run, adam, tokens, targets, 1e-3)  # pyright: ignore[reportArgumentType]


def hugging_face() -> Callable[[], object]:
    from transformers import GPT2Config, GPT2LMHeadModel

    from bench.plain_gpt import optimizer

    config = GPT2Config(
        vocab_size=VOCAB,
        n_positions=CONTEXT,
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    )
    model = GPT2LMHeadModel(config).train()
    return peer(
        model, optimizer(model, 1e-3), lambda tokens, targets: model(tokens, labels=tokens).loss
    )


def x_transformers() -> Callable[[], object]:
    from x_transformers import Decoder, TransformerWrapper

    from bench.plain_gpt import optimizer

    layers = Decoder(
        dim=WIDTH, depth=LAYERS, heads=HEADS, attn_dim_head=WIDTH // HEADS, attn_flash=True
    )
    model = TransformerWrapper(num_tokens=VOCAB, max_seq_len=CONTEXT, attn_layers=layers).train()
    cross_entropy = torch.nn.functional.cross_entropy
    return peer(
        model,
        optimizer(model, 1e-3),
        lambda x, y: cross_entropy(model(x).flatten(0, 1), y.flatten()),
    )


def peer(
    model: torch.nn.Module,
    adam: torch.optim.AdamW,
    loss_of: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> Callable[[], object]:
    tokens, targets = batch()

    def run() -> None:
        loss_of(tokens, targets).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        adam.step()
        adam.zero_grad(set_to_none=True)

    return run


def peak() -> float:
    """GFLOP/s of the fastest of ten large products."""
    x = torch.randn(3072, 1536)
    w = torch.randn(1536, 1536)
    best = 0.0
    for _ in range(10):
        start = time.perf_counter()
        torch.mm(x, w)
        best = max(best, 2 * 3072 * 1536 * 1536 / (time.perf_counter() - start) / 1e9)
    return best


BUILDERS: dict[str, Callable[[], Callable[[], object]]] = {
    "ours": ours,
    "plain": plain,
    "compiled": lambda: plain(compiled=True),
    "transformers": hugging_face,
    "x-transformers": x_transformers,
}


def serve(who: str) -> None:
    """Run one competitor: for each line on stdin, train and print the tokens per second."""
    torch.set_num_threads(2)
    torch.manual_seed(0)
    run = BUILDERS[who]()
    for _ in range(WARMUP_STEPS):
        run()
    print("ready", flush=True)
    for _ in sys.stdin:
        start = time.perf_counter()
        for _ in range(STEPS):
            run()
        print(STEPS * ROWS * CONTEXT / (time.perf_counter() - start), flush=True)


def start(who: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.training", who]
    return subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )


def main(rounds: int = 5) -> None:
    torch.set_num_threads(2)
    pipes = {who: start(who) for who in COMPETITORS}
    for who, pipe in pipes.items():
        assert pipe.stdout is not None
        assert pipe.stdout.readline().strip() == "ready", f"{who} did not start"
    speeds: dict[str, list[float]] = {who: [] for who in COMPETITORS}
    peaks: list[float] = []
    for n in range(rounds):
        peaks.append(peak())
        for who in COMPETITORS if n % 2 == 0 else reversed(COMPETITORS):
            pipe = pipes[who]
            assert pipe.stdin is not None
            assert pipe.stdout is not None
            pipe.stdin.write("go\n")
            pipe.stdin.flush()
            speeds[who].append(float(pipe.stdout.readline()))
    for pipe in pipes.values():
        pipe.terminate()
    report(speeds, statistics.median(peaks))


def report(speeds: dict[str, list[float]], best: float) -> None:
    print(
        f"{'':16}{'tokens/s':>10}{'% of peak':>11}{'ours is':>10}   interquartile range    "
        f" (peak: {best:.0f} GFLOP/s)"
    )
    ratios: list[Ratio] = []
    for who in COMPETITORS:
        speed = statistics.median(speeds[who])
        each = sorted(a / b for a, b in zip(speeds["ours"], speeds[who], strict=True))
        quarter = len(each) // 4
        own = statistics.median(speeds["ours"])
        ratio = Ratio(
            who,
            1e3 / own,
            1e3 / speed,
            statistics.median(each),
            each[quarter],
            each[-1 - quarter],
            len(each),
        )
        ratios.append(ratio)
        print(
            f"{who:16}{speed:10.0f}{100 * speed * FLOPS / best / 1e9:10.0f}%{ratio.ratio:9.2f}×  "
            f" {ratio.low:.2f}–{ratio.high:.2f}"
        )
    results = {
        "machine": machine(),
        "peak_gflops": best,
        "tokens_per_second": {who: statistics.median(s) for who, s in speeds.items()},
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / "training.json"
    path.write_text(
        json.dumps(
            {**results, "ratios": {r.name: [r.low, r.ratio, r.high] for r in ratios}}, indent=1
        )
        + "\n"
    )
    print("written:", path)


if __name__ == "__main__":
    serve(sys.argv[1]) if len(sys.argv) > 1 else main()
