"""Contestants take turns, in the order reversed each round; the machine's limits are measured at
the beginning of each."""

from __future__ import annotations

import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from bench import peers
from bench.native.channel import Contestant, ContestantError
from bench.native.contests import LLAMA, MODULES, OPENVINO, OURS, WEIGHT_BYTES, Contest, Entry
from bench.native.limits import Bandwidth, gemm_peak
from bench.native.models import Prepared, prepared, with_gguf
from sightline.errors import InputError

PAUSE = (
    0.3  # seconds between turns: OpenMP's threads may spin for a fifth of a second after their work
)


@dataclass(slots=True)
class Team:
    """The processes of one contest, ready; those that could not be, with the reason; bytes that a
    token reads, by entry; the numbers that a peer computes in, where they are shorter than float32.
    """

    model: Prepared
    members: dict[Entry, Contestant] = field(default_factory=dict[Entry, Contestant])
    bytes: dict[Entry, int] = field(default_factory=dict[Entry, int])
    absent: dict[str, str] = field(default_factory=dict[str, str])
    computes: dict[str, str] = field(default_factory=dict[str, str])


@contextmanager
def gathered(contest: Contest, threads: int, *, form: str = "language") -> Generator[Team]:
    """Every entry in a process of its own, loaded."""
    team = Team(prepared(contest.model))
    try:
        for entry in contest.entries:
            try:
                join(team, entry, threads, form)
            except ContestantError as error:
                team.absent[entry.label] = str(error)
        yield team
    finally:
        for member in team.members.values():
            member.close()


def join(team: Team, entry: Entry, threads: int, form: str) -> None:
    """Start one and have it load the model. A process that cannot is closed at once."""
    missing = "" if entry.who == OURS else peers.missing(entry.who)
    if missing:
        raise ContestantError(missing)
    member = start(entry.who, threads)
    try:
        answer = member.ask(
            "load_model" if entry.who == OURS and form != "language" else "load",
            **loading(team.model, entry, form),
        )
    except ContestantError:
        member.close()
        raise
    team.members[entry], team.bytes[entry] = member, int(answer.get("bytes", 0))
    if answer.get("computes", "f32") != "f32":
        team.computes[entry.label] = answer["computes"]


def start(who: str, threads: int) -> Contestant:
    python = sys.executable if who == OURS else str(peers.python())
    return Contestant(who, MODULES[who], python=python, threads=threads)


def loading(model: Prepared, entry: Entry, form: str = "language") -> dict[str, Any]:
    """What a contestant is told."""
    path = with_gguf(model).gguf if entry.who in (LLAMA, OPENVINO) else model.folder
    try:
        words = (
            str(with_gguf(prepared("smollm2")).gguf)
            if entry.who == OPENVINO and not model.real
            else ""
        )
    except (InputError, OSError) as error:
        raise ContestantError(
            f"it wants words, and SmolLM2's are not to be had: {error}"
        ) from error
    unread = int(model.unread * WEIGHT_BYTES.get(entry.kind, 0))
    return {"path": str(path), "kind": entry.kind, "form": form, "words": words, "unread": unread}


@dataclass(slots=True)
class Rounds:
    """Every round's figures: work done in a second by entry, GB/s, GFLOP/s."""

    speeds: dict[Entry, list[float]]
    bandwidth: list[float] = field(default_factory=list[float])
    peak: list[float] = field(default_factory=list[float])
    failed: dict[str, str] = field(default_factory=dict[str, str])

    def plain(self) -> dict[str, Any]:
        speeds = {entry.label: figures for entry, figures in self.speeds.items()}
        return {"speeds": speeds, "bandwidth_gb_s": self.bandwidth, "peak_gflops": self.peak}


def race(
    team: Team,
    question: dict[str, Any],
    amount: float,
    *,
    rounds: int,
    threads: int,
    bandwidth: Bandwidth,
) -> Rounds:
    """`amount` is what one turn makes; speeds are in that for a second. Everyone has one turn that
    does not count."""
    found = Rounds({entry: [] for entry in team.members})
    for number in range(rounds + 1):
        if number:
            measure_limits(found, bandwidth, threads)
        order = [entry for entry in team.members if entry.label not in found.failed]
        for entry in order if number % 2 else reversed(order):
            time.sleep(PAUSE)
            try:
                seconds = team.members[entry].ask(**asked(turned(question, number), entry))[
                    "seconds"
                ]
            except ContestantError as error:
                found.failed[entry.label] = str(error)
                continue
            if number:
                found.speeds[entry].append(amount / seconds)
    found.speeds = {
        entry: speeds for entry, speeds in found.speeds.items() if entry.label not in found.failed
    }
    return found


def turned(question: dict[str, Any], number: int) -> dict[str, Any]:
    """Another prompt each round, as much work as the last: nobody shall remember it."""
    prompt = question.get("prompt")
    return (
        question if prompt is None else {**question, "prompt": [*prompt[number:], *prompt[:number]]}
    )


def asked(question: dict[str, Any], entry: Entry) -> dict[str, Any]:
    """A question as one contestant takes it: texts for us, ids for the peers."""
    left_out = ("ids",) if entry.who == OURS else ("texts",)
    return {name: value for name, value in question.items() if name not in left_out}


def measure_limits(found: Rounds, bandwidth: Bandwidth, threads: int) -> None:
    time.sleep(PAUSE)
    read = bandwidth.measure()
    found.bandwidth += [] if read is None else [read]
    found.peak.append(gemm_peak(threads))
