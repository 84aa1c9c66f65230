"""Rules from multi-task learning: neighbours' tasks are taken to be related, and how is estimated or assumed.

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

from varangian.core.inbox import Inbox
from varangian.core.layout import in_pieces
from varangian.core.messages import finite_rows
from varangian.core.task import JudgedOn
from varangian.errors import BadInput
from varangian.rules.base import Combined
from varangian.rules.evidence import (
    Kept,
    Smoothed,
    Table,
    by_inverse,
    check_forgetting,
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
"""How many ways of leaving out neighbours the exact search may try in a round."""


@dataclass(frozen=True)
class f_resilient:
    """F-resilient diffusion: weights by inverse distance, without the F neighbours that cost most on my sample.

    R_k = argmin_{|R| = F, k ∉ R} ℓ(Σ_{l ∉ R} a_lk θ̂_l; ξ_k), a_lk ∝ 1/φ_lk over N_k \\ R, φ smoothing ‖θ_k,i−1 − θ̂_l‖²
    as in `distance_based`. The greedy search leaves out the F with the largest contribution a_lk² ℓ(θ̂_l; ξ_k) to the
    cost instead.

    Li, Abbas and Koutsoukos, "Resilient distributed diffusion in networks with adversaries", IEEE Transactions on
    Signal and Information Processing over Networks 6, 2020 (R-DLMSAW): resilient to F Byzantine neighbours, for
    regression. The exact search tries every subset, C(|N_k|, F) evaluations of the loss per agent and round, and is
    refused beyond some thousands; the greedy one costs |N_k| evaluations and makes no promise. F is lowered to the
    number of neighbours heard. For small neighbourhoods with a known number of liars; honest neighbours with other
    tasks count among the F that can be left out.

    >>> f_resilient(f=10, search="exact").init(torch.zeros(1, 31))
    Traceback (most recent call last):
    varangian.errors.BadInput: f-resilient: there are 30045015 ways to leave out 10 of 30 neighbours, ...
    """

    f: float = 0.2
    """F: how many neighbours, or which share of them, to leave out."""
    search: Literal["exact", "greedy"] = "greedy"
    smoothing: float | None = None
    """ν of the distances; the task's own ν_k unless given."""
    judge: JudgedOn | None = None
    """On the next sample or on the same one just trained on; as the task says unless given."""

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
        # An own loss that is no number says nothing against the agent itself.
        known[:, 0] = everyone(evidence)[:, 0]
        search = self._exact if self.search == "exact" else self._greedy
        weights = by_inverse(evidence, search(inbox, evidence, known))
        return Combined(inbox.mix(weights), weights, state)

    def _greedy(self, inbox: Inbox, evidence: Table, known: Kept) -> Kept:
        """All but the F of largest a_lk² ℓ(θ̂_l; ξ_k); as logarithms, for 1/φ² may be any number."""
        suspects, tiny = others(known), torch.finfo(evidence.dtype).tiny
        contribution = inbox.loss(self.judge).clamp(min=tiny).log() - 2 * evidence.clamp(min=tiny).log()
        rank = torch.where(suspects, contribution, -math.inf).argsort(dim=1, descending=True).argsort(dim=1)
        return known & ~(suspects & (rank < tolerated(self.f, known)[:, None]))

    def _exact(self, inbox: Inbox, evidence: Table, known: Kept) -> Kept:
        """All but the F without whom the combined model costs least.

        Every subset of F slots is tried by everyone at once. Where an agent knows fewer neighbours and is to leave out
        fewer, those subsets count that hold so many of them, the rest being slots from which nothing came.
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
        # Where no combination has a cost, nobody can be told from a liar.
        best = known & ~subsets[cost.argmin(1)]
        return torch.where(everyone(cost).any(1, keepdim=True), best, known & ~others(known))


@dataclass(frozen=True)
class relationship_learning:
    """Multi-task relationship learning: a covariance of tasks from the models heard, and a proximal step with it.

    Ω = (ΘᵀΘ)^½ / tr (ΘᵀΘ)^½ for Θ = (θ̂_l), l ∈ N_k; θ_k = column k of Θ (I + μ_k λ (Ω + εI)⁻¹)⁻¹, which minimises
    ½‖Θ' − Θ‖² + ½ μ_k λ tr Θ'(Ω + εI)⁻¹Θ'ᵀ.

    Zhang and Yeung, "A convex formulation for learning task relationships in multi-task learning", UAI 2010, eq. 9
    and 11. A reference for a server that hears everyone; here every agent does it with its own neighbourhood, so that
    it is meant for complete graphs. No robustness is claimed: one liar turns Ω, and thereby everyone's step, as it
    likes. The penalty is on models themselves, not on their differences, so that directions few tasks share shrink
    towards zero. Costs |N_k|² d + |N_k|³ per agent and round.
    """

    strength: float = 0.1
    """λ."""
    epsilon: float = 1e-3
    """ε, without which a direction in which no model points would have no inverse; tr Ω is 1."""

    def __post_init__(self) -> None:
        if not 0 <= self.strength < math.inf:
            raise BadInput(f"the strength λ must be a number that is not negative, but strength is {self.strength}")
        if not 0 < self.epsilon < math.inf:
            raise BadInput(f"ε must be a positive number, but epsilon is {self.epsilon}")

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        slots = inbox.heard.shape[1]
        gram = inbox.by_neighbourhood(_gram).view(-1, slots, slots)
        value, vector = torch.linalg.eigh(gram)
        # What rounding leaves of an eigenvalue of zero would have a root that counts.
        noise = slots * torch.finfo(value.dtype).eps * value[:, -1:]
        root = torch.where(value > noise, value, 0).sqrt()
        omega = root / root.sum(1, keepdim=True).clamp(min=torch.finfo(root.dtype).tiny) + self.epsilon
        # (I + μλ(Ω + ε)⁻¹)⁻¹ has Ω's eigenvectors, and the eigenvalues (ω + ε) / (ω + ε + μλ).
        kept = omega / (omega + self.strength * inbox.step_size)
        column = (vector * (kept * vector[:, 0])[:, None]).sum(2)
        models = inbox.mix(torch.where(inbox.heard, column, 0).to(inbox.own.dtype))
        return Combined(torch.where(finite_rows(models), models, inbox.own), None, state)


@dataclass(frozen=True)
class mean_regularised:
    """Mean-regularised multi-task learning: every model is pulled towards the mean of those heard.

    θ_k = θ̂_k + s (mean_{l ∈ N_k} θ̂_l − θ̂_k): a_lk = s/|N_k|, and 1 − s more for oneself.

    Evgeniou and Pontil, "Regularized multi-task learning", KDD 2004, whose penalty Σ_k ‖θ_k − mean‖² has this proximal
    step. Nothing is assumed of neighbours but that they are honest and alike; one Byzantine neighbour moves it
    anywhere. Costs |N_k| d. The simplest model of related tasks: between `alone` (s = 0) and `average` (s = 1).
    """

    strength: float = 0.5
    """s: the part of the way to the mean to go in one round."""

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 1:
            raise BadInput(f"the part of the way to the mean lies in [0, 1], but strength is {self.strength}")

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
    """Σ_l a_lk θ̂_l for several weightings of each agent, without gathering the messages."""
    several = weights.shape[1]
    source = inbox.source[:, None].expand(-1, several, -1)
    mixed = embedding_bag(source.flatten(0, 1), inbox.rows, per_sample_weights=weights.flatten(0, 1), mode="sum")
    return mixed.view(len(weights), several, -1)


def _gram(
    messages: Float[Tensor, "agent slot shared"], heard: Bool[Tensor, "agent slot"], /, *of_agents: Tensor
) -> Float[Tensor, "agent pairs"]:
    """ΘᵀΘ of each neighbourhood, up to a factor: Ω does not change with the models' common scale.

    In double precision, because Ω has the square roots of the eigenvalues, and with them of their errors.
    """
    theta = torch.where(heard[:, :, None], messages, 0).double()
    largest = theta.abs().amax((1, 2), keepdim=True)
    theta = theta / torch.where(largest > 0, largest, 1.0)
    return (theta @ theta.mT).flatten(1)
