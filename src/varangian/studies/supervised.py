"""What studies on finite datasets share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
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


def check_settings(test_share: float, batch: int, epochs: int) -> None:
    """Reject impossible values, and name the setting."""
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


def limited(task: Task, epochs: int, max_rounds: int | None) -> int:
    """The number of rounds in `epochs` epochs, but at most `max_rounds`."""
    if task.epoch is None:
        raise BadInput("this task has no epochs, so it cannot run for a number of epochs")
    return epochs * task.epoch if max_rounds is None else min(epochs * task.epoch, max_rounds)
