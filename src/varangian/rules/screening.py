"""Rules of the literature that screen neighbours one by one, and weigh alike whoever passes.

ubar           = near me in parameters, then no worse on my sample
clipped_gossip = everyone, pulled back to within a radius of me
balance        = within a share of my own norm that shrinks over time
sketchguard    = the same, measured on short sketches
ios            = not among the f that stick out most from the mean

They were made for agents who all learn the same, and take a neighbour whose model is near for one that is honest. With
several tasks near is not alike: apart from `ubar` none looks at the agent's own data, so that a liar who stays close
is believed, and an honest neighbour with another task is listened to as far as its model happens to be near.
All are decided after adapting, on θ̂; equal weights stand for the papers' mixing matrices, for which an agent would
have to know its neighbours' neighbours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.draws import Draws
from varangian.core.inbox import Inbox
from varangian.core.layout import in_pieces
from varangian.core.task import JudgedOn
from varangian.errors import BadInput
from varangian.rules.base import Combined
from varangian.rules.evidence import Kept, Table, normalised, uniformly
from varangian.rules.neighbourhoods import (
    check_tolerated,
    honest_majority,
    most_tolerated,
    others,
    share_of,
    tolerated,
)

Elapsed = tuple[Float[Tensor, " agent"]]
"""How many rounds each agent has seen."""


@dataclass(frozen=True)
class ubar:
    """UBAR: the neighbours nearest in parameters, and of these the ones that are no worse on my sample.

    S_k = the ρ |N_k| neighbours with the smallest ‖θ̂_l − θ̂_k‖, R_k = {l ∈ S_k : ℓ(θ̂_l; ξ_k) ≤ ℓ(θ̂_k; ξ_k)}, or the
    best of S_k where R_k would be empty; θ_k = α θ̂_k + (1 − α) mean of R_k.

    Guo, Zhang, Yu, Xie, Ma, Xiang and Liu, "Byzantine-resilient decentralized stochastic gradient descent", IEEE
    TCSVT 2021 (also known as Mozi): its two stages and its update. There the gradient is taken at the model before
    combining; here agents adapt first, as everywhere in this library. The paper asks for one honest neighbour at least
    and for ρ no larger than the share of the honest. Costs one distance and one evaluation of the loss a neighbour.

    The nearest relative of `loss_based`, and the one of this page for tasks that differ. But the shortlist may hold no
    good neighbour, and then the best of a bad lot has weight 1 − α: it can end up worse than no cooperation.
    """

    share: float = 0.8
    """ρ: the share of the neighbours heard that is shortlisted, rounded up."""
    alpha: float = 0.5
    """α: the weight of one's own model."""
    judge: JudgedOn | None = None
    """On the next sample or on the same one just trained on; as the task says unless given."""

    def __post_init__(self) -> None:
        _check_alpha(self.alpha)
        if not 0 < self.share <= 1:
            raise BadInput(f"the share ρ of neighbours to shortlist must lie in (0, 1], but share is {self.share}")

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
    """ClippedGossip: everyone is heard, but nobody pulls farther than a radius.

    θ_k = θ̂_k + Σ_l w_lk clip(θ̂_l − θ̂_k, τ_k), clip(z, τ) = min(1, τ/‖z‖) z, with w_lk = 1 / |N_k|, |N_k| counting
    the agent itself. That is a weighing rule: a_lk = w_lk min(1, τ_k / ‖θ̂_l − θ̂_k‖), the rest one's own.

    He, Karimireddy and Jaggi, "Byzantine-robust decentralized learning via ClippedGossip", arXiv 2202.01545, 2022:
    its update. The radius of their theorem, τ_k² = Σ_honest w_lk E‖θ̂_l − θ̂_k‖² / δ_k, needs to know who is honest.
    Without `radius`, τ_k is therefore the distance of the farthest neighbour after the f farthest are set aside,
    which for f = 1 is what the authors' program does. f is lowered to less than half of those heard.

    Converges to within O(δ ζ²/γ²) of a stationary point, δ the weight of liars, ζ the difference between tasks and γ
    the spectral gap. Costs one distance a neighbour, |N_k| d. Liars inside the radius are weighed as everyone is.
    """

    radius: float | None = None
    """τ, the same for all; chosen by each agent in each round unless given."""
    f: float = 0.2
    """How many neighbours, or which share of them, to leave out when choosing the radius."""

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
        # Too far to be measured is too far to be clipped.
        clip = torch.where(distance < math.inf, clip, 0.0)
        weights = clip / (1 + others(inbox.heard).sum(1, keepdim=True))
        weights[:, 0] = 1 - weights[:, 1:].sum(1)
        return Combined(inbox.mix(weights), weights, state)

    def _chosen(self, inbox: Inbox, distance: Table) -> Float[Tensor, "agent 1"]:
        f = tolerated(self.f, inbox.heard).minimum(honest_majority(inbox.heard))
        return _smallest(distance, others(inbox.heard).sum(1) - f)


