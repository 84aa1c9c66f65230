"""References that use knowledge no agent has: how much there is to gain, and how near a rule comes to it.

oracle            = keep normal neighbours with my task,   weigh uniformly
best_in_hindsight =                                        weigh so that my true risk is least

They are not for use in a network. They are lines in a figure to compare real rules with.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.rules.base import Combined
from varangian.rules.evidence import Table, by_inverse, everyone, normalised, uniformly
from varangian.rules.mixture_loss import onto_self


@dataclass(frozen=True)
class oracle:
    """Clairvoyant: the mean of exactly the normal neighbours with the same task.

    Equation:
        F_k = {l ∈ N_k : l is normal, with the task of k}
        a_lk = 1 / |F_k|  if l ∈ F_k,  else 0

    This is diffusion in a network that knows its clusters and its Byzantine agents. The task defines the groups. If it
    defines none, all agents share one task.

    Assumes: The truth: which neighbours are normal, and which task each has. The agent itself belongs to F_k.
    Cost: |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.oracle(), rounds=5)

    Reference:
        Ours. It follows the clustered case of Chen, Richard and Sayed, "Multitask diffusion adaptation over networks",
        IEEE Transactions on Signal Processing 62, 2014. https://arxiv.org/abs/1311.4894
    """

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        weights = uniformly(inbox.truth.friends & inbox.heard, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, state)


@dataclass(frozen=True)
class best_in_hindsight:
    """Clairvoyant: the weights whose mixture has the least true risk, found afresh in every round.

    Equation:
        a_k = argmin_a r_k(Σ_l a_l θ̂_l)  over the simplex
        a_l ← a_l exp(−η g_l) / Σ_m a_m exp(−η g_m)

    The second line is the step of the search, exponentiated gradient. g is the gradient of the risk, less its mean
    under a. The first η is `rate` divided by the largest entry of the first g. η grows by half after a step that still
    points downhill, and halves after a step that went too far. The risk r_k is exact if the task knows it. Otherwise it
    is the loss on held-out data.

    The result is never worse than the agent's own model, nor than the weights of the previous round. For convex risks
    it is near the optimum after some tens of steps.

    Limits: the search is greedy. The best mixture of every round need not lead to the best model in the end. On target
    localization it ends with a higher risk than `oracle`. Early on it takes what helps at once from neighbours with
    other targets. Later it unlearns only slowly what the agent's own sensor hardly sees.

    Assumes: The truth: the risk of every agent. Any number of neighbours may be Byzantine.
    Cost: steps + 1 gradients and four evaluations of the true risk. On held-out data this is expensive.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.best_in_hindsight(steps=5), rounds=5)

    Reference:
        Ours. The search is that of Kivinen and Warmuth, "Exponentiated gradient versus gradient descent for linear
        predictors", Information and Computation 132, 1997. https://doi.org/10.1006/inco.1996.2612
    """

    steps: int = 20
    """How many steps to search in each round."""
    rate: float = 1.0
    """η of the first step, relative to the largest entry of the first gradient."""

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise BadInput(f"best-in-hindsight cannot take {self.steps} steps; use steps=0 or more")
        if not 0 < self.rate < math.inf:
            raise BadInput(f"the rate η must be a positive number, but rate is {self.rate}")

    def init(self, table: Table) -> tuple[Table]:
        """The weights of the previous round; at first all weight is on the agent itself."""
        weights = torch.zeros_like(table)
        weights[:, 0] = 1
        return (weights,)

    def combine(self, inbox: Inbox, state: tuple[Table]) -> Combined[tuple[Table]]:
        nearby = _nearby(inbox)
        best, least = onto_self(inbox), _risk(inbox, onto_self(inbox))
        for candidate in (normalised(state[0] * inbox.heard), nearby):
            best, least = _better(best, least, candidate, _risk(inbox, candidate))
        # Start inside the simplex: a weight of zero would stay zero.
        at = (best + nearby) / 2
        slope = _slope(inbox, at)
        steepest = slope.abs().amax(1, keepdim=True)
        rate = self.rate / torch.where(steepest > 0, steepest, 1.0)
        for _ in range(self.steps):
            ahead = normalised(at * torch.exp((-rate * slope).clamp(-20, 20)))
            slope_ahead = _slope(inbox, ahead)
            # Ask whether the slope still points downhill: two risks may differ by little more than rounding.
            helps = (slope_ahead * (ahead - at)).sum(1, keepdim=True) <= 0
            at, slope = torch.where(helps, ahead, at), torch.where(helps, slope_ahead, slope)
            rate = torch.where(helps, 1.5 * rate, 0.5 * rate)
        best, least = _better(best, least, at, _risk(inbox, at))
        return Combined(inbox.mix(best), best, (best,))


Risks = Float[Tensor, " agent"]


def _risk(inbox: Inbox, weights: Table) -> Risks:
    """r_k of the mixture. It is infinite where the risk is not a number."""
    risk = inbox.truth.risk(inbox.mix(weights))
    return torch.where(risk.abs() < math.inf, risk, math.inf)


def _slope(inbox: Inbox, weights: Table) -> Table:
    """The gradient of r_k of the mixture along the simplex: the gradient less its mean under the weights."""
    with torch.enable_grad():
        leaf = weights.detach().requires_grad_()
        # An agent's risk depends only on its own weights, so one gradient of the sum gives all gradients.
        (gradient,) = torch.autograd.grad(inbox.truth.risk(inbox.mix(leaf)).sum(), leaf)
    largest = torch.finfo(gradient.dtype).max / 4
    gradient = gradient.nan_to_num(0.0).clamp(-largest, largest)
    return torch.where(weights > 0, gradient - (weights * gradient).sum(1, keepdim=True), 0)


def _better(best: Table, least: Risks, weights: Table, risk: Risks) -> tuple[Table, Risks]:
    """The better of two weightings for each agent, and its risk."""
    lower = risk < least
    return torch.where(lower[:, None], weights, best), torch.where(lower, risk, least)


def _nearby(inbox: Inbox) -> Table:
    """The weights to start from, by inverse squared distance.

    No weight exceeds that of the nearest neighbour that differs from the agent itself. So no message dominates, however
    large, and no near one is left out.
    """
    distance = inbox.distance(inbox.own).square()
    known = everyone(distance)
    known[:, 0] = True
    nearest = torch.where(distance > 0, distance, math.inf).amin(1, keepdim=True)
    return by_inverse(distance.maximum(torch.where(everyone(nearest), nearest, 0)), known)
