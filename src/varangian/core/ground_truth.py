"""What no real agent knows: for references that show how much there is to gain, and for omniscient adversaries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.graph import Neighbourhoods
from varangian.core.models.base import Models
from varangian.errors import BadInput

Risk = Callable[[Models], Float[Tensor, " agent"]]
"""r_k(θ_k) for every agent k: exact where the task knows it, else the loss on held-out data."""


@dataclass(frozen=True, eq=False)
class Truth:
    """Who is normal, who learns the same, and how good models really are, for the agents of one table."""

    table: Neighbourhoods
    everyone: Models
    """All agents' adapted models: risk is measured on whole networks."""
    group: Int[Tensor, " agents"]
    """Which task each agent of the network has."""
    normal: Bool[Tensor, " agents"]
    risk_of_everyone: Risk | None

    @cached_property
    def friends(self) -> Bool[Tensor, "agent slot"]:
        """Normal neighbours with the same task, and oneself."""
        senders = self.table.senders
        alike = self.group[senders] == self.group[self.table.receivers][:, None]
        friends = self.table.present & alike & self.normal[senders]
        friends[:, 0] = True
        return friends

    def risk(self, models: Models) -> Float[Tensor, " agent"]:
        """The true risk of one model for each of these agents."""
        if self.risk_of_everyone is None:
            raise BadInput("nobody knows the true risk of this task; give it test data, or use a rule that needs none")
        risk: Tensor = self.table.rows_of(self.risk_of_everyone(self.table.put(self.everyone, models)))
        return risk
