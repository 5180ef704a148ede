"""`make pages`: the tree of docs/architecture.md from the modules' docstrings, the tables of
docs/benchmarks.md from bench/results, and docs/laboratory/notes from its rows."""

from __future__ import annotations

import ast
import json
import re
from pathlib import Path
from typing import Any

from tools import notes

ROOT = Path(__file__).parents[1]
BESIDE = {
    "csrc/": "C++: SIMD, training kernels, the inference engine",
    "bench/": "side-by-side measurements, as ratios; results and figures",
    "tests/": "mirrors sightline/, plus laws/ over every model of tiny.py",
    "docs/": "one page per subject, a page for each published model, the laboratory",
    "tools/": "environments, locked versions, fuzzing, and the generator of these pages",
}
COLUMN = 29
WIDEST = 92


def sentence(path: Path) -> str:
    """A module's first sentence, cut at a clause where it is long."""
    text = (
        (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "")
        .split("\n\n")[0]
        .replace("\n", " ")
    )
    text = text.split(". ")[0].rstrip(".:").replace("(Loshchilov et al", "").strip()
    if len(text) <= WIDEST:
        return text
    clauses = [
        text[: match.start()]
        for match in re.finditer(r"[:;,] ", text)
        if 20 < match.start() <= WIDEST
    ]
    return clauses[-1] if clauses else text[: WIDEST - 1] + "…"


def line(depth: int, name: str, text: str) -> str:
    return f"{'  ' * depth}{name:<{COLUMN - 2 * depth}}{text}".rstrip()


def tree() -> str:
    """One line per file, folders after files."""
    return "\n".join(
        [*folder(ROOT / "sightline", 0), *(line(0, name, text) for name, text in BESIDE.items())]
    )


def folder(path: Path, depth: int) -> list[str]:
    """A package, its modules, then its subpackages."""
    lines = [line(depth, f"{path.name}/", sentence(path / "__init__.py"))]
    modules = (module for module in sorted(path.glob("*.py")) if module.name != "__init__.py")
    lines += [line(depth + 1, module.name, sentence(module)) for module in modules]
    for inner in sorted(path.iterdir()):
        if (inner / "__init__.py").exists():
            lines += folder(inner, depth + 1)
    return lines


def rows(results: dict[str, Any]) -> list[str]:
    """A table's rows, one per ratio."""
    return [
        f"| {r['name']} | {r['ours_ms']:.0f} ms | {r['theirs_ms']:.0f} ms | {r['ratio']:.2f}× |"
        f" {r['low']:.2f}–{r['high']:.2f} |"
        for r in results["ratios"]
    ]


def trained() -> list[str]:
    """Training speed, and the loss after equal training time."""
    speed, minutes = (
        json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text())
        for name in ("training", "shakespeare")
    )
    lines = [
        (
            "| training: 6 layers, width 384, context 256, batch 12 | tokens/s | ours is |"
            " interquartile range |"
        ),
        "|---|--:|--:|---|",
    ]
    for who, tokens_per_second in speed["tokens_per_second"].items():
        low, middle, high = speed["ratios"][who]
        lines.append(
            f"| {who} | {tokens_per_second:.0f} | "
            + ("| |" if who == "ours" else f"{middle:.2f}× | {low:.2f}–{high:.2f} |")
        )
    lines += [
        "",
        (
            f"On {speed['machine']['cpu']}; torch's own float32 product reached"
            f" {speed['peak_gflops']:.0f} GFLOP/s in the same run."
        ),
        "",
    ]
    lines += [
        (
            "| Shakespeare, nats per character of held-out plays | ours | a plain GPT loop, its"
            " best learning rate |"
        ),
        "|---|--:|--:|",
    ]
    for time, curves in minutes["results"].items():
        best = min(curve[-1][1] for name, curve in curves.items() if name != "ours")
        lines.append(
            f"| after {time} minutes on two cores | {curves['ours'][-1][1]:.3f} | {best:.3f} |"
        )
    return [*lines, ""]


