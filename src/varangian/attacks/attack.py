"""What an attack is: what Byzantine agents send instead of their adapted models.

An attack is an immutable value with two pure functions. `init` makes its state; `send` sees what the threat model
grants, and returns one message per Byzantine sender (`ToAll`) or one per edge (`ToEach`), and its next state. Nothing
else in the engine knows who is Byzantine. `varangian.testing.check_attack` checks the contract.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.draws import Draws
from varangian.messages import ToAll, ToEach

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class View:
    """What Byzantine agents know when they send: everything, for they are taken to collude and to listen."""

    round: int
    adapted: Float[Tensor, "agent parameter"]
    """θ̂ of everyone, Byzantine agents' own included: what they would send were they honest."""
    previous: Float[Tensor, "agent parameter"]
    """θ of everyone before adapting."""
    byzantine: Int[Tensor, " byzantine"]
    draws: Draws
    """Of the Byzantine agents."""
    sender: Int[Tensor, " edge"]
    receiver: Int[Tensor, " edge"]
    """The edges on which Byzantine agents send, in the order `ToEach` wants its rows."""

    @property
    def own(self) -> Float[Tensor, "byzantine parameter"]:
        """What the Byzantine agents would send were they honest."""
        return self.adapted[self.byzantine]

    def uniform(self, purpose: str) -> Float[Tensor, "byzantine parameter"]:
        return self.draws.uniform(purpose, self.round, self.adapted.shape[1], self.adapted.dtype)

    def normal(self, purpose: str) -> Float[Tensor, "byzantine parameter"]:
        return self.draws.normal(purpose, self.round, self.adapted.shape[1], self.adapted.dtype)

    def nobody(self) -> Tensor:
        """A mask over Byzantine senders with everyone silent."""
        return torch.ones_like(self.byzantine, dtype=torch.bool)


class Attack(Protocol[State]):
    def init(self, own: Float[Tensor, "byzantine parameter"]) -> State:
        """The state before the first round, from the Byzantine agents' first models."""
        ...

    def send(self, view: View, state: State) -> tuple[ToAll | ToEach, State]: ...


AnyAttack = Attack[Any]
