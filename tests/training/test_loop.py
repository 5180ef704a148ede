"""The loop, step by step, against the same thing by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sightline as sl
from sightline.training.config import AdamW, Muon, Schedule
from sightline.training.loop import StepEvent, TrainState, make_train_state
from tests.support.tiny import SIZE as TINY
from tests.training.small import Numbers, config, model


def gradients(who: TrainState) -> dict[str, Tensor]:
    return {
        name: p.grad.clone() for name, p in who.transformer.named_parameters() if p.grad is not None
    }


def after(who: TrainState, many: int, task: Numbers | None = None) -> list[StepEvent]:
    return list(islice(who.steps(task or Numbers()), many))


def weights(who: TrainState) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in who.transformer.named_parameters()}


@pytest.mark.parametrize("parts", [2, 3, 5, 100])
def test_a_batch_in_parts_is_one_batch(parts: int) -> None:
    task = Numbers(rows=5)
    whole, cut = (make_train_state(model(), config(accumulate=many)) for many in (1, parts))
    a, b = (who.backward(task.batch(0)) for who in (whole, cut))
    assert a == pytest.approx(b, rel=1e-6)
    for name, slope in gradients(whole).items():
        torch.testing.assert_close(gradients(cut)[name], slope, rtol=1e-5, atol=1e-6)


def test_the_loss_is_the_mean_over_targets() -> None:
    task = Numbers()
    batch = replace(task.batch(0), targets=task.batch(0).targets.clone())
    batch.targets[0, :4] = -100
    batch = replace(batch, count=14)
    logits = model()(batch.tokens)
    wanted = nn.functional.cross_entropy(
        logits.flatten(0, 1), batch.targets.flatten(), ignore_index=-100
    )
    result = make_train_state(model(), config()).backward(batch)
    assert result is not None
    assert result[0] == pytest.approx(wanted.item(), rel=1e-6)


def test_a_batch_that_asks_nothing_changes_nothing() -> None:
    batch = Numbers().batch(0)
    batch = replace(batch, targets=torch.full_like(batch.targets, -100), count=0)
    assert make_train_state(model(), config()).backward(batch) == (0, 0)


@pytest.mark.parametrize("clip", [0.0, 0.5, 100.0])
def test_clipping(clip: float) -> None:
    free, clipped = (
        make_train_state(model(), config(clip=0.0)),
        make_train_state(model(), config(clip=clip)),
    )
    free.backward(Numbers().batch(0))
    result = clipped.backward(Numbers().batch(0))
    assert result is not None
    norm = math.sqrt(
        sum(float(slope.double().square().sum()) for slope in gradients(free).values())
    )
    assert result[1] == pytest.approx(norm, rel=1e-5)
    shrink = min(1.0, clip / norm) if clip else 1.0
    for name, slope in gradients(free).items():
        torch.testing.assert_close(gradients(clipped)[name], slope * shrink, rtol=1e-4, atol=1e-7)


def test_the_average_follows_the_weights() -> None:
    """keep = min(0.9, (1 + n) / (10 + n)): young averages forget faster."""
    who = make_train_state(model(), config(ema=0.9))
    wanted = weights(who)
    for n in range(4):
        after(who, 1)
        keep = min(0.9, (1 + n) / (10 + n))
        wanted = {name: keep * wanted[name] + (1 - keep) * p for name, p in weights(who).items()}
    for name, average in who.ema.items():
        torch.testing.assert_close(average, wanted[name], rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(("smoothing", "z_loss"), [(0.1, 0.0), (0.0, 1e-2), (0.2, 1e-3)])
def test_label_smoothing_and_z_loss_reach_the_gradient(smoothing: float, z_loss: float) -> None:
    who = make_train_state(model(), config(label_smoothing=smoothing, z_loss=z_loss, clip=0))
    batch = Numbers().batch(0)
    result = who.backward(batch)
    by_hand = model()
    logits = by_hand(batch.tokens).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, batch.targets.flatten(), label_smoothing=smoothing)
    (loss + z_loss * logits.logsumexp(-1).square().mean()).backward()
    for name, p in by_hand.named_parameters():
        torch.testing.assert_close(gradients(who)[name], p.grad, rtol=1e-4, atol=1e-6)
    assert result is not None
    assert result[0] == pytest.approx(
        float(nn.functional.cross_entropy(logits, batch.targets.flatten())), rel=1e-6
    )


CHECKPOINTED = {
    "gpt with dropout": lambda: sl.gpt(**TINY, dropout=0.2),
    "ngpt": lambda: sl.ngpt(**TINY),
    "relative": lambda: sl.gpt(**TINY, positions=sl.RelativeBias(buckets=8, max_distance=16)),
    "both": lambda: sl.encoder_decoder(**TINY, dropout=0.2),
}


@pytest.mark.parametrize("name", CHECKPOINTED)
def test_recomputed_activations_give_the_same_gradients(name: str) -> None:
    result: list[dict[str, Tensor]] = []
    for recompute in (False, True):
        torch.manual_seed(1)
        who = make_train_state(
            sl.build(CHECKPOINTED[name]()), config(checkpoint_activations=recompute)
        )
        batch = Numbers(rows=2).batch(0)
        batch = replace(batch, source=batch.tokens.flip(1) if name == "both" else None)
        torch.manual_seed(2)
        assert who.backward(batch) is not None
        result.append(gradients(who))
    assert result[0].keys() == result[1].keys()
    assert all(torch.equal(result[0][name], result[1][name]) for name in result[0])


def test_recomputed_activations_are_not_kept() -> None:
    """What the graph holds between the passes: the blocks' inputs, not their insides."""
    sizes: dict[bool, int] = {}
    for recompute in (False, True):
        who = make_train_state(sl.build(sl.llama(**TINY)), config(checkpoint_activations=recompute))
        held: list[int] = []

        def keep(tensor: Tensor, held: list[int] = held) -> Tensor:
            held.append(tensor.numel())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            who.objective(Numbers().batch(0))
        sizes[recompute] = sum(held)
    assert sizes[True] < sizes[False] / 2


