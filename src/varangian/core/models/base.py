"""What the engine asks of a model: losses of many rows of parameters at once, and their gradients.

All agents' parameters are one matrix, a row an agent. The leading `shared` columns of a row travel to neighbours;
the others stay at home, and a neighbour's shared part is judged together with one's own private part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from jaxtyping import Float
from torch import Tensor

Models = Float[Tensor, "agent parameter"]
Sample = tuple[Tensor, ...]
"""What every agent has just observed: tensors whose first dimension is the agent."""


class Model(Protocol):
    """A parametric model and its loss, stacked over agents. `Formula` and `stack.Stacked` are the two we ship."""

    @property
    def parameters(self) -> int: ...

    @property
    def shared(self) -> int: ...

    @property
    def random(self) -> bool:
        """Whether training draws from torch's own generator, which the engine then sets for every round."""
        ...

    def start(self, agents: int, dtype: torch.dtype, device: torch.device) -> Models:
        """Every agent's first model."""
        ...

    def judge(self, models: Float[Tensor, "agent slot parameter"], sample: Sample) -> Float[Tensor, "agent slot"]:
        """The loss of several models, each on the sample of the agent in whose row it stands."""
        ...

    def judge_all(self, models: Float[Tensor, "row parameter"], sample: Sample) -> Float[Tensor, "row agent"]:
        """The loss of every model on every agent's sample."""
        ...

    def gradient(self, models: Models, sample: Sample) -> Models:
        """∇ℓ(θ_k; ξ_k) for every agent k at its own model."""
        ...

    def settle(self, stepped: Models, before: Models, sample: Sample) -> Models:
        """What training changes besides the step itself: running statistics, where a model has any."""
        ...


def own_loss(model: Model, models: Models, sample: Sample) -> Float[Tensor, " agent"]:
    """ℓ(θ_k; ξ_k) for every agent k."""
    return model.judge(models[:, None], sample)[:, 0]


@dataclass(frozen=True)
class Formula:
    """A loss written as a formula on tensors of any leading shape, with its gradient where that is as short.

    `loss(theta, sample)` maps theta (…, parameter) and a sample whose tensors start with the same … to (…).

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
    """Every agent's first model, from the number of agents; zeros unless given."""

    random: ClassVar[bool] = False

    @property
    def shared(self) -> int:
        return self.parameters

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
            # A row's loss depends on that row alone, so the gradient of the sum is all gradients at once.
            (gradient,) = torch.autograd.grad(self.loss(leaf, sample).sum(), leaf)
        return gradient
