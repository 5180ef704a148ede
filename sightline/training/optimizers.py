"""Optimizers and parameter groups.

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
from sightline.training.distributed.process_group import full_tensor, shard_like

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


@dataclass(frozen=True, slots=True)
class ParameterGroup:
    """Parameters with the same optimizer settings."""

    name: str
    parameters: list[tuple[str, nn.Parameter]]
    decays: bool

    def describe(self, decay: float) -> str:
        """The group in one line."""
        count = sum(p.numel() for _, p in self.parameters)
        how = f"weight decay {decay:g}" if self.decays and decay else "no weight decay"
        return f"{self.name}: {len(self.parameters)} tensors, {count:,} numbers, {how}"


def parameter_groups(transformer: nn.Module) -> list[ParameterGroup]:
    """Every trainable parameter, in one of four groups."""
    tables = {
        id(part.weight)
        for part in transformer.modules()
        if isinstance(part, (nn.Embedding, RelativeTable))
    }
    by_kind: dict[str, list[tuple[str, nn.Parameter]]] = {
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
        elif parameter.ndim != 2:  # nGPT stores a scale per head as [heads, 1, head_dim]
            kind = "vectors"
        else:
            kind = "head" if name.startswith(("output.", "transformer.output.")) else "hidden"
        by_kind[kind].append((name, parameter))
    return [
        ParameterGroup(name, members, name in ("hidden", "head"))
        for name, members in by_kind.items()
        if members
    ]


class MuonOptimizer(torch.optim.Optimizer):
    """W ← W − lr · √max(1, out/in) · orthogonal(momentum); with Nesterov momentum. Matrices of
    equal shape are orthogonalized together."""

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
        directions = orthogonalize(
            torch.stack(
                [full_tensor(self._ahead(p, group["momentum"])).flatten(1) for p in parameters]
            ),
            group["iterations"],
        )
        rows, columns = directions.shape[-2:]
        rate = group["lr"] * max(1.0, rows / columns) ** 0.5
        for parameter, direction in zip(parameters, directions, strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"])
            parameter.sub_(shard_like(direction.reshape(parameter.shape), parameter), alpha=rate)

    def _ahead(self, parameter: nn.Parameter, keep: float) -> Tensor:
        """Nesterov: the momentum with this gradient in it, and the gradient once more."""
        assert parameter.grad is not None
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        state["momentum"].lerp_(parameter.grad, 1 - keep)
        return parameter.grad.lerp(state["momentum"], keep)


def orthogonalize(x: Tensor, iterations: int) -> Tensor:
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
    """One optimizer, or Muon with AdamW for the parameters that are not hidden matrices. Learning
    rates are the peak rate times a factor."""

    parts: list[torch.optim.Optimizer]
    names: dict[int, str]

    def set_factor(self, factor: float) -> float:
        """Set the learning rates of this step; returns that of the first group."""
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
        tensors: dict[str, Tensor] = {}
        for part in self.parts:
            for parameter, state in part.state.items():
                tensors |= {
                    f"{self.names[id(parameter)]}/{key}": value
                    for key, value in state.items()
                    if isinstance(value, Tensor)
                }
        return tensors

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `tensors` returned. State of another optimizer is ignored."""
        by_name: dict[str, dict[str, Tensor]] = {}
        for name, tensor in tensors.items():
            parameter, key = name.rsplit("/", 1)
            by_name.setdefault(parameter, {})[key] = tensor
        for part in self.parts:
            part.state.clear()
            expected = MOMENTS[type(part)]
            for parameter in (p for group in part.param_groups for p in group["params"]):
                state = by_name.get(self.names[id(parameter)], {})
                if state.keys() == expected:
                    part.state[parameter] = {
                        key: shard_like(value.clone(), parameter) for key, value in state.items()
                    }


def describe_groups(transformer: nn.Module, config: Optimizer) -> list[str]:
    """One line per group."""
    rest = config.rest if isinstance(config, Muon) else config
    return [
        group.describe((config if group.name == "hidden" else rest).weight_decay)
        for group in parameter_groups(transformer)
    ]


def make_optimizers(transformer: nn.Module, config: Optimizer) -> Optimizers:
    """The optimizers of a configuration."""
    groups = parameter_groups(transformer)
    if not groups:
        raise InputError(
            "every parameter of the model is frozen",
            expected="at least one trainable parameter",
            fix="parameter.requires_grad_()",
        )
    names = {id(parameter): name for group in groups for name, parameter in group.parameters}
    if isinstance(config, AdamW):
        return Optimizers([make_adamw(groups, config)], names)
    hidden = [
        parameter for group in groups if group.name == "hidden" for _, parameter in group.parameters
    ]
    others = [group for group in groups if group.name != "hidden"]
    parts: list[torch.optim.Optimizer] = [make_muon(hidden, config)] if hidden else []
    return Optimizers([*parts, make_adamw(others, config.rest)] if others else parts, names)


def make_muon(hidden: list[nn.Parameter], config: Muon) -> MuonOptimizer:
    optimizer = MuonOptimizer(
        hidden,
        lr=config.lr,
        momentum=config.momentum,
        iterations=config.iterations,
        weight_decay=config.weight_decay,
    )
    for group in optimizer.param_groups:
        group["peak"] = config.lr
    return optimizer


def make_adamw(groups: list[ParameterGroup], config: AdamW) -> torch.optim.AdamW:
    """torch's fused AdamW."""
    members = [
        {
            "params": [p for _, p in group.parameters],
            "weight_decay": config.weight_decay if group.decays else 0.0,
            "peak": config.lr,
        }
        for group in groups
    ]
    return torch.optim.AdamW(members, lr=config.lr, betas=config.betas, eps=config.eps, fused=True)
