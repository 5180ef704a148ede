"""The indirect-object task (Wang et al. 2022) and the heads that do it, found by path patching.

    Then, Mary and John went to the store, and John gave a drink to → Mary
          IO       S1                             S2              end

    score   logit(IO) − logit(S) at the end
    other   the same sentence with three other names, each once: nothing to infer

Three steps back from the answer: heads that write it (name movers), heads that steer their queries
(S-inhibition), heads at S2 whose output those read (duplicate tokens, induction).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from sightline.core.model import Transformer
from sightline.core.runner import in_eval_mode
from sightline.lens.interventions.paths import FrozenRun, HeadPlace, sender_deltas
from sightline.lens.trace.subject import Subject
from sightline.record import Edit, Place, Recorder

CHOOSING = (
    "Then, {a} and {b} went to the store, and {s} gave a drink to",
    "When {a} and {b} got a snack at the station, {s} decided to give it to",
    "After {a} and {b} had lunch at the office, {s} handed the keys to",
    "Yesterday {a} and {b} were working at the school, and {s} sent a letter to",
    "While {a} and {b} were sitting in the garden, {s} offered some tea to",
    "Last night {a} and {b} had a long argument, and {s} said sorry to",
)
JUDGING = (
    "The other day {a} and {b} met at the museum, and {s} showed a picture to",
    "Once {a} and {b} arrived at the hospital, {s} brought some flowers to",
    "As soon as {a} and {b} finished the work, {s} passed the phone to",
    "On the train {a} and {b} found a wallet, and {s} gave it to",
    "In the kitchen {a} and {b} baked a cake, and {s} served a piece to",
    "During the party {a} and {b} sang a song, and {s} told a joke to",
)
NAMES = {
    "choosing": "Mary John Tom James Dan Sarah Anna Paul Mark Lisa Peter Alice Kate Bob Emily David"
    " Laura Simon Adam Rachel",
    "judging": "Jack Emma Frank Martin Susan Helen George Henry Jane Robert Michael Charles Daniel"
    " Grace Alex Brian Kevin Steve Carl Amy",
}  # each one token of SmolLM2
SIZES = {"movers": 4, "inhibitors": 6, "detectors": 6}  # heads that are taken at each step
DRAWS = 5  # random sets of heads


@dataclass(frozen=True, slots=True)
class Task:
    """A sentence as ids, the same with other names, and the places of the names."""

    ids: tuple[int, ...]
    other: tuple[int, ...]
    answer: int  # the token of IO
    subject: int  # the token of S
    io: int
    first: int  # S1
    second: int  # S2


def tasks_of(subject: Subject, templates: Sequence[str], names: str, seed: int) -> list[Task]:
    """Two tasks per template: IO before S1, and after it."""
    generator = torch.Generator().manual_seed(seed)
    words = names.split()
    tasks = list[Task]()
    for template in templates:
        for io_first in (True, False):
            drawn = [words[n] for n in torch.randperm(len(words), generator=generator)[:5]]
            tasks.append(task_of(subject, template, drawn, io_first=io_first))
    return tasks


def task_of(subject: Subject, template: str, names: Sequence[str], *, io_first: bool) -> Task:
    """`names`: IO, S, and three others."""
    assert subject.tokenizer is not None
    io, repeated, *others = names
    a, b = (io, repeated) if io_first else (repeated, io)
    ids, other = (
        subject.tokenizer.encode(template.format(a=x, b=y, s=z), special=True)
        for x, y, z in ((a, b, repeated), others)
    )
    answer, wrong = (subject.tokenizer.encode(f" {name}")[0] for name in (io, repeated))
    first, second = (place for place, id in enumerate(ids) if id == wrong)
    return Task(tuple(ids), tuple(other), answer, wrong, ids.index(answer), first, second)


# -------------------------------------------------------------------------------------- discovery


def find_circuit(model: Transformer, tasks: Sequence[Task]) -> dict[str, Any]:
    """The heads of each step, and the mean effect of every head: the change of the score when it
    acts along its path as in the other sentence."""
    pairs = [(FrozenRun.of(model, task.ids), FrozenRun.of(model, task.other)) for task in tasks]
    runs = list(zip(tasks, pairs, strict=True))
    direct = mean_effect([direct_effect(task, *pair) for task, pair in runs])
    movers = strongest(direct, SIZES["movers"])
    queries = mean_effect([query_effect(task, *pair, movers) for task, pair in runs])
    inhibitors = strongest(queries, SIZES["inhibitors"])
    values = mean_effect([value_effect(task, *pair, inhibitors, movers) for task, pair in runs])
    circuit = {
        "movers": movers,
        "inhibitors": inhibitors,
        "detectors": strongest(values, SIZES["detectors"]),
    }
    effects = {"movers": direct, "inhibitors": queries, "detectors": values}
    return {
        "heads": circuit,
        "effects": {step: effect.tolist() for step, effect in effects.items()},
    }


def score_change(run: FrozenRun, deltas: Tensor, task: Task) -> Float[Tensor, "layers heads"]:
    """The score with each sender's deltas, less the score without."""
    both = run.logits(torch.cat([run.no_deltas(1), deltas]), (task.answer, task.subject))
    scores = both[:, 0] - both[:, 1]
    return (scores[1:] - scores[0]).view(run.layers, -1)


def direct_effect(task: Task, clean: FrozenRun, other: FrozenRun) -> Tensor:
    """head → logits"""
    return score_change(clean, sender_deltas(clean, other, -1), task)


def query_effect(
    task: Task, clean: FrozenRun, other: FrozenRun, movers: Sequence[HeadPlace]
) -> Tensor:
    """head → queries of the name movers → logits"""
    streams = clean.streams(sender_deltas(clean, other, -1), -1)
    return score_change(clean, clean.through_queries(streams, movers), task)


