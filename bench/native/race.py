"""Contestants alternate, with the order reversed in every round; the machine's limits are measured
at the start of each round."""

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
from bench.native.models import Prepared, prepare_model, with_gguf
from sightline.errors import InputError

PAUSE = 0.3  # seconds between turns: OpenMP threads may spin for 0.2 s after their work


@dataclass(slots=True)
class Team:
    """The processes of one contest with their models loaded; the entries that failed, with the
    reason; the bytes read per token, by entry; and the data type of a peer's arithmetic where it is
    narrower than float32."""

    model: Prepared
    members: dict[Entry, Contestant] = field(default_factory=dict[Entry, Contestant])
    bytes: dict[Entry, int] = field(default_factory=dict[Entry, int])
    absent: dict[str, str] = field(default_factory=dict[str, str])
    computes: dict[str, str] = field(default_factory=dict[str, str])


@contextmanager
def start_team(contest: Contest, threads: int, *, form: str = "language") -> Generator[Team]:
    """Start every entry in its own process and load the model."""
    team = Team(prepare_model(contest.model))
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
    """Start a contestant and load the model in it; if that fails, close the process."""
    missing = "" if entry.who == OURS else peers.missing_reason(entry.who)
    if missing:
        raise ContestantError(missing)
    member = start(entry.who, threads)
    try:
        answer = member.ask(
            "load_model" if entry.who == OURS and form != "language" else "load",
            **load_arguments(team.model, entry, form),
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


def load_arguments(model: Prepared, entry: Entry, form: str = "language") -> dict[str, Any]:
    """The arguments of a contestant's `load`."""
    path = with_gguf(model).gguf if entry.who in (LLAMA, OPENVINO) else model.folder
    try:
        words = (
            str(with_gguf(prepare_model("smollm2")).gguf)
            if entry.who == OPENVINO and not model.real
            else ""
        )
    except (InputError, OSError) as error:
        raise ContestantError(
            f"it needs a tokenizer, and SmolLM2's is not available: {error}"
        ) from error
    unread = int(model.unread * WEIGHT_BYTES.get(entry.kind, 0))
    return {"path": str(path), "kind": entry.kind, "form": form, "words": words, "unread": unread}


@dataclass(slots=True)
class Rounds:
    """The measurements of every round: work per second by entry, GB/s, GFLOP/s."""

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
    """Run all rounds. `amount` is the work of one turn; speeds are per second. The first turn of
    every contestant is a warm-up."""
    results = Rounds({entry: [] for entry in team.members})
    for number in range(rounds + 1):
        if number:
            measure_limits(results, bandwidth, threads)
        order = [entry for entry in team.members if entry.label not in results.failed]
        for entry in order if number % 2 else reversed(order):
            time.sleep(PAUSE)
            request = question_for(entry, rotate_prompt(question, number))
            try:
                seconds = team.members[entry].ask(**request)["seconds"]
            except ContestantError as error:
                results.failed[entry.label] = str(error)
                continue
            if number:
                results.speeds[entry].append(amount / seconds)
    results.speeds = {
        entry: speeds
        for entry, speeds in results.speeds.items()
        if entry.label not in results.failed
    }
    return results


def rotate_prompt(question: dict[str, Any], number: int) -> dict[str, Any]:
    """A different prompt of the same length for each round, so that no prefix cache can hit."""
    prompt = question.get("prompt")
    return (
        question if prompt is None else {**question, "prompt": [*prompt[number:], *prompt[:number]]}
    )


def question_for(entry: Entry, question: dict[str, Any]) -> dict[str, Any]:
    """The question in a contestant's form: texts for ours, token ids for the peers."""
    omitted = "ids" if entry.who == OURS else "texts"
    return {name: value for name, value in question.items() if name != omitted}


def measure_limits(results: Rounds, bandwidth: Bandwidth, threads: int) -> None:
    time.sleep(PAUSE)
    gigabytes = bandwidth.measure()
    results.bandwidth += [] if gigabytes is None else [gigabytes]
    results.peak.append(gemm_peak(threads))
