"""What no real agent can know. Only clairvoyant reference rules and omniscient attacks use it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.graph import Neighbourhoods
from varangian.core.models.base import Models

Risk = Callable[[Models], Float[Tensor, " agent"]]
"""r_k(θ_k) for every agent k: exact if the task knows the risk, else the loss on held-out data."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Who is normal, who has the same task, and the true risk of models, for the agents of one table."""

    table: Neighbourhoods
    everyone: Models
    """The adapted models of all agents. The risk is always measured for the whole network."""
    group: Int[Tensor, " agents"]
    """The number of each agent's task."""
    normal: Bool[Tensor, " agents"]
    risk_of_everyone: Risk | None

    @cached_property
    def friends(self) -> Bool[Tensor, "agent slot"]:
        """Normal neighbours with the same task, and the agent itself."""
        senders = self.table.senders
        alike = self.group[senders] == self.group[self.table.receivers][:, None]
        friends = self.table.present & alike & self.normal[senders]
        friends[:, 0] = True
        return friends

    def risk(self, models: Models) -> Float[Tensor, " agent"]:
        """The true risk of these agents, with one model per agent."""
        if self.risk_of_everyone is None:
            raise BadInput("the true risk of this task is not known; give it test data, or use a rule that needs none")
        risk: Tensor = self.table.rows_of(self.risk_of_everyone(self.table.put(self.everyone, models)))
        return risk
