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
"""One number per neighbour and length of memory, as rules remember it."""
Stored = Float[Tensor, "memory slot agent"]
"""The same in the order of storage. Loops over it read memory in order, also when torch compiles them."""
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
    """How often each neighbour was compared; a tiny number stands for never, because it is divided by."""
    mean: Series
    variance: Series

    @staticmethod
    def start(table: Table, series: int) -> Compared:
        """Before the first comparison. Tables are stored series by series and slot by slot, as losses are."""
        blank = remembered(table.new_zeros(series, *table.T.shape))
        return Compared(blank[:, :, 0].clone().fill_(torch.finfo(table.dtype).tiny), blank, blank.clone())


def stored(series: Series) -> Stored:
    """The series in the order of storage."""
    return series.permute(2, 1, 0)


def remembered(series: Stored) -> Series:
    """The series with one row per agent."""
    return series.permute(2, 1, 0)


def compare(
    differences: Stored, seen: Kept, memories: Float[Tensor, "memory 1 1"], before: Compared
) -> tuple[Stored, Compared]:
    """Smooth the differences. Returns the weight p of the newest one, and what is remembered.

    After n comparisons, p = max(ν, 1 / n): a plain mean at first, later a moving average. The squared weights of such a
    mean add up to at most p. So its standard error is at most √(p · variance) for independent differences.
    """
    heard = seen.to(differences.dtype)
    times = before.times + heard
    pace = (memories * heard.T).clamp_(min=(heard / times).T)
    mean = stored(before.mean)
    change = differences - mean
    step = pace * change
    # Welford's recursion: the variance is no difference of large squares, and never negative.
    variance = stored(before.variance).addcmul(step, change)
    variance.addcmul_(variance, pace, value=-1)
    return pace, Compared(times, remembered(step.add_(mean)), remembered(variance))


def accepted(pace: Stored, compared: Compared, significance: Float[Tensor, "memory 1 1"]) -> Stored:
    """z standard errors of each mean, and a tie: a mean that is not above this is not significantly worse.

    In the unit of the anchor's loss, a variance counts as 1 at most: senders cannot hide behind swings of their loss.
    """
    return stored(compared.variance).clamp(max=1).mul_(pace).sqrt_().mul_(significance).add_(TIE)


def confidence(mean: Float[Tensor, "slot agent"], slack: Float[Tensor, "slot agent"]) -> Float[Tensor, "slot agent"]:
    """1 for means that are not above zero, then less in proportion, and 0 from `slack` on.

    >>> confidence(torch.tensor([[-1.0, 0.0, 0.5, 2.0]]), torch.ones(1, 4))
    tensor([[1.0000, 1.0000, 0.5000, 0.0000]])
    """
    return (1 - mean / slack).clamp_(0, 1)


@lru_cache(maxsize=64)
def constants(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Float[Tensor, " number"]:
    """A few numbers as a tensor, which is made once."""
    return torch.tensor(values, dtype=dtype, device=device)
