"""Gossip with a robust sum of differences: every neighbour pulls, but none may pull harder than most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.rules.base import Combined
from varangian.rules.evidence import Table
from varangian.rules.neighbourhoods import check_tolerated, others, tolerated


@dataclass(frozen=True)
class cs_plus_rg:
    """CS₊-RG: every neighbour pulls, and the 2f that would pull hardest are clipped to the next one.

    Equation:
        clip(z, τ) = min(1, τ / ‖z‖) z
        τ_k = the (2f+1)-th largest ‖θ̂_l − θ̂_k‖
        θ_k = θ̂_k + (η / |N_k|) Σ_{l∈N_k} clip(θ̂_l − θ̂_k, τ_k)

    This is robust gossip (F-RG) with the clipped sum CS₊ as robust sum. The threshold is that of the authors' program.
    An agent with 2f neighbours or fewer keeps θ̂_k.

    It is a weighing rule: a_lk = η min(1, τ_k / ‖θ̂_l − θ̂_k‖) / |N_k|, and the agent itself has the rest. With the same
    f, `clipped_gossip` clips f neighbours and this rule clips 2f. `monna` leaves out the farthest f, which is another
    robust sum in the same framework.

    The paper bounds how many Byzantine neighbours any such rule can tolerate, by the connectivity of the honest agents.
    This rule comes near the bound. The attack `spectral_dissensus` is from the same paper.

    Limits: Byzantine neighbours inside the radius have the weight of any other. The agents agree on one model, also
    where they have different tasks.

    Assumes: At most f Byzantine neighbours, a well connected graph of honest agents, and one task.
    Cost: One distance per neighbour, |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.cs_plus_rg(f=1), rounds=5)

    Reference:
        Gaucher, Dieuleveut and Hendrikx, "Unified breakdown analysis for Byzantine robust gossip", ICML 2025.
        https://arxiv.org/abs/2410.10418
    """

    f: float = 0.2
    """f: how many Byzantine neighbours to tolerate, as a whole number or as a share below 1."""
    step: float = 1.0
    """η: the part of the way to go, above 0 and at most 1."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)
        if not 0 < self.step <= 1:
            raise BadInput(f"the step η must lie in (0, 1], but step is {self.step}")

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        neighbours = others(inbox.heard)
        distance = torch.where(neighbours, inbox.distance(inbox.own), -math.inf)
        place = (2 * tolerated(self.f, inbox.heard)).clamp(max=distance.shape[1] - 1)
        # Beyond the last neighbour comes −∞: nobody is left to measure by, and all are clipped to nothing.
        radius = distance.sort(1, descending=True).values.gather(1, place[:, None]).clamp(min=0)
        clip = torch.where(distance <= radius, 1.0, radius / distance)
        # A model at infinite distance cannot be clipped, so it gets no weight.
        clip = torch.where(neighbours & (distance < math.inf), clip, 0.0)
        weights = self.step * clip / (1 + neighbours.sum(1, keepdim=True))
        weights[:, 0] = 1 - weights[:, 1:].sum(1)
        return Combined(inbox.mix(weights), weights, state)
