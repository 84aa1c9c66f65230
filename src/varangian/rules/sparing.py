"""The paper's rule with fewer loss evaluations: judge some neighbours, in some rounds, on a part of the batch.

Loss evaluations take most of the time of `loss_based`. A neighbour that is not judged in a round has no weight in it. A
model that nobody checked may be anything, and an attacker that knows when it is checked will attack in between. The
saving is real: only the losses that are due are computed, for whole models at a time where everyone hears everyone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn, check_forgetting
from varangian.rules.base import Combined
from varangian.rules.evidence import Smoothed, Table, by_inverse, not_worse, smooth
from varangian.rules.mixture_loss import onto_self


class Spared(NamedTuple):
    """What is known about each neighbour, and when to judge it again."""

    known: Smoothed
    """φ and how much of it has been observed."""
    span: Table
    """The length of the pause after the next rejection, in rounds."""
    rest: Table
    """How many rounds of the current pause are left."""


@dataclass(frozen=True)
class sparing:
    """The paper's rule with fewer loss evaluations: it need not judge every neighbour, every round or the whole batch.

    Equation:
        φ_lk ← (1 − ν) φ_lk + ν ℓ(θ̂_l; ξ_k)  if l is judged
        K_k = {l is judged : φ_lk ≤ φ_kk}
        a_lk ∝ 1 / φ_lk  if l ∈ K_k,  else 0

    Without a judgement, φ_lk stays as it is and the neighbour has no weight in this round. By default nothing is
    spared, and the rule gives exactly the numbers of `loss_based`.

    Theorem 1 is about risks, not about how they are estimated, so it still applies. But the agent notices a change in a
    neighbour later.

    Assumes: A sample of its own; losses are unbiased only if the agent has not trained on it yet. Any number of
    neighbours may be Byzantine.
    Cost: The share of `loss_based`'s loss evaluations that is due. With `back_off` or `most`, a GPU also waits once per
    round to learn how many are due.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.sparing(every=2), rounds=5)

    Reference:
        Ours. It builds on `loss_based`: Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task
        learning", NeurIPS 2020. https://arxiv.org/abs/2010.13032
    """

    every: int = 1
    """Judge in every n-th round only, where n is this number; in between agents keep their own model."""
    part: float = 1.0
    """The share of the batch to judge on: its first items."""
    back_off: int = 1
    """Pause after a rejection: for 1 round, then 2, 4, …, but judge at least once in this many rounds. With 1 there are
    no pauses. A neighbour that is kept once has no more pauses until it is rejected again."""
    most: int | None = None
    """The most neighbours to judge per round, in turns, in the order of the list. By default all."""
    smoothing: float | None = None
    """ν: the weight of the newest round. By default the task's own ν_k."""
    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        for name, value in (("every", self.every), ("back_off", self.back_off), ("most", self.most or 1)):
            if value < 1:
                raise BadInput(f"sparing needs {name} to be at least 1, but it is {value}")
        if not 0 < self.part <= 1:
            raise BadInput(f"the part of the batch must lie in (0, 1], but part is {self.part}")

    def init(self, table: Table) -> Spared:
        return Spared(Smoothed.start(table, 0.0), torch.ones_like(table), torch.zeros_like(table))

    def combine(self, inbox: Inbox, state: Spared) -> Combined[Spared]:
        if inbox.round % self.every:
            return Combined(inbox.own, onto_self(inbox), state)
        if self.back_off == 1 and self.most is None:
            loss = inbox.on_part(self.part).loss(self.judge)
        else:
            loss = inbox.loss_where(self._due(inbox, state), self.judge, self.part)
        risk, known = smooth(loss, self.smoothing or inbox.forgetting, state.known)
        kept = not_worse(risk)
        weights = by_inverse(risk, kept)
        return Combined(inbox.mix(weights), weights, self._next(kept, loss < math.inf, known, state))

    def _due(self, inbox: Inbox, state: Spared) -> Bool[Tensor, "agent slot"]:
        """Which slots to judge now: the agent itself, and neighbours without a pause whose turn it is."""
        due = state.rest <= 0
        if self.most is not None:
            neighbours = (inbox.heard.sum(1, keepdim=True) - 1).clamp(min=1)
            number = inbox.heard.cumsum(1) - 2
            turn = inbox.round // self.every * self.most
            due = due & ((number - turn) % neighbours < self.most)
        due[:, 0] = True
        return due

    def _next(self, kept: Bool[Tensor, "agent slot"], judged: Tensor, known: Smoothed, state: Spared) -> Spared:
        """A pause twice as long after each rejection, none after being kept. Running pauses get one round shorter."""
        if self.back_off == 1:
            return state._replace(known=known)
        rejected = judged & ~kept
        longer = (state.span * 2).clamp(max=float(self.back_off))
        span = torch.where(rejected, longer, torch.where(kept, 1.0, state.span))
        rest = torch.where(rejected, state.span.clamp(max=self.back_off - 1.0), (state.rest - 1).clamp(min=0))
        return Spared(known, span, rest)
