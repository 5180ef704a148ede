"""Path patching equals a run in which everything else is held still; a head that does the task is
found, and the verdict tells it from heads that do nothing."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import sightline as sl
from sightline.core.model import Transformer
from sightline.errors import InputError
from sightline.lab.experiments import indirect_object as lab
from sightline.lab.measures import two_names
from sightline.lab.measures.two_names import Task, find_circuit, judge_circuit, tasks_of
from sightline.lens.interventions.paths import FrozenRun, sender_deltas
from sightline.record import Recorder

SIZE, PLACES, HEADS = 12, 6, 4
WIDTH = 2 * SIZE + PLACES
TOKEN, PLACE, ANSWER = slice(0, SIZE), slice(SIZE, SIZE + PLACES), slice(SIZE + PLACES, WIDTH)
SUPPRESSOR, LOOKER = 2, 1


def planted(seed: int) -> Transformer:
    """One layer: a head that spreads evenly and lowers the logit of what it sees, so that the name
    that is there twice loses; one that looks at the answers (tokens 0 to 3); two that do nothing.
    """
    torch.manual_seed(seed)
    model = sl.build(
        sl.gpt(
            width=WIDTH, layers=1, heads=HEADS, head_dim=WIDTH, hidden=4, vocab_size=SIZE,
            max_positions=PLACES, norm="none", positions="learned", tied=False,
        )
    ).eval()  # fmt: skip
    stack = model.decoder
    assert stack is not None
    query, key, value = (torch.zeros(HEADS, WIDTH, WIDTH) for _ in range(3))
    output = torch.zeros(WIDTH, HEADS, WIDTH)
    query[LOOKER, :4, PLACE] = 4 * WIDTH**0.5
    key[LOOKER, TOKEN, TOKEN] = torch.eye(SIZE) * (1 + 0.3 * torch.rand(SIZE))
    query[SUPPRESSOR, 0, PLACE] = WIDTH**0.5
    key[SUPPRESSOR, 0, TOKEN] = 0.1 * torch.randn(SIZE)
    value[SUPPRESSOR, TOKEN, TOKEN] = torch.eye(SIZE)
    output[ANSWER, SUPPRESSOR, TOKEN] = -20 * torch.eye(SIZE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        stack.embedding.tokens.weight[:, TOKEN] = torch.eye(SIZE)
        stack.embedding.positions.weight[:, PLACE] = torch.eye(PLACES)
        attention = stack[0].attention
        for layer, weight in (
            (attention.query, query), (attention.key, key), (attention.value, value),
        ):  # fmt: skip
            layer.weight.copy_(weight.flatten(0, 1))
        attention.output.weight.copy_(output.flatten(1))
        model.output.vocabulary.weight[:, ANSWER] = torch.eye(SIZE)
        model.output.vocabulary.weight[:, TOKEN] = 0.1 * torch.randn(SIZE, SIZE)
    return model


def tasks(count: int, seed: int) -> list[Task]:
    """8 IO S 9 S 11, and the same with IO and S1 exchanged; answers are tokens 0 to 3."""
    generator = torch.Generator().manual_seed(seed)
    made = list[Task]()
    for number in range(count):
        io, _, *rest = torch.randperm(4, generator=generator).tolist()
        subject, *others = (torch.randperm(4, generator=generator) + 4).tolist()
        a, b = (io, subject) if number % 2 else (subject, io)
        ids = (8, a, b, 9, subject, 11)
        other = (8, rest[0], others[0], 9, others[1], 11)
        made.append(Task(ids, other, io, subject, ids.index(io), ids.index(subject), 4))
    return made


@pytest.fixture(scope="module")
def run() -> tuple[FrozenRun, FrozenRun]:
    torch.manual_seed(0)
    model = sl.build(
        sl.llama(width=24, layers=3, heads=4, kv_heads=2, hidden=32, vocab_size=20, max_positions=9)
    ).eval()
    return FrozenRun.of(model, [3, 5, 7, 5, 9]), FrozenRun.of(model, [3, 6, 2, 8, 9])


def test_nothing_patched_is_the_run_itself(run: tuple[FrozenRun, FrozenRun]) -> None:
    clean, _ = run
    streams = clean.streams(clean.no_deltas(2), -1)
    for layer in range(3):
        torch.testing.assert_close(streams[layer][1], clean.recorded(layer, "residual")[-1])
    queries = clean.queries(2, streams[2])[0]
    torch.testing.assert_close(queries, clean.recorded(2, "query")[:, -1], rtol=1e-4, atol=1e-6)
    receivers = [(1, 0), (2, 3)]
    assert clean.through_queries(streams, receivers).abs().max() < 1e-5
    assert (
        clean.through_values(clean.streams(clean.no_deltas(1), 2), receivers, 2).abs().max() < 1e-5
    )
    assert float(clean.weights(2, 1, row=2).sum()) == pytest.approx(1)


def test_a_direct_path_is_a_run_with_all_other_attention_held_still(
    run: tuple[FrozenRun, FrozenRun],
) -> None:
    clean, other = run
    deltas = sender_deltas(clean, other, -1)
    patched = clean.logits(deltas, [4, 7])
    for sender, (layer, head) in enumerate(
        (layer, head) for layer in range(3) for head in range(4)
    ):
        attention = {
            ("decoder", n, "attention"): held(clean.recorded(n, "attention")) for n in range(3)
        }
        mixed = clean.recorded(layer, "heads").clone()
        mixed[head, -1] = other.recorded(layer, "heads")[head, -1]
        written = clean.written(layer, mixed[:, -1]).sum(0)
        changed = clean.recorded(layer, "attention").clone()
        changed[-1] = written
        attention["decoder", layer, "attention"] = held(changed)
        logits = clean.model(torch.tensor([clean.ids]), record=Recorder(edits=attention))[0, -1]
        torch.testing.assert_close(patched[sender], logits[[4, 7]], rtol=1e-4, atol=1e-5)


def held(value: torch.Tensor) -> Any:
    return lambda _: value[None]


def test_a_path_through_queries_changes_only_where_the_receivers_look(
    run: tuple[FrozenRun, FrozenRun],
) -> None:
    clean, other = run
    streams = clean.streams(sender_deltas(clean, other, -1), -1)
    deltas = clean.through_queries(streams, [(2, 1)])
    sender = 1  # layer 0, head 1
    query = clean.queries(2, streams[2])[sender]

    def patched(value: torch.Tensor) -> torch.Tensor:
        value = value.clone()
        value[0, 1, -1] = query[1]
        return value

    recorder = Recorder({"attention"}, edits={("decoder", 2, "query"): patched})
    clean.model(torch.tensor([clean.ids]), record=recorder)
    change = recorder["decoder", 2, "attention"][0, -1] - clean.recorded(2, "attention")[-1]
    torch.testing.assert_close(deltas[sender, 2], change, rtol=1e-4, atol=1e-5)
    assert deltas[:, :2].abs().max() == 0
    assert deltas[8:, 2].abs().max() < 1e-5  # heads of the receiver's own layer come too late


def test_blocks_with_norms_after_them_are_refused() -> None:
    model = sl.build(sl.gpt(width=8, layers=1, heads=1, vocab_size=9, placement="post")).eval()
    with pytest.raises(InputError, match=r"pre-norm blocks.*Fix"):
        FrozenRun.of(model, [1, 2])


def measured(heads: dict[str, list[tuple[int, int]]] | None) -> dict[str, Any]:
    """Several seeds of the planted world, judged with the heads that are found, or with these."""
    numbers: dict[str, Any] = {}
    for seed in range(100, 106):
        model = planted(seed)
        result = find_circuit(model, tasks(4, seed))
        chosen = result["heads"] if heads is None else heads
        judged = judge_circuit(model, tasks(4, seed + 50), chosen, seed)
        numbers[f"{lab.MODEL}.seed-{seed}"] = result | {"heads": chosen} | judged
    return numbers


def test_a_planted_head_is_found_and_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(two_names, "SIZES", dict.fromkeys(two_names.SIZES, 1))
    good = measured(None)
    assert all(row["heads"]["movers"] == [(0, SUPPRESSOR)] for row in good.values())
    task, movers, *_, without, alone = lab.judge_indirect_object(good)
    assert [task.holds, without.holds, alone.holds] == [True] * 3
    assert movers.holds is False  # it spreads evenly, and the repeated name is there twice
    assert set(lab.draw_indirect_object(good)) == {"indirect-object"}
    assert "GPT-2" in lab.summarize_indirect_object(good).ja


def test_heads_that_do_nothing_are_no_circuit() -> None:
    idle = {"movers": [(0, LOOKER)], "inhibitors": [(0, 0)], "detectors": [(0, 3)]}
    _, movers, inhibitors, *_, without, alone = lab.judge_indirect_object(measured(idle))
    assert movers.holds is True  # it looks at the answer, which is not enough
    assert inhibitors.holds is not True
    assert [without.holds, alone.holds] == [False, False]


def test_tasks_say_where_the_names_are() -> None:
    class Words:
        def encode(self, text: str, *, special: bool = False) -> list[int]:
            del special
            return [abs(hash(word)) for word in text.replace(",", " ,").split()]

    class Named:
        tokenizer = Words()

    for task in tasks_of(Named(), two_names.JUDGING, two_names.NAMES["judging"], 3):  # pyright: ignore[reportArgumentType]
        assert task.ids[task.io] == task.answer
        assert task.ids[task.first] == task.ids[task.second] == task.subject
        assert not {task.answer, task.subject} & set(task.other)
        assert len(task.ids) == len(task.other)
    assert not set(two_names.CHOOSING) & set(two_names.JUDGING)
    assert not set(two_names.NAMES["choosing"].split()) & set(two_names.NAMES["judging"].split())
