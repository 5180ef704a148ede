"""An experiment: a claim with its source, parts that measure, a rule that gives the verdict from
the numbers, figures.

    claim → parts(budget) → numbers → judge(numbers) → supported | not supported | inconclusive
                                    → draw(numbers)  → figures

A part is a name and a function of a seed; it gives plain numbers. Parts that are done are kept on
disk and not run again. The verdict is computed by `judge` whenever a result is read, never written
down by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from sightline.errors import InputError, SightlineError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Tier = Literal["quick", "default", "full"]
TIERS: tuple[Tier, ...] = ("quick", "default", "full")
LIMITS = {"quick": "one minute", "default": "ten minutes", "full": "as long as it takes"}
Verdict = Literal["supported", "not supported", "inconclusive"]
Numbers = Mapping[str, Any]  # part → what it measured, as JSON has it


@dataclass(frozen=True, slots=True)
class Words:
    """A text in both languages."""

    en: str
    ja: str

    def __getitem__(self, language: str) -> str:
        return self.ja if language == "ja" else self.en


@dataclass(frozen=True, slots=True)
class Part:
    """One measurement. `name` says all that its numbers depend on besides the experiment's code:
    "width-64.seed-1". What measures time is `alone`: nothing else runs beside it."""

    name: str
    measure: Callable[[], Any]
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Check:
    """One thing that the claim says, whether the numbers bear it out (None: they do not decide),
    and the numbers."""

    says: Words
    holds: bool | None
    found: str


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """`parts` may not depend on anything but the tier and the first seed; `judge` and `draw` on
    nothing but the numbers."""

    name: str
    title: Words
    claim: Words
    source: str
    equation: str
    look_for: Words
    parts: Callable[[Tier, int], Sequence[Part]]
    judge: Callable[[Numbers], Sequence[Check]]
    draw: Callable[[Numbers], Mapping[str, Figure]]
    corrections: Sequence[Words] = ()
    told: Callable[[Numbers], Words] | None = None


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What an experiment found. `complete` is False where it was interrupted."""

    experiment: Experiment
    tier: Tier
    seed: int
    numbers: Numbers
    seconds: float
    complete: bool
    versions: Mapping[str, str] = field(default_factory=dict[str, str])
    path: Path | None = None

    @contextmanager
    def using_numbers(self) -> Generator[None]:
        """Numbers of another shape than the experiment measures are refused in one line, wherever
        that shows."""
        try:
            yield
        except (SightlineError, OSError):
            raise
        except Exception as error:
            place = self.path or f"the result of {self.experiment.name}"
            seen = (
                f"{place}: the saved numbers are not what {self.experiment.name} measures"
                f" ({type(error).__name__}: {error})"
            )
            raise InputError(
                " ".join(seen.split())[:400],
                fix=f"delete it (rm {place}) and run the experiment again",
            ) from error

    @property
    def checks(self) -> Sequence[Check]:
        if not self.complete:
            return ()
        with self.using_numbers():
            return self.experiment.judge(self.numbers)

    @property
    def verdict(self) -> Verdict:
        """Supported if every check holds, not supported if one does not, inconclusive if the
        numbers leave one open."""
        return verdict_of(self.checks) if self.complete else "inconclusive"

    @property
    def summary(self) -> Words | None:
        """What was found, in words, where the experiment has any for it."""
        if not self.complete or self.experiment.told is None:
            return None
        with self.using_numbers():
            return self.experiment.told(self.numbers)

    def figures(self) -> Mapping[str, Figure]:
        if not self.complete:
            return {}
        with self.using_numbers():
            return self.experiment.draw(self.numbers)


def verdict_of(checks: Sequence[Check]) -> Verdict:
    if any(check.holds is False for check in checks):
        return "not supported"
    return "supported" if checks and all(check.holds for check in checks) else "inconclusive"
