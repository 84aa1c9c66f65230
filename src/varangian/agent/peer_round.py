"""The round of one agent whose neighbours are elsewhere.

The agent is a part of a network, with one agent of its own (see `engine/cluster/subnetwork.py`), and plays the same
round as a simulation. It trusts nobody: to the round, every neighbour is a sender that may be Byzantine. So all that
arrives passes the check on arrival, and a neighbour that was not heard has sent nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.attacks.base import View
from varangian.core.errors import BadInput
from varangian.core.execution import Execution
from varangian.core.graph import Graph
from varangian.core.messages import HonestMessages, ToAll
from varangian.core.models.base import Models
from varangian.core.task import Task
from varangian.engine.cluster.subnetwork import Part, world_of
from varangian.engine.recorder import measure, measure_anchors
from varangian.engine.round import adapt, listen
from varangian.engine.state import Seen, State, begin
from varangian.engine.world import World
from varangian.rules.base import Rule


@dataclass(frozen=True, eq=False)
class Share:
    """What one agent of a network learns, and whom it hears. Random draws depend on the seed and the number."""

    task: Task
    """The task of this agent alone."""
    number: int
    """The number of this agent in the network."""
    neighbours: tuple[int, ...]
    """The numbers of the agents that it hears."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.task.agents != 1:
            raise BadInput(f"an agent learns the task of one agent, but this task has {self.task.agents}")
        if self.number in self.neighbours or len(set(self.neighbours)) < len(self.neighbours):
            raise BadInput(f"agent {self.number} names itself or a neighbour twice: {self.neighbours}")


@dataclass(frozen=True, eq=False)
class Heard:
    """Takes the place of an attack in the round: what the neighbours have really sent."""

    rows: Float[Tensor, "neighbour shared"]
    silent: Bool[Tensor, " neighbour"]

    def init(self, own: Float[Tensor, "neighbour shared"]) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        return ToAll(self.rows, self.silent), state


@dataclass(frozen=True, eq=False)
class Outcome:
    """One round of one agent."""

    state: State
    """The state after the round."""
    measured: Mapping[str, float]
    """What was measured, by name: the loss, and what the task knows exactly."""
    weights: Mapping[int, float] | None
    """The weight of the agent and of every neighbour. None if the rule is not a convex combination."""


class Peer:
    """One agent: what does not change from round to round, and the two halves of a round."""

    def __init__(self, share: Share, rule: Rule[Any], dtype: torch.dtype = torch.float32) -> None:
        self.share, self.rule = share, rule
        self.world: World = world_of(_part(share), Execution(torch.device("cpu"), threads=1), dtype)
        self.others = tuple(sorted(share.neighbours))

    def first(self, round: int = 0) -> State:
        """The state before the first round. For a later `round`, only its shape is right."""
        with torch.no_grad():
            return begin(self.world, self.rule, self._heard({}), round)

    def adapt(self, state: State) -> tuple[Models, tuple[Tensor, ...]]:
        """The first half of a round: the model after training (eq. 2), and its optimiser."""
        with torch.no_grad():
            return adapt(self.world, state)

    def message(self, adapted: Models) -> Float[Tensor, " shared"]:
        """What the agent sends: the shared parameters."""
        return adapted[0, : self.world.model.shared]

    def listen(
        self,
        state: State,
        adapted: Models,
        optimiser: tuple[Tensor, ...],
        messages: Mapping[int, Float[Tensor, " shared"]],
    ) -> Outcome:
        """The second half of a round: judge what has arrived, and combine (eq. 3).

        Args:
            state: The state before the round.
            adapted: The model after training.
            optimiser: Its optimiser.
            messages: The messages of the neighbours that were heard, by number.
        """
        with torch.no_grad():
            shared = self.message(adapted)
            rows = shared.new_zeros(len(self.others) + 1, len(shared))
            rows[self._row] = shared
            honest = HonestMessages(rows, rows)
            after, seen = listen(self.world, self.rule, self._heard(messages), state, adapted, optimiser, honest)
            return Outcome(after, self._measured(after, seen), self._weights(seen))

    def evaluated(self, state: State) -> dict[str, float]:
        """What held-out data says about the model, at the end of an epoch."""
        with torch.no_grad():
            found = {**self.world.held_out(state.used), **measure_anchors(self.world.held_out, state)}
            return {name: float(value[0]) for name, value in found.items()}

    @property
    def _row(self) -> int:
        return sum(other < self.share.number for other in self.others)

    def _heard(self, messages: Mapping[int, Float[Tensor, " shared"]]) -> Heard:
        model = self.world.model
        rows = self.world.start.new_zeros(len(self.others), model.shared)
        for place, number in enumerate(self.others):
            if number in messages:
                rows[place] = messages[number]
        return Heard(rows, torch.tensor([number not in messages for number in self.others], dtype=torch.bool))

    def _measured(self, state: State, seen: Seen) -> dict[str, float]:
        found = measure(self.world, state, seen)
        # To this agent, every neighbour may be Byzantine: the weight of those who are is known to nobody here.
        return {name: float(value[0]) for name, value in found.items() if name != "byzantine_weight"}

    def _weights(self, seen: Seen) -> dict[int, float] | None:
        table, weights = seen.wiring.tables[0], seen.weights[0]
        if weights is None:
            return None
        numbers = sorted((*self.others, self.share.number))
        return {numbers[row]: float(of) for row, of in zip(table.senders[0].tolist(), weights[0], strict=True)}


def _part(share: Share) -> Part:
    """The part of a network that has only this agent."""
    heard = torch.tensor(sorted((share.number, *share.neighbours)))
    row = int(torch.searchsorted(heard, share.number))
    others = [other for other in range(len(heard)) if other != row]
    return Part(
        seed=share.seed,
        agents=int(heard.max()) + 1,
        task=share.task,
        start=None,
        own=torch.tensor([share.number]),
        border=1,
        heard=heard,
        byzantine=heard != share.number,
        group=torch.zeros_like(heard),
        graph=Graph.from_edges(len(heard), [(other, row) for other in others]),
        to=(),
        at=(),
        everyone=False,
    )
