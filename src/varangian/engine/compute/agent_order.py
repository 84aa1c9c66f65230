"""Large networks in an order in which neighbours stand near each other in memory.

A message is read wherever its sender stands. Where that may be anywhere among a million agents, a processor spends
half of a round waiting for memory; where neighbours stand side by side, messages are in its cache. Which order agents
stand in changes nothing but the last digit of a sum: random draws are addressed by an agent's own number, neighbours
keep their slots, and results come back in the order that was asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.graph import Graph
from varangian.core.models.base import Models
from varangian.core.scene import Scene
from varangian.core.task import Divisible, part_of

LARGE = 2**15
"""From how many agents on their order matters."""

Measure = Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]


@dataclass(frozen=True, eq=False)
class AgentOrder:
    """Who stands where."""

    order: Int[Tensor, " place"]
    """The agent at every place."""
    place: Int[Tensor, " agent"]
    """The place of every agent."""

    @staticmethod
    def of(scene: Scene, device: torch.device) -> AgentOrder | None:
        """The order for a scene, if it is worth it and can be done: a large sparse network that lies in a plane."""
        graph, positions = scene.graph, scene.positions
        if not isinstance(graph, Graph) or positions is None or device.type != "cpu":
            return None
        if graph.agents < LARGE or not isinstance(scene.task.stream, Divisible):
            return None
        order = torch.from_numpy(strip_by_strip(positions.cpu().numpy()))
        return AgentOrder(order, order.argsort())

    def reordered(self, scene: Scene) -> Scene:
        """The scene with its agents in this order."""
        task = scene.task
        assert isinstance(scene.graph, Graph) and isinstance(task.stream, Divisible)  # as `of` made sure
        own = {name: getattr(task, name) for name in ("step_size", "forgetting", "skip", "groups")}
        own = {name: value for name, value in own.items() if isinstance(value, Tensor | list | tuple)}
        own = {name: torch.as_tensor(value)[self.order] for name, value in own.items()}
        task = replace(task, stream=part_of(task.stream, self.order), **own)
        return replace(scene, task=task, graph=self._graph(scene.graph), positions=None)

    def _graph(self, graph: Graph) -> Graph:
        """The same neighbours in the same slots, under their new numbers."""
        slots = graph.offsets.diff()[self.order]
        offsets = torch.cat((slots.new_zeros(1), slots.cumsum(0)))
        within = torch.arange(len(graph.senders)) - torch.repeat_interleave(offsets[:-1], slots)
        senders = graph.senders[torch.repeat_interleave(graph.offsets[:-1][self.order], slots) + within]
        return Graph(self.place[senders], offsets)

    def wrap_measure(self, measure: Measure) -> Measure:
        """What is measured of models in this order, by something that knows agents by their numbers."""

        def of(models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
            return {name: value[self.order] for name, value in measure(models[self.place]).items()}

        return of


def strip_by_strip(
    points: np.ndarray[tuple[int, int], np.dtype[np.float64]], strips: int | None = None
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The order of points in a plane when it is read in narrow strips, each from left to right.

    >>> strip_by_strip(np.array([[0.9, 0.1], [0.5, 0.9], [0.1, 0.2], [0.1, 0.8]]), strips=2)
    array([2, 0, 3, 1])
    """
    strips = strips or max(1, round(math.sqrt(len(points)) / 4))
    height = points[:, 1] - points[:, 1].min()
    strip = np.floor(height / (height.max() or 1.0) * strips * (1 - 1e-9))
    return np.lexsort((points[:, 0], strip))
