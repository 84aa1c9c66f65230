"""Faults that are nobody's intention: old messages, repeated messages, lost messages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.attacks.base import View
from varangian.core.messages import ToAll
from varangian.errors import BadInput

Own = Float[Tensor, "byzantine parameter"]


@dataclass(frozen=True)
class delay:
    """Honest, but late: the model the sender adapted some rounds ago, its first one until then.

    A straggler, or a slow line. Knows nothing; slows down rules that do not notice, and `delay(1)` is a message that
    always arrives one round after it was sent.
    """

    rounds: int = 10

    local: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise BadInput(f"a delay lasts at least one round, but rounds is {self.rounds}")

    def init(self, own: Own) -> tuple[Own, ...]:
        """A queue, the oldest first."""
        return (own,) * self.rounds

    def send(self, view: View, state: tuple[Own, ...]) -> tuple[ToAll, tuple[Own, ...]]:
        return ToAll(state[0]), (*state[1:], view.own)


@dataclass(frozen=True)
class duplicate:
    """Repeats its first message for ever: a process that hangs while its network card does not.

    The message was honest when it was new. Knows nothing; against rules that never forget what earned their trust.
    """

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
    """Honest, but silent for stretches of rounds, drawn by seed: nodes that drop out and come back.

    In every stretch of `length` rounds each sender is away with the given probability, whatever it was before. Rules
    must neither punish the absent nor give those who return a head start.

    Smith, Chiang, Sanjabi, Talwalkar: Federated multi-task learning (MOCHA). NeurIPS 2017.
    """

    probability: float = 0.5
    length: int = 10

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
