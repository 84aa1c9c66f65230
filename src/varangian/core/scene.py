"""The network of one seed, and which of its agents are Byzantine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.checks import first_repeated, plain, shown, whole_numbers
from varangian.core.draws import Draws
from varangian.core.errors import BadInput
from varangian.core.graph import Graph, TimeVarying, as_graph
from varangian.core.models.base import Models
from varangian.core.task import Task

Byzantine = int | float | Sequence[int]
"""The number of Byzantine agents (drawn by seed), or their share between 0 and 1, or a list of them."""


class PerNetwork(NamedTuple):
    """Byzantine agents that differ from network to network, for networks side by side."""

    of: tuple[Byzantine, ...]


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "graph", as_graph(self.graph))


def choose_byzantine(byzantine: Byzantine, scene: Scene, draws: Draws) -> Int[Tensor, " byzantine"]:
    """The Byzantine agents. A number or a share is drawn by seed; a larger draw contains every smaller one."""
    agents = scene.task.agents
    byzantine = read_byzantine(byzantine)
    if isinstance(byzantine, Sequence):
        for agent in byzantine:
            if not 0 <= agent < agents:
                raise BadInput(f"byzantine names agent {agent}; agents are 0 … {agents - 1}")
        return torch.tensor(sorted(byzantine), dtype=torch.long)
    count = round(byzantine * agents) if isinstance(byzantine, float) else byzantine
    if not 0 <= count <= agents:
        raise BadInput(f"byzantine must be between 0 and {agents}, but is {count}; the network has {agents} agents")
    if not count:
        return torch.zeros(0, dtype=torch.long)
    return byzantine_order(draws, scene.task.groups if scene.byzantine_by_group else None)[:count].sort().values


def read_byzantine(byzantine: Any) -> Byzantine:
    """Which agents are Byzantine, in one form: a number, a share, or a list; also from NumPy.

    >>> import numpy as np
    >>> read_byzantine(np.int64(3)), read_byzantine(0.25), read_byzantine(np.array([1, 4]))
    (3, 0.25, (1, 4))
    >>> read_byzantine([1, 4, 1])
    Traceback (most recent call last):
    varangian.core.errors.BadInput: byzantine names agent 1 twice; name each agent once
    """
    value = plain(byzantine)
    if isinstance(value, bool | str) or not isinstance(value, int | float | Iterable):
        raise BadInput(f"byzantine must be a number, a share or a list of agents, but is {shown(byzantine)}")
    if isinstance(value, float):
        if not 0 <= value < 1:
            raise BadInput(f"a share of Byzantine agents must be at least 0 and below 1, but byzantine is {value}")
        return value
    if isinstance(value, int):
        return value
    who = tuple(whole_numbers(value, "byzantine"))
    twice = first_repeated(who)
    if twice is not None:
        raise BadInput(f"byzantine names agent {twice} twice; name each agent once")
    return who


def byzantine_order(draws: Draws, groups: Sequence[int] | None = None) -> Int[Tensor, " agent"]:
    """The order in which agents become Byzantine as their number grows. With groups, the groups take turns."""
    lots = draws.uniform("byzantine", 0, 1)[:, 0]
    if groups is None:
        return lots.argsort()
    same = torch.as_tensor(groups)[:, None] == torch.as_tensor(groups)[None]
    rank_in_group = (same & (lots[None] < lots[:, None])).sum(1)
    return (rank_in_group + lots).argsort()
