"""Rules in which an agent's own data is the root of trust.

fltrust = cosine with my own update,   keep the positive ones,   weigh by it, at my own length
basil   = loss,                        keep the best one
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.core.inbox import Inbox
from varangian.core.messages import finite_rows
from varangian.core.task import JudgedOn
from varangian.rules.base import Combined
from varangian.rules.evidence import Table, uniformly
from varangian.rules.neighbourhoods import others


@dataclass(frozen=True)
class fltrust:
    """FLTrust without a server: my own update is the root of trust for the updates of neighbours.

    Equation:
        u_l = θ̂_l − θ_{k,i−1}
        t_l = max(0, cos(u_l, u_k))
        θ_k = θ_{k,i−1} + Σ_l t_l (‖u_k‖ / ‖u_l‖) u_l / Σ_l t_l

    In the paper, a server trains on a small clean dataset and compares the updates of clients with its own. Here every
    agent is such a server, and its data are clean because they are its own. It counts its own update too, with trust
    1. Updates are measured from the agent's last model, as a message does not say where its sender started.

    No update is longer than the agent's own, so one round moves the model no farther than training alone would.

    Limits: among agents with different models, the direction to a neighbour says more about the distance between tasks
    than about its update. A Byzantine neighbour less than 90 degrees off has weight. An agent that did not train in
    this round does not move.

    Assumes: A model near that of honest neighbours, and one task. Any number of neighbours may be Byzantine.
    Cost: |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.fltrust(), rounds=5)

    Reference:
        Cao, Fang, Liu and Gong, "FLTrust: Byzantine-robust federated learning via trust bootstrapping", NDSS 2021.
        https://arxiv.org/abs/2012.13995
    """

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        width = inbox.rows.shape[1]
        own, last = inbox.own[:, :width], inbox.previous[:, :width]
        length = torch.linalg.vector_norm(own - last, dim=1, keepdim=True)
        distance = inbox.distance(inbox.previous)
        trust = inbox.by_neighbourhood(_cosines, own, last).clamp(min=0)
        trust = torch.where((distance > 0) & (distance < math.inf), trust, 0.0)
        # The agent trusts itself, also where rounding leaves its cosine a little below 1.
        trust[:, 0] = 1
        scale = torch.where(trust > 0, length / torch.where(distance > 0, distance, 1.0), 0.0)
        share = trust / trust.sum(1, keepdim=True) * scale
        models = inbox.mix(share)
        shared = models[:, :width] + (1 - share.sum(1, keepdim=True)) * last
        combined = inbox.with_private(shared)
        # With an update that is not finite, or without one, there is nothing to compare with.
        known = (length > 0) & (length < math.inf) & finite_rows(combined) & inbox.heard[:, :1]
        return Combined(torch.where(known, combined, inbox.own), None, state)


def _cosines(
    messages: Float[Tensor, "agent slot shared"],
    heard: Bool[Tensor, "agent slot"],
    own: Float[Tensor, "agent shared"],
    last: Float[Tensor, "agent shared"],
) -> Table:
    """The cosine of every neighbour's update with the agent's own. It is 0 where it cannot be computed."""
    ours, theirs = own - last, messages - last[:, None]
    length = torch.linalg.vector_norm(theirs, dim=2, keepdim=True)
    ours = ours / torch.linalg.vector_norm(ours, dim=1, keepdim=True)
    cosine: Tensor = ((theirs / length) * ours[:, None]).sum(2)
    return cosine.nan_to_num(0.0, 0.0, 0.0).clamp(-1, 1)


@dataclass(frozen=True)
class basil:
    """Basil: take the neighbour's model that has the smallest loss on my sample.

    Equation:
        m = argmin_{l≠k} ℓ(θ̂_l; ξ_k)
        θ_k = θ̂_m

    In the paper, agents sit on a ring and train one after another. Each hears its S predecessors, takes the best of
    their models and trains it. If S is larger than the number of Byzantine agents, one of these models is honest. Here
    all agents do so at once, and the graph decides who hears whom. Nothing is averaged. If models tie, their mean is
    taken.

    Limits: the agent's own model is not among the candidates, as in the paper. With different tasks this is costly: the
    best of the others may be far worse than one's own. Then use `own=true`. One sample decides: a model that is good on
    it by chance is taken whole.

    Assumes: At least one honest neighbour, and one task. Any number of other neighbours may be Byzantine.
    Cost: One evaluation of the loss per neighbour.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.basil(own=True), rounds=5)

    Reference:
        Elkordy, Prakash and Avestimehr, "Basil: a fast and Byzantine-resilient approach for decentralized training",
        IEEE Journal on Selected Areas in Communications 2022. https://arxiv.org/abs/2109.07706
    """

    own: bool = False
    """Whether the agent's own model is among the candidates. In the paper it is not."""
    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        candidates = inbox.heard if self.own else others(inbox.heard)
        loss = torch.where(candidates, inbox.loss(self.judge), math.inf)
        best = (loss <= loss.amin(1, keepdim=True)) & (loss < math.inf)
        weights = uniformly(best, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, state)