@dataclass(frozen=True)
class balance:
    """BALANCE: whoever is within a share of my own norm, a share that shrinks over time.

    A_k = {l : ‖θ̂_l − θ̂_k‖ ≤ γ exp(−κ t/T) ‖θ̂_k‖}, θ_k = α θ̂_k + (1 − α) mean of A_k, and θ̂_k alone where A_k is
    empty.

    Fang, Zhang, Hairi, Khanduri, Liu, Lu, Liu and Gong, "Byzantine-robust decentralized federated learning", ACM CCS
    2024: its criterion and its update, with λ(t) = t/T. Nothing is assumed about how many neighbours lie; models of
    the honest are assumed to stay bounded and near each other. Costs one distance a neighbour, |N_k| d.

    A rule does not know how long a run lasts: `rounds` is T, and after it the threshold stays where it is. Distances
    are relative to the norm of one's own model, so that shifting all models changes who is accepted, and who starts
    at zero accepts nobody until it has moved.
    """

    gamma: float = 0.3
    """γ: the share of one's own norm accepted in the first round."""
    kappa: float = 1.0
    """κ: by which power of e it has shrunk in the end."""
    alpha: float = 0.5
    """α: the weight of one's own model."""
    rounds: int = 500
    """T: the number of rounds after which the threshold shrinks no more."""

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
    """SketchGuard: BALANCE with distances between sketches of a few numbers, as one would send ahead of a model.

    A_k = {l : ‖s(θ̂_l) − s(θ̂_k)‖ ≤ γ exp(−κ t/T) ‖s(θ̂_k)‖}, θ_k = α θ̂_k + (1 − α) mean of A_k, where s is a count
    sketch: coordinate i is added to bucket h(i) with sign σ(i), so that E‖s(x)‖² = ‖x‖².

    Rangwala, Azzedin, Sinnott and Buyya, "SketchGuard: scaling Byzantine-robust decentralized federated learning via
    sketch-based screening", arXiv 2510.07922, 2025. Their bound is BALANCE's with γ √((1 + ε)/(1 − ε)) for γ, ε of the
    order of width^(−1/2). h and σ follow from `seed` and are everybody's; buckets are equally large, and with at least
    as many as parameters the distances are exact. Costs d a message for its sketch and |N_k| width for distances; the
    point is what it saves on a network, where only accepted neighbours send whole models.

    Who knows the seed can send a model that is far away and has a sketch that is near.
    """

    width: int = 1000
    """The numbers in a sketch."""
    gamma: float = 0.3
    kappa: float = 1.0
    alpha: float = 0.5
    rounds: int = 500
    """γ, κ, α and T as in `balance`."""
    seed: int = 0
    """Which hash functions; the same for all agents."""

    def __post_init__(self) -> None:
        _check_threshold(self.gamma, self.kappa, self.alpha, self.rounds)
        if self.width < 1:
            raise BadInput(f"a sketch needs at least one number, but width is {self.width}")

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


