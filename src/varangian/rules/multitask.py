"""Rules from multi-task learning: the tasks of neighbours are related, and the relation is estimated or assumed.

f_resilient           = smoothed distance,   leave out F that cost most,   weigh by inverse
relationship_learning = a covariance of tasks from the models, and a proximal step with it
mean_regularised      = everyone,            pulled towards the mean by a fixed share
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import embedding_bag

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.layout import in_pieces
from varangian.core.messages import finite_rows
from varangian.core.task import JudgedOn, check_forgetting
from varangian.rules.base import Combined, pairs
from varangian.rules.evidence import (
    Kept,
    Smoothed,
    Table,
    by_inverse,
    everyone,
    smooth,
    uniformly,
)
from varangian.rules.mixture_loss import judged, onto_self
from varangian.rules.neighbourhoods import (
    check_tolerated,
    most_tolerated,
    others,
    tolerated,
)

MOST_SUBSETS = 4096
"""How many subsets of neighbours the exact search may try in one round."""


@dataclass(frozen=True)
class f_resilient:
    """F-resilient diffusion: weights by inverse distance, without the F neighbours that cost most on my sample.

    Equation:
        φ_lk ← (1 − ν) φ_lk + ν ‖θ_{k,i−1} − θ̂_l‖²
        θ_k(R) = Σ_{l∉R} a_lk θ̂_l,  a_lk ∝ 1 / φ_lk
        R_k = argmin_{|R|=F, k∉R} ℓ(θ_k(R); ξ_k)
        θ_k = θ_k(R_k)

    The exact search tries every set R of F neighbours. The greedy search leaves out the F neighbours with the largest
    contribution a_lk² ℓ(θ̂_l; ξ_k) to the cost instead, and has no guarantee. F is lowered to the number of neighbours
    heard.

    This rule suits small neighbourhoods with a known number of Byzantine agents. Honest neighbours with other tasks are
    also among those that can be left out.

    Assumes: At most F Byzantine neighbours, a sample of its own, and a regression task for the paper's guarantee.
    Cost: Greedy: |N_k| evaluations of the loss. Exact: one for every set of F neighbours, refused above 4096 sets.

    Example:
        >>> import torch
        >>> from varangian import rules
        >>> rules.f_resilient(f=10, search="exact").init(torch.zeros(1, 31))
        Traceback (most recent call last):
        varangian.core.errors.BadInput: f-resilient: there are 30045015 ways to leave out 10 of 30 neighbours, ...

    Reference:
        Li, Abbas and Koutsoukos, "Resilient distributed diffusion in networks with adversaries" (R-DLMSAW), IEEE
        Transactions on Signal and Information Processing over Networks 6, 2020. https://arxiv.org/abs/2003.10563
    """

    f: float = 0.2
    """F: how many neighbours to leave out, as a whole number or as a share below 1."""
    search: Literal["exact", "greedy"] = "greedy"
    """Try every set of neighbours (`exact`), or leave out the largest contributions (`greedy`)."""
    smoothing: float | None = None
    """ν: the weight of the newest round. By default the task's own ν_k."""
    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)
        check_forgetting(self.smoothing)

    def init(self, table: Table) -> Smoothed:
        neighbours = table.shape[1] - 1
        out = most_tolerated(self.f, table.shape[1])
        subsets = math.comb(neighbours, out)
        if self.search == "exact" and subsets > MOST_SUBSETS:
            raise BadInput(
                f"f-resilient: there are {subsets} ways to leave out {out} of {neighbours} neighbours, and the exact"
                f" search tries at most {MOST_SUBSETS}; use search=greedy or another f"
            )
        return Smoothed.start(table, 0.0)

    def combine(self, inbox: Inbox, state: Smoothed) -> Combined[Smoothed]:
        distance = inbox.distance(inbox.previous).square()
        evidence, state = smooth(distance, self.smoothing or inbox.forgetting, state)
        loss = inbox.loss(self.judge)
        known = everyone(evidence) & everyone(loss)
        # An agent never leaves itself out, even if its own loss is not a number.
        known[:, 0] = everyone(evidence)[:, 0]
        search = self._exact if self.search == "exact" else self._greedy
        weights = by_inverse(evidence, search(inbox, evidence, known))
        return Combined(inbox.mix(weights), weights, state)

    def _greedy(self, inbox: Inbox, evidence: Table, known: Kept) -> Kept:
        """All but the F largest a_lk² ℓ(θ̂_l; ξ_k), compared as logarithms because 1/φ² may overflow."""
        suspects, tiny = others(known), torch.finfo(evidence.dtype).tiny
        contribution = inbox.loss(self.judge).clamp(min=tiny).log() - 2 * evidence.clamp(min=tiny).log()
        rank = torch.where(suspects, contribution, -math.inf).argsort(dim=1, descending=True).argsort(dim=1)
        return known & ~(suspects & (rank < tolerated(self.f, known)[:, None]))

    def _exact(self, inbox: Inbox, evidence: Table, known: Kept) -> Kept:
        """All but the F neighbours without which the combined model costs least.

        All agents try the same subsets of F slots. An agent that knows fewer neighbours leaves out fewer. For it, only
        those subsets count that hold the right number of its neighbours; the rest of the subset are empty slots.
        """
        slots = known.shape[1]
        subsets = _subsets(slots, most_tolerated(self.f, slots), known.device)
        allowed = tolerated(self.f, known)[:, None]

        def cost_without(subset: Bool[Tensor, "some slot"]) -> Float[Tensor, "agent some"]:
            fits = (known[:, None] & subset).sum(2) == allowed
            kept = known[:, None] & ~subset
            weights = by_inverse(evidence.repeat_interleave(len(subset), 0), kept.flatten(0, 1)).view_as(kept)
            return torch.where(fits, judged(inbox, _mixes(inbox, weights), self.judge), math.inf)

        cost = in_pieces(cost_without, subsets, numbers=len(known) * max(slots, inbox.own.shape[1]), dim=1)
        # Where no mixture has a finite loss, no neighbour can be trusted.
        best = known & ~subsets[cost.argmin(1)]
        return torch.where(everyone(cost).any(1, keepdim=True), best, known & ~others(known))


