"""docs/laboratory/notes.md and notes.ja.md from notes.toml: statements about the Transformer, each
with what makes it true.

A row is shown by a command (`run`), an experiment (`lab`) or a few lines of Python (`code`, whose
last line gives `gives`). A row with none of them is not shown yet.
"""

from __future__ import annotations

import ast
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "docs" / "laboratory"
SOURCE = FOLDER / "notes.toml"
PAGES = {"en": FOLDER / "notes.md", "ja": FOLDER / "notes.ja.md"}
TEXTS = {
    "title": {"en": "Statement by statement", "ja": "主張を一つずつ"},
    "intro": {
        "en": "What lecture notes say about the Transformer, in their order, and what makes each"
        " statement true here: a command, an experiment with its verdict, or a few lines of Python"
        " (after `import torch, sightline as sl` and `torch.manual_seed(0)`). Where the"
        " notes are wrong, the correct value stands in bold.",
        "ja": "Transformer についての講義ノートの主張を順に並べ、それぞれを確かめる手段（コマンド、"
        "判定付きの実験、数行の Python）を添える。"
        "Python は `import torch, sightline as sl` と `torch.manual_seed(0)` のあとに実行する。"
        "誤りには正しい値を太字で示す。",
    },
    "says": {"en": "the notes say", "ja": "ノートの主張"},
    "shown": {"en": "shown by", "ja": "確かめる手段"},
    "wrong": {"en": "Wrong", "ja": "誤り"},
    "missing": {"en": "not yet", "ja": "未対応"},
    "counts": {
        "en": "{rows} statements: {shown} shown, {wrong} of them corrected; {missing} not yet.",
        "ja": "{rows}件：確認できるもの{shown}件（うち訂正{wrong}件）、未対応{missing}件。",
    },
}


@dataclass(frozen=True, slots=True)
class Row:
    """A statement and its evidence."""

    says: dict[str, str]
    right: dict[str, str]
    run: str = ""
    lab: str = ""
    code: str = ""
    gives: str = ""

    @property
    def is_shown(self) -> bool:
        return bool(self.run or self.lab or self.code)


@dataclass(frozen=True, slots=True)
class Part:
    title: dict[str, str]
    rows: list[Row]


def read_notes() -> list[Part]:
    content = tomllib.loads(SOURCE.read_text(encoding="utf-8"))
    return [Part(languages(part), [row_of(row) for row in part["row"]]) for part in content["part"]]


def row_of(fields: dict[str, Any]) -> Row:
    evidence = {name: fields.get(name, "").strip() for name in ("run", "lab", "code", "gives")}
    return Row(languages(fields), fields.get("right", {}), **evidence)


def languages(fields: dict[str, Any]) -> dict[str, str]:
    return {"en": fields["en"], "ja": fields["ja"]}


def value_of(code: str) -> str:
    """What the last line of some Python gives."""
    import torch

    import sightline as sl

    torch.manual_seed(0)
    names: dict[str, Any] = {"torch": torch, "sl": sl}
    tree = ast.parse(code)
    last = tree.body.pop()
    assert isinstance(last, ast.Expr)
    exec(compile(tree, "<notes>", "exec"), names)
    return str(eval(compile(ast.Expression(last.value), "<notes>", "eval"), names))


def page(parts: list[Part], language: str) -> str:
    rows = [row for part in parts for row in part.rows]
    shown = [row for row in rows if row.is_shown]
    counts = TEXTS["counts"][language].format(
        rows=len(rows),
        shown=len(shown),
        wrong=sum(bool(row.right) for row in shown),
        missing=len(rows) - len(shown),
    )
    lines = [f"# {TEXTS['title'][language]}", "", TEXTS["intro"][language], "", counts]
    number = 0
    for part in parts:
        lines += ["", f"## {part.title[language]}", ""]
        lines += [f"| | {TEXTS['says'][language]} | {TEXTS['shown'][language]} |", "|--:|---|---|"]
        codes = list[tuple[int, Row]]()
        for row in part.rows:
            number += 1
            lines.append(
                f"| {number} | {statement(row, language)} | {evidence(row, language, number)} |"
            )
            if row.code:
                codes.append((number, row))
        for place, row in codes:
            lines += ["", f'<a id="code-{place}"></a>', "", f"{place}.", "", "```python"]
            lines += [*row.code.splitlines(), f"# {row.gives}", "```"]
    return "\n".join(lines) + "\n"


def statement(row: Row, language: str) -> str:
    said = cell(row.says[language])
    if not row.right:
        return said
    return f"{said} {TEXTS['wrong'][language]}: **{cell(row.right[language])}**"


def evidence(row: Row, language: str, number: int) -> str:
    if row.run:
        return f"`{cell(row.run)}`"
    if row.lab:
        report = "README.md" if language == "en" else "ja.md"
        return f"[`sightline lab run {row.lab}`]({report}#{row.lab})"
    if row.code:
        return f"[Python](#code-{number})"
    return f"*{TEXTS['missing'][language]}*"


def cell(text: str) -> str:
    return text.replace("|", "\\|")


def write() -> None:
    for language, path in PAGES.items():
        path.write_text(page(read_notes(), language), encoding="utf-8")


if __name__ == "__main__":
    write()