def engine() -> list[str]:
    """The native engine against its peers, and the quality of each precision."""
    results = json.loads((ROOT / "bench" / "results" / "native.json").read_text(encoding="utf-8"))
    lines = [
        (
            "| the native engine, two threads | ours | best peer | ratio | range | goal | of"
            " bandwidth | |"
        ),
        "|---|--:|--:|--:|---|--:|--:|---|",
    ]
    for row in (row for row in results["rows"] if "ratio" in row):
        ratio = row["ratio"]
        goal = f"{row['goal']:.1f}× {row.get('goal_peer', '')}".strip() if "goal" in row else ""
        share = f"{row['bandwidth']['median']:.0%}" if "bandwidth" in row else ""
        lines.append(
            f"| {row['work']}: {row['model']}, {row['ours'].removeprefix('ours ')} |"
            f" {row['speed']['median']:.0f} | {row['peer']} {row['peer_speed']['median']:.0f} |"
            f" {ratio['median']:.2f}× | {ratio['low']:.2f}–{ratio['high']:.2f} | {goal} | {share} |"
            f" {row['verdict']} |"
        )
    for model, entries in results["perplexity"]["found"].items():
        exact = next(entry["perplexity"] for entry in entries if entry["who"] == "ours float32")
        lines += [
            "",
            f"| {model}: perplexity on a held-out play | | loss | MB read per token |",
            "|---|--:|--:|--:|",
        ]
        lines += [
            f"| {entry['who']} | {entry['perplexity']:.2f} |"
            f" {entry['perplexity'] / exact - 1:+.1%} |"
            f" {entry['bytes'] / 1e6:.1f} |"
            for entry in entries
        ]
    return [*lines, ""]


def table() -> str:
    """Ratios and memory from the last measurement."""
    names = ("core", "generation", "seeing")
    core, generation, tracing = (
        json.loads((ROOT / "bench" / "results" / f"{name}.json").read_text()) for name in names
    )
    extra = tracing["extra_mib"]
    long = tracing["long"]
    memory = ", ".join(
        f"{name} {points['16384']:.0f} MiB" for name, points in core["memory_mib"].items()
    )
    first, last = (generation["ms_by_position"][position] for position in ("64", "2048"))
    lines = [
        "",
        "| the core | ours | torch.nn | ratio | interquartile range |",
        "|---|--:|--:|--:|---|",
        *rows(core),
        "",
        "| generation | ours | transformers, sentence-transformers | ratio | interquartile range |",
        "|---|--:|--:|--:|---|",
        *rows(generation),
        "",
        "| tracing: GPT-2 small's shape, 512 tokens | ours | other | ratio | interquartile range |",
        "|---|--:|--:|--:|---|",
        *rows(tracing),
        "",
        *trained(),
        *engine(),
        (
            f"With a full trace, our peak is {extra['ours']:.0f} MiB above our plain forward's;"
            " transformers with output_attentions takes"
        ),
        (
            f"{extra['transformers']:.0f} MiB more than without, TransformerLens' cache"
            f" {extra['TransformerLens']:.0f} MiB. A trace of 4,096"
        ),
        (
            f"tokens, whose maps would be 9 GiB, takes {long['traced_mib'] - long['plain_mib']:.0f}"
            " MiB more than the plain pass."
        ),
        "",
        f"Peak memory of causal attention over 16,384 tokens, one head: {memory}.",
        (
            "GPT-2 small's shape: 512 tokens with the cache"
            f" {generation['cache']['ratio']:.0f}× faster than a full forward pass per token, and"
        ),
        (
            f"{generation['cache']['last_ratio']:.0f}× faster than a pass that computes only the"
            " last token's logits; one token takes"
        ),
        f"{first:.0f} ms at position 64 and {last:.0f} ms at 2048;",
        f"16 requests in one batch {generation['batch']['ratio']:.1f}× faster than sequentially.",
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    architecture = ROOT / "docs" / "architecture.md"
    text = architecture.read_text(encoding="utf-8")
    fresh = f"```\n{tree()}\n```"
    text = re.sub(r"```\nsightline/.*?```", lambda _: fresh, text, flags=re.DOTALL)
    architecture.write_text(text, encoding="utf-8")
    benchmarks = ROOT / "docs" / "benchmarks.md"
    text = benchmarks.read_text(encoding="utf-8")
    fresh = f"<!-- bench -->{table()}<!-- /bench -->"
    text = re.sub(r"<!-- bench -->.*<!-- /bench -->", lambda _: fresh, text, flags=re.DOTALL)
    benchmarks.write_text(text, encoding="utf-8")
    notes.write()


if __name__ == "__main__":
    main()
