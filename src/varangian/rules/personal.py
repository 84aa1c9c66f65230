"""Rules from personalised and decentralised federated learning: neighbours are chosen by what they do for my data.

fedfomo = gain over my last model per distance,   keep whoever gains,         weigh by it
pens    = loss,                                   keep the often chosen,      weigh uniformly

Neither was made for liars. Both look at one sample at a time, where `loss_based` smooths over many, and neither asks
whether the chosen are better than one's own model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn
from varangian.errors import BadInput
from varangian.rules.base import Combined
from varangian.rules.evidence import Kept, Table, everyone, normalised, uniformly
from varangian.rules.mixture_loss import judged
from varangian.rules.neighbourhoods import others


@dataclass(frozen=True)
class fedfomo:
    """FedFomo: weights by how much a model gains on my sample over my last one, per distance to go.

    w_lk ∝ max(0, (ℓ(θ_k,i−1; ξ_k) − ℓ(θ̂_l; ξ_k)) / ‖θ̂_l − θ_k,i−1‖), θ_k = θ_k,i−1 + Σ_l w_lk (θ̂_l − θ_k,i−1), which is
    Σ_l w_lk θ̂_l, the weights being normalised; where nobody gains, θ̂_k.

    Zhang, Sapra, Fidler, Yeung and Alvarez, "Personalized federated learning with first order model optimization",
    ICLR 2021, eq. 4 to 6. There a client downloads some models and judges them on held-out data; here everyone heard
    is judged on the task's sample, the agent itself too. No bound is claimed. Costs one loss and one distance a
    neighbour, and one loss for the last model. For honest neighbours with different tasks and samples large enough
    to tell them apart; a liar needs to gain only now and then.
    """

    judge: JudgedOn | None = None
    """On the next sample or on the same one just trained on; as the task says unless given."""

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        loss, last = inbox.loss(self.judge), judged(inbox, inbox.previous[:, None], self.judge)
        # A last model without a loss is worse than any that has one.
        gain = torch.where(everyone(last), last - loss, everyone(loss).to(loss.dtype)).clamp(min=0)
        distance = inbox.distance(inbox.previous)
        largest = torch.finfo(gain.dtype).max
        share = torch.where(distance > 0, gain / distance, 0.0).clamp(max=largest)
        most = share.amax(1, keepdim=True)
        weights = normalised(share / torch.where(most > 0, most, 1.0))
        return Combined(inbox.mix(weights), weights, state)


class Chosen(NamedTuple):
    """How often each neighbour was among the best, and how often it would have been by chance."""

    times: Table
    expected: Table
    rounds: Float[Tensor, " agent"]


@dataclass(frozen=True)
class pens:
    """PENS: for some rounds the few best on my sample, then whoever was among them more often than by chance.

    At first B_k = the m neighbours of smallest ℓ(θ̂_l; ξ_k), and afterwards B_k = {l : times chosen > times expected},
    m/|N_k| being expected of a neighbour in each of the first rounds; θ_k = mean of B_k and θ̂_k.

    Onoszko, Karlsson, Mogren and Listo Zec, "Decentralized federated learning of deep neural networks on non-iid data",
    FL-ICML workshop 2021, with their m = 2. There a client is sent models by a random few in each round, and gossips
    with the chosen afterwards; here everyone is heard in every round, at first and afterwards. Equally good neighbours
    are chosen together, and who never has more than m neighbours has learnt nothing about them and ends alone. No
    bound is claimed. Costs one loss a neighbour and round, also in later rounds, in which nothing is decided by it.
    For honest neighbours in a few groups; who behaves at first is trusted for ever.
    """

    top: int = 2
    """m: how many of the best to choose in one of the first rounds."""
    rounds: int = 100
    """How many rounds to choose in before settling."""
    judge: JudgedOn | None = None
    """On the next sample or on the same one just trained on; as the task says unless given."""

    def __post_init__(self) -> None:
        if self.top < 1:
            raise BadInput(f"pens chooses at least one neighbour, but top is {self.top}")
        if self.rounds < 1:
            raise BadInput(f"pens needs at least one round to choose in, but rounds is {self.rounds}")

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
        trusted = others(inbox.heard) & (state.times > state.expected)
        kept = torch.where(choosing, best, trusted)
        kept[:, 0] = True
        weights = uniformly(kept, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, after)

    def _best(self, loss: Table) -> Kept:
        """The m smallest, and whoever is no larger."""
        last = min(self.top, loss.shape[1]) - 1
        return (loss <= loss.sort(1).values[:, last : last + 1]) & everyone(loss)
