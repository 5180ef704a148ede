"""The workloads: the request of one turn, the amount of work in it, and the table rows from its
rounds."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

from bench.native.contests import LONG, NEW, OURS, PROMPT, Contest, Entry, goal_of
from bench.native.limits import Bandwidth
from bench.native.models import Prepared, prepare_model
from bench.native.quality import held_out
from bench.native.race import Rounds, Team, race, start_team
from bench.native.verdict import Row, row_of

FORMS = {
    "decode": "language",
    "prefill": "language",
    "streams": "language",
    "lookup": "language",
    "encode": "encoder",
    "translate": "translator",
}
TEXTS = 200
SOURCE = 20
TARGET = 32


def random_ids(model: Prepared, count: int, seed: int = 0) -> list[int]:
    """Random ids: the cost does not depend on their meaning."""
    chance = random.Random(seed)
    return [chance.randrange(3, model.vocabulary - 1) for _ in range(count)]


def turns(work: str, model: Prepared) -> list[tuple[str, dict[str, Any], float]]:
    """A name, the request, and the amount of work per turn (tokens, texts)."""
    if work == "decode":
        return [
            ("decode", {"do": "decode", "prompt": random_ids(model, PROMPT), "count": NEW}, NEW)
        ]
    if work == "prefill":
        return [("prefill", {"do": "prefill", "prompt": random_ids(model, LONG)}, LONG)]
    if work == "streams":
        return [
            (
                f"{count} streams",
                {
                    "do": "streams",
                    "prompts": [random_ids(model, PROMPT, seed) for seed in range(count)],
                    "count": PROMPT,
                },
                1.0 * count * PROMPT,
            )
            for count in (8, 32)
        ]
    if work == "lookup":
        return [("lookup", {"do": "lookup", "prompt": held_out(model, 48) * 4, "count": NEW}, NEW)]
    if work == "encode":
        return [("encode", {"do": "encode", **texts(model)}, TEXTS)]
    question = {
        "do": "translate",
        "count": TARGET,
        "start": json.loads((model.folder / "config.json").read_text())["decoder_start_token_id"],
    }
    one, eight = ([random_ids(model, SOURCE, seed) for seed in range(count)] for count in (1, 8))
    greedy = ("translate, one greedy", {**question, "sources": one, "beams": 1}, float(TARGET))
    return [
        greedy,
        (
            "translate, eight by four beams",
            {**question, "sources": eight, "beams": 4},
            8.0 * TARGET,
        ),
    ]


def texts(model: Prepared) -> dict[str, Any]:
    """Sentences as texts and as ids."""
    import sightline as sl
    from bench.generation import sentences

    lines = sentences(TEXTS)
    loaded = sl.load(model.folder)
    return {"texts": lines, "ids": [loaded.ids(text) for text in lines]}


def measure(
    contest: Contest, *, rounds: int, threads: int, bandwidth: Bandwidth
) -> tuple[list[Row], dict[str, Any], dict[str, str]]:
    """All rows of one contest, the figures of every round, and the contestants that failed."""
    rows = list[Row]()
    also = dict[str, Any]()
    with start_team(contest, threads, form=FORMS[contest.works[0]]) as team:
        for work in contest.works:
            for name, question, amount in turns(work, prepare_model(contest.model)):
                rounds_of_work = race(
                    team, question, amount, rounds=rounds, threads=threads, bandwidth=bandwidth
                )
                rows += lines(contest, name, team, rounds_of_work)
                also[f"{contest.model} {contest.precision}, {name}"] = rounds_of_work.plain()
                team.absent |= rounds_of_work.failed
    return rows, also, team.absent


def lines(contest: Contest, work: str, team: Team, rounds: Rounds) -> list[Row]:
    """One row per entry of ours. Lookup is compared with the upper bound of one forward pass per
    token."""
    rows = list[Row]()
    away = team.absent | rounds.failed
    peers = {entry.label: figures for entry, figures in rounds.speeds.items() if entry.who != OURS}
    title = team.model.title + ("" if team.model.real else " (random weights)")
    for entry in (entry for entry in contest.entries if entry.who == OURS):
        goal = goal_of(work, contest.precision, contest.model)
        if entry.label in away:
            rows.append(Row(work, title, entry.label, goal=goal.ratio, remark=away[entry.label]))
            continue
        share = shares(team, entry, rounds) if work == "decode" else None
        if work == "lookup" and rounds.bandwidth:
            peers = {
                "one pass per token at full bandwidth": [
                    read * 1e9 / team.bytes[entry] for read in rounds.bandwidth
                ]
            }
        speeds = {entry.label: rounds.speeds[entry], **peers}
        bandwidth = goal.bandwidth if share else None
        row = row_of(
            work,
            title,
            entry.label,
            speeds,
            goal=goal.ratio,
            against=goal.against,
            shares=share,
            bandwidth_goal=bandwidth,
        )
        shorter = team.computes.get(row.peer)
        rows.append(
            replace(row, remark=f"{row.peer} computes in {shorter} by default") if shorter else row
        )
    return rows


def shares(team: Team, entry: Entry, rounds: Rounds) -> list[float] | None:
    """The share of the bandwidth measured in the same round: bytes of weights read per token ×
    tokens per second."""
    if not rounds.bandwidth:
        return None
    return [
        team.bytes[entry] * speed / 1e9 / read
        for speed, read in zip(rounds.speeds[entry], rounds.bandwidth, strict=True)
    ]
