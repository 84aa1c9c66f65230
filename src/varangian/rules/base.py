"""The protocol of a rule: how an agent combines its neighbours' models with its own.

A rule is an immutable value with two pure functions. `init` makes its state from an empty table of (agent, slot).
`combine` takes an inbox and a state. It returns the next models, the weights (for weighing rules) and the next state.

A state is a (nested) tuple of tensors. Tensors of one dimension are per agent; those of two or more dimensions are per
(agent, slot). When the graph changes, neighbours that stay keep their entries and new neighbours start afresh.

A rule may ask for a second model per agent, which is never sent: see `companion_of`. One that compares with models
trained without some of the agent's items asks for fold models: see `folds_of`. One that is another rule where
agents have few items says so: see `Adaptable`.

A rule may treat an agent only by what that agent's row shows. `varangian.testing.check_rule` checks this and the rest
of the contract.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox, Table
from varangian.core.models.base import Models

State = TypeVar("State")


class Combined(NamedTuple, Generic[State]):
    """The result of one round for some agents."""

    models: Models
    """The next model of each agent."""
    weights: Table | None
    """a_lk for every slot, with rows that sum to one. None if the rule is not a convex combination."""
    state: State
    """The rule's state for the next round."""
    personal: Models | None = None
    """The next personal model of each agent, for rules with `companion = "personal"`. None keeps it as it is."""


class Rule(Protocol[State]):
    """What the engine expects of a rule."""

    def init(self, table: Table) -> State:
        """The state before the first round, from an empty table with the right shape, type and device."""
        ...

    def combine(self, inbox: Inbox, state: State) -> Combined[State]:
        """The next models, weights and state, from what the agents heard."""
        ...


Companion = Literal["alone", "personal"]
"""What a second model is for."""


def companion_of(rule: Rule[Any]) -> Companion | None:
    """What the rule needs a second model for: its `companion`. None if it has none, and then a run has none.

    A second model takes the same training steps on the same samples.

    - `"alone"`: the second model never listens. It is bit for bit the model that the agent would have under
      `rules.alone()`: `inbox.anchor`.
    - `"personal"`: the second model is the one that the agent uses, and that is measured: `inbox.personal`. The first
      model is sent and combined. `combine` returns both.
    """
    # Not a protocol: every round asks, and `isinstance` with a protocol takes a tenth of a small round.
    companion: Companion | None = getattr(rule, "companion", None)
    return companion


@runtime_checkable
class WithWorkspace(Protocol):
    """A rule or an attack whose memory grows faster than the number of models that one agent hears.

    A run adds up what it needs before it starts, and refuses to start if that does not fit. Without this method, a few
    copies of what an agent hears are taken to be enough.
    """

    def workspace(self, slots: int, shared: int) -> int:
        """About how many bytes one agent needs at a time, if it hears `slots` models of `shared` numbers each."""
        ...


def workspace_of(value: object, slots: int, shared: int) -> int:
    """The workspace of a rule or an attack, or of those inside it, whichever is the largest."""
    own = value.workspace(slots, shared) if isinstance(value, WithWorkspace) else 0
    if isinstance(value, type) or not is_dataclass(value):
        return own
    held = [getattr(value, one.name) for one in fields(value)]
    inside = [part for each in held for part in (each if isinstance(each, tuple) else (each,))]
    return max([own, *(workspace_of(part, slots, shared) for part in inside)])


def pairs(slots: int, tables: int) -> int:
    """The bytes of some tables with a number of 8 bytes for every pair of models that an agent hears.

    >>> pairs(100, tables=3)
    240000
    """
    return 8 * tables * slots**2


def folds_of(rule: Rule[Any]) -> int:
    """How many fold models per agent the rule needs: its `folds`. Zero if it has none, and then a run has none.

    Each fold model is trained without one fold of the agent's items: `inbox.cross_fitted`. Such a rule needs finite
    data. It has anchors, too: its `companion` is `"alone"`.
    """
    folds: int = getattr(rule, "folds", 0)
    return folds


@runtime_checkable
class Adaptable(Protocol):
    """A rule that is another one where agents have few items and go over them again: see `few_and_repeated`."""

    def on_few_items(self) -> Rule[Any]:
        """The rule for such data."""
        ...


def check_inner(name: str, rule: Rule[Any]) -> None:
    """Refuse a rule with personal models inside a rule that decides only about the model that is sent."""
    if companion_of(rule) == "personal":
        raise BadInput(f"{name} decides about the model that is sent; the rule inside must not have a personal one")
