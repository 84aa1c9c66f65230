"""Judge everything against the model that the agent would have alone: its anchor.

anchored       = smoothed differences to the anchor's loss,   keep not significantly worse,   weigh by exp(−loss)
anchored(rule) = another rule's model while it is not significantly worse than the anchor,    else the anchor

The paper compares a neighbour with the agent's own model. That model has listened before, so an attack that pulls it
away also lowers the bar for the next message. The anchor never listens: no message can move it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.models.base import Models
from varangian.core.task import JudgedOn, check_forgetting
from varangian.rules.base import Combined, Companion, Rule, check_inner
from varangian.rules.evidence import (
    Smoothed,
    Table,
    concentration,
    difference,
    everyone,
    smooth,
)
from varangian.rules.mixture_loss import judged, onto_self

AnyRule = Rule[Any]


class Compared(NamedTuple):
    """Smoothed differences to the anchor's loss, and their smoothed squares, at one time scale.

    They are per neighbour. If another rule is protected, they are per agent.
    """

    excess: Smoothed
    square: Tensor


class Evidence(NamedTuple):
    """What the rule remembers."""

    scales: tuple[Compared, ...]
    noise: Smoothed
    """The anchor's own loss, per agent."""
    excess: Table
    """The discounted sum of differences, from which the weights follow."""
    inner: Any = ()
    """The state of the rule that is protected, if there is one."""


@dataclass(frozen=True)
class anchored:
    """Keep whoever is, at no time scale, significantly worse than the model I would have alone; mix with that model.

    Equation:
        a_k ← a_k − μ_k ∇ℓ(a_k; ξ_k)
        δ_lk = ℓ(θ̂_l; ξ_k) − ℓ(a_k; ξ_k)
        d_lk ← (1 − ν) d_lk + ν δ_lk
        K_k = {l : d_lk ≤ z √(min(v_lk, φ_k²) W)  for all ν}
        θ_k = b_k a_k + Σ_{l∈K_k} a_lk θ̂_l
        a_lk ∝ exp(−η Σ δ_lk),  b_k ∝ 1

    The anchor a_k is a second model of the agent, which never listens. Neighbours and the agent's own cooperative model
    θ̂_k are compared with it, on a sample that nobody has trained on. Each time scale ν has its own z. The root is the
    standard error of d_lk: v_lk is the variance of the differences and W the sum of squared weights of a smoothed mean.
    φ_k, the anchor's own smoothed loss, bounds the variance, so that no sender can inflate it. At ν = 1 the bound takes
    the place of the variance.

    The weights are those of prediction with expert advice. The sum runs over the longest memory. The anchor takes part
    with a sum of 0: it is a leash that draws the agent back to what it would be alone. In the recorded weights its
    share counts as the agent's own.

    With `rule`, the model that this other rule combines is judged instead of the neighbours one by one. The agent uses
    it while it is not significantly worse than the anchor, and else the anchor itself.

    An agent without a new sample does not listen: a model may be made to look good on a sample that was trained on.

    For convex risks that are known exactly, z = 0 gives r_k(θ_k) ≤ r_k(a_k) in every round, whatever arrives. So no
    agent is worse off than alone. With `rule`, this needs no convexity. `loss_based` compares with its own, already
    influenced model and cannot say this.

    Limits: in the first rounds, losses are large and φ_k allows much. On target localization, agents are worse off than
    alone from about round 10 to round 70, and with `noise=0.2` to round 40. With samples, a neighbour that is worse by
    less than z standard errors is kept. Where all agents train on the same few items again and again, no neighbour
    looks better, and nobody listens.

    Assumes: A sample of its own that it has not trained on yet. Any number of neighbours may be Byzantine.
    Cost: A second gradient, one evaluation of the loss per neighbour and one for the anchor.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.anchored(), rounds=5)

    Reference:
        Ours. It builds on Li, Abbas and Koutsoukos, "Byzantine resilient distributed multi-task learning", NeurIPS
        2020, https://arxiv.org/abs/2010.13032 and on exponential weights: Freund and Schapire, "A decision-theoretic
        generalization of on-line learning and an application to boosting", Journal of Computer and System Sciences 55,
        1997. https://doi.org/10.1006/jcss.1997.1504
    """

    rule: AnyRule | None = None
    """Another rule to protect. By default none: neighbours are judged one by one."""
    scales: tuple[float, ...] = (1.0, 0.1, 0.02)
    """ν of each time scale, from the shortest memory to the longest."""
    significance: tuple[float, ...] = (5.0, 3.0, 1.0)
    """z at each time scale: how many standard errors above the anchor's loss are still accepted."""
    eta: float = 1.0
    """η: how sharply the weights favour models that were better. With 0, all kept models weigh the same."""
    units: Literal["loss", "anchor"] = "loss"
    """The unit of the differences in the weights: that of the `loss`, or the `anchor`'s own smoothed loss φ_k."""
    noise: float = 0.05
    """ν of the anchor's own smoothed loss φ_k. With more, large losses of the first rounds are sooner forgotten."""
    judge: JudgedOn = "next"
    """The sample to judge on: the `next` one, or the `same` one as just trained on."""

    companion: ClassVar[Companion] = "alone"

    def __post_init__(self) -> None:
        for nu in (*self.scales, self.noise):
            check_forgetting(nu)
        if not self.scales or sorted(self.scales, reverse=True) != list(self.scales):
            raise BadInput(f"scales go from the shortest memory to the longest, as 1/0.1/0.02, but are {self.scales}")
        if len(self.significance) != len(self.scales) or not all(0 <= z < math.inf for z in self.significance):
            raise BadInput(f"significance needs one z of 0 or more for each scale, but is {self.significance}")
        if not 0 <= self.eta < math.inf:
            raise BadInput(f"η must be 0 or a positive number, but is {self.eta}")
        if self.rule is not None:
            check_inner("anchored", self.rule)

    def init(self, table: Table) -> Evidence:
        agents = table[:, 0]
        judged = table if self.rule is None else agents
        blank = Compared(Smoothed.start(judged, 0.0), torch.zeros_like(judged))
        inner = () if self.rule is None else self.rule.init(table)
        noise = Smoothed.start(agents, 0.0)
        return Evidence(tuple(blank for _ in self.scales), noise, torch.zeros_like(table), inner)

    def combine(self, inbox: Inbox, state: Evidence) -> Combined[Evidence]:
        return self._of_neighbours(inbox, state) if self.rule is None else self._protected(self.rule, inbox, state)

    def _of_neighbours(self, inbox: Inbox, state: Evidence) -> Combined[Evidence]:
        """Judge every neighbour, and mix those that are kept with the anchor."""
        alone, loss = inbox.anchor_loss(self.judge), inbox.loss(self.judge)
        excess = difference(loss, alone)
        kept, after = self._tested(inbox, excess, state)
        unit = after.noise.total.abs() / after.noise.mass if self.units == "anchor" else torch.ones_like(alone[:, 0])
        added = state.excess * (1 - self.scales[-1]) + excess / unit.clamp(min=torch.finfo(unit.dtype).eps)[:, None]
        after = after._replace(excess=torch.where(everyone(excess), added, state.excess))
        # An agent whose anchor has no finite loss accepts every model with a finite loss.
        lost, listens = ~everyone(alone), inbox.has_fresh(self.judge)
        score = torch.where(lost, torch.zeros_like(loss), -self.eta * after.excess)
        score = torch.where(torch.where(lost, everyone(loss), kept), score, -math.inf)
        of_anchor, of_slots = _exponential_weights(score, lost)
        of_slots = torch.where(listens, of_slots, onto_self(inbox))
        of_anchor = torch.where(listens, of_anchor, 0.0)
        weights = torch.cat((of_slots[:, :1] + of_anchor, of_slots[:, 1:]), 1)
        return Combined(mixed(inbox, of_slots, of_anchor), weights, after)

    def _protected(self, rule: AnyRule, inbox: Inbox, state: Evidence) -> Combined[Evidence]:
        """Judge what another rule combines, and use it or the anchor."""
        combined, alone = rule.combine(inbox, state.inner), inbox.anchor_loss(self.judge)
        loss = judged(inbox, combined.models[:, None], self.judge)
        kept, after = self._tested(inbox, difference(loss, alone)[:, 0], state)
        accept = torch.where(everyone(alone), kept[:, None], everyone(loss))
        weights = combined.weights
        return Combined(
            torch.where(accept, combined.models, torch.where(inbox.has_fresh(self.judge), inbox.anchor, inbox.own)),
            None if weights is None else torch.where(accept, weights, onto_self(inbox)),
            after._replace(inner=combined.state),
        )

    def _tested(self, inbox: Inbox, excess: Tensor, state: Evidence) -> tuple[Tensor, Evidence]:
        """Which models are not significantly worse than the anchor at any time scale."""
        noise, of_noise = smooth(inbox.anchor_loss(self.judge)[:, 0], self.noise, state.noise)
        bound = noise.square().view(-1, *[1] * (excess.ndim - 1))
        kept, after = everyone(excess), list[Compared]()
        for nu, z, before in zip(self.scales, self.significance, state.scales, strict=True):
            passed, compared = _not_significantly_worse(excess, nu, z, bound, before)
            kept = kept & passed
            after.append(compared)
        return kept, Evidence(tuple(after), of_noise, state.excess, state.inner)


