"""The works: what a turn of each is asked, how much it makes, and the lines that its rounds
give."""

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


def drawn(model: Prepared, count: int, seed: int = 0) -> list[int]:
    """Random ids: the work does not depend on what they mean."""
    chance = random.Random(seed)
    return [chance.randrange(3, model.vocabulary - 1) for _ in range(count)]


def turns(work: str, model: Prepared) -> list[tuple[str, dict[str, Any], float]]:
    """A name, the question, and how much one turn makes: tokens, texts."""
    if work == "decode":
        return [("decode", {"do": "decode", "prompt": drawn(model, PROMPT), "count": NEW}, NEW)]
    if work == "prefill":
        return [("prefill", {"do": "prefill", "prompt": drawn(model, LONG)}, LONG)]
    if work == "streams":
        return [
            (
                f"{count} streams",
                {
                    "do": "streams",
                    "prompts": [drawn(model, PROMPT, seed) for seed in range(count)],
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
    one, eight = ([drawn(model, SOURCE, seed) for seed in range(count)] for count in (1, 8))
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

    said = sentences(TEXTS)
    loaded = sl.load(model.folder)
    return {"texts": said, "ids": [loaded.ids(text) for text in said]}


def measure(
    contest: Contest, *, rounds: int, threads: int, bandwidth: Bandwidth
) -> tuple[list[Row], dict[str, Any], dict[str, str]]:
    """All lines of one contest, every round's figures, and who could not take part."""
    rows = list[Row]()
    also = dict[str, Any]()
    with start_team(contest, threads, form=FORMS[contest.works[0]]) as team:
        for work in contest.works:
            for name, question, amount in turns(work, prepare_model(contest.model)):
                found = race(
                    team, question, amount, rounds=rounds, threads=threads, bandwidth=bandwidth
                )
                rows += lines(contest, name, team, found)
                also[f"{contest.model} {contest.precision}, {name}"] = found.plain()
                team.absent |= found.failed
    return rows, also, team.absent


def lines(contest: Contest, work: str, team: Team, found: Rounds) -> list[Row]:
    """One line for each entry of ours. Lookup is held against what one pass for each token can
    reach at most."""
    rows = list[Row]()
    away = team.absent | found.failed
    peers = {entry.label: figures for entry, figures in found.speeds.items() if entry.who != OURS}
    title = team.model.title + ("" if team.model.real else " (random weights)")
    for entry in (entry for entry in contest.entries if entry.who == OURS):
        goal = goal_of(work, contest.precision, contest.model)
        if entry.label in away:
            rows.append(Row(work, title, entry.label, goal=goal.ratio, remark=away[entry.label]))
            continue
        share = shares(team, entry, found) if work == "decode" else None
        if work == "lookup" and found.bandwidth:
            peers = {
                "one pass a token at full bandwidth": [
                    read * 1e9 / team.bytes[entry] for read in found.bandwidth
                ]
            }
        speeds = {entry.label: found.speeds[entry], **peers}
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
            replace(row, remark=f"{row.peer} computes in {shorter} unless told otherwise")
            if shorter
            else row
        )
    return rows


def shares(team: Team, entry: Entry, found: Rounds) -> list[float] | None:
    """Of the bandwidth measured in the same round: bytes of weights a token reads × tokens per
    second."""
    if not found.bandwidth:
        return None
    return [
        team.bytes[entry] * speed / 1e9 / read
        for speed, read in zip(found.speeds[entry], found.bandwidth, strict=True)
    ]
