"""Faults without intention: old messages, repeated messages, lost messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.attacks.base import Knowledge, View
from varangian.core.errors import BadInput
from varangian.core.messages import ToAll

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class delay:
    """Sends the model that the sender adapted some rounds ago.

    Equation:
        m_{b,i} = θ̂_{b,i−rounds}  if i ≥ rounds
        m_{b,i} = θ_{b,0}  if i < rounds

    Here i is the round, and θ_{b,0} is the sender's first model. With `delay(1)` every message arrives one round
    late. Old models slow learning down where a rule does not notice their age.

    Knows: The sender's own model.
    Cost: No computation; it stores `rounds` models per Byzantine agent.

    Example:
        >>> from varangian import attacks
        >>> attacks.delay(rounds=3)
        delay(rounds=3)

    Reference:
        Folklore. It stands for stragglers and for slow connections.
    """

    rounds: int = 10
    """How many rounds a message is late."""

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise BadInput(f"a delay lasts at least one round, but rounds is {self.rounds}")

    def init(self, own: Own) -> tuple[Own, ...]:
        """A queue of models, the oldest first."""
        return (own,) * self.rounds

    def send(self, view: View, state: tuple[Own, ...]) -> tuple[ToAll, tuple[Own, ...]]:
        return ToAll(state[0]), (*state[1:], view.own)


@dataclass(frozen=True)
class duplicate:
    """Sends its first message again in every round.

    Equation:
        m_{b,i} = θ̂_{b,0}

    The message was honest when it was new. Later it is an almost untrained model, which looks harmless. It works
    against rules that never forget what earned their trust. In our tournament it also works against robust rules such
    as `balance` and `f_resilient`.

    Knows: The sender's own model.
    Cost: No computation; it stores one model per Byzantine agent.

    Example:
        >>> from varangian import attacks
        >>> attacks.duplicate()
        duplicate()

    Reference:
        Folklore. It stands for a process that hangs while its network card keeps sending.
    """

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def init(self, own: Own) -> tuple[Own, Bool[Tensor, " byzantine"]]:
        return torch.zeros_like(own), torch.zeros(len(own), dtype=torch.bool, device=own.device)

    def send(
        self, view: View, state: tuple[Own, Bool[Tensor, " byzantine"]]
    ) -> tuple[ToAll, tuple[Own, Bool[Tensor, " byzantine"]]]:
        first, begun = state
        message = torch.where(begun[:, None], first, view.own)
        return ToAll(message), (message, torch.ones_like(begun))


@dataclass(frozen=True)
class dropping:
    """Honest, but silent for some stretches of rounds, which are drawn by seed.

    Equation:
        m_{b,i} = θ̂_{b,i}  if v_{b,s} ≥ probability
        m_{b,i} = ∅  if v_{b,s} < probability
        v_{b,s} ~ U(0, 1)
        s = ⌊i / length⌋

    Here i is the round and s the stretch. Each sender draws anew for each stretch, whatever it did before. Rules must
    neither punish absent neighbours nor favour those that return.

    Knows: The sender's own model.
    Cost: One random number per Byzantine agent and round.

    Example:
        >>> from varangian import attacks
        >>> attacks.dropping(probability=0.1)
        dropping(probability=0.1, length=10)

    Reference:
        Smith, Chiang, Sanjabi and Talwalkar, "Federated multi-task learning", NeurIPS 2017.
        https://arxiv.org/abs/1705.10467
    """

    probability: float = 0.5
    """How likely a sender is silent in a stretch."""
    length: int = 10
    """How many rounds a stretch lasts."""

    knows: ClassVar[tuple[Knowledge, ...]] = ()
    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise BadInput(f"dropping needs a probability between 0 and 1, but probability is {self.probability}")
        if self.length < 1:
            raise BadInput(f"a stretch lasts at least one round, but length is {self.length}")

    def init(self, own: Own) -> tuple[()]:
        return ()

    def send(self, view: View, state: tuple[()]) -> tuple[ToAll, tuple[()]]:
        lot = view.draws.uniform("dropping", view.round // self.length, 1)[:, 0]
        return ToAll(view.own, silent=lot < self.probability), state
