"""What an attack is: what Byzantine agents send instead of their adapted models.

An attack is an immutable value with two pure functions. `init` makes its state; `send` sees what the threat model
grants, and returns one message per Byzantine sender (`ToAll`) or one per edge (`ToEach`), and its next state. An attack
on data has a third, `poison`, which changes the samples that Byzantine agents train on. Nothing else in the engine
knows who is Byzantine. `varangian.testing.check_attack` checks the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn, Protocol, TypeVar, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.draws import Draws
from varangian.core.ground_truth import Risk
from varangian.core.messages import ToAll, ToEach
from varangian.core.models.base import Model, Models, Sample
from varangian.core.wiring import Wiring
from varangian.errors import BadInput
from varangian.rules.base import Rule

State = TypeVar("State")


@dataclass(frozen=True, eq=False)
class Insight:
    """What an omniscient adversary knows besides messages."""

    model: Model
    models: Models
    """θ̂ of everyone, the parts that do not travel included."""
    sample: Sample
    """What each agent has just trained on."""
    risk: Risk
    """How good a model really is for each agent; its loss on the last sample where nothing better is known."""
    foresee: Callable[[ToAll | ToEach, Rule[Any] | None], Models]
    """The models that agents would combine if this were sent and they judged on the last sample: with the rule they
    follow and what it remembers, or with another rule, which then remembers nothing."""

    @staticmethod
    def hidden() -> Insight:
        """In place of an insight where only a part of a network is here."""
        return cast(Insight, Hidden())


class Hidden:
    """In place of an insight where only a part of a network is played: nobody there knows all that agents remember."""

    def __getattr__(self, name: str) -> NoReturn:
        raise BadInput(
            "an attack that looks into what all agents remember, as best-response does, cannot be played in shards; "
            "run it with --engine local"
        )


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
    wiring: Wiring
    network: Int[Tensor, " agent"]
    """Which network an agent belongs to: several seeds' may run side by side, and know nothing of each other."""
    insight: Insight

    @property
    def sender(self) -> Int[Tensor, " edge"]:
        """Of the edges on which Byzantine agents send, in the order `ToEach` wants its rows."""
        return self.wiring.sender

    @property
    def receiver(self) -> Int[Tensor, " edge"]:
        """The hearing ends of these edges."""
        return self.wiring.receiver

    @property
    def among_normal(self) -> tuple[Int[Tensor, " honest_edge"], Int[Tensor, " honest_edge"]]:
        """Senders and receivers of the edges between normal agents, everyone's own included."""
        return self.wiring.among_normal

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


@runtime_checkable
class Poisons(Protocol):
    """An attack on data: its senders train as they should on samples that were tampered with."""

    def poison(self, sample: Sample, labels: int) -> Sample:
        """The sample that a Byzantine agent in that place would train on; `labels` is how many labels there are in the
        data, or in the first round of a stream of one's own, and 0 where targets are numbers."""
        ...


@runtime_checkable
class Local(Protocol):
    """An attack that may say it looks at nothing but its senders' models and at what each victim hears and was.

    Such a one can be worked out wherever its victims are. Those that do not say so are taken to look at everyone.
    """

    @property
    def local(self) -> bool: ...


def is_local(attack: AnyAttack) -> bool:
    """Whether an attack says that it is."""
    return isinstance(attack, Local) and attack.local


AnyAttack = Attack[Any]
