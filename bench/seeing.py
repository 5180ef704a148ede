"""The cost of tracing: `python -m bench.seeing`. GPT-2-small shape, 512 tokens, two threads,
float32; all compute logits at every position.

time      a trace of everything against our own plain forward; our plain forward against
          transformers' sdpa; our trace against transformers with output_attentions and
          TransformerLens' run_with_cache
memory    the peak memory of each above that of the same library's plain forward, each in its own
          process
long      a trace of 4,096 tokens, and the memory that 12 layers of eager maps would need

TransformerLens (before 4.0) is measured if it is installed; no extra contains it, because it
requires other versions of our dependencies.
"""

from __future__ import annotations

import importlib.util
import warnings
from collections.abc import Callable

import torch

from bench.measure import Ratio, peak_memory, race, save

TOKENS = 512
LONG = 4096
OURS = """
import warnings; warnings.filterwarnings("ignore")
import sightline as sl
from sightline.model import Model
torch.manual_seed(0)
model = Model(sl.build(sl.gpt(width=768, layers=12, heads=12, vocab_size=50257, \
max_positions={positions})).eval())
ids = torch.randint(0, 50257, ({tokens},)).tolist()
"""
PLAIN = """
kept = []
def run():
    with torch.inference_mode():
        kept.append(model.transformer(torch.tensor([ids])))
"""
TRACE = """
kept = []
def run():
    kept.append(model.trace(ids))
    kept[-1].logits
"""
LAZY = TRACE.replace("    kept[-1].logits\n", "")
THEIRS = """
from transformers import GPT2Config, GPT2LMHeadModel
torch.manual_seed(0)
model = GPT2LMHeadModel(GPT2Config(attn_implementation="{kernel}")).eval()
ids = torch.randint(0, 50257, (1, {tokens}))
kept = []
def run():
    with torch.inference_mode():
        kept.append(model(ids, use_cache=False, output_attentions={attentions}))
"""
LENS = """
import warnings; warnings.filterwarnings("ignore")
from transformer_lens import HookedTransformer, HookedTransformerConfig
torch.manual_seed(0)
model = HookedTransformer(HookedTransformerConfig(n_layers=12, d_model=768, n_ctx=1024, \
d_head=64, n_heads=12, d_vocab=50257,
    act_fn="gelu_new", d_mlp=3072, normalization_type="LN", seed=0)).eval()
ids = torch.randint(0, 50257, (1, {tokens}))
kept = []
def run():
    with torch.inference_mode():
        kept.append(model{call}(ids))
"""
WARMUP = """
all_ids = ids
ids = ids[..., :64] if hasattr(ids, "shape") else ids[:64]
run(); kept.clear(); ids = all_ids
"""  # the first pass allocates workspaces that later passes reuse


def compile_run(code: str) -> Callable[[], object]:
    """The `run` function of a snippet; each call first releases the previous result."""
    space: dict[str, object] = {}
    exec("import torch\n" + code, space)
    run = space["run"]
    kept = space["kept"]
    assert callable(run)
    assert isinstance(kept, list)

    def rerun() -> None:
        kept.clear()
        run()

    return rerun


def snippets() -> dict[str, str]:
    """Every competitor, as code that defines `run`."""
    ours = OURS.format(positions=1024, tokens=TOKENS)
    code = {
        "ours, plain": ours + PLAIN,
        "ours, traced": ours + TRACE,
        "ours, traced, without logits": ours + LAZY,
        "transformers, sdpa": THEIRS.format(kernel="sdpa", tokens=TOKENS, attentions=False),
        "transformers, output_attentions": THEIRS.format(
            kernel="eager", tokens=TOKENS, attentions=True
        ),
    }
    if importlib.util.find_spec("transformer_lens"):
        code["TransformerLens, plain"] = LENS.format(tokens=TOKENS, call="")
        code["TransformerLens, run_with_cache"] = LENS.format(tokens=TOKENS, call=".run_with_cache")
    return code


def time_ratios(code: dict[str, str]) -> list[Ratio]:
    """Ratios of alternating runs."""
    traced = compile_run(code["ours, traced"])
    ratios = [
        race(
            "a trace of everything, against our plain forward",
            traced,
            compile_run(code["ours, plain"]),
            rounds=15,
        ),
        race(
            "our plain forward, against transformers' sdpa",
            compile_run(code["ours, plain"]),
            compile_run(code["transformers, sdpa"]),
            rounds=15,
        ),
    ]
    peers = [
        peer
        for peer in ("transformers, output_attentions", "TransformerLens, run_with_cache")
        if peer in code
    ]
    ratios += [
        race(f"a trace of everything, against {peer}", traced, compile_run(code[peer]), rounds=8)
        for peer in peers
    ]
    return ratios


def peak_memories(code: dict[str, str]) -> dict[str, float]:
    """Peak MiB of each snippet, after a short warm-up pass."""
    return {name: peak_memory(snippet + WARMUP) for name, snippet in code.items()}


def main() -> None:
    torch.set_num_threads(2)
    warnings.filterwarnings("ignore")
    code = snippets()
    peaks = peak_memories(code)
    extra = {"ours": peaks["ours, traced"] - peaks["ours, plain"]}
    extra["transformers"] = peaks["transformers, output_attentions"] - peaks["transformers, sdpa"]
    if "TransformerLens, plain" in peaks:
        extra["TransformerLens"] = (
            peaks["TransformerLens, run_with_cache"] - peaks["TransformerLens, plain"]
        )
    for name, mib in peaks.items():
        print(f"{name:34} {mib:8.0f} MiB")
    for name, mib in extra.items():
        print(f"to trace, {name} needs {mib:.0f} MiB more ({mib / extra['ours']:.1f}× ours)")
    long = OURS.format(positions=LONG, tokens=LONG)
    long_peak, long_plain = (peak_memory(long + run + WARMUP) for run in (TRACE, PLAIN))
    maps = 12 * 12 * LONG * LONG * 4 / 2**30
    print(
        f"{LONG} tokens: {long_peak:.0f} MiB traced, {long_plain:.0f} plain:"
        f" {long_peak - long_plain:.0f} more; its maps are {maps:.1f} GiB"
    )
    ratios = time_ratios(code)
    for ratio in ratios:
        print(
            f"{ratio.name:60} {ratio.ours_ms:7.0f} ms {ratio.theirs_ms:7.0f} ms  {ratio.ratio:.2f}×"
            f" [{ratio.low:.2f}, {ratio.high:.2f}]"
        )
    more: dict[str, object] = {
        "peak_mib": peaks,
        "extra_mib": extra,
        "long": {"traced_mib": long_peak, "plain_mib": long_plain},
    }
    print("written:", save("seeing", ratios, more))


if __name__ == "__main__":
    main()
