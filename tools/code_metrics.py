"""How dense the code is: `python -m tools.code_metrics [FOLDER …]`, one column per folder.

Syntax-tree nodes are counted without `Load`, `Store` and other contexts. Docstrings, comments and
blank lines are not code lines. A packed assignment is `a, b = x, y` with a tuple on both sides.
Repeated names are the public top-level functions and classes that more than one module defines, as
a share of all such names. `--repeated` lists them; `--anchor` measures another package
beside ours, for example httpx after `pip download --no-deps httpx` and unpacking.
"""

from __future__ import annotations

import argparse
import ast
import json
import statistics
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Metrics:
    """The numbers of one folder."""

    functions: int
    lines_per_function: tuple[float, float, int]
    nodes_per_line: float
    nodes_per_function: tuple[float, float]
    packed_assignments: float
    mean_column: float
    repeated_names: float
    largest_folder: int


def parse(folder: Path) -> dict[Path, ast.Module]:
    return {
        path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.rglob("*.py"))
    }


def measure(folder: Path) -> Metrics:
    trees = parse(folder)
    functions = [
        node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, Function)
    ]
    lines = sorted(len(code_lines(function)) for function in functions)
    nodes = sorted(count_nodes(function) for function in functions)
    assignments = [
        node for tree in trees.values() for node in ast.walk(tree) if isinstance(node, ast.Assign)
    ]
    widths = [len(text) for path, tree in trees.items() for text in code_texts(path, tree)]
    return Metrics(
        functions=len(functions),
        lines_per_function=(statistics.median(lines), percentile(lines, 0.9), lines[-1]),
        nodes_per_line=sum(map(count_nodes, trees.values())) / len(widths),
        nodes_per_function=(statistics.median(nodes), percentile(nodes, 0.9)),
        packed_assignments=share(is_packed(node) for node in assignments),
        mean_column=statistics.mean(widths),
        repeated_names=share(len(paths) > 1 for paths in name_homes(trees).values()),
        largest_folder=max(Counter(path.parent for path in trees).values()),
    )


def count_nodes(tree: ast.AST) -> int:
    """Nodes that stand for something in the text: no contexts, no docstrings."""
    ignored = (ast.expr_context, ast.operator, ast.boolop, ast.unaryop, ast.cmpop)
    docstrings = sum(2 for node in ast.walk(tree) if has_docstring(node))
    return sum(not isinstance(node, ignored) for node in ast.walk(tree)) - docstrings


def has_docstring(node: ast.AST) -> bool:
    documented = isinstance(node, ast.Module | ast.ClassDef | Function)
    return documented and ast.get_docstring(node, clean=False) is not None


def code_lines(tree: ast.AST) -> set[int]:
    """The numbers of all lines on which a node begins or ends, docstrings apart."""
    skipped = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | Function) and has_docstring(node):
            first = node.body[0]
            skipped |= set(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    lines = set[int]()
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt | ast.expr | ast.arg | ast.keyword):
            lines |= {node.lineno, node.end_lineno or node.lineno}
    return lines - skipped


def code_texts(path: Path, tree: ast.AST) -> Iterator[str]:
    text = path.read_text(encoding="utf-8").splitlines()
    return (text[number - 1].rstrip() for number in sorted(code_lines(tree)))


def is_packed(node: ast.Assign) -> bool:
    both = isinstance(node.value, ast.Tuple) and isinstance(node.targets[0], ast.Tuple)
    return both and len(node.targets) == 1


def name_homes(trees: dict[Path, ast.Module]) -> dict[str, list[Path]]:
    """The files that define each public top-level function or class; a program's `main` is none."""
    homes: dict[str, list[Path]] = {}
    for path, tree in trees.items():
        names = {node.name for node in tree.body if isinstance(node, ast.ClassDef | Function)}
        for name in sorted(names - {"main"}):
            if not name.startswith("_"):
                homes.setdefault(name, []).append(path)
    return homes


def repeated_table(folder: Path) -> str:
    """A line for each repeated name, the most frequent first: how often, the name, the files."""
    repeated = {name: paths for name, paths in name_homes(parse(folder)).items() if len(paths) > 1}
    return "\n".join(
        f"{len(paths):>3} {name:<24} {' '.join(str(path.relative_to(folder)) for path in paths)}"
        for name, paths in sorted(repeated.items(), key=lambda item: (-len(item[1]), item[0]))
    )


def percentile(values: list[int], part: float) -> float:
    return values[min(len(values) - 1, int(part * len(values)))]


def share(claims: Iterator[bool]) -> float:
    outcomes = list(claims)
    return sum(outcomes) / max(1, len(outcomes))


def row(name: str, cells: list[str]) -> str:
    return f"{name:<42}" + "".join(f"  {cell:>20}" for cell in cells)


def table(metrics: dict[str, Metrics]) -> str:
    all_metrics = metrics.values()
    lines = [
        row("", list(metrics)),
        row("functions", [f"{m.functions:,}" for m in all_metrics]),
        row(
            "function lines, median/p90/max",
            ["/".join(f"{n:.0f}" for n in m.lines_per_function) for m in all_metrics],
        ),
        row("syntax-tree nodes per line", [f"{m.nodes_per_line:.1f}" for m in all_metrics]),
        row(
            "nodes per function, median/p90",
            ["/".join(f"{n:.0f}" for n in m.nodes_per_function) for m in all_metrics],
        ),
        row("packed assignments a, b = x, y", [f"{m.packed_assignments:.1%}" for m in all_metrics]),
        row("mean column", [f"{m.mean_column:.0f}" for m in all_metrics]),
        row(
            "names defined in more than one module",
            [f"{m.repeated_names:.1%}" for m in all_metrics],
        ),
        row("largest flat folder", [str(m.largest_folder) for m in all_metrics]),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.code_metrics", description="How dense the code is."
    )
    parser.add_argument("folders", nargs="*", type=Path, default=[ROOT / "sightline"])
    parser.add_argument(
        "--anchor",
        action="append",
        type=Path,
        default=[],
        metavar="PATH",
        help="another package to measure beside ours; may be repeated",
    )
    parser.add_argument(
        "--repeated", action="store_true", help="list the names that several modules define"
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.repeated:
        for folder in arguments.folders:
            print(repeated_table(folder))
        return
    folders = [*arguments.folders, *arguments.anchor]
    for folder in folders:
        if not any(folder.rglob("*.py")):
            parser.error(f"{folder} has no Python files")
    metrics = {folder.name: measure(folder) for folder in folders}
    if arguments.json:
        print(
            json.dumps(
                {
                    name: {key: getattr(m, key) for key in Metrics.__slots__}
                    for name, m in metrics.items()
                },
                indent=2,
            )
        )
    else:
        print(table(metrics))


if __name__ == "__main__":
    main()
