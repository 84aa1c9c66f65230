"""Judge mixtures instead of models: not only whether to move towards a neighbour, but how far."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn, check_forgetting
from varangian.rules.base import Combined
from varangian.rules.evidence import Smoothed, Table, by_inverse, everyone, not_worse, smooth


@dataclass(frozen=True)
class interpolated:
    """The paper's filter on mixtures: move towards each neighbour as far as the loss on my data says.

    Equation:
        m_lk(s) = θ̂_k + s (θ̂_l − θ̂_k)
        φ_lk(s) ← (1 − ν) φ_lk(s) + ν ℓ(m_lk(s); ξ_k)
        s_l = argmin_s φ_lk(s)  with φ_lk(s) ≤ φ_kk
        b_lk ∝ 1 / φ_lk(s_l)
        θ_k = Σ_l b_lk m_lk(s_l)

    Each neighbour is tried with a few shares s. If no share passes the filter, the neighbour is left out. In terms of
    models, a_lk = b_lk s_l, and the agent itself has the rest. With s = 1 alone, this is `loss_based`.

    Theorem 1 of the paper holds unchanged: every mixture that is combined has a risk of at most r_k(θ̂_k), and Jensen's
    inequality does the rest. Two things are gained. A neighbour that is slightly worse, in another direction, can still
    help in part. For models that are not convex, the rule tests whether averaging works at all.

    Limits: where agents nearly agree, noise decides. With mini-batches, `judge="same"` gains more, but is not safe: a
    sender may know the batch just trained on.

    Assumes: A sample of its own. For the guarantee, convex risks. Any number of neighbours may be Byzantine.
    Cost: One evaluation of the loss per neighbour and share.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.interpolated(shares=(1.0, 0.5)), rounds=5)

    Reference:
        Ours. It builds on `loss_based`: Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task
        learning", NeurIPS 2020. https://arxiv.org/abs/2010.13032
    """

    shares: tuple[float, ...] = (1.0, 0.5, 0.25)
    """The parts of the way to a neighbour that are tried."""
    smoothing: float | None = None
    """ν: the weight of the newest round. By default the task's own ν_k."""
    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise BadInput(f"shares must lie in (0, 1], for example 1/0.5/0.25, but are {self.shares}")

    def init(self, table: Table) -> tuple[Smoothed, ...]:
        return tuple(Smoothed.start(table, 0.0) for _ in self.shares)

    def combine(self, inbox: Inbox, state: tuple[Smoothed, ...]) -> Combined[tuple[Smoothed, ...]]:
        nu, after = self.smoothing or inbox.forgetting, list[Smoothed]()
        best = torch.full_like(inbox.loss(self.judge), math.inf)
        far = torch.zeros_like(best)
        for share, before in zip(self.shares, state, strict=True):
            risk, smoothed = smooth(self._loss(inbox, share), nu, before)
            better = not_worse(risk) & (risk < best)
            best, far = torch.where(better, risk, best), torch.where(better, share, far)
            after.append(smoothed)
        part = by_inverse(best, everyone(best))
        weights = part * far
        weights[:, 0] = part[:, 0] + (part - weights)[:, 1:].sum(1)
        return Combined(inbox.mix(weights), weights, tuple(after))

    def _loss(self, inbox: Inbox, share: float) -> Table:
        """ℓ((1 − s) θ̂_k + s θ̂_l; ξ_k)."""
        of_messages = inbox.loss(self.judge)
        if share == 1:
            return of_messages
        own = inbox.own[:, None, : inbox.rows.shape[1]] * (1 - share)
        loss = inbox.loss_of(lambda messages, agents: own[agents] + share * messages, self.judge)
        # An agent's mixture with itself is itself, in spite of rounding.
        itself = torch.arange(loss.shape[1], device=loss.device) == 0
        return torch.where(itself, of_messages, loss)
