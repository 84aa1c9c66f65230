"""Rules around rules: use what another rule combines only when there is reason to.

verified = another rule's model while it is no worse than mine,   else mine
patient  = mine for some rounds,                                  then another rule's
paired   = smoothed difference of losses,   keep not significantly worse,   weigh by inverse

The paper's filter compares the smoothed losses of two models. On the same sample both losses share much of their noise.
Their difference therefore shows sooner which model is better. And what counts in the end is the combined model.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn, check_forgetting
from varangian.rules.base import Combined, Companion, Rule, check_inner, companion_of
from varangian.rules.evidence import (
    Smoothed,
    Table,
    by_inverse,
    concentration,
    difference,
    everyone,
    smooth,
)
from varangian.rules.mixture_loss import judged, onto_self
from varangian.rules.paper import average, loss_based

AnyRule = Rule[Any]


class Watched(NamedTuple):
    """The state of another rule, and the smoothed loss of its models less that of one's own."""

    inner: Any
    excess: Smoothed


@dataclass(frozen=True)
class verified:
    """Use another rule's combined model while its smoothed loss is not above that of my own model.

    Equation:
        d_k ← (1 − ν) d_k + ν (ℓ(θ_k'; ξ_k) − ℓ(θ̂_k; ξ_k))
        θ_k = θ_k'  if d_k ≤ 0,  else θ̂_k

    θ_k' is what the other rule combines. It is judged in every round, whether it was used or not. A combined model
    without a finite loss is never used.

    The second claim of Theorem 1, E r_k(θ_k) ≤ E r_k(θ̂_k) in every round, becomes a test here instead of a
    consequence. It needs neither convex risks nor a filter. It holds for any rule, as far as the last 1/ν samples tell.

    Limits: it rescues rules that fail, such as `average`, but takes some of the gain of rules that work. An improvement
    smaller than the noise is used only half of the time. A large early gain is remembered for several times 1/ν rounds,
    and a worse model may pass during them.

    Assumes: A sample of its own; losses are unbiased only if the agent has not trained on it yet. Any number of
    neighbours may be Byzantine.
    Cost: Two evaluations of the loss, and the cost of the other rule.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.verified(rules.average()), rounds=5)

    Reference:
        Ours. It builds on Theorem 1 of Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task learning",
        NeurIPS 2020. https://arxiv.org/abs/2010.13032
    """

    rule: AnyRule = field(default_factory=average)
    """The rule to verify."""
    smoothing: float | None = None
    """ν: the weight of the newest round. By default the task's own ν_k."""
    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        check_inner("verified", self.rule)

    @property
    def companion(self) -> Companion | None:
        return companion_of(self.rule)

    def init(self, table: Table) -> Watched:
        return Watched(self.rule.init(table), Smoothed.start(table[:, 0], 0.0))

    def combine(self, inbox: Inbox, state: Watched) -> Combined[Watched]:
        combined = self.rule.combine(inbox, state.inner)
        theirs, mine = judged(inbox, torch.stack((combined.models, inbox.own), 1), self.judge).unbind(1)
        nu = self.smoothing or _of_agents(inbox.forgetting)
        mean, excess = smooth(difference(theirs[:, None], mine[:, None])[:, 0], nu, state.excess)
        # An agent whose own loss is not finite accepts any model with a finite loss.
        accept = torch.where(everyone(mine), mean <= 0, everyone(theirs))
        return _taken(inbox, combined, accept, Watched(combined.state, excess))


class Waiting(NamedTuple):
    """The state of another rule, and how many rounds each agent has seen."""

    inner: Any
    rounds: Float[Tensor, " agent"]


@dataclass(frozen=True)
class patient:
    """Learn alone in the first rounds, while another rule already gathers evidence; then follow that rule.

    Equation:
        θ_k = θ̂_k  in the first T rounds
        θ_k = θ_k'  afterwards

    θ_k' is what the other rule combines from all it has seen. An untrained model is easy to beat: messages near zero
    really are no worse than it. A rule that judges by loss accepts them, and their effect may take long to unlearn.

    Limits: the agent forgoes the gain of the first rounds. The other rule's guarantees hold from round T on.

    Assumes: What the other rule assumes.
    Cost: That of the other rule.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.patient(rules.loss_based(), rounds=3), rounds=5)

    Reference:
        Ours. It builds on `loss_based`: Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task
        learning", NeurIPS 2020. https://arxiv.org/abs/2010.13032
    """

    rule: AnyRule = field(default_factory=loss_based)
    """The rule to follow after the wait."""
    rounds: int = 10
    """T: how many rounds to learn alone."""

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise BadInput(f"patient cannot wait for {self.rounds} rounds; use rounds=0 or more")
        check_inner("patient", self.rule)

    @property
    def companion(self) -> Companion | None:
        return companion_of(self.rule)

    def init(self, table: Table) -> Waiting:
        return Waiting(self.rule.init(table), table.new_zeros(len(table)))

    def combine(self, inbox: Inbox, state: Waiting) -> Combined[Waiting]:
        combined = self.rule.combine(inbox, state.inner)
        return _taken(inbox, combined, state.rounds >= self.rounds, Waiting(combined.state, state.rounds + 1))


