"""The rules of the paper: weights from what an agent sees of its neighbours.

alone          =                       keep only oneself
average        =                       keep all,          weigh uniformly
distance_based = smoothed distance,    keep all,          weigh by inverse
loss_based     = smoothed loss,        keep not-worse,    weigh by inverse     ← the paper
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn, check_forgetting
from varangian.rules.base import Combined
from varangian.rules.evidence import (
    Smoothed,
    Table,
    by_inverse,
    check_start,
    everyone,
    not_worse,
    own,
    smooth,
    uniformly,
)


@dataclass(frozen=True)
class alone:
    """No cooperation: every agent keeps its own model.

    Equation:
        θ_k = θ̂_k

    Every other rule must beat this one. A rule that ends with a higher risk does harm: its agents would learn more
    without neighbours.

    Assumes: Nothing. No neighbour can do harm, and none can help.
    Cost: None.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.alone(), rounds=5)

    Reference:
        The non-cooperative case of Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task learning",
        NeurIPS 2020. https://arxiv.org/abs/2010.13032
    """

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        weights = inbox.own.new_zeros(inbox.heard.shape)
        weights[:, 0] = 1
        return Combined(inbox.own, weights, state)


@dataclass(frozen=True)
class average:
    """The mean of the agent's own model and all models it heard.

    Equation:
        θ_k = Σ_{l∈N_k} a_lk θ̂_l
        a_lk = 1 / |N_k|

    One Byzantine neighbour can move the mean anywhere. Neighbours with other tasks pull it away from the agent's own
    task.

    Assumes: Only honest neighbours, all with the same task.
    Cost: |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.average(), rounds=5)

    Reference:
        Lian, Zhang, Zhang, Hsieh, Zhang and Liu, "Can decentralized algorithms outperform centralized algorithms? A
        case study for decentralized parallel stochastic gradient descent", NeurIPS 2017.
        https://arxiv.org/abs/1705.09056
    """

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        weights = uniformly(inbox.heard, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, state)


@dataclass(frozen=True)
class distance_based:
    """Weights by inverse distance: a neighbour with a near model counts more.

    Equation:
        φ_lk ← (1 − ν) φ_lk + ν ‖θ̃_k − θ̂_l‖_p²
        a_lk ∝ 1 / φ_lk

    This is equation 4 of the paper, its baseline. θ̃_k estimates the agent's optimum: its previous model θ_{k,i−1}, or
    one gradient step ahead, θ̂_k + μ_k ∇ℓ(θ̂_k). The sign of that step is the one in the paper's text: it goes uphill,
    to a model with a larger loss, where a step that learns would go down.

    A near neighbour gets a large weight, wherever it pulls. A Byzantine neighbour that stays close therefore leads the
    agent where it likes.

    Assumes: Only honest neighbours. A near model is taken for a related task.
    Cost: |N_k| d operations, and one gradient for `target="ahead"`.

    Example:
        >>> from varangian import rules
        >>> rules.distance_based(p=float("inf"))
        distance_based(target='current', p=inf, smoothing=None, start=0.0)

    Reference:
        Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task learning", NeurIPS 2020.
        https://arxiv.org/abs/2010.13032
    """

    target: Literal["current", "ahead"] = "current"
    """Where to measure from: the agent's `current` model θ_{k,i−1}, or a model one step `ahead`."""
    p: float = 2.0
    """The ℓ_p norm: any p of at least 1, also infinity."""
    smoothing: float | None = None
    """ν: the weight of the newest round. By default the task's own ν_k. With 1, each round counts alone."""
    start: float = 0.0
    """φ before the first round; 0 means that nothing is known yet. The authors' program has 1, with ν = 0.001."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        check_start(self.start)
        if not self.p >= 1:
            raise BadInput(f"an ℓ_p norm needs p ≥ 1, but p is {self.p}")

    def init(self, table: Table) -> Smoothed:
        return Smoothed.start(table, self.start)

    def combine(self, inbox: Inbox, state: Smoothed) -> Combined[Smoothed]:
        target = inbox.previous if self.target == "current" else inbox.one_step_ahead()
        evidence, state = smooth(inbox.distance(target, self.p).square(), self.smoothing or inbox.forgetting, state)
        weights = by_inverse(evidence, everyone(evidence))
        return Combined(inbox.mix(weights), weights, state)


@dataclass(frozen=True)
class loss_based:
    """The paper's rule: keep neighbours whose smoothed loss on my data is no worse than mine, weigh by inverse loss.

    Equation:
        φ_lk ← (1 − ν) φ_lk + ν ℓ(θ̂_l; ξ_k)
        K_k = {l ∈ N_k : φ_lk ≤ φ_kk}
        a_lk ∝ 1 / φ_lk  if l ∈ K_k,  else 0

    These are equations 9 and 10 of the paper. For convex risks that are known exactly, the combined model is no worse
    than the agent's own model of the same round, whoever the neighbours are (Theorem 1). The theorem does not compare
    with an agent that never listens: the agent's own model carries what it heard before.

    Limits: the losses are estimates. Where models are nearly equally good, noise decides who is kept. Early on, when
    the agent's own model is poor, a bland message such as zeros may pass the filter; `patient` waits for that to end.
    A huge constant is bland, too, where models are softmax layers: mixed in, it erases the agent's model by rounding.
    `judge="same"` is not safe: a sender that knows the sample can pass the filter with a model that is bad elsewhere.

    Assumes: A sample of its own; losses are unbiased only if the agent has not trained on it yet. The
    number of Byzantine neighbours is not bounded.
    Cost: One evaluation of the loss per neighbour, and |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.loss_based(smoothing=0.05), rounds=5)

    Reference:
        Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task learning", NeurIPS 2020.
        https://arxiv.org/abs/2010.13032
    """

    smoothing: float | None = None
    """ν: the weight of the newest round. By default the task's own ν_k. With 1, the mean loss of each batch counts
    alone."""
    keep: Literal["not-worse", "all"] = "not-worse"
    """Keep the neighbours that are `not-worse` than oneself (eq. 10), or `all` (eq. 9)."""
    weigh: Literal["risk", "regret"] = "risk"
    """Weigh by `risk`, taking r_k(θ_k*) as 0, or by `regret`, taking it as the agent's own risk. By regret, all kept
    neighbours weigh the same."""
    judge: JudgedOn | None = None
    """The sample to judge on: the `next` one, or the `same` one as just trained on. By default the task decides."""
    start: float = 0.0
    """φ before the first round; 0 means that nothing is known yet."""

    def __post_init__(self) -> None:
        check_forgetting(self.smoothing)
        check_start(self.start)

    def init(self, table: Table) -> Smoothed:
        return Smoothed.start(table, self.start)

    def combine(self, inbox: Inbox, state: Smoothed) -> Combined[Smoothed]:
        risk, state = smooth(inbox.loss(self.judge), self.smoothing or inbox.forgetting, state)
        kept = not_worse(risk) if self.keep == "not-worse" else everyone(risk)
        excess = risk if self.weigh == "risk" else (risk - own(risk)).clamp(min=0)
        weights = by_inverse(excess, kept)
        return Combined(inbox.mix(weights), weights, state)
