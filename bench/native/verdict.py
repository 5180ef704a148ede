"""Verdicts from the rounds' figures: medians with ranges, ratios per round, and whether the
difference is larger than the noise."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

NOISY = "too noisy to call"


@dataclass(frozen=True, slots=True)
class Spread:
    """The median, the minimum and the maximum of the rounds."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, figures: Sequence[float]) -> Spread:
        return cls(statistics.median(figures), min(figures), max(figures))

    @property
    def called(self) -> bool:
        """Whether a ratio is above or below 1 in every round."""
        return self.low > 1 or self.high < 1


def ratio_of(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """The ratio ours / theirs, round by round: what disturbed a round disturbed both."""
    return Spread.of([a / b for a, b in zip(ours, theirs, strict=True)])


def best_of(speeds: Mapping[str, Sequence[float]]) -> str:
    """The name with the largest median."""
    return max(speeds, key=lambda name: statistics.median(speeds[name]))


def judge(ratio: Spread, goal: float | None) -> str:
    """The verdict in one phrase, with its own wording where only some rounds reach the goal."""
    if not ratio.called:
        return NOISY
    if goal is None:
        return "ahead" if ratio.median > 1 else "behind"
    if ratio.median >= goal:
        return "met" if ratio.low >= goal else "met by the median, not in every round"
    return (
        "short of the goal" if ratio.high < goal else "short by the median, reached in some rounds"
    )


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table. Without a ratio, `remark` gives the reason. `bandwidth`: the share of
    the machine's. A goal that was set against a peer other than the best is judged by `promised`.
    `ceiling`: the multiple of the best peer at full memory bandwidth."""

    work: str
    model: str
    ours: str
    speed: Spread | None = None
    peer: str = ""
    peer_speed: Spread | None = None
    ratio: Spread | None = None
    goal: float | None = None
    goal_peer: str = ""
    promised: Spread | None = None
    bandwidth: Spread | None = None
    bandwidth_goal: float | None = None
    ceiling: Spread | None = None
    others: Mapping[str, Spread] | None = None
    remark: str = ""

    @property
    def verdict(self) -> str:
        phrases = [*self.on_the_goal()]
        if (
            self.ratio
            and self.ceiling
            and self.goal
            and self.ratio.high < self.goal
            and self.ratio.median <= self.ceiling.median < self.goal
        ):
            phrases.append(f"the whole bandwidth would give {self.ceiling.median:.2f}×")
        if (
            self.bandwidth is not None
            and self.bandwidth_goal is not None
            and self.bandwidth.median < self.bandwidth_goal
        ):
            phrases.append(f"bandwidth below {self.bandwidth_goal:.0%}")
        return "; ".join([*phrases, *([self.remark] if self.remark else [])])

    def on_the_goal(self) -> list[str]:
        if self.ratio is None:
            return []
        if not self.goal_peer:
            return [judge(self.ratio, self.goal)]
        best = f"{self.peer}: {judge(self.ratio, None)}"
        if self.promised is None:
            return [f"the goal is against {self.goal_peer}, which did not run", best]
        return [
            f"{judge(self.promised, self.goal)}: {self.promised.median:.2f}× {self.goal_peer}",
            best,
        ]

    def plain(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if value not in (None, "")} | {
            "verdict": self.verdict
        }

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> Row:
        """A row from the stored results; its verdict is computed again."""
        read = {
            name: Spread(**value) if isinstance(value, dict) and name != "others" else value
            for name, value in plain.items()
        }
        read["others"] = {
            name: Spread(**value) for name, value in plain.get("others", {}).items()
        } or None
        return cls(**{name: value for name, value in read.items() if name != "verdict"})


def row_of(
    work: str,
    model: str,
    ours: str,
    speeds: Mapping[str, Sequence[float]],
    *,
    goal: float | None = None,
    against: str = "",
    shares: Sequence[float] | None = None,
    bandwidth_goal: float | None = None,
    remark: str = "",
) -> Row:
    """A row from the figures of all rounds; `speeds` has ours under its own name and the peers
    under theirs. `against`: the peer that the goal names, if not the best."""
    peers = {name: speeds[name] for name in speeds if name != ours}
    own = Spread.of(speeds[ours])
    share = None if shares is None else Spread.of(shares)
    if not peers:
        nobody = "; ".join(filter(None, ["no peer could run it", remark]))
        return Row(
            work,
            model,
            ours,
            own,
            bandwidth=share,
            bandwidth_goal=bandwidth_goal,
            goal=goal,
            remark=nobody,
        )
    best = best_of(peers)
    goal_peer = next((name for name in peers if against and name.startswith(against)), against)
    ratios = {name: ratio_of(speeds[ours], figures) for name, figures in peers.items()}
    return Row(
        work,
        model,
        ours,
        speed=own,
        peer=best,
        peer_speed=Spread.of(peers[best]),
        ratio=ratios[best],
        goal=goal,
        goal_peer=goal_peer if goal is not None and goal_peer != best else "",
        promised=ratios.get(goal_peer) if goal is not None and goal_peer != best else None,
        bandwidth=share,
        bandwidth_goal=bandwidth_goal,
        ceiling=(
            None
            if shares is None
            else ratio_of([a / b for a, b in zip(speeds[ours], shares, strict=True)], peers[best])
        ),
        others={name: Spread.of(figures) for name, figures in peers.items()},
        remark=remark,
    )
