"""Training inside an experiment: made by the seed, by the step, and nothing else."""

import torch

from sightline.architectures import gpt
from sightline.lab.learning import (
    GeneratedTask,
    build_seeded,
    held_out_loss,
    labelled_batch,
    seeded_generator,
    train_model,
    training_steps,
)
from sightline.training.data.batch import Batch

CONFIG = gpt(width=16, layers=1, heads=2, vocab_size=8, max_positions=8)


def copies(step: int) -> Batch:
    tokens = torch.randint(8, (4, 8), generator=seeded_generator(0, step))
    return labelled_batch(tokens, tokens)


def test_a_drill_is_learned_and_is_the_same_each_time() -> None:
    task = GeneratedTask(copies, [copies(10**6)])
    once, again = (train_model(CONFIG, task, steps=120, lr=1e-2, seed=3) for _ in range(2))
    assert all(
        torch.equal(a, b)
        for a, b in zip(once.transformer.parameters(), again.transformer.parameters(), strict=True)
    )
    assert (
        held_out_loss(once, task)
        < 0.2
        < held_out_loss(train_model(CONFIG, task, steps=1, lr=1e-6), task)
    )


def test_events_come_one_by_one() -> None:
    assert [event.step for _, event in training_steps(CONFIG, GeneratedTask(copies), steps=3)] == [
        1,
        2,
        3,
    ]


def test_places_have_their_own_random_numbers() -> None:
    drawn = [
        float(torch.rand((), generator=seeded_generator(*path)))
        for path in ((0,), (1,), (0, 0), (0, 1), (0, 1, 0), (0, 0, 1))
    ]
    assert len(set(drawn)) == len(drawn)
    assert not torch.equal(
        next(build_seeded(CONFIG, 0).parameters()), next(build_seeded(CONFIG, 1).parameters())
    )
