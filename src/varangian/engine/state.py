"""What changes from round to round, and what recorders see of a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from varangian.attacks.base import Attack
from varangian.core.exchange import Exchange
from varangian.core.inbox import Table
from varangian.core.messages import Delivered
from varangian.core.models.base import Models, Sample
from varangian.core.wiring import Wiring
from varangian.engine.rule_memory import initial_memory
from varangian.engine.world import World
from varangian.rules.base import Rule


class State(NamedTuple):
    """Everything that changes from round to round. A world and a state are enough to continue a run."""

    round: int
    models: Models
    sample: Sample
    fresh: Bool[Tensor, "agent 1"]
    """Which agents have a new sample, not yet trained on. False for agents that got no new batch."""
    optimiser: tuple[Tensor, ...]
    rule: Sequence[Any]
    """The memory of the rule, one entry per table of neighbourhoods."""
    attack: Any


class Seen(NamedTuple):
    """What recorders see of a round."""

    before: Models
    wiring: Wiring
    weights: Sequence[Table | None]


def begin(world: World, rule: Rule[Any], attack: Attack[Any], round: int = 0) -> State:
    """The state before the first round. For a later `round`, only its shape is right; a checkpoint fills it."""
    return State(
        round=round,
        models=world.start,
        sample=world.sample(0),
        fresh=torch.ones_like(world.step_size, dtype=torch.bool),
        optimiser=world.task.optimiser.init(world.start),
        rule=initial_memory(rule, world.wiring(max(0, round - 1)), world.start.dtype),
        attack=attack.init(world.first_of_byzantine[:, : world.model.shared]),
    )


def exchange_of(
    world: World,
    state: State,
    adapted: Models,
    delivered: Delivered,
    sample: Sample,
    fresh: Bool[Tensor, "agent 1"],
) -> Exchange:
    """Everything the network needs to combine models.

    Args:
        world: The network.
        state: The state before the round.
        adapted: The models after adapting.
        delivered: The messages.
        sample: The next sample, on which agents judge.
        fresh: Which agents have a new one.
    """
    wait = world.task.stale == "wait"
    return Exchange(
        round=state.round,
        wiring=world.wiring(state.round),
        delivered=delivered,
        adapted=adapted,
        previous=state.models,
        samples={"next": sample, "same": state.sample},
        fresh=fresh if wait else torch.ones_like(fresh),
        trained=state.fresh if wait else torch.ones_like(fresh),
        model=world.judging,
        judged_on=world.task.judge,
        forgetting=world.forgetting,
        step_size=world.step_size_at(state.round),
        listening=world.listening,
        group=world.group,
        risk=world.risk,
        draws=world.sender_draws,
    )
