"""Rules from the literature that screen neighbours one by one and give equal weights to those that pass.

ubar           = near me in parameters, then no worse on my sample
clipped_gossip = everyone, pulled back to within a radius of me
balance        = within a share of my own norm that shrinks over time
sketchguard    = the same, measured on short sketches
ios            = not among the f that are farthest from the mean

They were made for agents that all learn the same model, and take a near model for an honest one. With several tasks
this fails in two ways. A Byzantine neighbour that stays near is believed. An honest neighbour with another task is used
as far as its model happens to be near. Only `ubar` looks at the agent's own data.

All decide after the training step, on θ̂. Equal weights replace the mixing matrices of the papers, for which an agent
would have to know its neighbours' neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn
from varangian.rules.base import Combined
from varangian.rules.evidence import Kept, Table, normalised
from varangian.rules.neighbourhoods import (
    check_tolerated,
    honest_majority,
    others,
    share_of,
    tolerated,
)
from varangian.rules.sketches import sketched

Elapsed = tuple[Float[Tensor, " agent"]]
"""How many rounds each agent has seen."""


@dataclass(frozen=True)
class ubar:
    """UBAR: shortlist the neighbours nearest in parameters, then keep those that are no worse on my sample.

    Equation:
        S_k = the ⌈ρ n⌉ neighbours nearest to θ̂_k
        R_k = {l ∈ S_k : ℓ(θ̂_l; ξ_k) ≤ ℓ(θ̂_k; ξ_k)}
        θ_k = α θ̂_k + (1 − α) mean_{l∈R_k} θ̂_l

    n is the number of neighbours heard. If no neighbour of S_k is good enough, R_k is the best one of S_k. In the
    paper, the gradient is taken at the model before combining. Here agents train first, as everywhere in this library.

    Of the rules that screen neighbours, this one is closest to `loss_based`, and the one for different tasks.

    Limits: the shortlist may hold no good neighbour. Then the best of the bad ones has weight 1 − α, and the rule can
    end up worse than no cooperation.

    Assumes: At least one honest neighbour, and ρ no larger than the share of honest neighbours.
    Cost: One distance and one evaluation of the loss per neighbour.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.ubar(share=0.5), rounds=5)

    Reference:
        Guo, Zhang, Yu, Xie, Ma, Xiang and Liu, "Byzantine-resilient decentralized stochastic gradient descent", IEEE
        Transactions on Circuits and Systems for Video Technology 2021 (also known as Mozi).
        https://arxiv.org/abs/2002.08569
    """

    share: float = 0.8
    """ρ: the share of the neighbours heard that is shortlisted, rounded up."""
    alpha: float = 0.5
    """α: the weight of one's own model."""
    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)
        if not 0 < self.share <= 1:
            raise BadInput(f"the share ρ of shortlisted neighbours must lie in (0, 1], but share is {self.share}")

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        distance, loss = _from_others(inbox, inbox.own), inbox.loss(self.judge)
        near = distance <= _smallest(distance, share_of(self.share, inbox.heard))
        judged = near & (distance < math.inf) & (loss < math.inf)
        good = judged & (loss <= loss[:, :1])
        best = judged & (loss <= torch.where(judged, loss, math.inf).amin(1, keepdim=True))
        weights = _own_and_mean(torch.where(good.any(1, keepdim=True), good, best), self.alpha, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, state)