def mixed(inbox: Inbox, of_slots: Table, of_anchor: Float[Tensor, "agent 1"]) -> Models:
    """Σ_l a_lk θ̂_l and a share of the anchor. Messages come with the agent's own private part, the anchor with its."""
    anchor, own, shared = inbox.anchor, inbox.own, inbox.rows.shape[1]
    models = inbox.evaluator.mix(inbox, of_slots) + of_anchor * anchor[:, :shared]
    if shared == own.shape[1]:
        return models
    return torch.cat((models, torch.lerp(own[:, shared:], anchor[:, shared:], of_anchor)), 1)


def _not_significantly_worse(
    excess: Tensor, nu: float, z: float, bound: Tensor, before: Compared
) -> tuple[Tensor, Compared]:
    """Whether the smoothed difference is within z standard errors of zero, at one time scale."""
    mean, smoothed = smooth(excess, nu, before.excess)
    square, of_square = smooth(excess.square(), nu, Smoothed(before.square, before.excess.mass))
    variance = bound if nu == 1 else torch.minimum((square - mean.square()).clamp(min=0), bound)
    slack = z * (variance * concentration(nu, smoothed.mass)).sqrt()
    return mean <= slack, Compared(smoothed, of_square.total)


def _exponential_weights(score: Table, lost: Float[Tensor, "agent 1"]) -> tuple[Float[Tensor, "agent 1"], Table]:
    """∝ exp(score) over the slots, and over the anchor with score 0. A lost anchor counts only if nobody is kept."""
    anchor = torch.where(lost & (score > -math.inf).any(1, keepdim=True), -math.inf, 0.0).to(score.dtype)
    weights = torch.softmax(torch.cat((anchor, score), 1), 1)
    return weights[:, :1], weights[:, 1:]
