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
    known = observed < math.inf
    total = torch.where(known, state.total.lerp(observed, forgetting), state.total)
    mass = torch.where(known, state.mass + forgetting * (1 - state.mass), state.mass)
    return torch.where(known, total / mass, math.inf), Smoothed(total, mass)


def not_worse(evidence: Table) -> Kept:
    """φ_lk ≤ φ_kk: the paper's filter."""
    return (evidence <= evidence[:, :1]) & everyone(evidence)


def everyone(evidence: Table) -> Kept:
    """All of whom there is evidence."""
    return evidence < math.inf


def by_inverse(evidence: Table, kept: Kept) -> Table:
    """a_lk ∝ 1 / φ_lk over those kept, the agent itself where nobody is (eq. 9, 10).

    Measured from the smallest, so that nothing overflows; evidence of 0, or of less where a loss can be negative,
    shares all weight.
    """
    evidence = evidence.clamp(min=0)
    smallest = torch.where(kept, evidence, math.inf).amin(1, keepdim=True)
    share = torch.where(evidence > smallest, smallest / evidence, 1.0) * kept
    return normalised(share)


def uniformly(kept: Kept, dtype: torch.dtype) -> Table:
    """Equal weights for those kept, the agent itself where nobody is."""
    return normalised(kept.to(dtype))


def normalised(share: Table) -> Table:
    """Rows that sum to one; where nothing was shared out, all of it to the agent itself."""
    total = share.sum(1, keepdim=True)
    nobody = total == 0
    weights = share / (total + nobody)
    weights[:, :1] += nobody
    return weights


def check_forgetting(nu: float | None) -> None:
    if nu is not None and not 0 < nu <= 1:
        raise BadInput(f"forgetting factor ν must lie in (0, 1], but is {nu}")
