"""Checks the regular expressions of an untrusted tokenizer: only linear-time patterns may run.

The library's regex engine backtracks. Two rules, the first static, the second measured:

1. The number of ways in which a branch can match is bounded: an unbounded repeat contains one atom
   that matches in one way, at most two such repeats follow each other, and all other choices
   together are few.
2. On runs of every kind of character that it repeats, before every other kind or alternating with
   it, it takes a few microseconds per character. `a+b` obeys the first rule, but each of n letters
   a scans all that follow: quadratic.

`\\s+$` is quadratic too, but DeepSeek's models use it: it is allowed on texts without very long
runs of spaces (`check_spaces`).
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

from tokenizers import Regex, pre_tokenizers

from sightline.errors import CheckpointError, InputError
from sightline.text.vocabulary.pre_tokenizers import DEFAULT, GPT2, LLAMA3, QWEN2

LAST_SPACES = r"\s+$"
KNOWN = frozenset({GPT2, LLAMA3, QWEN2, *DEFAULT, LAST_SPACES})
MAX_SPACES = 10_000
MAX_PATTERN = 4096
MAX_DEPTH = 32
SMALL_COUNT = 16  # more repeats than these count as endless; models use {1,3}
MAX_UNBOUNDED = 2  # in a row; the models' own patterns have two
MAX_WAYS = 1000

GROUP = re.compile(r"\((?:\?(?:[:=!>]|<[=!]|[im-]*:|<\w+>))?")
FLAGS = re.compile(r"\(\?[im-]+\)")
ESCAPE = re.compile(r"\\(?:[pPx]\{[^}]*\}|x[0-9a-fA-F]{1,2}|u[0-9a-fA-F]{4}|[^1-9kg])", re.DOTALL)
# x?y: whether there is an x decides
DECIDED = re.compile(r"(\\[rnt]|[A-Za-z0-9 ])\?(?=(\\[rnt]|[A-Za-z0-9 ])(?![?*{]))")
COUNT = re.compile(r"\{(\d{0,6})(,?)(\d{0,6})\}")
ORIGINAL = "use the model's original tokenizer.json"

SECONDS_PER_CHARACTER = 5e-6
SECONDS_MORE = 2e-3
SHORT = 64
MIDDLE = 512
LONG = (4096, 16_384)
MEASURABLE = 0.01  # seconds; shorter times are too noisy to measure growth
SLOWEST = 4  # of the runs of middle length are measured in full length
ASCII = "".join(map(chr, range(128)))
OTHERS = (
    "ªµ¼²ÀßéǅʰʼΩЖאع،٣अाक๑ᄀ한あアー一龥、。"
    "…–«»“”€©™！Ａ😀\U00020000\x85\xa0\xad\u0301\u200b\u200d\u2003\u2028\ue000\ufeff"
)


@dataclass(frozen=True, slots=True)
class Ways:
    """The number of ways to match at one position: `count` · length ** `degree`."""

    count: int = 1
    degree: int = 0


def check_pattern(where: str, pattern: str) -> None:
    """Refuse a pattern whose matching time is not proportional to the text."""
    if len(pattern) > MAX_PATTERN:
        raise CheckpointError(
            f"{where}: a pattern of {len(pattern)} characters",
            expected=f"at most {MAX_PATTERN}",
            fix=ORIGINAL,
        )
    if reason := reason_to_refuse(pattern):
        raise CheckpointError(
            f"{where}: the pattern {pattern[:60]!r} {reason}",
            expected="a pattern whose time is bounded",
            fix=ORIGINAL,
        )


@lru_cache(maxsize=256)
def reason_to_refuse(pattern: str) -> str:
    """Why a pattern is refused; empty if it is allowed."""
    parser = PatternParser(pattern)
    try:
        ways = parser.parse()
    except UnboundedError as reason:
        return str(reason)
    if ways.degree > MAX_UNBOUNDED:
        return "repeats three times in one branch"
    if ways.count > MAX_WAYS:
        return f"has more than {MAX_WAYS} ways to match at one place"
    if (
        parser.pumped
        and pattern not in KNOWN
        and is_slow(pattern, unique(parser.pumped), unique(parser.atoms))
    ):
        return (
            "takes more than a few microseconds per character: its time is not proportional to the"
            " text"
        )
    return ""


# ------------------------------------------------------------------------------ reading a pattern


class UnboundedError(Exception):
    """Why a pattern cannot be bounded."""


class PatternParser:
    """Parses a pattern from left to right. `atoms` are its characters and classes, `pumped` those
    that repeat without bound."""

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self.at = 0
        self.depth = 0
        self.atoms: list[str] = []
        self.pumped: list[str] = []

    def parse(self) -> Ways:
        ways = self.alternatives()
        if self.at < len(self.pattern):
            raise UnboundedError("closes a group that it did not open")
        return ways

    def alternatives(self) -> Ways:
        """a|b|c"""
        ways = self.sequence()
        while self.next_is("|"):
            self.at += 1
            other = self.sequence()
            ways = Ways(ways.count + other.count, max(ways.degree, other.degree))
        return ways

    def sequence(self) -> Ways:
        """abc"""
        ways = Ways()
        while self.at < len(self.pattern) and not self.next_is("|") and not self.next_is(")"):
            before = len(self.atoms)
            each = self.repeats(self.item(), before)
            ways = Ways(min(ways.count * each.count, MAX_WAYS + 1), ways.degree + each.degree)
        return ways

    def item(self) -> Ways:
        """A group, a class or a character."""
        if flags := FLAGS.match(self.pattern, self.at):
            self.at = flags.end()
            return Ways()
        decided = DECIDED.match(self.pattern, self.at)
        if decided and decided[1].lower() != decided[2].lower():
            self.atoms.append(decided[1])
            self.at = decided.end()
            return Ways()
        if self.next_is("("):
            return self.group()
        start = self.at
        self.at = self.end_of_class(start) if self.next_is("[") else self.end_of_character(start)
        self.atoms.append(self.pattern[start : self.at])
        return Ways()

    def group(self) -> Ways:
        match = GROUP.match(self.pattern, self.at)
        if match is None or self.pattern.startswith("?", match.end()) or self.depth == MAX_DEPTH:
            raise UnboundedError("has a group of a kind that is not supported")
        self.at = match.end()
        self.depth += 1
        ways = self.alternatives()
        self.depth -= 1
        if not self.next_is(")"):
            raise UnboundedError("opens a group that it does not close")
        self.at += 1
        return ways

    def end_of_character(self, start: int) -> int:
        if not self.next_is("\\"):
            return start + 1
        if (match := ESCAPE.match(self.pattern, start)) is None:
            raise UnboundedError("refers back to a group")
        return match.end()

    def end_of_class(self, start: int) -> int:
        """The index after the ] of a class, which may contain classes."""
        at = start + (2 if self.pattern.startswith("[^", start) else 1)
        at += self.pattern.startswith("]", at)
        while at < len(self.pattern):
            if self.pattern[at] == "]":
                return at + 1
            at = (
                self.end_of_class(at)
                if self.pattern[at] == "["
                else at + (2 if self.pattern[at] == "\\" else 1)
            )
        raise UnboundedError("opens a class that it does not close")

    def repeats(self, ways: Ways, before: int) -> Ways:
        """Apply the quantifiers after an item whose atoms are those from `before` on."""
        while (bounds := self.bounds()) is not None:
            ways = repeat(ways, *bounds)
            if not is_small(*bounds):
                self.pumped += self.atoms[before:]
        return ways

    def bounds(self) -> tuple[int, int | None] | None:
        """The minimum and maximum of the next quantifier, the latter None if unbounded; None if
        there is no quantifier."""
        simple: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
        character = self.pattern[self.at : self.at + 1]
        if character in simple:
            self.at += 1
            self.at += self.next_is("?") or self.next_is("+")  # lazy or possessive
            return simple[character]
        match = COUNT.match(self.pattern, self.at)
        if match is None or not (match[1] or match[3]):
            return None
        self.at = match.end()
        self.at += self.next_is("?")
        least = int(match[1] or 0)
        if not match[2]:
            return least, least
        return least, int(match[3]) if match[3] else None

    def next_is(self, character: str) -> bool:
        return self.pattern.startswith(character, self.at)


def is_small(least: int, most: int | None) -> bool:
    return most is not None and max(least, most) <= SMALL_COUNT


def unique(atoms: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(atoms))


def repeat(ways: Ways, least: int, most: int | None) -> Ways:
    """The ways to match something `least` to `most` times."""
    if most is not None and is_small(least, most):
        count = sum(
            min(ways.count**times, MAX_WAYS + 1)
            for times in range(min(least, most), max(least, most) + 1)
        )
        return Ways(min(count, MAX_WAYS + 1), ways.degree * max(least, most))
    if ways != Ways():
        raise UnboundedError("repeats a group that repeats or chooses")
    return Ways(1, 1)


# ------------------------------------------------------------------------------ running a pattern


def is_slow(pattern: str, pumped: tuple[str, ...], atoms: tuple[str, ...]) -> bool:
    """Whether some text takes more than a few microseconds per character. A pattern that does not
    compile is refused by the library."""
    try:
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
    except Exception:
        return False
    kinds = kinds_of_characters(atoms)
    # a pattern that requires a character may not start on a text without it
    tail = "".join(kinds)
    seconds: dict[tuple[str, str], float] = {}
    for first, second in product(kinds_of_characters(pumped), kinds):
        for pump, end in (
            (first, second + tail),
            (first + second, tail),
            (first + second, tail[::-1]),
        ):
            if any(is_above(split, pump, end, length) for length in (SHORT, MIDDLE)):
                return True
            seconds[pump, end] = time_of(split, pump, end, MIDDLE)
    slowest = sorted(seconds, key=lambda run: -seconds[run])[:SLOWEST]
    return any(
        grows_faster_than_the_text(split, pump, end)
        or any(is_above(split, pump, end, length) for length in LONG)
        for pump, end in slowest
    )


def is_above(split: pre_tokenizers.PreTokenizer, pump: str, end: str, length: int) -> bool:
    """Whether a run exceeds the time limit twice."""
    limit = length * SECONDS_PER_CHARACTER + SECONDS_MORE
    return all(time_of(split, pump, end, length) > limit for _ in range(2))


def grows_faster_than_the_text(split: pre_tokenizers.PreTokenizer, pump: str, end: str) -> bool:
    """Whether four times the text takes more than eight times as long: linear time takes four,
    quadratic time sixteen. Also works on fast machines, where `is_above` needs longer texts."""
    shorter, longer = (min(time_of(split, pump, end, length) for _ in range(3)) for length in LONG)
    return longer > MEASURABLE and longer > 2 * (LONG[1] / LONG[0]) * shorter


def time_of(split: pre_tokenizers.PreTokenizer, pump: str, end: str, length: int) -> float:
    """CPU time of this thread, independent of the machine's load."""
    text = pump * (length // len(pump)) + end
    start = time.thread_time()
    split.pre_tokenize_str(text)
    return time.thread_time() - start


def kinds_of_characters(atoms: tuple[str, ...]) -> list[str]:
    """One character of each kind that the atoms distinguish."""
    palette = "".join(
        dict.fromkeys(
            [*ASCII, *OTHERS, *(character for atom in atoms for character in literals(atom))]
        )
    )
    members = [
        set(matched_places(form, palette)) for atom in atoms for form in (atom, f"(?i:{atom})")
    ]
    kinds: dict[tuple[bool, ...], str] = {}
    for place, character in enumerate(palette):
        kinds.setdefault(tuple(place in each for each in members), character)
    return list(kinds.values())


def literals(atom: str) -> list[str]:
    """The characters in an atom, literal or as hexadecimal codes."""
    codes = re.findall(r"\\(?:x\{([0-9a-fA-F]{1,6})\}|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4}))", atom)
    numbers = [int("".join(code), 16) for code in codes]
    return [
        *atom,
        *(chr(number) for number in numbers if number < 0x110000 and not 0xD800 <= number < 0xE000),
    ]


def matched_places(atom: str, palette: str) -> list[int]:
    """The indices of the characters that an atom matches."""
    try:
        pieces = pre_tokenizers.Split(Regex(atom), "removed").pre_tokenize_str(palette)
    except Exception:
        return []
    unmatched = {place for _, (start, end) in pieces for place in range(start, end)}
    return [place for place in range(len(palette)) if place not in unmatched]


def check_spaces(where: object, text: str) -> None:
    """For tokenizers with LAST_SPACES: no run of spaces that would take seconds."""
    longest = max(map(len, re.findall(r"\s+", text)), default=0) if len(text) > MAX_SPACES else 0
    if longest > MAX_SPACES:
        raise InputError(
            f"{where}: a run of {longest} spaces",
            expected=f"at most {MAX_SPACES} for this tokenizer",
            fix="shorten the run",
        )
