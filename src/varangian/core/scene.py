"""The network of one seed, and which of its agents are Byzantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.graph import Graph, TimeVarying
from varangian.core.models.base import Models
from varangian.core.task import Task

Byzantine = int | float | Sequence[int]
"""The number of Byzantine agents (drawn by seed), or their share between 0 and 1, or a list of them."""


@dataclass(frozen=True, eq=False)
class Scene:
    """The network of one seed: its task, its graph, and what figures need."""

    task: Task
    graph: Graph | TimeVarying
    positions: Float[Tensor, "agent 2"] | None = None
    byzantine_by_group: bool = False
    """Whether to draw Byzantine agents evenly from the groups of the task, instead of from all agents."""
    start: Models | None = None
    """The models to start from. By default those of the task."""


def choose_byzantine(byzantine: Byzantine, scene: Scene, draws: Draws) -> Int[Tensor, " byzantine"]:
    """The Byzantine agents. A number or a share is drawn by seed; a larger draw contains every smaller one."""
    agents = scene.task.agents
    if not isinstance(byzantine, int | float):
        who = sorted(set(byzantine))
        if who and not (who[0] >= 0 and who[-1] < agents):
            raise BadInput(f"byzantine names agent {who[-1]} or a negative number; agents are 0 … {agents - 1}")
        return torch.tensor(who, dtype=torch.long)
    if isinstance(byzantine, float) and not 0 <= byzantine < 1:
        raise BadInput(f"a share of Byzantine agents must be at least 0 and below 1, but byzantine is {byzantine}")
    count = round(byzantine * agents) if isinstance(byzantine, float) else byzantine
    if not 0 <= count <= agents:
        raise BadInput(f"byzantine must be between 0 and {agents}, but is {count}; the network has {agents} agents")
    return byzantine_order(draws, scene.task.groups if scene.byzantine_by_group else None)[:count].sort().values


def byzantine_order(draws: Draws, groups: Sequence[int] | None = None) -> Int[Tensor, " agent"]:
    """The order in which agents become Byzantine as their number grows. With groups, the groups take turns."""
    lots = draws.uniform("byzantine", 0, 1)[:, 0]
    if groups is None:
        return lots.argsort()
    same = torch.as_tensor(groups)[:, None] == torch.as_tensor(groups)[None]
    rank_in_group = (same & (lots[None] < lots[:, None])).sum(1)
    return (rank_in_group + lots).argsort()