@dataclass(frozen=True)
class relationship_learning:
    """Multi-task relationship learning: a covariance of tasks from the models heard, then a proximal step with it.

    Equation:
        Θ = (θ̂_l)_{l∈N_k}
        Ω = (ΘᵀΘ)^{1/2} / tr (ΘᵀΘ)^{1/2}
        θ_k = column k of Θ (I + μ_k λ (Ω + ε I)⁻¹)⁻¹

    The step minimises ½ ‖Θ' − Θ‖² + ½ μ_k λ tr(Θ' (Ω + ε I)⁻¹ Θ'ᵀ) over Θ'. The paper describes a server that hears
    everyone. Here every agent does the same with its own neighbourhood, so the rule is meant for complete graphs.

    Limits: there is no robustness. One Byzantine neighbour can turn Ω, and with it the step, as it likes. The penalty
    is on the models and not on their differences, so directions that few tasks share shrink towards zero.

    Assumes: Only honest neighbours with related tasks.
    Cost: |N_k| d m + m³ operations, where m is the smaller of |N_k| and d.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.relationship_learning(), rounds=5)

    Reference:
        Zhang and Yeung, "A convex formulation for learning task relationships in multi-task learning", UAI 2010,
        equations 9 and 11. https://arxiv.org/abs/1203.3536
    """

    strength: float = 0.1
    """λ: how strongly the relation of tasks pulls."""
    epsilon: float = 1e-3
    """ε, added so that Ω has an inverse; compare it with tr Ω, which is 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.strength < math.inf:
            raise BadInput(f"the strength λ must be 0 or a positive number, but strength is {self.strength}")
        if not 0 < self.epsilon < math.inf:
            raise BadInput(f"ε must be a positive number, but epsilon is {self.epsilon}")

    def workspace(self, slots: int, shared: int) -> int:
        return pairs(slots, tables=7)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        column = inbox.by_neighbourhood(self._column, inbox.step_size)
        models = inbox.mix(torch.where(inbox.heard, column, 0).to(inbox.own.dtype))
        return Combined(torch.where(finite_rows(models), models, inbox.own), None, state)

    def _column(
        self,
        messages: Float[Tensor, "agent slot shared"],
        heard: Bool[Tensor, "agent slot"],
        step_size: Float[Tensor, "agent 1"],
        /,
    ) -> Float[Tensor, "agent slot"]:
        """Column k of (I + μ_k λ (Ω + ε I)⁻¹)⁻¹.

        This matrix has Ω's eigenvectors, and the eigenvalues (ω + ε) / (ω + ε + μ_k λ). ΘᵀΘ and ΘΘᵀ have the same
        eigenvalues other than zero, so the smaller of the two is decomposed.
        """
        theta = _scaled(messages, heard)
        slots, shared = theta.shape[1:]
        few = shared < slots
        value, vector = torch.linalg.eigh(theta.mT @ theta if few else theta @ theta.mT)
        # Rounding turns an eigenvalue of zero into a small one, whose root would not be small.
        noise = slots * torch.finfo(value.dtype).eps * value[:, -1:]
        real = value > noise
        root = torch.where(real, value, 0).sqrt()
        omega = root / root.sum(1, keepdim=True).clamp(min=torch.finfo(root.dtype).tiny)

        def kept(omega: Tensor) -> Tensor:
            return (omega + self.epsilon) / (omega + self.epsilon + self.strength * step_size)

        if few:
            vector = theta @ vector / torch.where(real, root, 1)[:, None]
        # What lies in no eigenvector keeps the share of the eigenvalue zero.
        rest = kept(torch.zeros_like(step_size))
        column: Tensor = (vector * ((kept(omega) - rest) * vector[:, 0])[:, None]).sum(2)
        column[:, :1] += rest
        return column


@dataclass(frozen=True)
class mean_regularised:
    """Mean-regularised multi-task learning: every model is pulled towards the mean of those heard.

    Equation:
        θ̄_k = mean_{l∈N_k} θ̂_l
        θ_k = θ̂_k + s (θ̄_k − θ̂_k)

    This is the proximal step of the penalty Σ_k ‖θ_k − θ̄‖². It is the simplest model of related tasks, between `alone`
    (s = 0) and `average` (s = 1). One Byzantine neighbour can move the mean anywhere.

    Assumes: Only honest neighbours, with similar tasks.
    Cost: |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.mean_regularised(strength=0.1), rounds=5)

    Reference:
        Evgeniou and Pontil, "Regularized multi-task learning", KDD 2004. https://doi.org/10.1145/1014052.1014067
    """

    strength: float = 0.5
    """s: the part of the way to the mean that a model moves in one round."""

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise BadInput(f"the strength s must lie in [0, 1], but strength is {self.strength}")

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        weights = onto_self(inbox).lerp(uniformly(inbox.heard, inbox.own.dtype), self.strength)
        return Combined(inbox.mix(weights), weights, state)


@lru_cache(maxsize=16)
def _subsets(slots: int, size: int, device: torch.device) -> Bool[Tensor, "subset slot"]:
    """Every way to choose so many slots without slot 0.

    >>> _subsets(4, 2, torch.device("cpu")).int().tolist()
    [[0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1]]
    """
    chosen = list(itertools.combinations(range(1, slots), size))
    subsets = torch.zeros(len(chosen), slots, dtype=torch.bool)
    return subsets.scatter_(1, torch.tensor(chosen, dtype=torch.long).view(len(chosen), size), True).to(device)


def _mixes(inbox: Inbox, weights: Float[Tensor, "agent several slot"]) -> Float[Tensor, "agent several shared"]:
    """Σ_l a_lk θ̂_l for several weightings of each agent, without copying the messages."""
    several = weights.shape[1]
    source = inbox.source[:, None].expand(-1, several, -1)
    mixed = embedding_bag(source.flatten(0, 1), inbox.rows, per_sample_weights=weights.flatten(0, 1), mode="sum")
    return mixed.view(len(weights), several, -1)


def _scaled(
    messages: Float[Tensor, "agent slot shared"], heard: Bool[Tensor, "agent slot"]
) -> Float[Tensor, "agent slot shared"]:
    """Θ of each neighbourhood, up to a factor. Ω does not depend on the common scale of the models.

    In double precision: Ω contains the square roots of the eigenvalues, and so the roots of their rounding errors.
    """
    theta = torch.where(heard[:, :, None], messages, 0).double()
    largest = theta.abs().amax((1, 2), keepdim=True)
    return theta / torch.where(largest > 0, largest, 1.0)
