"""Rules around rules: take what another rule combines only when there is reason to.

verified = another rule's model while it is no worse than mine,   else mine
patient  = mine for some rounds,                                  then another rule's
paired   = smoothed difference of losses,   keep not significantly worse,   weigh by inverse

The paper's filter compares the smoothed losses of two models. On the same sample both have much of their noise in
common, so that their difference says sooner which is better; and the model to be judged in the end is the combined one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn
from varangian.errors import BadInput
from varangian.rules.base import Combined, Rule
from varangian.rules.evidence import Smoothed, Table, by_inverse, check_forgetting, everyone, smooth
from varangian.rules.mixture_loss import judged, onto_self
from varangian.rules.paper import average, loss_based

AnyRule = Rule[Any]


class Watched(NamedTuple):
    """What another rule remembers, and the smoothed loss of its models less that of one's own."""

    inner: Any
    excess: Smoothed


@dataclass(frozen=True)
class verified:
    """Another rule's combined model while its smoothed loss is not above that of my own, else my own.

    d_k ← (1 − ν) d_k + ν (ℓ(θ_k'; ξ_k) − ℓ(θ̂_k; ξ_k)), θ_k' being what the other rule combines, judged in every round
    whether it was taken or not; θ_k = θ_k' if d_k ≤ 0, else θ̂_k.

    The second claim of the paper's Theorem 1, E r_k(θ_k) ≤ E r_k(θ̂_k) in every round, made a test instead of a
    consequence: it needs neither convex risks nor a filter, and holds for any rule and any number of liars as far as
    the last 1/ν samples tell. A combined model without a finite loss is not taken, whatever was before. Costs two
    evaluations of the loss per agent and round besides the rule's own. It rescues rules that fail, such as `average`,
    and costs rules that do not some of their gain: what is better by less than the noise is taken half of the time.
    A large gain early on is remembered for some multiples of 1/ν rounds, in which a worse model may pass.

    >>> from varangian import simulate, studies
    >>> result = simulate(studies.target_localization(agents=12), rule=verified(average(), smoothing=0.02), rounds=5)
    """

    rule: AnyRule = field(default_factory=average)
    """The rule to verify."""
    smoothing: float | None = None
    """ν; the task's own ν_k unless given."""
    judge: JudgedOn | None = None
    """On the next sample or on the same one just trained on; as the task says unless given."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)

    def init(self, table: Table) -> Watched:
        return Watched(self.rule.init(table), Smoothed.start(table[:, 0], 0.0))

    def combine(self, inbox: Inbox, state: Watched) -> Combined[Watched]:
        combined = self.rule.combine(inbox, state.inner)
        theirs, mine = judged(inbox, torch.stack((combined.models, inbox.own), 1), self.judge).unbind(1)
        nu = self.smoothing or _of_agents(inbox.forgetting)
        mean, excess = smooth(_difference(theirs[:, None], mine[:, None])[:, 0], nu, state.excess)
        # With no loss of its own to compare with, an agent takes what has one.
        accept = torch.where(everyone(mine), mean <= 0, everyone(theirs))
        return _taken(inbox, combined, accept, Watched(combined.state, excess))


class Waiting(NamedTuple):
    """What another rule remembers, and how many rounds each agent has seen."""

    inner: Any
    rounds: Float[Tensor, " agent"]


@dataclass(frozen=True)
class patient:
    """Alone for the first rounds, while another rule already gathers evidence, then the other rule.

    θ_k = θ̂_k in the first T rounds, afterwards what the rule combines from all it has seen.

    A bland lie beats an untrained model: before an agent has learnt anything, messages near zero really are no worse
    than its own, a rule that judges by loss accepts them, and what they leave may take long to unlearn. Costs what the
    rule costs; the gain of the first rounds is forgone. The rule's own guarantees hold from round T on.
    """

    rule: AnyRule = field(default_factory=loss_based)
    """The rule to follow then."""
    rounds: int = 10
    """T: how many rounds to wait."""

    def __post_init__(self) -> None:
        if self.rounds < 0:
            raise BadInput(f"patient cannot wait for {self.rounds} rounds; give rounds=0 or more")

    def init(self, table: Table) -> Waiting:
        return Waiting(self.rule.init(table), table.new_zeros(len(table)))

    def combine(self, inbox: Inbox, state: Waiting) -> Combined[Waiting]:
        combined = self.rule.combine(inbox, state.inner)
        return _taken(inbox, combined, state.rounds >= self.rounds, Waiting(combined.state, state.rounds + 1))


class Compared(NamedTuple):
    """Smoothed losses, smoothed differences to one's own loss, and the smoothed squares of these."""

    risk: Smoothed
    excess: Smoothed
    square: Smoothed


