"""What an attack is: what Byzantine agents send instead of their adapted models.

An attack is an immutable value with two pure functions. `init` makes its state. `send` sees what the threat model
grants, and returns the messages and the next state. There is one message per Byzantine sender (`ToAll`) or one per
edge (`ToEach`). An attack on data has a third function, `poison`, which changes the samples that Byzantine agents
train on. One with a trigger also has `trigger`, so that its success can be measured. Nothing else in the engine knows
who is Byzantine. `varangian.testing.check_attack` checks the contract.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, NoReturn, Protocol, TypeVar, cast, get_args, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.draws import Draws
from varangian.core.errors import BadInput, unknown
from varangian.core.ground_truth import Risk
from varangian.core.messages import ToAll, ToEach
from varangian.core.models.base import Model, Models, Sample
from varangian.core.wiring import Wiring
from varangian.rules.base import Rule

State = TypeVar("State")

Knowledge = Literal["messages", "rule", "sample", "future sample", "truth"]
"""What an attack knows besides the models and data of its senders, the graph and the loss function:

- `messages`: the models of other agents, before and after they adapt;
- `rule`: the victims' rule and its memory;
- `sample`: the sample that each victim has just trained on;
- `future sample`: the sample that each victim judges on next;
- `truth`: the true risk of a model for each victim.
"""
KNOWLEDGE: tuple[Knowledge, ...] = get_args(Knowledge)


class Rehearsed(NamedTuple):
    """What has become of a network after some rounds that were played ahead."""

    models: Models
    further: Callable[[int], Rehearsed]
    """Plays on for some more rounds."""


@dataclass(frozen=True, eq=False)
class Insight:
    """What an omniscient adversary knows in addition to the models that agents send.

    An attack that uses a part of it declares the kind of knowledge that is named in brackets.
    """

    model: Model
    models: Models
    """The adapted models θ̂ of all agents, with the parameters that are never sent (`messages`)."""
    sample: Sample
    """The sample that each agent has just trained on (`sample`)."""
    risk: Risk
    """The true risk of a model for each agent (`truth`). Where it is unknown, the loss on the last sample.

    Models may have a dimension for trials before the agents."""
    foresee: Callable[[ToAll | ToEach, Rule[Any] | None], Models]
    """The models that agents would combine if these messages were sent and they judged on the last sample (`rule` and
    `sample`).

    The second argument is another rule to try, which starts with an empty state. None means the rule that agents
    follow, with its state."""
    foresee_each: Callable[[Float[Tensor, "trial agent shared"], Rule[Any] | None], Tensor]
    """As `foresee`, for many trials at once: models (trial, agent, parameter). In each trial, all Byzantine neighbours
    of an agent send it the same message; a message that is not finite counts as silence."""
    rehearse: Callable[[AnyAttack, Any, int], Rehearsed]
    """The models of all agents after some more rounds of an attack with a given state, on samples like their own but
    not the same (`rule`, `sample` and `truth`)."""
    upcoming: Callable[[], Sample]
    """The sample that each agent judges on next (`future sample`)."""

    @staticmethod
    def hidden() -> Insight:
        """The placeholder for an insight where this process holds only a part of the network."""
        return cast(Insight, Hidden())


class Hidden:
    """The placeholder for an insight in a shard, which does not know the state of all agents."""

    def __getattr__(self, name: str) -> NoReturn:
        raise BadInput(
            "an attack that needs the state of all agents, such as best-response, cannot run in shards; "
            "run it with --engine local"
        )


@dataclass(frozen=True, eq=False)
class View:
    """What Byzantine agents can see when they send. They collude and listen, so the view holds everything.

    An attack declares in `knows` how much of it it uses.
    """

    round: int
    adapted: Float[Tensor, "agent parameter"]
    """The adapted models θ̂ of all agents. Those of Byzantine agents are what they would send if they were honest."""
    previous: Float[Tensor, "agent parameter"]
    """The models θ of all agents before they adapt."""
    byzantine: Int[Tensor, " byzantine"]
    draws: Draws
    """The random numbers of the Byzantine agents."""
    wiring: Wiring
    network: Int[Tensor, " agent"]
    """The network of each agent. The networks of several seeds may run side by side, and know nothing of each other."""
    insight: Insight
    sizes: tuple[int, ...]
    """How many numbers each tensor of a message has, in the order of a row."""

    @property
    def sender(self) -> Int[Tensor, " edge"]:
        """The senders of the edges on which Byzantine agents send, in the order of the rows of `ToEach`."""
        return self.wiring.sender

    @property
    def receiver(self) -> Int[Tensor, " edge"]:
        """The receivers of these edges."""
        return self.wiring.receiver

    @property
    def among_normal(self) -> tuple[Int[Tensor, " honest_edge"], Int[Tensor, " honest_edge"]]:
        """Senders and receivers of the edges between normal agents, including the edge of each agent to itself."""
        return self.wiring.among_normal

    @property
    def own(self) -> Float[Tensor, "byzantine parameter"]:
        """What the Byzantine agents would send if they were honest."""
        return self.adapted[self.byzantine]

    def uniform(self, purpose: str) -> Float[Tensor, "byzantine parameter"]:
        return self.draws.uniform(purpose, self.round, self.adapted.shape[1], self.adapted.dtype)

    def normal(self, purpose: str) -> Float[Tensor, "byzantine parameter"]:
        return self.draws.normal(purpose, self.round, self.adapted.shape[1], self.adapted.dtype)

    def nobody(self) -> Tensor:
        """The mask in which all Byzantine senders are silent."""
        return torch.ones_like(self.byzantine, dtype=torch.bool)


class Attack(Protocol[State]):
    def init(self, own: Float[Tensor, "byzantine parameter"]) -> State:
        """The state before the first round, from the Byzantine agents' first models.

        A state is a (nested) tuple of tensors and keeps its structure, so that a run can be resumed. A tensor without
        rows may get rows in the first round."""
        ...

    def send(self, view: View, state: State) -> tuple[ToAll | ToEach, State]: ...


@runtime_checkable
class Poisons(Protocol):
    """An attack on data: Byzantine agents train honestly, on samples that were changed."""

    def poison(self, sample: Sample, labels: int) -> Sample:
        """The sample that Byzantine agents train on in place of this one.

        `labels` is the number of labels in the data, or in the first round of a user's own stream. It is 0 where
        targets are numbers."""
        ...


@runtime_checkable
class Triggers(Protocol):
    """An attack with a trigger: it wants a label of its own for all items that carry it.

    Where test data has labels, runs measure how often normal agents give this label (`backdoor_success`).
    """

    def trigger(self, sample: Sample) -> Sample:
        """Items with the trigger on, and the labels that the adversary wants for them."""
        ...


@runtime_checkable
class Local(Protocol):
    """An attack that may declare that it is local.

    A local attack uses only the models of its senders, the messages that each victim hears and the victim's last
    model. A cluster can then compute it wherever the victims are. Without this declaration an attack is taken to
    look at all agents.
    """

    @property
    def local(self) -> bool: ...


def is_local(attack: AnyAttack) -> bool:
    """Whether an attack declares that it is local."""
    return isinstance(attack, Local) and attack.local


@runtime_checkable
class Informed(Protocol):
    """An attack that declares what it knows. An empty tuple means nothing but its senders' own models and data."""

    @property
    def knows(self) -> tuple[Knowledge, ...]: ...


def knowledge_of(attack: AnyAttack) -> tuple[Knowledge, ...]:
    """What an attack declares to know, in the order of `Knowledge`. One that declares nothing may know everything."""
    if not isinstance(attack, Informed):
        return KNOWLEDGE
    for kind in attack.knows:
        if kind not in KNOWLEDGE:
            raise unknown("kind of knowledge", str(kind), KNOWLEDGE)
    return tuple(kind for kind in KNOWLEDGE if kind in attack.knows)


def in_words(knowledge: tuple[Knowledge, ...]) -> str:
    """
    >>> in_words(("messages", "rule")), in_words(())
    ('messages, rule', 'nothing')
    """
    return ", ".join(knowledge) or "nothing"


AnyAttack = Attack[Any]
