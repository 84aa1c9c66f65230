"""Most rules are evidence × keep × weigh: small functions on tables of (agent, slot), slot 0 the agent itself.

Evidence is smaller for better neighbours, and infinite where there is none.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.errors import BadInput

Table = Float[Tensor, "agent slot"]
Kept = Bool[Tensor, "agent slot"]


class Smoothed(NamedTuple):
    """An exponential moving average per neighbour: φ, and how much of it has been observed."""

    total: Table
    mass: Table

    @staticmethod
    def start(table: Table, value: float) -> Smoothed:
        """φ^(−1) = value; from zero nothing is known yet, any other value counts as an observation."""
        return Smoothed(torch.full_like(table, value), torch.full_like(table, float(value != 0)))


def smooth(observed: Table, forgetting: float | Tensor, state: Smoothed) -> tuple[Table, Smoothed]:
    """φ ← (1 − ν) φ + ν observed, and the evidence φ / (1 − (1 − ν)^t) after t observations.

    The divisor is the same for all neighbours that were always heard, and then changes neither filter nor weights:
    it is there for those who were not. Without it a sender silent at first would enter with φ near zero, as the
    best neighbour of all. What is not finite is no observation, and gives no evidence this round.
    """
    # Nan stands for what was not observed, and spreads by itself; masks would take several times as long.
    nothing = observed - observed
    pace = (nothing + forgetting).nan_to_num_(0.0)
    total = state.total.lerp(observed.nan_to_num(0.0, 0.0, 0.0), pace)
    mass = state.mass.addcmul(pace, torch.rsub(state.mass, 1))
    return (total / mass).add_(nothing).nan_to_num_(math.inf, math.inf), Smoothed(total, mass)


def not_worse(evidence: Table) -> Kept:
    """φ_lk ≤ φ_kk: the paper's filter."""
    return evidence <= own(evidence)


def own(evidence: Table) -> Float[Tensor, "agent 1"]:
    """φ_kk; the largest number there is where the agent has no evidence of itself."""
    return evidence[:, :1].clamp(max=torch.finfo(evidence.dtype).max)


def everyone(evidence: Table) -> Kept:
    """All of whom there is evidence."""
    return evidence < math.inf


def by_inverse(evidence: Table, kept: Kept) -> Table:
    """a_lk ∝ 1 / φ_lk over those kept, the agent itself where nobody is (eq. 9, 10).

    Evidence of 0, or of less where a loss can be negative, shares all weight: it counts as the smallest number of
    which a whole neighbourhood's inverses can be summed.
    """
    smallest = torch.finfo(evidence.dtype).tiny * evidence.shape[1]
    return normalised(evidence.clamp(min=smallest).reciprocal_().mul_(kept))


def uniformly(kept: Kept, dtype: torch.dtype) -> Table:
    """Equal weights for those kept, the agent itself where nobody is."""
    return normalised(kept.to(dtype))


def normalised(share: Table) -> Table:
    """Rows that sum to one; where nothing was shared out, all of it to the agent itself."""
    total = share.sum(1, keepdim=True)
    nobody = total == 0
    weights = share / (total + nobody)
    weights[:, :1].add_(nobody)
    return weights


def check_forgetting(nu: float | None) -> None:
    if nu is not None and not 0 < nu <= 1:
        raise BadInput(f"forgetting factor ν must lie in (0, 1], but is {nu}")
