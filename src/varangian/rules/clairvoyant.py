"""References that look at what no agent knows: how much there is to gain, and how near a rule comes to it.

oracle            = keep normal neighbours with my task,   weigh uniformly
best_in_hindsight =                                        weigh so that my true risk is least

They are no rules to use, but lines to draw in a figure beside those that have to find out for themselves.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.inbox import Inbox
from varangian.errors import BadInput
from varangian.rules.base import Combined
from varangian.rules.evidence import Table, by_inverse, everyone, normalised, uniformly
from varangian.rules.mixture_loss import onto_self


@dataclass(frozen=True)
class oracle:
    """Clairvoyant: the mean of exactly the normal agents with the same task, as far as they were heard.

    a_lk = 1/|F_k| over F_k = {l ∈ N_k : l is normal and has the task of k}, oneself included.

    The classical diffusion of a network that knows its clusters and its liars (Chen, Richard and Sayed, "Multitask
    diffusion adaptation over networks", IEEE Transactions on Signal Processing 2014, give the clustered case). Groups
    are the task's; where it names none, everyone has the same. Costs |N_k| d.
    """

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        weights = uniformly(inbox.truth.friends & inbox.heard, inbox.own.dtype)
        return Combined(inbox.mix(weights), weights, state)


@dataclass(frozen=True)
class best_in_hindsight:
    """Clairvoyant: the weights whose mix has the least true risk, found anew in every round.

    a_k = argmin over the simplex of r_k(Σ_l a_lk θ̂_l), r_k exact where the task knows it, else the loss on held-out
    data. By exponentiated gradient, a ← a exp(−η g) / Σ, g being the gradient less its mean under a; η, measured in the
    largest entry of the first g, grows by half with a step that ends downhill and halves with one too far (Kivinen and
    Warmuth, "Exponentiated gradient versus gradient descent", Information and Computation 1997).

    Never worse than one's own model or than the weights of the round before, whichever is better, and for convex
    risks near the optimum after some tens of steps. Greedy all the same: the best mix of every round need not be the
    best way through many rounds. On target localization it ends above `oracle`, for early on it takes what helps at
    once from neighbours with other targets, and unlearns slowly what its own sensor hardly sees. Costs steps + 1
    gradients of the true risk of the whole network and four evaluations, which on held-out data is much.
    """

    steps: int = 20
    rate: float = 1.0
    """η of the first step."""

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise BadInput(f"best-in-hindsight cannot take {self.steps} steps; give steps=0 or more")
        if not 0 < self.rate < math.inf:
            raise BadInput(f"the rate η must be a positive number, but rate is {self.rate}")

    def init(self, table: Table) -> tuple[Table]:
        """The weights of the round before; at first all to the agent itself."""
        weights = torch.zeros_like(table)
        weights[:, 0] = 1
        return (weights,)

    def combine(self, inbox: Inbox, state: tuple[Table]) -> Combined[tuple[Table]]:
        nearby = _nearby(inbox)
        best, least = onto_self(inbox), _risk(inbox, onto_self(inbox))
        for candidate in (normalised(state[0] * inbox.heard), nearby):
            best, least = _better(best, least, candidate, _risk(inbox, candidate))
        # From within the simplex: weights of zero would stay zero.
        at = (best + nearby) / 2
        slope = _slope(inbox, at)
        steepest = slope.abs().amax(1, keepdim=True)
        rate = self.rate / torch.where(steepest > 0, steepest, 1.0)
        for _ in range(self.steps):
            ahead = normalised(at * torch.exp((-rate * slope).clamp(-20, 20)))
            slope_ahead = _slope(inbox, ahead)
            # Still downhill there: a surer sign than two risks that differ by little more than rounding.
            helps = (slope_ahead * (ahead - at)).sum(1, keepdim=True) <= 0
            at, slope = torch.where(helps, ahead, at), torch.where(helps, slope_ahead, slope)
            rate = torch.where(helps, 1.5 * rate, 0.5 * rate)
        best, least = _better(best, least, at, _risk(inbox, at))
        return Combined(inbox.mix(best), best, (best,))


Risks = Float[Tensor, " agent"]


def _risk(inbox: Inbox, weights: Table) -> Risks:
    """r_k of the mix; infinite where it is not a number."""
    risk = inbox.truth.risk(inbox.mix(weights))
    return torch.where(risk.abs() < math.inf, risk, math.inf)


def _slope(inbox: Inbox, weights: Table) -> Table:
    """The gradient of r_k of the mix along the simplex: less its mean under the weights."""
    with torch.enable_grad():
        leaf = weights.detach().requires_grad_()
        # An agent's risk depends on its own weights alone, so the gradient of the sum is all gradients at once.
        (gradient,) = torch.autograd.grad(inbox.truth.risk(inbox.mix(leaf)).sum(), leaf)
    largest = torch.finfo(gradient.dtype).max / 4
    gradient = gradient.nan_to_num(0.0).clamp(-largest, largest)
    return torch.where(weights > 0, gradient - (weights * gradient).sum(1, keepdim=True), 0)


def _better(best: Table, least: Risks, weights: Table, risk: Risks) -> tuple[Table, Risks]:
    lower = risk < least
    return torch.where(lower[:, None], weights, best), torch.where(lower, risk, least)


def _nearby(inbox: Inbox) -> Table:
    """Weights by inverse squared distance, none above the nearest neighbour's that differs from the agent itself:
    a start in which no message, however large, overwhelms the others, and none near is left out."""
    distance = inbox.distance(inbox.own).square()
    known = everyone(distance)
    known[:, 0] = True
    nearest = torch.where(distance > 0, distance, math.inf).amin(1, keepdim=True)
    return by_inverse(distance.maximum(torch.where(everyone(nearest), nearest, 0)), known)
