"""Rules from personalised and decentralised federated learning: choose neighbours by what they do for my data.

fedfomo = gain over my last model per distance,   keep those with a gain,      weigh by it
pens    = loss,                                   keep the often chosen,      weigh uniformly

Neither was made for Byzantine neighbours. Both look at one sample at a time, where `loss_based` smooths over many.
Neither asks whether the chosen neighbours are better than one's own model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn
from varangian.rules.base import Combined
from varangian.rules.evidence import Kept, Table, everyone, normalised, uniformly
from varangian.rules.mixture_loss import judged
from varangian.rules.neighbourhoods import others


@dataclass(frozen=True)
class fedfomo:
    """FedFomo: weights by how much a model improves on my last one, per distance.

    Equation:
        g_lk = ℓ(θ_{k,i−1}; ξ_k) − ℓ(θ̂_l; ξ_k)
        w_lk ∝ max(0, g_lk) / ‖θ̂_l − θ_{k,i−1}‖
        θ_k = Σ_l w_lk θ̂_l

    If no model improves on the last one, the agent keeps θ̂_k. In the paper, a client downloads some models and judges
    them on held-out data. Here all models heard are judged on the task's sample, the agent's own too. The paper's
    update θ_{k,i−1} + Σ_l w_lk (θ̂_l − θ_{k,i−1}) is the same, as the weights sum to one.

    Limits: there is no guarantee. A Byzantine neighbour needs to improve the loss only now and then to get weight.

    Assumes: Honest neighbours with different tasks, and samples large enough to tell them apart.
    Cost: One loss and one distance per neighbour, and one loss for the last model.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.fedfomo(), rounds=5)

    Reference:
        Zhang, Sapra, Fidler, Yeung and Alvarez, "Personalized federated learning with first order model optimization",
        ICLR 2021, equations 4 to 6. https://arxiv.org/abs/2012.08565
    """

    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        loss, last = inbox.loss(self.judge), judged(inbox, inbox.previous[:, None], self.judge)
        # A last model without a finite loss is worse than any model with one.
        gain = torch.where(everyone(last), last - loss, everyone(loss).to(loss.dtype)).clamp(min=0)
        distance = inbox.distance(inbox.previous)
        largest = torch.finfo(gain.dtype).max
        share = torch.where(distance > 0, gain / distance, 0.0).clamp(max=largest)
        most = share.amax(1, keepdim=True)
        weights = normalised(share / torch.where(most > 0, most, 1.0))
        return Combined(inbox.mix(weights), weights, state)


class Chosen(NamedTuple):
    """How often each neighbour was among the best, and how often chance would have chosen it."""

    times: Table
    """How often the neighbour was chosen."""
    expected: Table
    """How often it would have been chosen by chance."""
    rounds: Float[Tensor, " agent"]
    """How many rounds each agent has seen."""


@dataclass(frozen=True)
class pens:
    """PENS: average with the best few on my sample at first, later with those chosen more often than by chance.

    Equation:
        B_k = the m best neighbours by ℓ(θ̂_l; ξ_k)  at first
        B_k = {l : c_lk > e_lk}  after T rounds
        θ_k = mean of θ̂_k and all θ̂_l in B_k

    c_lk counts how often l was chosen in the first T rounds, and e_lk how often chance would have chosen it: m divided
    by the number of neighbours, summed over rounds. Neighbours with equal losses are chosen together.

    In the paper, a few random clients send their models in each round, and later the client gossips only with the
    chosen. Here every neighbour is heard in every round.

    Limits: there is no guarantee. A neighbour that behaves well at first is trusted for ever. An agent that never hears
    more than m neighbours learns nothing about them and ends alone.

    Assumes: Honest neighbours that form a few groups of equal tasks.
    Cost: One loss per neighbour, also in later rounds, where only a loss that is not finite decides anything.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.pens(top=2, rounds=3), rounds=5)

    Reference:
        Onoszko, Karlsson, Mogren and Listo Zec, "Decentralized federated learning of deep neural networks on non-iid
        data", FL-ICML workshop 2021. https://arxiv.org/abs/2107.08517
    """

    top: int = 2
    """m: how many of the best neighbours to choose in each of the first rounds; 2 in the paper."""
    rounds: int = 100
    """T: the number of rounds in which neighbours are chosen."""
    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise BadInput(f"pens chooses at least one neighbour, but top is {self.top}")
        if self.rounds < 1:
            raise BadInput(f"pens needs at least one round to choose neighbours, but rounds is {self.rounds}")

    def init(self, table: Table) -> Chosen:
        return Chosen(torch.zeros_like(table), torch.zeros_like(table), table.new_zeros(len(table)))

    def combine(self, inbox: Inbox, state: Chosen) -> Combined[Chosen]:
        choosing = (state.rounds < self.rounds)[:, None]
        loss = torch.where(others(inbox.heard), inbox.loss(self.judge), math.inf)
        best = self._best(loss)
        candidates = everyone(loss)
        chance = (self.top / candidates.sum(1, keepdim=True).clamp(min=1)).clamp(max=1)
        after = Chosen(
            state.times + (best & choosing),
            state.expected + chance * (candidates & choosing),
            state.rounds + 1,
        )
        trusted = candidates & (state.times > state.expected)
        kept = torch.where(choosing, best, trusted)
        kept[:, 0] = True
        weights = uniformly(kept, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, after)

    def _best(self, loss: Table) -> Kept:
        """The m smallest losses, and all equal to the largest of them."""
        last = min(self.top, loss.shape[1]) - 1
        return (loss <= loss.sort(1).values[:, last : last + 1]) & everyone(loss)