@dataclass(frozen=True)
class clipped_gossip:
    """ClippedGossip: use every neighbour, but let none pull farther than a radius.

    Equation:
        clip(z, τ) = min(1, τ / ‖z‖) z
        θ_k = θ̂_k + (1 / |N_k|) Σ_{l∈N_k} clip(θ̂_l − θ̂_k, τ_k)

    It is a weighing rule: a_lk = min(1, τ_k / ‖θ̂_l − θ̂_k‖) / |N_k|, and the agent itself has the rest.

    The radius of the paper's theorem, τ_k² = Σ w_lk E‖θ̂_l − θ̂_k‖² / δ_k over honest l, needs to know who is honest.
    By default, each agent therefore sets aside its f farthest neighbours and takes the distance of the farthest one
    left. For f = 1, this is what the authors' program does. f is lowered to less than half of those heard.

    The paper's bound, O(δ ζ² / γ²) from a stationary point, is for the theorem's radius only. Here δ is the largest
    weight of Byzantine neighbours, ζ the difference between tasks and γ the spectral gap. It is not known to hold for
    the default radius, nor for a constant one.

    Limits: Byzantine neighbours inside the radius have the weight of any other.

    Assumes: An honest majority of neighbours with similar tasks.
    Cost: One distance per neighbour, |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.clipped_gossip(f=1), rounds=5)

    Reference:
        He, Karimireddy and Jaggi, "Byzantine-robust decentralized learning via ClippedGossip", 2022.
        https://arxiv.org/abs/2202.01545
    """

    radius: float | None = None
    """τ, the same for all agents. By default each agent chooses its own in every round, with f."""
    f: float = 0.2
    """f: how many of the farthest neighbours to ignore when choosing the radius, as a whole number or as a share below
    1."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)
        if self.radius is not None and not 0 < self.radius < math.inf:
            raise BadInput(f"the clipping radius τ must be a positive number, but radius is {self.radius}")

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        distance = _from_others(inbox, inbox.own)
        radius = self._chosen(inbox, distance) if self.radius is None else distance.new_full((1, 1), self.radius)
        clip = torch.where(distance <= radius, 1.0, radius / distance)
        # A model at infinite distance cannot be clipped, so it gets no weight.
        clip = torch.where(distance < math.inf, clip, 0.0)
        weights = clip / (1 + others(inbox.heard).sum(1, keepdim=True))
        weights[:, 0] = 1 - weights[:, 1:].sum(1)
        return Combined(inbox.mix(weights), weights, state)

    def _chosen(self, inbox: Inbox, distance: Table) -> Float[Tensor, "agent 1"]:
        f = tolerated(self.f, inbox.heard).minimum(honest_majority(inbox.heard))
        return _smallest(distance, others(inbox.heard).sum(1) - f)


@dataclass(frozen=True)
class balance:
    """BALANCE: accept neighbours within a share of my own norm, a share that shrinks over time.

    Equation:
        τ_k = γ e^{−κ t/T} ‖θ̂_k‖
        A_k = {l ≠ k : ‖θ̂_l − θ̂_k‖ ≤ τ_k}
        θ_k = α θ̂_k + (1 − α) mean_{l∈A_k} θ̂_l

    If A_k is empty, the agent keeps θ̂_k. t counts the rounds; the paper's λ(t) is t/T. A rule does not know how long a
    run lasts, so `rounds` is T. After T rounds the threshold stays as it is.

    Limits: the threshold is relative to the norm of the agent's model. A shift of all models changes who is accepted.
    An agent that starts at zero accepts nobody until it has moved.

    Assumes: Honest models that stay bounded and near each other. Any number of neighbours may be Byzantine.
    Cost: One distance per neighbour, |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.balance(rounds=5), rounds=5)

    Reference:
        Fang, Zhang, Hairi, Khanduri, Liu, Lu, Liu and Gong, "Byzantine-robust decentralized federated learning", ACM
        CCS 2024. https://arxiv.org/abs/2406.10416
    """

    gamma: float = 0.3
    """γ: the share of one's own norm that is accepted in the first round."""
    kappa: float = 1.0
    """κ: the share has shrunk by the factor exp(−κ) after T rounds."""
    alpha: float = 0.5
    """α: the weight of one's own model."""
    rounds: int = 500
    """T: the number of rounds after which the threshold stays as it is."""

    def __post_init__(self) -> None:
        _check_threshold(self.gamma, self.kappa, self.alpha, self.rounds)

    def init(self, table: Table) -> Elapsed:
        return (table.new_zeros(len(table)),)

    def combine(self, inbox: Inbox, state: Elapsed) -> Combined[Elapsed]:
        size = torch.linalg.vector_norm(inbox.own[:, : inbox.rows.shape[1]], dim=1, keepdim=True)
        threshold = _shrinking(self.gamma, self.kappa, state[0] / self.rounds) * size
        weights = _own_and_mean(_within(_from_others(inbox, inbox.own), threshold), self.alpha, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, (state[0] + 1,))


