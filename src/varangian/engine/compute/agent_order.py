"""The order of agents in memory, for large networks: neighbours are stored near each other.

A message is read from the row of its sender. If senders are anywhere among a million agents, a processor waits for
memory during half of a round. If neighbours are stored side by side, their messages are in its cache. The order changes
only the last digits of sums: random draws depend on an agent's own number, neighbours keep their slots, and results
list agents by number.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.graph import Graph
from varangian.core.models.base import Models
from varangian.core.scene import Scene
from varangian.core.task import Divisible, part_of

LARGE = 2**15
"""The number of agents from which their order matters."""

Measure = Callable[[Models], Mapping[str, Float[Tensor, " agent"]]]


@dataclass(frozen=True, eq=False)
class AgentOrder:
    """An order of agents in memory."""

    order: Int[Tensor, " place"]
    """The agent at every position."""
    place: Int[Tensor, " agent"]
    """The position of every agent."""

    @staticmethod
    def of(scene: Scene, device: torch.device) -> AgentOrder | None:
        """The order for a scene, or None if it would not help: it is for large networks on a CPU with positions."""
        graph, positions = scene.graph, scene.positions
        if not isinstance(graph, Graph) or positions is None or device.type != "cpu":
            return None
        if graph.agents < LARGE or not isinstance(scene.task.stream, Divisible):
            return None
        order = torch.from_numpy(strip_by_strip(positions.cpu().numpy()))
        return AgentOrder(order, order.argsort())

    def reordered(self, scene: Scene) -> Scene:
        """The scene with its agents in this order: also what is known exactly, if it can be divided."""
        task = scene.task
        assert isinstance(scene.graph, Graph) and isinstance(task.stream, Divisible)  # checked in `of`
        own = {name: getattr(task, name) for name in ("step_size", "forgetting", "skip", "groups")}
        own = {name: value for name, value in own.items() if isinstance(value, Tensor | list | tuple)}
        own = {name: torch.as_tensor(value)[self.order] for name, value in own.items()}
        exact: Any = task.exact
        if isinstance(exact, Divisible):
            own["exact"] = exact.part(self.order)
        task = replace(task, stream=part_of(task.stream, self.order), **own)
        return replace(scene, task=task, graph=self._graph(scene.graph), positions=None)

    def _graph(self, graph: Graph) -> Graph:
        """The same neighbours in the same slots, with their new numbers."""
        slots = graph.offsets.diff()[self.order]
        offsets = torch.cat((slots.new_zeros(1), slots.cumsum(0)))
        within = torch.arange(len(graph.senders)) - torch.repeat_interleave(offsets[:-1], slots)
        senders = graph.senders[torch.repeat_interleave(graph.offsets[:-1][self.order], slots) + within]
        return Graph(self.place[senders], offsets)

    def wrap_measure(self, measure: Measure) -> Measure:
        """A measure for models in this order, from a measure for models in the order of agents' numbers."""

        def of(models: Models) -> Mapping[str, Float[Tensor, " agent"]]:
            return {name: value[self.order] for name, value in measure(models[self.place]).items()}

        return of


def strip_by_strip(
    points: np.ndarray[tuple[int, int], np.dtype[np.float64]], strips: int | None = None
) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The order of points in a plane, read in narrow strips, each from left to right.

    >>> strip_by_strip(np.array([[0.9, 0.1], [0.5, 0.9], [0.1, 0.2], [0.1, 0.8]]), strips=2)
    array([2, 0, 3, 1])
    """
    strips = strips or max(1, round(math.sqrt(len(points)) / 4))
    height = points[:, 1] - points[:, 1].min()
    strip = np.floor(height / (height.max() or 1.0) * strips * (1 - 1e-9))
    return np.lexsort((points[:, 0], strip))
