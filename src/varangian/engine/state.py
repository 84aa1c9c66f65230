"""What changes from round to round, and what recorders see of a round."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from varangian.attacks.base import Attack
from varangian.core.exchange import Exchange
from varangian.core.inbox import FoldModels, SecondModel, Table
from varangian.core.messages import Delivered
from varangian.core.models.base import Models, Sample
from varangian.core.wiring import Wiring
from varangian.engine.fold_models import FoldState, begin_folds, fold_models, train_folds
from varangian.engine.rule_memory import initial_memory
from varangian.engine.world import World
from varangian.rules.base import Rule, companion_of, folds_of


class Second(NamedTuple):
    """A second model of every agent, which is never sent. It takes the same training steps on the same samples."""

    models: Models
    optimiser: tuple[Tensor, ...]
    personal: bool
    """Whether agents use this model, so that it is the one to measure. Otherwise it is the anchor, which never listens.
    """
    before: Models | None = None
    """The models before training, while a round is played."""
    folds: FoldState | None = None
    """The fold models of every agent, if the rule asks for them."""


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
    second: Second | None = None
    """The second model of every agent, if the rule asks for one."""

    @property
    def used(self) -> Models:
        """The models that agents use, and that are measured."""
        return self.second.models if self.second is not None and self.second.personal else self.models


class Seen(NamedTuple):
    """What recorders see of a round."""

    before: Models
    wiring: Wiring
    weights: Sequence[Table | None]


def begin(world: World, rule: Rule[Any], attack: Attack[Any], round: int = 0) -> State:
    """The state before the first round. For a later `round`, only its shape is right; a checkpoint fills it."""
    companion, optimiser = companion_of(rule), world.task.optimiser.init(world.start)
    folds = begin_folds(world, folds_of(rule))
    return State(
        round=round,
        models=world.start,
        sample=world.sample(0),
        fresh=torch.ones_like(world.step_size, dtype=torch.bool),
        optimiser=optimiser,
        rule=initial_memory(rule, world.wiring(max(0, round - 1)), world.start.dtype),
        attack=attack.init(world.first_of_byzantine[:, : world.model.shared]),
        second=None if companion is None else Second(world.start, optimiser, companion == "personal", folds=folds),
    )


Step = Callable[[State], tuple[Models, tuple[Tensor, ...]]]
"""From a state to the models and optimisers of all agents after training."""


def with_second_adapted(
    world: World, state: State, adapted: Models, optimiser: tuple[Tensor, ...], step: Step
) -> State:
    """The state with its second models trained, if there are any: the same step on the same samples.

    Fold models take the same step on samples of their own.

    Args:
        world: The network.
        state: The state before the round.
        adapted: The first models after training.
        optimiser: Their optimisers.
        step: How agents train.
    """
    second = state.second
    if second is None or second.before is not None:  # already trained, where an attack plays this round ahead
        return state
    if second.models is not state.models:  # both are the same before the first round
        adapted, optimiser = step(state._replace(models=second.models, optimiser=second.optimiser))

    def step_on(models: Models, sample: Sample, optimiser: tuple[Tensor, ...]) -> tuple[Models, tuple[Tensor, ...]]:
        return step(state._replace(models=models, sample=sample, optimiser=optimiser))

    folds = second.folds and train_folds(world, second.folds, state.round, step_on)
    return state._replace(second=Second(adapted, optimiser, second.personal, second.models, folds))


def second_after(state: State, combined: Models | None) -> Second | None:
    """The second models for the next round: those that the rule has combined, if it has, or else the trained ones."""
    second = state.second
    if second is None:
        return None
    models = second.models if combined is None else combined
    return Second(models, second.optimiser, second.personal, folds=second.folds)


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
        state: The state before the round; but its second models have already trained.
        adapted: The models after adapting.
        delivered: The messages.
        sample: The next sample, on which agents judge.
        fresh: Which agents have a new one.
    """
    wait = world.task.stale == "wait"
    second = state.second
    folds, unseen = fold_models(world, state.round, second and second.folds)
    return Exchange(
        round=state.round,
        wiring=world.wiring(state.round),
        delivered=delivered,
        adapted=adapted,
        previous=state.models,
        samples={"next": sample, "same": state.sample, **unseen},
        fresh=fresh if wait else torch.ones_like(fresh),
        trained=state.fresh if wait else torch.ones_like(fresh),
        model=world.judging,
        judged_on=world.task.judge,
        forgetting=world.forgetting,
        step_size=world.step_size_at(state.round),
        listening=world.listening,
        group=world.group,
        risk=world.risk_at(state.round + 1),
        draws=world.sender_draws,
        second=None if second is None or second.before is None else SecondModel(second.models, second.before),
        folds=folds,
    )


def with_second(exchange: Exchange, rule: Rule[Any]) -> Exchange:
    """The exchange with second models, if the rule needs them.

    Only attacks try rules that the agents do not follow. For those, the first model takes the place of the second, and
    of the fold models.
    """
    if exchange.second is None and companion_of(rule) is not None:
        exchange = replace(exchange, second=SecondModel(exchange.adapted, exchange.previous))
    folds = folds_of(rule)
    if not folds or (exchange.folds is not None and len(exchange.folds.models) == folds):
        return exchange
    sample = exchange.samples["next"]
    of_folds = FoldModels((exchange.adapted,) * folds, ((sample,),) * folds, torch.ones_like(exchange.forgetting))
    return replace(exchange, folds=of_folds, samples={**exchange.samples, "unseen": sample})