@dataclass(frozen=True)
class sketchguard:
    """SketchGuard: BALANCE with distances between short sketches, which agents could send ahead of their models.

    Equation:
        s(x)_j = Σ_{i : h(i) = j} σ(i) x_i
        τ_k = γ e^{−κ t/T} ‖s(θ̂_k)‖
        A_k = {l ≠ k : ‖s(θ̂_l) − s(θ̂_k)‖ ≤ τ_k}
        θ_k = α θ̂_k + (1 − α) mean_{l∈A_k} θ̂_l

    s is a count sketch: it adds coordinate i with sign σ(i) to bucket h(i), so that E‖s(x)‖² = ‖x‖². All agents use the
    same h and σ, made from `seed`. The buckets are equally large. With at least as many buckets as parameters,
    distances are exact. The bound is that of `balance` with γ √((1 + ε)/(1 − ε)) in place of γ, where ε is of the order
    of 1/√width.

    The point of sketches is to save traffic: only accepted neighbours send whole models.

    Limits: an attacker that knows the seed can send a model that is far away and has a near sketch.

    Assumes: Honest models that stay bounded and near each other, and a secret seed. Any number of neighbours may be
    Byzantine.
    Cost: d operations per message for its sketch, and |N_k| width operations for the distances.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.sketchguard(width=2, rounds=5), rounds=5)

    Reference:
        Rangwala, Azzedin, Sinnott and Buyya, "SketchGuard: scaling Byzantine-robust decentralized federated learning
        via sketch-based screening", 2025. https://arxiv.org/abs/2510.07922
    """

    width: int = 1000
    """The number of buckets in a sketch."""
    gamma: float = 0.3
    """γ: the share of the norm of one's own sketch that is accepted in the first round."""
    kappa: float = 1.0
    """κ: the share has shrunk by the factor exp(−κ) after T rounds."""
    alpha: float = 0.5
    """α: the weight of one's own model."""
    rounds: int = 500
    """T: the number of rounds after which the threshold stays as it is."""
    seed: int = 0
    """Which hash functions to use; the same for all agents."""

    def __post_init__(self) -> None:
        _check_threshold(self.gamma, self.kappa, self.alpha, self.rounds)
        if self.width < 1:
            raise BadInput(f"a sketch needs at least one bucket, but width is {self.width}")

    def init(self, table: Table) -> Elapsed:
        return (table.new_zeros(len(table)),)

    def combine(self, inbox: Inbox, state: Elapsed) -> Combined[Elapsed]:
        sketches = sketched(inbox.rows, self.width, self.seed)
        own = sketches[inbox.source[:, 0]]
        distance = _from_others(replace(inbox, rows=sketches), own)
        size = torch.linalg.vector_norm(own, dim=1, keepdim=True)
        threshold = _shrinking(self.gamma, self.kappa, state[0] / self.rounds) * size
        weights = _own_and_mean(_within(distance, threshold), self.alpha, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, (state[0] + 1,))


# Distances ------------------------------------------------------------------------------------------------------


def _from_others(inbox: Inbox, own: Float[Tensor, "agent number"]) -> Table:
    """The distance of every neighbour from `own`. Infinite for the agent itself, for silent neighbours and where it
    overflows."""
    return torch.where(others(inbox.heard), inbox.distance(own), math.inf)


def _smallest(distance: Table, number: Int[Tensor, " agent"]) -> Float[Tensor, "agent 1"]:
    """The n-th smallest distance of each agent, where n is `number`; the smallest if that is below 1."""
    return distance.sort(1).values.gather(1, (number - 1).clamp(min=0)[:, None])


def _within(distance: Table, threshold: Float[Tensor, "agent 1"]) -> Kept:
    """Finite distances of at most the threshold."""
    return (distance <= threshold) & (distance < math.inf)


def _shrinking(gamma: float, kappa: float, elapsed: Float[Tensor, " agent"]) -> Float[Tensor, "agent 1"]:
    """γ exp(−κ t/T) for t ≤ T."""
    return (gamma * torch.exp(-kappa * elapsed.clamp(max=1)))[:, None]


def _own_and_mean(kept: Kept, alpha: float, dtype: torch.dtype) -> Table:
    """The weights of α θ̂_k + (1 − α) mean of the neighbours kept. Where none is kept, the agent itself has all
    weight."""
    weights = normalised(kept.to(dtype)) * (1 - alpha)
    weights[:, 0] += alpha
    return weights


# Checks of settings ---------------------------------------------------------------------------------------------


def _check_alpha(alpha: float) -> None:
    """Refuse an α outside [0, 1]."""
    if not 0 <= alpha <= 1:
        raise BadInput(f"the weight α of one's own model must lie in [0, 1], but alpha is {alpha}")


def _check_threshold(gamma: float, kappa: float, alpha: float, rounds: int) -> None:
    """Refuse thresholds that make no sense."""
    _check_alpha(alpha)
    for name, letter, value in (("gamma", "γ", gamma), ("kappa", "κ", kappa)):
        if not 0 <= value < math.inf:
            raise BadInput(f"{letter} must be 0 or a positive number, but {name} is {value}")
    if rounds < 1:
        raise BadInput(f"the threshold needs at least one round to shrink, but rounds is {rounds}")