class Compared(NamedTuple):
    """Smoothed losses, smoothed differences to one's own loss, and smoothed squares of these differences."""

    risk: Smoothed
    excess: Smoothed
    square: Smoothed


@dataclass(frozen=True)
class paired:
    """Keep a neighbour unless its loss is significantly above mine on the same samples, weigh by inverse loss.

    Equation:
        δ_lk = ℓ(θ̂_l; ξ_k) − ℓ(θ̂_k; ξ_k)
        d_lk ← (1 − ν) d_lk + ν δ_lk
        v_lk ← (1 − ν) v_lk + ν δ_lk²
        K_k = {l : d_lk ≤ z √(min(v_lk − d_lk², φ_kk²) W)}
        a_lk ∝ 1 / φ_lk  if l ∈ K_k,  else 0

    φ is the smoothed loss, as in `loss_based`. The root is the standard error of d_lk. W is the sum of squared weights
    of the samples in a smoothed mean, in the long run ν / (2 − ν). The bound φ_kk² matters: without it, a sender of
    rare but enormous errors would be excused by the spread that it causes itself.

    This is the paper's filter with a test for paired samples instead of φ_lk ≤ φ_kk. Neighbours as good as the agent
    itself are kept nearly always, and not only half of the time.

    Limits: a neighbour that is worse by less than the noise is kept too. Theorem 1 then holds up to z standard errors.
    The rule is best where a neighbour has either the same task or quite another one. Where all tasks differ a little,
    `loss_based` is stricter, and right.

    Assumes: A sample of its own; losses are unbiased only if the agent has not trained on it yet. Any number of
    neighbours may be Byzantine.
    Cost: One evaluation of the loss per neighbour.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.paired(significance=2.0), rounds=5)

    Reference:
        Ours. It builds on `loss_based`, Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task
        learning", NeurIPS 2020. https://arxiv.org/abs/2010.13032 and on the paired test of Student, "The probable error
        of a mean", Biometrika 6, 1908. https://doi.org/10.1093/biomet/6.1.1
    """

    significance: float = 2.0
    """z: how many standard errors above one's own loss are still accepted."""
    smoothing: float | None = 0.02
    """ν: the weight of the newest round. With None, the task's own ν_k."""
    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        if not 0 <= self.significance < math.inf:
            raise BadInput(f"significance counts standard errors and must be 0 or more, but is {self.significance}")

    def init(self, table: Table) -> Compared:
        return Compared(Smoothed.start(table, 0.0), Smoothed.start(table, 0.0), Smoothed.start(table, 0.0))

    def combine(self, inbox: Inbox, state: Compared) -> Combined[Compared]:
        nu, loss = self.smoothing or inbox.forgetting, inbox.loss(self.judge)
        excess = difference(loss, loss[:, :1])
        risk, of_risk = smooth(loss, nu, state.risk)
        mean, of_mean = smooth(excess, nu, state.excess)
        square, of_square = smooth(excess.square(), nu, state.square)
        variance = torch.minimum(square - mean.square(), risk[:, :1].clamp(min=0).square()).clamp(min=0)
        slack = self.significance * (variance * concentration(nu, of_mean.mass)).sqrt()
        # An agent whose own loss is not finite keeps every neighbour with a finite loss.
        kept = torch.where(everyone(loss[:, :1]), everyone(mean) & (mean <= slack), everyone(loss))
        weights = by_inverse(risk, kept)
        return Combined(inbox.mix(weights), weights, Compared(of_risk, of_mean, of_square))


def _taken(inbox: Inbox, combined: Combined[Any], accept: Bool[Tensor, " agent"], state: Any) -> Combined[Any]:
    """The combined model where it is accepted, one's own model with all weight elsewhere."""
    accepted = accept[:, None]
    weights = combined.weights
    if weights is not None:
        weights = torch.where(accepted, weights, onto_self(inbox))
    return Combined(torch.where(accepted, combined.models, inbox.own), weights, state)


def _of_agents(forgetting: float | Float[Tensor, "agent 1"]) -> float | Float[Tensor, " agent"]:
    """One forgetting factor per agent, without the slot dimension."""
    return forgetting if isinstance(forgetting, float) else forgetting[:, 0]