def test_wrapping_blocks_twice_wraps_them_once() -> None:
    made = model()
    who = make_train_state(made, config(checkpoint_activations=True))
    first = made.last_stack[0].forward
    make_train_state(made, config(checkpoint_activations=True))
    assert made.last_stack[0].forward is first
    assert len(after(who, 2)) == 2


def test_bfloat16_learns() -> None:
    """There is no scaler that could overflow; weights and moments stay in float32."""
    task = Numbers(before=lambda step, batch: Numbers().made(0, 0))
    who = make_train_state(
        model(),
        config(
            precision="bfloat16", steps=40, optimizer=AdamW(lr=0.02), schedule=Schedule(warmup=1)
        ),
    )
    events = after(who, 40, task)
    assert events[-1].loss < 0.5 * events[0].loss
    assert {p.dtype for p in who.transformer.parameters()} == {torch.float32}
    exact = after(make_train_state(model(), config()), 1, task)[0]
    assert events[0].loss == pytest.approx(exact.loss, rel=0.02)
    assert events[0].loss != exact.loss


@pytest.mark.parametrize("optimizer", [AdamW(lr=0.1), Muon(lr=0.1)], ids=["adamw", "muon"])
def test_weights_stay_on_the_sphere(optimizer: Any) -> None:
    """nGPT: after each step, all rows that read the stream and columns that write to it have length
    1."""
    who = make_train_state(
        sl.build(sl.ngpt(width=16, layers=1, heads=2, vocab_size=13, max_positions=8)),
        config(optimizer=optimizer),
    )
    before = weights(who)
    for _ in range(3):
        after(who, 1)
        block = who.transformer.last_stack[0]
        for rows in (
            block.attention.query,
            block.attention.value,
            block.feed_forward.up,
            who.transformer.last_stack.embedding.tokens,
        ):
            torch.testing.assert_close(rows.weight.norm(dim=1), torch.ones(rows.weight.shape[0]))
        torch.testing.assert_close(
            block.feed_forward.down.weight.norm(dim=0),
            torch.ones(block.feed_forward.down.weight.shape[1]),
        )
    assert not torch.equal(
        before["decoder.0.attention.query.weight"],
        who.transformer.last_stack[0].attention.query.weight,
    )


def test_events() -> None:
    events = after(make_train_state(model(), config()), 10)
    assert [event.step for event in events] == [1, 2, 3, 4, 5, 6]
    assert [event.lr for event in events[:3]] == pytest.approx([0.01 / 3, 0.02 / 3, 0.01])
    assert events[-1].eta == 0
    assert all(event.tokens_per_second > 0 and not event.skipped for event in events)
    assert [event.seconds for event in events] == sorted(event.seconds for event in events)


def test_dropout_belongs_to_the_step() -> None:
    """Random numbers drawn by others between the steps change nothing."""
    a, b = (make_train_state(model(dropout=0.3), config()) for _ in range(2))
    after(a, 6)
    for _ in b.steps(Numbers()):
        torch.rand(1000)
    assert all(
        torch.equal(x, y) for x, y in zip(weights(a).values(), weights(b).values(), strict=True)
    )


def test_stop_is_asked_before_each_step_and_between_parts() -> None:
    answers = iter([False, False, True])
    who = make_train_state(model(), config(accumulate=3))
    assert list(who.steps(Numbers(), stop=lambda: next(answers))) == []
    assert who.step == 0
    assert all(p.grad is None for p in who.transformer.parameters())
    answers = iter([False, False, False, True])
    assert [event.step for event in who.steps(Numbers(), stop=lambda: next(answers))] == [1]


def test_update_is_one_step_of_the_optimiser() -> None:
    who, by_hand = make_train_state(model(), config()), model()
    who.backward(Numbers().batch(0))
    for name, p in by_hand.named_parameters():
        p.grad = gradients(who)[name]
    who.optimizers.set_factor(1.0)
    who.update()
    decaying = [
        p
        for p in by_hand.parameters()
        if p.ndim == 2 and p is not by_hand.last_stack.embedding.tokens.weight
    ]
    others = [p for p in by_hand.parameters() if not any(p is q for q in decaying)]
    torch.optim.AdamW(
        [{"params": decaying}, {"params": others, "weight_decay": 0.0}],
        lr=0.01,
        betas=(0.9, 0.99),
        weight_decay=0.1,
    ).step()
    for name, p in by_hand.named_parameters():
        torch.testing.assert_close(weights(who)[name], p.detach(), rtol=1e-5, atol=1e-6)


@pytest.mark.long
def test_compiled_steps_are_the_same_steps(as_users_run_it: None) -> None:
    """Or there is a clear refusal where no compiler is."""
    plain, fast = (
        make_train_state(model(), config(compile=compiled)) for compiled in (False, True)
    )
    for a, b in zip(after(plain, 3), after(fast, 3), strict=True):
        assert a.loss == pytest.approx(b.loss, rel=1e-5)
