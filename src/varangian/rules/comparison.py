"""Comparisons of neighbours with a reference, on the same samples, over several lengths of memory.

Paired differences are smoothed. Their mean is evidence only as far as it exceeds its standard error.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.rules.evidence import Kept, Table

Series = Float[Tensor, "agent slot memory"]
"""One number per neighbour and length of memory."""
PerAgent = Float[Tensor, " agent"]

LARGEST = 5.0
"""A difference counts as this much at most. So one bad round is not remembered for ever."""

TIE = 1e-5
"""Means up to this are no difference. An agent's own model is its anchor at first: rounding must not decide."""


class Unit(NamedTuple):
    """The smoothed loss of each agent's anchor: the unit of all differences. No message can change it."""

    age: PerAgent
    """(t + 3) / 4 after t rounds. One over it is the weight of the newest round, so the first rounds soon fade."""
    loss: PerAgent

    @staticmethod
    def start(agents: PerAgent) -> Unit:
        return Unit(torch.full_like(agents, 0.75), torch.zeros_like(agents))


def unit_after(loss: PerAgent, known: Bool[Tensor, " agent"], before: Unit, forgetting: float) -> tuple[PerAgent, Unit]:
    """The weight of the newest round, before any lower bound, and the unit with the anchor's loss of this round.

    A round with no known loss changes nothing.
    """
    age = torch.add(before.age, known, alpha=0.25)
    newest = age.reciprocal()
    after = before.loss.lerp(loss.abs(), newest.clamp(min=forgetting))
    return newest, Unit(age, torch.where(known, after, before.loss))


class Compared(NamedTuple):
    """Smoothed differences to a reference, one series per length of memory."""

    times: Table
    """How often each neighbour was compared."""
    mean: Series
    variance: Series

    @staticmethod
    def start(table: Table, series: int) -> Compared:
        """Before the first comparison. Tables are stored series by series and slot by slot, as losses are."""
        blank = table.new_zeros(series, *table.T.shape).permute(2, 1, 0)
        return Compared(blank[:, :, 0].clone(), blank, blank.clone())


def compare(
    differences: Series, seen: Kept, memories: Float[Tensor, " memory"], before: Compared
) -> tuple[Series, Compared]:
    """Smooth the differences. Returns the weight p of the newest one, and what is remembered.

    After n comparisons, p = max(ν, 1 / n): a plain mean at first, later a moving average. The squared weights of such a
    mean add up to at most p. So its standard error is at most √(p · variance) for independent differences.
    """
    heard = seen.to(differences.dtype)
    times = before.times + heard
    pace = torch.maximum((heard / times.clamp(min=1))[:, :, None], memories * heard[:, :, None])
    change = differences - before.mean
    step = pace * change
    # Welford's recursion: the variance is no difference of large squares, and never negative.
    variance = before.variance.addcmul(step, change).mul_(1 - pace)
    return pace, Compared(times, step.add_(before.mean), variance)


def accepted(pace: Series, compared: Compared, significance: Float[Tensor, " memory"]) -> Series:
    """z standard errors of each mean, and a tie: a mean that is not above this is not significantly worse.

    In the unit of the anchor's loss, a variance counts as 1 at most: senders cannot hide behind swings of their loss.
    """
    return compared.variance.clamp(max=1).mul_(pace).sqrt_().mul_(significance).add_(TIE)


def confidence(mean: Table, slack: Table) -> Table:
    """1 for means that are not above zero, then less in proportion, and 0 from `slack` on.

    >>> confidence(torch.tensor([[-1.0, 0.0, 0.5, 2.0]]), torch.ones(1, 4))
    tensor([[1.0000, 1.0000, 0.5000, 0.0000]])
    """
    return (1 - mean / slack).clamp_(0, 1)


@lru_cache(maxsize=64)
def constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Float[Tensor, " memory"]:
    """One number per length of memory."""
    return torch.tensor(values, dtype=dtype, device=device)