@dataclass(frozen=True)
class ios:
    """Iterative outlier scissor: f times leave out whoever is farthest from the mean of those still in.

    U ← N_k with the agent itself; f times U ← U \\ argmax_{l ∈ U, l ≠ k} ‖θ̂_l − mean of U‖; θ_k = mean of U.

    Wu, Chen and Ling, "Byzantine-resilient decentralized stochastic optimization with robust aggregation rules", IEEE
    Transactions on Signal Processing 2023: its IOS with equal weights. Contracts towards the honest mean where liars
    have less than a third of the weight. f is lowered to less than half of those heard. Costs |N_k|² d, for the inner
    products from which all f means and distances follow.

    For few liars who send what sticks out; with several tasks the minority task sticks out, too.
    """

    f: float = 0.2
    """How many neighbours, or which share of them, to leave out."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        f = tolerated(self.f, inbox.heard).minimum(honest_majority(inbox.heard))
        slots = inbox.heard.shape[1]
        cut = partial(_without_outliers, most=min(most_tolerated(self.f, slots), (slots - 1) // 2))
        weights = inbox.by_neighbourhood(cut, f)
        return Combined(inbox.mix(weights), weights, state)


# Distances ------------------------------------------------------------------------------------------------------


def _from_others(inbox: Inbox, own: Float[Tensor, "agent number"]) -> Table:
    """How far everyone else is from `own`; infinite for oneself, for the silent and for what cannot be measured."""
    return torch.where(others(inbox.heard), inbox.distance(own), math.inf)


def _smallest(distance: Table, number: Int[Tensor, " agent"]) -> Float[Tensor, "agent 1"]:
    """The so-manyth smallest distance of each agent: the first for less than one."""
    return distance.sort(1).values.gather(1, (number - 1).clamp(min=0)[:, None])


def _within(distance: Table, threshold: Float[Tensor, "agent 1"]) -> Kept:
    return (distance <= threshold) & (distance < math.inf)


def _shrinking(gamma: float, kappa: float, elapsed: Float[Tensor, " agent"]) -> Float[Tensor, "agent 1"]:
    """γ exp(−κ t/T) for t ≤ T."""
    return (gamma * torch.exp(-kappa * elapsed.clamp(max=1)))[:, None]


def _own_and_mean(kept: Kept, alpha: float, dtype: torch.dtype) -> Table:
    """Weights of α θ̂_k + (1 − α) mean of those kept, the agent itself not being one; its own where nobody is."""
    weights = normalised(kept.to(dtype)) * (1 - alpha)
    weights[:, 0] += alpha
    return weights


# Sketches -------------------------------------------------------------------------------------------------------


def sketched(rows: Float[Tensor, "row parameter"], width: int, seed: int = 0) -> Float[Tensor, "row width"]:
    """The count sketch of every row: `width` sums of coordinates with random signs, or as many as there are.

    >>> rows = torch.tensor([[3.0, 0.0, 4.0], [0.0, 1.0, 0.0]])
    >>> sketched(rows, width=2).shape, sketched(rows, width=5).norm(dim=1)
    (torch.Size([2, 2]), tensor([5., 1.]))
    """
    parameters = rows.shape[1]
    width = max(1, min(width, parameters))
    order, sign = _hashes(parameters, seed, rows.device)
    return in_pieces(lambda some: _summed(some[:, order] * sign, width), rows, numbers=parameters)


def _summed(signed: Float[Tensor, "row parameter"], width: int) -> Float[Tensor, "row width"]:
    """Coordinate i of those in random order goes to bucket i modulo width."""
    padded = torch.nn.functional.pad(signed, (0, -signed.shape[1] % width))
    return padded.view(len(signed), -1, width).sum(1)


@lru_cache(maxsize=16)
def _hashes(
    parameters: int, seed: int, device: torch.device
) -> tuple[Int[Tensor, " parameter"], Int[Tensor, " parameter"]]:
    """A random order and a random sign for every coordinate."""
    bits = Draws.of(seed, 1, device).bits("sketch", torch.zeros(1, dtype=torch.long, device=device), parameters)[0, 0]
    return bits.argsort(), (1 - 2 * (bits & 1)).to(torch.int8)


# Outliers -------------------------------------------------------------------------------------------------------


def _without_outliers(
    messages: Float[Tensor, "agent slot shared"],
    heard: Bool[Tensor, "agent slot"],
    f: Int[Tensor, " agent"],
    /,
    *,
    most: int,
) -> Table:
    """Equal weights for those left when f times the farthest from the mean went; f ≤ most, and less than the others.

    From lengths and cosines of what everyone differs from me, because ‖x_l − x̄‖² = ‖x_l‖² − 2 x_lᵀx̄ + ‖x̄‖²; lengths are
    taken relative to the largest still there, so that no square overflows and none is lost to one that has gone.
    """
    largest = torch.finfo(messages.dtype).max
    gap = (messages - messages[:, :1]).clamp_(-largest, largest)
    scale = torch.linalg.vector_norm(gap, math.inf, dim=2)
    gap.div_(torch.where(scale > 0, scale, 1.0)[:, :, None])
    cosine = gap @ gap.mT
    norm = cosine.diagonal(dim1=1, dim2=2).sqrt()
    cosine = cosine / (norm[:, :, None] * norm[:, None, :]).clamp(min=1)
    length = (scale * norm).clamp(max=largest)
    slot = torch.arange(heard.shape[1], device=heard.device)
    kept = heard
    for cut in range(most):
        longest = torch.where(kept, length, 0.0).amax(1, keepdim=True)
        x = torch.where(kept, length / torch.where(longest > 0, longest, 1.0), 0.0)
        towards_mean = (cosine @ x[:, :, None])[:, :, 0] / kept.sum(1, keepdim=True)
        excess = torch.where(others(kept), x * (x - 2 * towards_mean), -math.inf)
        goes = (slot == excess.argmax(1, keepdim=True)) & (cut < f)[:, None]
        kept = kept & ~goes
    return uniformly(kept, messages.dtype)


# What can be asked for ------------------------------------------------------------------------------------------


def _check_alpha(alpha: float) -> None:
    if not 0 <= alpha <= 1:
        raise BadInput(f"the weight α of one's own model must lie in [0, 1], but alpha is {alpha}")


def _check_threshold(gamma: float, kappa: float, alpha: float, rounds: int) -> None:
    _check_alpha(alpha)
    for name, letter, value in (("gamma", "γ", gamma), ("kappa", "κ", kappa)):
        if not 0 <= value < math.inf:
            raise BadInput(f"{letter} must be a number that is not negative, but {name} is {value}")
    if rounds < 1:
        raise BadInput(f"the threshold needs at least one round to shrink in, but rounds is {rounds}")
