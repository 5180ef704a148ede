"""Did-you-mean for names: typing errors only, not other names that look alike (mt5 and t5, qwen3
and qwen2)."""

from __future__ import annotations

from collections.abc import Iterable

# Other architectures whose names are a letter or two away from one of ours.
_NAMES = """
bark beit bort gpt_neo llava mbart ministral mixtral modernvbert phi3_v phi3v qwen2_vl qwen3_vl
roc_bert xlm-roberta-xl
"""
OTHER_ARCHITECTURES = frozenset(_NAMES.split())
SHORTEST = 4
LONG = 8  # from this length on, two errors are still a typing error
LONGEST = 80


def misspelling_of(name: str, known: Iterable[str]) -> str | None:
    """The one known name that differs from this one by a letter or two, by its case or by its
    separators."""
    if not SHORTEST <= len(name) <= LONGEST:
        return None
    distances = {
        other: edits(_letters(name), _letters(other)) for other in known if _may_mean(name, other)
    }
    limit = 2 if len(name) >= LONG else 1
    nearest = min(distances.values(), default=limit + 1)
    candidates = [other for other, distance in distances.items() if distance == nearest <= limit]
    return candidates[0] if len(candidates) == 1 else None


def _may_mean(name: str, other: str) -> bool:
    """Typing errors change neither the first letter nor a number: those tell one model from the
    next."""
    same_start = name[0].lower() == other[0].lower()
    near_in_length = abs(len(name) - len(other)) <= 3
    return same_start and near_in_length and _digits(name) == _digits(other)


def _digits(name: str) -> str:
    return "".join(letter for letter in name if letter.isdigit())


def _letters(name: str) -> str:
    """Case and separators are not counted."""
    return name.lower().replace("_", "").replace("-", "")


def edits(a: str, b: str) -> int:
    """How many insertions, deletions, replacements and swaps of neighbours lead from `a` to `b`."""
    before: list[int] = []
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        previous = row
        row = [i]
        for j, other in enumerate(b, 1):
            least = min(previous[j] + 1, row[j - 1] + 1, previous[j - 1] + (letter != other))
            swapped = i > 1 and j > 1 and letter == b[j - 2] and a[i - 2] == other
            row.append(min(least, before[j - 2] + 1) if swapped else least)
        before = previous
    return row[-1]