def value_effect(
    task: Task,
    clean: FrozenRun,
    other: FrozenRun,
    inhibitors: Sequence[HeadPlace],
    movers: Sequence[HeadPlace],
) -> Tensor:
    """head at S2 → values of the S-inhibition heads → queries of the name movers → logits"""
    at_second = clean.streams(sender_deltas(clean, other, task.second), task.second)
    deltas = clean.through_values(at_second, inhibitors, task.second)
    return score_change(clean, clean.through_queries(clean.streams(deltas, -1), movers), task)


def mean_effect(effects: Sequence[Tensor]) -> Float[Tensor, "layers heads"]:
    return torch.stack(list(effects)).mean(0)


def strongest(effect: Float[Tensor, "layers heads"], count: int) -> list[HeadPlace]:
    """The heads whose absence lowers the score most."""
    order = effect.flatten().argsort(stable=True)[:count].tolist()
    return [divmod(place, effect.shape[1]) for place in order]


# ---------------------------------------------------------------------------------------- judging


def judge_circuit(
    model: Transformer, tasks: Sequence[Task], heads: Mapping[str, Sequence[HeadPlace]], seed: int
) -> dict[str, Any]:
    """On tasks that did not choose the heads: where they look, and the share of the score without
    them and with them alone, against random heads of the same layers."""
    circuit = sorted({place for some in heads.values() for place in some})
    controls = [
        random_set(model, circuit, torch.Generator().manual_seed(1000 * seed + draw))
        for draw in range(DRAWS)
    ]
    clean = [score(model, task) for task in tasks]
    total = sum(clean)

    def kept(chosen: Sequence[HeadPlace], *, alone: bool) -> float:
        return sum(score(model, task, chosen, alone=alone) for task in tasks) / total

    return {
        "score": total / len(tasks),
        "right": sum(value > 0 for value in clean),
        "tasks": len(tasks),
        "size": len(circuit),
        "without": kept(circuit, alone=False),
        "without_random": [kept(control, alone=False) for control in controls],
        "alone": kept(circuit, alone=True),
        "alone_random": [kept(control, alone=True) for control in controls],
        "looks": looks(model, tasks, heads),
    }


@torch.no_grad()
def score(
    model: Transformer, task: Task, heads: Sequence[HeadPlace] | None = None, *, alone: bool = False
) -> float:
    """logit(IO) − logit(S), with these heads, or all but these, as in the other sentence."""
    edits: dict[Place, Edit] = {}
    if heads is not None:
        other = Recorder({"heads"})
        in_eval_mode(model)(torch.tensor([task.other]), record=other)
        edits = heads_of_other(model, other, heads, alone=alone)
    logits = in_eval_mode(model)(torch.tensor([task.ids]), record=Recorder(edits=edits))[0, -1]
    return float(logits[task.answer] - logits[task.subject])


def heads_of_other(
    model: Transformer, other: Recorder, heads: Sequence[HeadPlace], *, alone: bool
) -> dict[Place, Edit]:
    """Edits that take the heads, or all but these, from another recorded run."""
    stack = model.last_stack
    edits: dict[Place, Edit] = {}
    for layer in range(stack.config.layers):
        config = stack[layer].attention.config
        taken = torch.tensor([((layer, head) in heads) != alone for head in range(config.heads)])
        if taken.any():
            place = (stack.name, layer, "heads")
            edits[place] = taking(taken, other[place])
    return edits


def taking(taken: Tensor, other: Tensor) -> Edit:
    """Some heads from the other run's value."""
    return lambda mixed: torch.where(taken[:, None, None], other, mixed)


def random_set(
    model: Transformer, circuit: Sequence[HeadPlace], generator: torch.Generator
) -> list[HeadPlace]:
    """As many heads of the same layers, none of the circuit where there are others."""
    chosen = list[HeadPlace]()
    for layer in sorted({layer for layer, _ in circuit}):
        own = [head for other, head in circuit if other == layer]
        heads = model.last_stack[layer].attention.config.heads
        rest = [head for head in range(heads) if head not in own]
        order = torch.randperm(len(rest), generator=generator).tolist()
        chosen += [(layer, rest[n]) for n in order[: len(own)]]
    return chosen


def looks(
    model: Transformer, tasks: Sequence[Task], heads: Mapping[str, Sequence[HeadPlace]]
) -> dict[str, float]:
    """Mean attention: of name movers to IO and to S; of S-inhibition heads to S2 and to IO; at S2
    of detectors to S1 and the token after it, and what an even spread would give."""
    sums = dict.fromkeys(
        ("mover_io", "mover_s", "inhibitor_s2", "inhibitor_io", "detector", "even"), 0.0
    )
    for task in tasks:
        run = FrozenRun.of(model, task.ids)
        for place in heads["movers"]:
            weights = run.weights(*place)
            sums["mover_io"] += float(weights[task.io])
            sums["mover_s"] += float(weights[task.first] + weights[task.second])
        for place in heads["inhibitors"]:
            weights = run.weights(*place)
            sums["inhibitor_s2"] += float(weights[task.second])
            sums["inhibitor_io"] += float(weights[task.io])
        for place in heads["detectors"]:
            weights = run.weights(*place, row=task.second)
            sums["detector"] += float(weights[task.first] + weights[task.first + 1])
            sums["even"] += 2 / len(weights)
    counts = {
        name: len(tasks) * len(heads[step])
        for name, step in (
            ("mover_io", "movers"),
            ("mover_s", "movers"),
            ("inhibitor_s2", "inhibitors"),
            ("inhibitor_io", "inhibitors"),
            ("detector", "detectors"),
            ("even", "detectors"),
        )
    }
    return {name: value / counts[name] for name, value in sums.items()}
