"""The paper's rules: weights from what an agent sees of its neighbours.

alone          =                       keep only me
average        =                       keep all,          weigh uniformly
distance_based = smoothed distance,    keep all,          weigh by inverse
loss_based     = smoothed loss,        keep not-worse,    weigh by inverse     ← the paper
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn
from varangian.errors import BadInput
from varangian.rules.base import Combined
from varangian.rules.evidence import (
    Smoothed,
    Table,
    by_inverse,
    check_forgetting,
    everyone,
    not_worse,
    own,
    smooth,
    uniformly,
)


@dataclass(frozen=True)
class alone:
    """No cooperation: every agent keeps its own model. The number every other rule must beat."""

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        weights = inbox.own.new_zeros(inbox.heard.shape)
        weights[:, 0] = 1
        return Combined(inbox.own, weights, state)


@dataclass(frozen=True)
class average:
    """a_lk = 1 / |N_k| over all who were heard. One Byzantine neighbour moves it anywhere."""

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        weights = uniformly(inbox.heard, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, state)


@dataclass(frozen=True)
class distance_based:
    """a_lk ∝ 1/φ_lk, φ smoothing ‖θ̃_k − θ̂_l‖² (eq. 4). Near is trusted, wherever it pulls.

    θ̃_k is the agent's current model θ_k,i−1, or one step ahead, θ̂_k + μ_k ∇ℓ(θ̂_k), with the sign of the text.
    """

    target: Literal["current", "ahead"] = "current"
    p: float = 2.0
    """The norm: any p ≥ 1, infinity included."""
    smoothing: float | None = None
    """ν; the task's own ν_k unless given; 1 takes each round by itself."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        if not self.p >= 1:
            raise BadInput(f"an ℓ_p norm needs p ≥ 1, but p is {self.p}")

    def init(self, table: Table) -> Smoothed:
        return Smoothed.start(table, 0.0)

    def combine(self, inbox: Inbox, state: Smoothed) -> Combined[Smoothed]:
        target = inbox.previous if self.target == "current" else inbox.one_step_ahead()
        evidence, state = smooth(inbox.distance(target, self.p).square(), self.smoothing or inbox.forgetting, state)
        weights = by_inverse(evidence, everyone(evidence))
        return Combined(inbox.mix(weights), weights, state)


@dataclass(frozen=True)
class loss_based:
    """The paper's rule: keep l while φ_lk ≤ φ_kk, weigh by 1/φ_lk, φ smoothing ℓ(θ̂_l; ξ_k) (eq. 9, 10).

    For convex risks the combined model is never worse than one's own (Theorem 1), whoever the neighbours are.
    Costs one evaluation of the loss per neighbour and round.
    """

    smoothing: float | None = None
    """ν; the task's own ν_k unless given; 1 takes the mean of each batch by itself."""
    keep: Literal["not-worse", "all"] = "not-worse"
    weigh: Literal["risk", "regret"] = "risk"
    """r_k(θ_k*) taken as 0, or as the agent's own risk: then all who are not worse weigh the same."""
    judge: JudgedOn | None = None
    """On the next sample or on the same one just trained on; as the task says unless given."""
    start: float = 0.0
    """φ before the first round."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        if not 0 <= self.start < float("inf"):
            raise BadInput(f"φ must start at a number that is not negative, but start is {self.start}")

    def init(self, table: Table) -> Smoothed:
        return Smoothed.start(table, self.start)

    def combine(self, inbox: Inbox, state: Smoothed) -> Combined[Smoothed]:
        risk, state = smooth(inbox.loss(self.judge), self.smoothing or inbox.forgetting, state)
        kept = not_worse(risk) if self.keep == "not-worse" else everyone(risk)
        excess = risk if self.weigh == "risk" else (risk - own(risk)).clamp(min=0)
        weights = by_inverse(excess, kept)
        return Combined(inbox.mix(weights), weights, state)
