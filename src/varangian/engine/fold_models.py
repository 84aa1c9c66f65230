"""Fold models: K models per agent, each trained without one fold of the agent's items. They take turns to train."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeVar

from torch import Tensor

from varangian.core.inbox import FoldModels
from varangian.core.layout import rows_where
from varangian.core.models.base import Models, Sample
from varangian.core.task import SampleKind
from varangian.engine.world import World

Optimiser = tuple[Tensor, ...]
Step = Callable[[Models, Sample, Optimiser], tuple[Models, Optimiser]]
"""One training step of one model per agent, each on its own sample."""


class FoldState(NamedTuple):
    """The fold models of all agents. They never listen and are never sent."""

    models: tuple[Models, ...]
    """For each fold the models of all agents."""
    optimisers: tuple[Optimiser, ...]


def begin_folds(world: World, folds: int) -> FoldState | None:
    """The fold models before the first round. None if there are no folds."""
    if not folds:
        return None
    return FoldState((world.start,) * folds, (world.task.optimiser.init(world.start),) * folds)


def train_folds(world: World, state: FoldState, round: int, step: Step) -> FoldState:
    """The fold models after training. In every round one model of each agent trains: number `round` mod K.

    Args:
        world: The network.
        state: The fold models before the round.
        round: The number of the round.
        step: How agents train.
    """
    turn, samples = round % len(state.models), world.folds(len(state.models))
    models, optimiser = state.models[turn], state.optimisers[turn]
    stepped, after = step(models, samples.at(round).train, optimiser)
    stepped = rows_where(samples.trains, stepped, models)
    after = tuple(rows_where(samples.trains, new, old) for new, old in zip(after, optimiser, strict=True))
    return FoldState(_with(state.models, turn, stepped), _with(state.optimisers, turn, after))


def fold_models(
    world: World, round: int, state: FoldState | None
) -> tuple[FoldModels | None, dict[SampleKind, Sample]]:
    """What inboxes hold of the fold models, and the sample to judge on. Nothing if there are none."""
    if state is None:
        return None, {}
    folds = len(state.models)
    samples = world.folds(folds)
    judge = samples.at(round).judge
    items = tuple(zip(*(part.split(1, 1) for part in judge), strict=True))
    of_each = len(items) // folds
    of_folds = tuple(items[first : first + of_each] for first in range(0, len(items), of_each))
    return FoldModels(state.models, of_folds, samples.items), {"unseen": judge}


Entry = TypeVar("Entry")


def _with(entries: tuple[Entry, ...], place: int, entry: Entry) -> tuple[Entry, ...]:
    return (*entries[:place], entry, *entries[place + 1 :])
