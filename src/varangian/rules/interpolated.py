"""Judge the mixture, not the model: how far to go towards a neighbour, and not only whether."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn
from varangian.errors import BadInput
from varangian.rules.base import Combined
from varangian.rules.evidence import Smoothed, Table, by_inverse, check_forgetting, everyone, not_worse, smooth


@dataclass(frozen=True)
class interpolated:
    """The paper's filter on mixtures of mine and a neighbour's model: go towards it as far as it does me good.

    φ_lk(s) smooths ℓ(m_lk(s); ξ_k), m_lk(s) = θ̂_k + s (θ̂_l − θ̂_k), for a few shares s; s_l is the share with the
    smallest φ_lk(s) among those with φ_lk(s) ≤ φ_kk, and l is left out where there is none. θ_k = Σ_l b_lk m_lk(s_l)
    with b_lk ∝ 1/φ_lk(s_l): a weighing rule, a_lk = b_lk s_l, the rest one's own. With s = 1 only, it is `loss_based`.

    Keeps the paper's Theorem 1 word for word, for every combined point has a risk of at most r_k(θ̂_k), and then
    Jensen's inequality, with any number of Byzantine neighbours. A neighbour that is a little worse than oneself, in
    another direction, is of use in part; and for models that are not convex it is tested whether averaging works at
    all. Costs one evaluation of the loss per neighbour, share and round. Where agents nearly agree, decisions become
    coin flips: with mini-batches judge on the batch just trained on.
    """

    shares: tuple[float, ...] = (1.0, 0.5, 0.25)
    """The parts of the way to a neighbour to try."""
    smoothing: float | None = None
    """ν; the task's own ν_k unless given."""
    judge: JudgedOn | None = None
    """On the next sample or on the same one just trained on; as the task says unless given."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        if not self.shares or not all(0 < share <= 1 for share in self.shares):
            raise BadInput(f"shares of the way to a neighbour lie in (0, 1], as in 1/0.5/0.25, but are {self.shares}")

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
        # Rounding must not tell an agent's mixture with itself from itself.
        itself = torch.arange(loss.shape[1], device=loss.device) == 0
        return torch.where(itself, of_messages, loss)
