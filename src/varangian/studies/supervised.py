"""What studies on finite datasets share."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.scene import Scene
from varangian.core.task import Task


def correct(predicted: Float[Tensor, "item label"], label: Tensor) -> Float[Tensor, " item"]:
    """Whether each prediction is right."""
    return (predicted.argmax(-1) == label).to(predicted.dtype)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Modules made inside start equal for equal seeds; the global random generator does not change."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def check_settings(test_share: float, batch: int, epochs: int, items: int | None = None) -> None:
    """Reject impossible values, and name the setting."""
    check_items(items)
    if not 0 < test_share < 1:
        raise BadInput(f"test_share must be between 0 and 1, but is {test_share}")
    if epochs < 1 or batch < 1:
        raise BadInput(f"epochs and batch must be at least 1, but are {epochs} and {batch}")


def first_agents(task: Task, agents: int | None) -> Task:
    """The task of the first so many agents; None means all. What the others would have does not change with it."""
    if agents is None:
        return task
    if not 1 <= agents <= task.agents:
        raise BadInput(f"agents must be between 1 and {task.agents}, but is {agents}")
    return task.part(torch.arange(agents))


def check_items(items: int | None) -> None:
    """Reject an amount of training data that is none."""
    if items is not None and items < 1:
        raise BadInput(f"items must be at least 1, but is {items}; leave it out for all training data")


def batch_size(batch: int, items: int | None) -> int:
    """The batch, but at most a quarter of an agent's items.

    Otherwise, whoever knows one batch of an agent knows nearly all its data.
    """
    return batch if items is None else min(batch, max(1, items // 4))


class HasScenes(Hashable, Protocol):
    """A study, as far as its epochs are concerned."""

    def scene(self, seed: int) -> Scene: ...


def limited(study: HasScenes, epochs: int, max_rounds: int | None) -> int:
    """The number of rounds in `epochs` epochs of a study, but at most `max_rounds`."""
    rounds = epochs * _epoch_of(study)
    return rounds if max_rounds is None else min(rounds, max_rounds)


@lru_cache(maxsize=16)
def _epoch_of(study: HasScenes) -> int:
    """How many rounds an epoch has. It is asked for often, and a network takes time to make."""
    epoch = study.scene(0).task.epoch
    if epoch is None:
        raise BadInput("this task has no epochs, so it cannot run for a number of epochs")
    return epoch
