"""One seed's network, and who in it is Byzantine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.draws import Draws
from varangian.core.graph import Graph, TimeVarying
from varangian.core.task import Task
from varangian.errors import BadInput

Byzantine = int | float | Sequence[int]
"""How many agents are Byzantine, drawn by seed; or their share, between 0 and 1; or which they are."""


@dataclass(frozen=True, eq=False)
class Scene:
    """One seed's network: its task, its graph, and what pictures need to know."""

    task: Task
    graph: Graph | TimeVarying
    positions: Float[Tensor, "agent 2"] | None = None
    byzantine_by_group: bool = False
    """Draw Byzantine agents evenly from the task's groups instead of from all."""


def choose_byzantine(byzantine: Byzantine, scene: Scene, draws: Draws) -> Int[Tensor, " byzantine"]:
    """Who is Byzantine: a count or a share drawn by seed (a larger one holds every smaller one), or a list."""
    agents = scene.task.agents
    if not isinstance(byzantine, int | float):
        who = sorted(set(byzantine))
        if who and not (who[0] >= 0 and who[-1] < agents):
            raise BadInput(f"byzantine names agent {who[-1]} or a negative one; agents are 0 … {agents - 1}")
        return torch.tensor(who, dtype=torch.long)
    if isinstance(byzantine, float) and not 0 <= byzantine < 1:
        raise BadInput(f"a share of Byzantine agents lies between 0 and 1, but byzantine is {byzantine}")
    count = round(byzantine * agents) if isinstance(byzantine, float) else byzantine
    if not 0 <= count <= agents:
        raise BadInput(f"{count} Byzantine agents asked for, but there are {agents} agents")
    return byzantine_order(draws, scene.task.groups if scene.byzantine_by_group else None)[:count].sort().values


def byzantine_order(draws: Draws, groups: Sequence[int] | None = None) -> Int[Tensor, " agent"]:
    """The order in which agents turn Byzantine as more are asked for; where groups are given, they take turns."""
    lots = draws.uniform("byzantine", 0, 1)[:, 0]
    if groups is None:
        return lots.argsort()
    same = torch.as_tensor(groups)[:, None] == torch.as_tensor(groups)[None]
    rank_in_group = (same & (lots[None] < lots[:, None])).sum(1)
    return (rank_in_group + lots).argsort()
