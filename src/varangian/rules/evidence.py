"""Evidence, keep, weigh: the small functions that most rules are made of.

They work on tables of (agent, slot), where slot 0 is the agent itself. Evidence is smaller for better neighbours. It is
infinite where there is none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.core.errors import BadInput

Table = Float[Tensor, "agent slot"]
Kept = Bool[Tensor, "agent slot"]


class Smoothed(NamedTuple):
    """An exponential moving average per neighbour, and how much of it has been observed."""

    total: Table
    """φ before the correction for its start at zero."""
    mass: Table
    """1 − (1 − ν)^t after t observations; 1 if φ started at a value."""

    @staticmethod
    def start(table: Table, value: float) -> Smoothed:
        """φ before the first round. Zero means that nothing is known; any other value counts as an observation."""
        return Smoothed(torch.full_like(table, value), torch.full_like(table, float(value != 0)))


def smooth(observed: Table, forgetting: float | Tensor, state: Smoothed) -> tuple[Table, Smoothed]:
    """φ ← (1 − ν) φ + ν observed, and the evidence φ / (1 − (1 − ν)^t) after t observations.

    The divisor corrects for the start at zero. It is the same for all neighbours that were heard in every round, and
    then changes neither filter nor weights. It matters for the others: a sender that was silent at first would
    otherwise enter with φ near zero, as the best neighbour of all. A value that is not finite is no observation. It
    leaves φ as it is and gives no evidence in this round.
    """
    # Nan marks what was not observed and spreads by itself. Masks would take several times as long.
    nothing = observed - observed
    pace = (nothing + forgetting).nan_to_num_(0.0)
    total = state.total.lerp(observed.nan_to_num(0.0, 0.0, 0.0), pace)
    mass = state.mass.addcmul(pace, torch.rsub(state.mass, 1))
    return (total / mass).add_(nothing).nan_to_num_(math.inf, math.inf), Smoothed(total, mass)


def concentration(nu: float | Tensor, mass: Table) -> Table:
    """Σ w² for the weights w = ν (1 − ν)^j / mass of a smoothed mean; mass = 1 − (1 − ν)^t after t observations."""
    return torch.where(mass > 0, nu * (2 - mass) / ((2 - nu) * mass), 1.0)


def difference(loss: Table, reference: Float[Tensor, "agent 1"]) -> Table:
    """How much a loss is above another, clamped so that its square stays finite. Infinite where one is unknown."""
    largest = torch.finfo(loss.dtype).max ** 0.5 / 2
    return torch.where(everyone(loss) & everyone(reference), (loss - reference).clamp(-largest, largest), math.inf)


def not_worse(evidence: Table) -> Kept:
    """φ_lk ≤ φ_kk: the paper's filter."""
    return evidence <= own(evidence)


def own(evidence: Table) -> Float[Tensor, "agent 1"]:
    """φ_kk, or the largest number of the type where an agent has no evidence of itself."""
    return evidence[:, :1].clamp(max=torch.finfo(evidence.dtype).max)


def everyone(evidence: Table) -> Kept:
    """All neighbours of which there is evidence."""
    return evidence < math.inf


def by_inverse(evidence: Table, kept: Kept) -> Table:
    """a_lk ∝ 1 / φ_lk over the neighbours kept (eq. 9, 10). Where none is kept, the agent itself has all weight.

    Evidence of 0 or less takes all weight; less than 0 occurs where a loss can be negative. It is raised to the
    smallest number for which the sum of a neighbourhood's inverses stays finite.
    """
    smallest = torch.finfo(evidence.dtype).tiny * evidence.shape[1]
    return normalised(evidence.clamp(min=smallest).reciprocal_().mul_(kept))


def uniformly(kept: Kept, dtype: torch.dtype) -> Table:
    """Equal weights for the neighbours kept. Where none is kept, the agent itself has all weight."""
    return normalised(kept.to(dtype))


def normalised(share: Table) -> Table:
    """Rows that sum to one. A row of zeros becomes all weight to the agent itself."""
    total = share.sum(1, keepdim=True)
    nobody = total == 0
    weights = share / (total + nobody)
    weights[:, :1].add_(nobody)
    return weights


def check_start(start: float) -> None:
    """Refuse a first φ that is negative or not finite."""
    if not 0 <= start < math.inf:
        raise BadInput(f"φ starts at 0 or a positive number, but start is {start}")
