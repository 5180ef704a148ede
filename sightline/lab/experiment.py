"""An experiment: a claim with its source, the parts that measure it, the rule that turns numbers
into a verdict, and figures.

    claim → pilots(tier) → tuned rates → parts(plan) → numbers → judge(numbers) → verdict
                                                               → draw(numbers)  → figures

A part is a name and a function; it returns JSON-serializable numbers. Finished parts are saved and
not run again. `judge` computes the verdict whenever a result is read; no verdict is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.errors import InputError, SightlineError
from sightline.lab.japanese import to_japanese
from sightline.lab.statistics import Decision, all_hold
from sightline.lab.style import draw_in_japanese, has_japanese_font

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tier = Literal["quick", "default", "full"]
TIERS: tuple[Tier, ...] = ("quick", "default", "full")
LIMITS = {"quick": "one minute", "default": "ten minutes", "full": "as long as it takes"}
FIRST_SEED = 100  # seeds below are for pilots
SECOND_SEED = 1000  # of the second run in docs/laboratory
CHECK_MARKS = {True: "✓", False: "✗", None: "?"}
Verdict = Literal["supported", "not supported", "inconclusive"]
Numbers = Mapping[str, Any]  # part name → what it measured


@dataclass(frozen=True, slots=True)
class Words:
    """A text in both languages."""

    en: str
    ja: str

    def __getitem__(self, language: str) -> str:
        return self.ja if language == "ja" else self.en


@dataclass(frozen=True, slots=True)
class ExperimentPart:
    """One measurement. `name` states everything that its numbers depend on besides the code:
    "width-64.seed-1". A part that measures time is `alone`: nothing runs in parallel with it."""

    name: str
    measure: Callable[[], Any]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class TunedRate:
    """The learning rate of one arm, chosen by the mean score of its pilots; less is better."""

    arm: str
    rate: float
    at_edge: bool
    scores: tuple[tuple[float, float], ...]  # each rate with its mean score


@dataclass(frozen=True, slots=True)
class Plan:
    """What to measure: the tier, the first of the seeds, the tuned rates by arm; `settle`: the
    number of seeds that `--settle` asks for."""

    tier: Tier = "default"
    seed: int = FIRST_SEED
    rates: Mapping[str, TunedRate] = field(default_factory=dict[str, TunedRate])
    settle: int | None = None

    def seeds(self, usual: Mapping[Tier, int] | int) -> range:
        """The seeds of every arm: as many as usual in this tier, or as `--settle` asks for."""
        count = usual if isinstance(usual, int) else usual[self.tier]
        return range(self.seed, self.seed + max(count, self.settle or 0))

    def rate(self, arm: str) -> float:
        return self.rates[arm].rate


@dataclass(frozen=True, slots=True)
class Check:
    """One statement of the claim, whether it holds (None: undecided), and the numbers that decide
    it. `decisions` are the comparisons over seeds behind it."""

    statement: Words
    holds: bool | None
    measured: str
    decisions: tuple[Decision, ...] = ()

    @classmethod
    def over_seeds(cls, statement: Words, measured: str, *decisions: Decision) -> Check:
        """A check that holds if all of its comparisons do."""
        return cls(statement, all_hold([one.holds for one in decisions]), measured, decisions)

    @property
    def effect(self) -> float | None:
        """The smallest effect of its comparisons, in standard deviations between seeds."""
        effects = [abs(one.effect) for one in self.decisions if one.effect is not None]
        return min(effects, default=None)

    @property
    def power(self) -> Power | None:
        """How many seeds would decide it; None if it is decided or has no comparison over seeds."""
        undecided = [one for one in self.decisions if one.holds is None]
        if self.holds is not None or not undecided:
            return None
        needed = [one.seeds_needed for one in undecided]
        most = None if None in needed else max(n for n in needed if n is not None)
        return Power(self.statement, max(one.seeds for one in undecided), most)


@dataclass(frozen=True, slots=True)
class Power:
    """Seeds measured, and seeds that decide a check with a chance of 80% if the effect is what it
    seems; None: more than anyone would run, or no effect to go by."""

    statement: Words
    seeds: int
    needed: int | None


def no_pilots(tier: Tier) -> Sequence[ExperimentPart]:
    """Of an experiment that tunes nothing."""
    del tier
    return ()


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """`pilots` is a function only of the tier, `parts` only of the plan; `judge`, `draw` and
    `summarize` are functions only of the numbers, pilots included. `settle` is the number of seeds,
    declared beforehand, at which `--settle` stops; 0 where no seeds are compared. `arms` names the
    arms of the pilots."""

    name: str
    title: Words
    claim: Words
    source: str
    equation: str
    look_for: Words
    parts: Callable[[Plan], Sequence[ExperimentPart]]
    judge: Callable[[Numbers], Sequence[Check]]
    draw: Callable[[Numbers], Mapping[str, Figure]]
    pilots: Callable[[Tier], Sequence[ExperimentPart]] = no_pilots
    settle: int = 0
    arms: Mapping[str, Words] = field(default_factory=dict[str, Words])
    corrections: Sequence[Words] = ()
    summarize: Callable[[Numbers], Words] | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class Finding:
    """The result of an experiment. `complete` is False where it was interrupted."""

    experiment: Experiment
    tier: Tier
    seed: int
    numbers: Numbers
    seconds: float
    complete: bool
    rates: Mapping[str, TunedRate] = field(default_factory=dict[str, TunedRate])
    seeds: int = 0
    seconds_per_seed: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    path: Path | None = None

    @contextmanager
    def using_numbers(self) -> Generator[None]:
        """Turn any failure on saved numbers of an unexpected shape into one InputError."""
        try:
            yield
        except (SightlineError, OSError):
            raise
        except Exception as error:
            place = self.path or f"the result of {self.experiment.name}"
            message = (
                f"{place}: the saved numbers are not what {self.experiment.name} measures"
                f" ({type(error).__name__}: {error})"
            )
            raise InputError(
                " ".join(message.split())[:400],
                fix=f"delete it (rm {place}) and run the experiment again",
            ) from error

    @property
    def checks(self) -> Sequence[Check]:
        if not self.complete:
            return ()
        with self.using_numbers():
            return self.experiment.judge(self.numbers)

    @property
    def at_edge(self) -> list[str]:
        """The arms whose best learning rate is the lowest or highest that was tried."""
        return [arm for arm, tuned in self.rates.items() if tuned.at_edge]

    @property
    def verdict(self) -> Verdict:
        """Supported if every check holds, not supported if one fails, inconclusive otherwise, and
        where an arm's best learning rate may lie outside the grid."""
        return verdict_of(self.checks) if self.complete and not self.at_edge else "inconclusive"

    @property
    def powers(self) -> list[Power]:
        """For each undecided check over seeds, how many would decide it."""
        return [power for check in self.checks if (power := check.power)]

    def measured(self, check: Check, language: str = "en") -> str:
        """The numbers of a check as a text in this language, with the smallest effect."""
        text = to_japanese(check.measured) if language == "ja" else check.measured
        if check.effect is None:
            return text
        return f"{text}{'；効果量' if language == 'ja' else '; effect'} {check.effect:.1f} σ"

    @property
    def summary(self) -> Words | None:
        """The result in sentences, for experiments that define `summarize`."""
        if not self.complete or self.experiment.summarize is None:
            return None
        with self.using_numbers():
            return self.experiment.summarize(self.numbers)

    def figures(self, language: str = "en") -> Mapping[str, Figure]:
        """The figures by name; in Japanese where a font for it is installed, else in English."""
        if not self.complete:
            return {}
        with self.using_numbers():
            if language == "ja" and has_japanese_font():
                return draw_in_japanese(lambda: self.experiment.draw(self.numbers))
            return self.experiment.draw(self.numbers)

    def __repr__(self) -> str:
        return f"<Finding {self.experiment.name}: {self._state()}, {self.tier}, seed {self.seed}>"

    def _repr_html_(self) -> str:
        """The claim, its checks as a table and the verdict, for notebooks."""
        experiment = self.experiment
        head = f"<h4>{escape(experiment.title.en)}</h4><p>{escape(experiment.claim.en)}</p>"
        state = f"<p><b>{escape(self._state())}</b> ({self.tier}, seed {self.seed})</p>"
        try:
            cells = [(CHECK_MARKS[c.holds], c.statement.en, c.measured) for c in self.checks]
        except InputError:
            return head + state
        rows = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells
        )
        return f"{head}<table>{rows}</table>{state}"

    def _state(self) -> str:
        """`supported, 5 of 5 checks hold`; never raises."""
        if not self.complete:
            return "incomplete"
        try:
            checks = self.checks
        except InputError:
            return "unreadable numbers"
        held = sum(check.holds is True for check in checks)
        return f"{verdict_of(checks)}, {held} of {len(checks)} checks hold"


def part_fields(name: str) -> dict[str, str]:
    """`run.post.depth-4.seed-1` → kind run, form post, depth 4, seed 1."""
    kind, form, *rest = name.split(".")
    return {"kind": kind, "form": form, **dict(field.split("-", 1) for field in rest)}


def verdict_of(checks: Sequence[Check]) -> Verdict:
    if any(check.holds is False for check in checks):
        return "not supported"
    return "supported" if checks and all(check.holds for check in checks) else "inconclusive"
