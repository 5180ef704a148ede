"""The loss against its formula, and in chunks as without."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import sightline as sl
from sightline.training import loss as module
from sightline.training.data.batch import IGNORED, Batch
from sightline.training.loss import Objective
from tests.support.tiny import SIZE

VOCAB = SIZE["vocab_size"]


def tokens(rows: int = 3, time: int = 9, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, VOCAB, (rows, time), generator=torch.Generator().manual_seed(seed))


def asked(seed: int = 1) -> torch.Tensor:
    """Targets, about a third of which nobody is asked for."""
    result = tokens(seed=seed)
    return result.masked_fill(
        torch.rand(result.shape, generator=torch.Generator().manual_seed(2)) < 0.3, IGNORED
    )


def by_hand(
    logits: torch.Tensor, targets: torch.Tensor, smoothing: float, z: float
) -> tuple[float, float]:
    """Sums, target by target, in float64."""
    minimised = nll = 0.0
    for row, target in zip(logits.double().flatten(0, -2), targets.flatten(), strict=True):
        if target == IGNORED:
            continue
        log_p = row - torch.log(torch.exp(row).sum())
        smooth = (1 - smoothing) * -log_p[target] + smoothing * -log_p.mean()
        minimised += float(smooth + z * torch.log(torch.exp(row).sum()) ** 2)
        nll += float(-log_p[target])
    return minimised, nll


@pytest.mark.parametrize(("smoothing", "z"), [(0.0, 0.0), (0.1, 0.0), (0.0, 1e-2), (0.2, 1e-2)])
@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_the_formula(name: str, smoothing: float, z: float) -> None:
    torch.manual_seed(0)
    model = sl.build(getattr(sl, name)(**SIZE)).eval()
    targets = asked()
    batch = Batch(tokens=tokens(), targets=targets, count=int((targets != IGNORED).sum()))
    minimised, nll = Objective(model, label_smoothing=smoothing, z_loss=z)(batch)
    expected = by_hand(model(batch.tokens).detach(), targets, smoothing, z)
    assert (minimised.item(), nll.item()) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(
    "config",
    [
        sl.gpt(**SIZE),
        sl.llama(**SIZE, tied=False),
        sl.bert(**SIZE),
        replace(sl.llama(**SIZE), head=sl.LanguageHead(softcap=3.0, bias=True)),
        sl.ngpt(**SIZE),
    ],
    ids=["tied", "untied", "masked", "capped", "sphere"],
)
@pytest.mark.parametrize("frozen", [False, True])
def test_chunks_change_nothing(
    config: sl.ModelConfig, frozen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    model = sl.build(config)
    if frozen:  # as with adapters: only some of the body learns
        model.requires_grad_(False)
        model.last_stack[0].attention.query.weight.requires_grad_()
    batch = Batch(tokens=tokens(), targets=asked(), count=1)
    result = []
    for chunk in (1 << 22, 4 * VOCAB):
        monkeypatch.setattr(module, "CHUNK", chunk)
        model.zero_grad()
        minimised, nll = Objective(model, label_smoothing=0.1, z_loss=1e-3)(batch)
        (minimised * 0.5).backward()
        grads = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
        result.append((minimised.item(), nll.item(), grads))
    (whole, whole_nll, expected), (parts, parts_nll, slopes) = result
    assert (parts, parts_nll) == pytest.approx((whole, whole_nll), rel=1e-6)
    assert expected.keys() == slopes.keys()
    assert len(expected) == 1 or not frozen
    for name, slope in slopes.items():
        torch.testing.assert_close(slope, expected[name], rtol=1e-5, atol=1e-6, msg=name)


def test_labels_of_padded_texts() -> None:
    """A row's loss is what it would be without padding."""
    for pool in ("first", "last", "mean"):
        base = sl.bert(**SIZE, head="none") if pool == "first" else sl.gpt(**SIZE)
        torch.manual_seed(0)
        model = sl.build(
            replace(base, head=sl.Classifier(labels=4, pool=pool, activation="tanh"))
        ).eval()
        ids, labels = tokens(rows=2), torch.tensor([3, 1])
        padding = torch.zeros_like(ids, dtype=torch.bool)
        padding[1, 6:] = True
        together, _ = Objective(model)(Batch(tokens=ids, targets=labels, count=2, padding=padding))
        alone = [
            Objective(model)(Batch(tokens=row, targets=label[None], count=1))[0].item()
            for row, label in zip((ids[:1], ids[1:, :6]), labels, strict=True)
        ]
        assert together.item() == pytest.approx(sum(alone), rel=1e-5)


def test_a_label_for_each_token() -> None:
    torch.manual_seed(0)
    model = sl.build(
        replace(sl.bert(**SIZE, head="none"), head=sl.Classifier(labels=4, pool="tokens"))
    ).eval()
    targets = (tokens(seed=5) % 4).masked_fill(asked() == IGNORED, IGNORED)
    minimised, nll = Objective(model, label_smoothing=0.1, z_loss=0.01)(
        Batch(tokens=tokens(), targets=targets, count=1)
    )
    assert (minimised.item(), nll.item()) == pytest.approx(
        by_hand(model(tokens()).detach(), targets, 0.1, 0.01), rel=1e-5
    )


def test_nothing_asked_is_nothing_learned() -> None:
    model = sl.build(sl.gpt(**SIZE))
    minimised, nll = Objective(model)(
        Batch(tokens=tokens(), targets=torch.full((3, 9), IGNORED), count=1)
    )
    minimised.backward()
    assert minimised.item() == nll.item() == 0
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


def test_vectors_are_no_answer() -> None:
    with pytest.raises(sl.ConfigError, match="returns vectors"):
        Objective(sl.build(sl.bert(**SIZE, head="pooled")))
