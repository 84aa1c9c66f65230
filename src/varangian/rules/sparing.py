"""The paper's rule with less judging, which is where its time goes: some neighbours, some rounds, some of a batch.

Whoever is not judged in a round has no weight in it: a model that nobody looked at may be anything, and who is known
to look every other round will be lied to in between. What is saved really is saved: only those who are due are
computed, whole models at a time where everyone hears everyone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn
from varangian.errors import BadInput
from varangian.rules.base import Combined
from varangian.rules.evidence import Smoothed, Table, by_inverse, check_forgetting, not_worse, smooth
from varangian.rules.mixture_loss import onto_self


class Spared(NamedTuple):
    """What is known of each neighbour, and when to look at it again."""

    known: Smoothed
    span: Table
    """How many rounds to leave it alone when it is rejected the next time."""
    rest: Table
    """How many rounds it is still left alone."""


@dataclass(frozen=True)
class sparing:
    """The paper's rule, judging not everyone, not always, or not on the whole batch.

    φ_lk smooths the losses that were observed, and stays as it is in between: keep l while φ_lk ≤ φ_kk, weigh by 1/φ_lk
    (eq. 9, 10); who is not judged in a round has no weight in it. With nothing spared it is `loss_based`, number for
    number. Theorem 1 speaks of risks, not of how they are estimated; a change in a neighbour is noticed later. Costs
    the part of `loss_based`'s evaluations that is due; with `back_off` or `most`, on a GPU, also a moment of waiting
    for it to tell how many those are.
    """

    every: int = 1
    """Judge in every so many rounds."""
    part: float = 1.0
    """Judge on this share of the batch, its first items."""
    back_off: int = 1
    """Leave alone who is rejected: for one round, then for two, four, …, so many at most; who is kept once is judged
    every time again. Nobody is ignored for ever."""
    most: int | None = None
    """Judge so many neighbours in a round, taking turns in the order in which they are listed: then that matters."""
    smoothing: float | None = None
    """ν; the task's own ν_k unless given."""
    judge: JudgedOn | None = None
    """On the next sample or on the same one just trained on; as the task says unless given."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        for name, value in (("every", self.every), ("back_off", self.back_off), ("most", self.most or 1)):
            if value < 1:
                raise BadInput(f"sparing needs {name} to be at least 1, but it is {value}")
        if not 0 < self.part <= 1:
            raise BadInput(f"a part of the batch lies above 0 and is at most 1, but part is {self.part}")

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
        """Who is to be judged now: oneself, and whoever is not left alone and whose turn it is."""
        due = state.rest <= 0
        if self.most is not None:
            neighbours = (inbox.heard.sum(1, keepdim=True) - 1).clamp(min=1)
            number = inbox.heard.cumsum(1) - 2
            turn = inbox.round // self.every * self.most
            due = due & ((number - turn) % neighbours < self.most)
        due[:, 0] = True
        return due

    def _next(self, kept: Bool[Tensor, "agent slot"], judged: Tensor, known: Smoothed, state: Spared) -> Spared:
        """Twice as long for who is rejected again, no time at all for who is kept; a round passes for the others."""
        if self.back_off == 1:
            return state._replace(known=known)
        rejected = judged & ~kept
        longer = (state.span * 2).clamp(max=float(self.back_off))
        span = torch.where(rejected, longer, torch.where(kept, 1.0, state.span))
        rest = torch.where(rejected, state.span.clamp(max=self.back_off - 1.0), (state.rest - 1).clamp(min=0))
        return Spared(known, span, rest)
