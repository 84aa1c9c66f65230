"""What a rule is: how an agent combines what it heard with what it has.

A rule is an immutable value with two pure functions. `init` makes its state from an empty table of (agent, slot);
`combine` takes an inbox and a state and returns the next models, the weights where it is a weighing rule, and the
next state. A state is a (nested) tuple of tensors: those with one dimension are per agent, those with two or more are
per (agent, slot); when the graph changes, neighbours who stay keep theirs and newcomers start anew.

A rule must treat each agent by what that agent's row shows and by nothing else; `varangian.testing.check_rule` checks
this and the rest of the contract.
"""

from __future__ import annotations

from typing import Generic, NamedTuple, Protocol, TypeVar

from varangian.core.inbox import Inbox, Table
from varangian.core.models.base import Models

State = TypeVar("State")


class Combined(NamedTuple, Generic[State]):
    """What came of a round for some agents."""

    models: Models
    weights: Table | None
    """a_lk for every slot, rows summing to one; None for rules that are no convex combination."""
    state: State


class Rule(Protocol[State]):
    def init(self, table: Table) -> State:
        """The state before the first round, from an empty table of the right shape, type and device."""
        ...

    def combine(self, inbox: Inbox, state: State) -> Combined[State]: ...
