"""Optimisers for all agents at once: the matrix of models has one row per agent.

An optimiser is a value with two pure functions. `init(models)` returns its state, a tuple of tensors whose first
dimension is the agent. `update` returns the next models and the next state. Step sizes are a column, since agents may
differ in μ_k and schedules may scale it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.models.base import Models

State = tuple[Tensor, ...]
StepSize = Float[Tensor, "agent 1"]


@runtime_checkable
class Optimiser(Protocol):
    def init(self, models: Models) -> State: ...

    def update(self, models: Models, gradient: Models, step_size: StepSize, state: State) -> tuple[Models, State]: ...


@dataclass(frozen=True)
class sgd:
    """θ − μ∇ℓ (eq. 2), with optional heavy-ball momentum and weight decay."""

    momentum: float = 0.0
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _within("momentum", self.momentum, 0, 1)
        _within("weight_decay", self.weight_decay, 0, float("inf"))

    def init(self, models: Models) -> State:
        return (torch.zeros_like(models),) if self.momentum else ()

    def update(self, models: Models, gradient: Models, step_size: StepSize, state: State) -> tuple[Models, State]:
        if self.weight_decay:
            gradient = gradient.add(models, alpha=self.weight_decay)
        if self.momentum:
            gradient = gradient.add(state[0], alpha=self.momentum)
            state = (gradient,)
        return models.addcmul(step_size, gradient, value=-1), state


@dataclass(frozen=True)
class adam:
    """Adam, by Kingma and Ba (2015). Each agent counts its own steps, since agents may skip batches."""

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        _within("beta1", self.beta1, 0, 1)
        _within("beta2", self.beta2, 0, 1)
        _within("weight_decay", self.weight_decay, 0, float("inf"))

    def init(self, models: Models) -> State:
        return torch.zeros_like(models), torch.zeros_like(models), models.new_zeros(len(models), 1)

    def update(self, models: Models, gradient: Models, step_size: StepSize, state: State) -> tuple[Models, State]:
        mean, square, steps = state
        if self.weight_decay:
            gradient = gradient.add(models, alpha=self.weight_decay)
        mean = mean.lerp(gradient, 1 - self.beta1)
        square = (square * self.beta2).addcmul_(gradient, gradient, value=1 - self.beta2)
        steps = steps + 1
        scale = (square / (1 - self.beta2**steps)).sqrt_().add_(self.eps)
        step = step_size / (1 - self.beta1**steps)
        return models - step * mean / scale, (mean, square, steps)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value < high:
        raise BadInput(f"{name} must be at least {low} and below {high}, but is {value}")