@dataclass(frozen=True)
class paired:
    """Keep l unless its loss is significantly above mine on the same samples, weigh by 1/φ_lk.

    d_lk smooths ℓ(θ̂_l; ξ_k) − ℓ(θ̂_k; ξ_k) and v_lk its square; keep l iff d_lk ≤ z √(min(v_lk − d_lk², φ_kk²) W), where
    W = Σ w² over the weights w of the samples in a smoothed mean, ν/(2 − ν) in the long run: z standard errors of
    d_lk. φ smooths the loss; a_lk ∝ 1/φ_lk over those kept, as in eq. 10.

    The paper's filter with the test for paired samples, in place of φ_lk ≤ φ_kk. Neighbours that are as good as
    oneself are kept nearly always instead of half of the time; one that is worse by less than the noise is kept, too,
    and Theorem 1 then holds up to z standard errors. These are never taken to be more than z φ_kk √W, for otherwise a
    sender who lies once in a while, and enormously, would owe its pardon to the spread it causes itself. Best where
    neighbours fall into those with the same task and those with quite another; where all tasks differ a little,
    `loss_based` is stricter, and right. Costs one evaluation of the loss per neighbour and round.
    """

    significance: float = 2.0
    """z: how many standard errors above one's own loss are still no reason to leave a neighbour out."""
    smoothing: float | None = 0.02
    """ν; none takes the task's own ν_k."""
    judge: JudgedOn | None = None
    """On the next sample or on the same one just trained on; as the task says unless given."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        if not 0 <= self.significance < math.inf:
            raise BadInput(f"significance is a number of standard errors, 0 or more, but is {self.significance}")

    def init(self, table: Table) -> Compared:
        return Compared(Smoothed.start(table, 0.0), Smoothed.start(table, 0.0), Smoothed.start(table, 0.0))

    def combine(self, inbox: Inbox, state: Compared) -> Combined[Compared]:
        nu, loss = self.smoothing or inbox.forgetting, inbox.loss(self.judge)
        excess = _difference(loss, loss[:, :1])
        risk, of_risk = smooth(loss, nu, state.risk)
        mean, of_mean = smooth(excess, nu, state.excess)
        square, of_square = smooth(excess.square(), nu, state.square)
        variance = torch.minimum(square - mean.square(), risk[:, :1].clamp(min=0).square()).clamp(min=0)
        slack = self.significance * (variance * _concentration(nu, of_mean.mass)).sqrt()
        # With no loss of its own to compare with, an agent keeps whoever has one.
        kept = torch.where(everyone(loss[:, :1]), everyone(mean) & (mean <= slack), everyone(loss))
        weights = by_inverse(risk, kept)
        return Combined(inbox.mix(weights), weights, Compared(of_risk, of_mean, of_square))


def _difference(loss: Table, own: Float[Tensor, "agent 1"]) -> Table:
    """By how much a loss is above one's own, never so much that its square overflows; infinite where unknown."""
    largest = torch.finfo(loss.dtype).max ** 0.5 / 2
    return torch.where(everyone(loss) & everyone(own), (loss - own).clamp(-largest, largest), math.inf)


def _taken(inbox: Inbox, combined: Combined[Any], accept: Bool[Tensor, " agent"], state: Any) -> Combined[Any]:
    """What was combined where it is accepted, one's own model and all weight on it elsewhere."""
    accepted = accept[:, None]
    weights = combined.weights
    if weights is not None:
        weights = torch.where(accepted, weights, onto_self(inbox))
    return Combined(torch.where(accepted, combined.models, inbox.own), weights, state)


def _of_agents(forgetting: float | Float[Tensor, "agent 1"]) -> float | Float[Tensor, " agent"]:
    return forgetting if isinstance(forgetting, float) else forgetting[:, 0]


def _concentration(nu: float | Tensor, mass: Table) -> Table:
    """Σ w² for the weights w = ν (1 − ν)^j / mass of a smoothed mean, mass = 1 − (1 − ν)^t after t observations."""
    return torch.where(mass > 0, nu * (2 - mass) / ((2 - nu) * mass), 1.0)
