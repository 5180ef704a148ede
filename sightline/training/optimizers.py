"""Optimisers, and which parameters they treat how.

    hidden    matrices of the blocks                      decay; under Muon: orthogonalised momentum
    head      matrices of the head                        decay, unless it is the embedding's
    tables    embeddings, tables of relative positions    no decay
    vectors   gains, biases, scales, single numbers       no decay

Muon (Jordan et al. 2024): the momentum U of a matrix is replaced by the nearest orthogonal matrix,
by five Newton–Schulz steps X ← aX + b(XXᵀ)X + c(XXᵀ)²X, in float32: bfloat16 products are slow on
most processors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from sightline.core.positions import RelativeTable
from sightline.errors import InputError
from sightline.training.config import AdamW, Muon, Optimizer
from sightline.training.distributed.process_group import held_like, whole

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True, slots=True)
class Group:
    """Parameters that are treated alike."""

    name: str
    parameters: list[tuple[str, nn.Parameter]]
    decays: bool

    def said(self, decay: float) -> str:
        """In one line."""
        count = sum(p.numel() for _, p in self.parameters)
        how = f"weight decay {decay:g}" if self.decays and decay else "no weight decay"
        return f"{self.name}: {len(self.parameters)} tensors, {count:,} numbers, {how}"


def groups(transformer: nn.Module) -> list[Group]:
    """Every parameter that learns, in one of four groups."""
    tables = {
        id(part.weight)
        for part in transformer.modules()
        if isinstance(part, (nn.Embedding, RelativeTable))
    }
    found: dict[str, list[tuple[str, nn.Parameter]]] = {
        "hidden": [],
        "tables": [],
        "head": [],
        "vectors": [],
    }
    for name, parameter in transformer.named_parameters():
        if not parameter.requires_grad:
            continue
        if id(parameter) in tables:
            kind = "tables"
        elif parameter.ndim != 2:  # nGPT keeps a scale for each head as [heads, 1, head_dim]
            kind = "vectors"
        else:
            kind = "head" if name.startswith(("output.", "transformer.output.")) else "hidden"
        found[kind].append((name, parameter))
    return [
        Group(name, members, name in ("hidden", "head"))
        for name, members in found.items()
        if members
    ]


class MuonOptimizer(torch.optim.Optimizer):
    """W ← W − lr · √max(1, out/in) · orthogonal(momentum); Nesterov's look ahead. Equal shapes are
    orthogonalised together."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        momentum: float,
        iterations: int,
        weight_decay: float,
    ) -> None:
        super().__init__(
            parameters,
            {
                "lr": lr,
                "momentum": momentum,
                "iterations": iterations,
                "weight_decay": weight_decay,
            },
        )

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        assert closure is None
        for group in self.param_groups:
            shapes: dict[tuple[int, ...], list[nn.Parameter]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(tuple(parameter.shape), []).append(parameter)
            for alike in shapes.values():
                self._update(alike, group)

    def _update(self, parameters: list[nn.Parameter], group: dict[str, Any]) -> None:
        directions = orthogonal(
            torch.stack([whole(self._ahead(p, group["momentum"])).flatten(1) for p in parameters]),
            group["iterations"],
        )
        rows, columns = directions.shape[-2:]
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(held_like(direction.reshape(parameter.shape), parameter), alpha=rate)

    def _ahead(self, parameter: nn.Parameter, keep: float) -> Tensor:
        """Nesterov: the momentum with this gradient in it, and the gradient once more."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - keep)
        return parameter.grad.lerp(state["momentum"], keep)


def orthogonal(x: Tensor, iterations: int) -> Tensor:
    """About U Vᵀ of X = U S Vᵀ, for each matrix of a stack: singular values end near 1."""
    a, b, c = NEWTON_SCHULZ
    tall = x.shape[-2] > x.shape[-1]
    x = (x.mT if tall else x).float()
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    for _ in range(iterations):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


MOMENTS: dict[type[torch.optim.Optimizer], set[str]] = {
    MuonOptimizer: {"momentum"},
    torch.optim.AdamW: {"step", "exp_avg", "exp_avg_sq"},
}


@dataclass(slots=True)
class Optimizers:
    """One optimiser, or Muon with AdamW for what is no hidden matrix. Learning rates are the peak's
    times a factor."""

    parts: list[torch.optim.Optimizer]
    names: dict[int, str]

    def set_factor(self, factor: float) -> float:
        """The rate of this step, of which the first is shown."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = group["peak"] * factor
        return self.parts[0].param_groups[0]["lr"]

    def step(self) -> None:
        for part in self.parts:
            part.step()

    def zero(self) -> None:
        for part in self.parts:
            part.zero_grad(set_to_none=True)

    def tensors(self) -> dict[str, Tensor]:
        """The state, by parameter and name: `decoder.0.attention.query.weight/exp_avg`."""
        found: dict[str, Tensor] = {}
        for part in self.parts:
            for parameter, state in part.state.items():
                found |= {
                    f"{self.names[id(parameter)]}/{key}": value
                    for key, value in state.items()
                    if isinstance(value, Tensor)
                }
        return found

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """What `tensors` gave. What another kind of optimiser has left is of no use to this one."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            parameter, key = name.rsplit("/", 1)
            by_name.setdefault(parameter, {})[key] = tensor
        for part in self.parts:
            part.state.clear()
            wanted = MOMENTS[type(part)]
            for parameter in (p for group in part.param_groups for p in group["params"]):
                state = by_name.get(self.names[id(parameter)], {})
                if state.keys() == wanted:
                    part.state[parameter] = {
                        key: held_like(value.clone(), parameter) for key, value in state.items()
                    }


def said_groups(transformer: nn.Module, config: Optimizer) -> list[str]:
    """The groups, a line for each."""
    rest = config.rest if isinstance(config, Muon) else config
    return [
        group.said((config if group.name == "hidden" else rest).weight_decay)
        for group in groups(transformer)
    ]


def make_optimizers(transformer: nn.Module, config: Optimizer) -> Optimizers:
    """As the configuration says."""
    found = groups(transformer)
    if not found:
        raise InputError(
            "no parameter of the model learns",
            expected="at least one",
            fix="parameter.requires_grad_()",
        )
    names = {id(parameter): name for group in found for name, parameter in group.parameters}
    if isinstance(config, AdamW):
        return Optimizers([adamw(found, config)], names)
    hidden = [
        parameter for group in found if group.name == "hidden" for _, parameter in group.parameters
    ]
    others = [group for group in found if group.name != "hidden"]
    parts: list[torch.optim.Optimizer] = [muon(hidden, config)] if hidden else []
    return Optimizers([*parts, adamw(others, config.rest)] if others else parts, names)


def muon(hidden: list[nn.Parameter], config: Muon) -> MuonOptimizer:
    made = MuonOptimizer(
        hidden,
        lr=config.lr,
        momentum=config.momentum,
        iterations=config.iterations,
        weight_decay=config.weight_decay,
    )
    for group in made.param_groups:
        group["peak"] = config.lr
    return made


def adamw(found: list[Group], config: AdamW) -> torch.optim.AdamW:
    """torch's fused one."""
    members = [
        {
            "params": [p for _, p in group.parameters],
            "weight_decay": config.weight_decay if group.decays else 0.0,
            "peak": config.lr,
        }
        for group in found
    ]
    return torch.optim.AdamW(members, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
