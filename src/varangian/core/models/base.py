"""What the engine needs from a model: the losses of many models at once, and their gradients.

The parameters of all agents form one matrix, one row per agent. The first `shared` columns of a row are sent to
neighbours; the other columns are private. An agent judges a neighbour's shared part together with its own private part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

Models = Float[Tensor, "agent parameter"]
Sample = tuple[Tensor, ...]
"""The latest data of every agent: tensors whose first dimension is the agent."""


class Model(Protocol):
    """A parametric model and its loss, for all agents at once. The library has two: `Formula` and `Stacked`."""

    @property
    def parameters(self) -> int: ...

    @property
    def shared(self) -> int: ...

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many numbers each tensor of the shared part has, in the order of a row."""
        ...

    @property
    def random(self) -> bool:
        """Whether training uses torch's global random generator. The engine then seeds it in every round."""
        ...

    def start(self, agents: int, dtype: torch.dtype, device: torch.device) -> Models:
        """The initial models."""
        ...

    def judge(self, models: Float[Tensor, "agent slot parameter"], sample: Sample) -> Float[Tensor, "agent slot"]:
        """The loss of several models per agent, each on the sample of that agent."""
        ...

    def judge_all(self, models: Float[Tensor, "row parameter"], sample: Sample) -> Float[Tensor, "row agent"]:
        """The loss of every model on every agent's sample."""
        ...

    def gradient(self, models: Models, sample: Sample) -> Models:
        """∇ℓ(θ_k; ξ_k) for every agent k at its own model."""
        ...

    def settle(self, stepped: Models, before: Models, sample: Sample) -> Models:
        """The models with what training changes besides the step itself: running statistics, if there are any."""
        ...


class LinearLayer(NamedTuple):
    """The weights of a layer that is linear in its input: some columns of the models, one per output and feature."""

    start: int
    stop: int
    inputs: Float[Tensor, "agent row feature"]
    """What the layer is given when each agent's model sees its own sample."""


@runtime_checkable
class HasLayers(Protocol):
    """A model with layers, for batches of items."""

    def linear_layers(self, models: Models, sample: Sample) -> list[LinearLayer]:
        """The linear layers whose weights are in the models, in the order of their names."""
        ...


def own_loss(model: Model, models: Models, sample: Sample) -> Float[Tensor, " agent"]:
    """ℓ(θ_k; ξ_k) for every agent k."""
    return model.judge(models[:, None], sample)[:, 0]


@dataclass(frozen=True)
class Formula:
    """A loss written as a formula on tensors, and optionally its gradient.

    `loss(theta, sample)` takes theta of shape (…, parameter) and a sample whose tensors start with the same leading
    dimensions …, and returns a tensor of shape (…).

    >>> line = Formula(parameters=1, loss=lambda theta, sample: (theta[..., 0] * sample[0] - sample[1]) ** 2)
    >>> x, y = torch.tensor([1.0, 2.0]), torch.tensor([1.0, 0.0])
    >>> own_loss(line, torch.tensor([[0.0], [3.0]]), (x, y))
    tensor([ 1., 36.])
    >>> line.gradient(torch.tensor([[0.0], [3.0]]), (x, y))
    tensor([[-2.],
            [24.]])
    """

    parameters: int
    loss: Callable[[Tensor, Sample], Tensor]
    gradient_of_loss: Callable[[Models, Sample], Models] | None = None
    first: Callable[[int], Models] | None = None
    """The initial models, from the number of agents. By default zeros."""

    random: ClassVar[bool] = False

    @property
    def shared(self) -> int:
        return self.parameters

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.shared,)

    def start(self, agents: int, dtype: torch.dtype, device: torch.device) -> Models:
        if self.first is None:
            return torch.zeros(agents, self.parameters, dtype=dtype, device=device)
        return self.first(agents).to(dtype=dtype, device=device, copy=True)

    def judge(self, models: Float[Tensor, "agent slot parameter"], sample: Sample) -> Float[Tensor, "agent slot"]:
        return self.loss(models, tuple(part.unsqueeze(1) for part in sample))

    def judge_all(self, models: Float[Tensor, "row parameter"], sample: Sample) -> Float[Tensor, "row agent"]:
        return self.loss(models[:, None], tuple(part[None] for part in sample))

    def settle(self, stepped: Models, before: Models, sample: Sample) -> Models:
        return stepped

    def gradient(self, models: Models, sample: Sample) -> Models:
        if self.gradient_of_loss is not None:
            return self.gradient_of_loss(models, sample)
        with torch.enable_grad():
            leaf = models.detach().requires_grad_()
            # The loss of a row depends on that row only, so the gradient of the sum holds all gradients.
            (gradient,) = torch.autograd.grad(self.loss(leaf, sample).sum(), leaf)
        return gradient
