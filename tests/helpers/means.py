"""Small networks in which every agent estimates a mean of its own, for tests of what rules are good for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varangian import Draws, Graph, Task, final, simulate
from varangian.core.models.base import Formula, Sample
from varangian.core.task import Quadratic, Some


@dataclass(frozen=True, eq=False)
class Noisy:
    """Measurements of each agent's mean, with an error of standard deviation 1 in every number."""

    mean: Tensor

    @property
    def agents(self) -> int:
        return len(self.mean)

    def samples(self, draws: Draws, start: int, rounds: int, dtype: torch.dtype) -> Sample:
        return (draws.normal_rounds("measurement", start, rounds, self.mean.shape[1], dtype) + self.mean.to(dtype),)

    def to(self, device: torch.device) -> Noisy:
        return self

    def part(self, agents: Some) -> Noisy:
        return Noisy(self.mean[agents])


def estimation(mean: Tensor, start: Tensor | None = None, step_size: float = 0.05) -> Task:
    """Agent k estimates row k of `mean`; it starts at row k of `start`, by default at zero.

    Agents with the same mean have the same task.
    """
    agents, width = mean.shape
    model = Formula(
        width,
        lambda theta, sample: (theta - sample[0]).square().sum(-1),
        first=None if start is None else lambda agents: start.clone(),
    )
    exact = Quadratic(mean, torch.eye(width, dtype=mean.dtype).expand(agents, width, width))
    _, groups = mean.unique(dim=0, return_inverse=True)
    return Task(model, Noisy(mean), step_size=step_size, exact=exact, groups=groups.tolist())


def error(task: Task, graph: Graph, rule: Any, attack: Any = None, byzantine: Any = 0, rounds: int = 60) -> float:
    """The mean square deviation of normal agents in the last fifth of the rounds; three seeds."""
    result = simulate(task, graph, rule=rule, attack=attack, byzantine=byzantine, rounds=rounds, seeds=3)
    return float(final(result, "msd").mean())


def two_clusters(agents: int = 20, apart: float = 6.0, width: int = 5) -> Tensor:
    """Every second agent has its mean at +apart/2 in all numbers, the others at −apart/2."""
    side = torch.where(torch.arange(agents) % 2 == 0, 1.0, -1.0).double()
    return side[:, None].expand(agents, width) * apart / 2
