"""A rule that learns its mixing weights by gradient steps."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.core.messages import finite_rows
from varangian.core.task import JudgedOn
from varangian.rules.base import Combined
from varangian.rules.evidence import Table
from varangian.rules.mixture_loss import onto_self

Logits = tuple[Table]
"""What an agent has learned about each neighbour; 0 at first."""


@dataclass(frozen=True)
class l2c:
    """L2C, learning to collaborate: mixing weights learned by gradient steps on the loss of my mixture.

    Equation:
        w_l = exp α_l / Σ_{m∈N_k} exp α_m
        θ̄ = Σ_l w_l θ̂_l
        g_l = w_l ⟨∇ℓ(θ̄; ξ_k), θ̂_l − θ̄⟩
        α_l ← α_l − η g_l / max_m |g_m|
        θ_k = Σ_l w_l θ̂_l  with the new weights

    g is the gradient of the loss of the mixture with respect to α. One backward pass gives it for all neighbours. It is
    divided by its largest entry, so that η does not depend on the scale of the loss. Adam, with which others train α,
    has the same effect.

    In the paper the loss is measured on validation data. Here it is measured on the task's sample. The paper can also
    drop neighbours with small weights to save traffic; here all stay. An agent without a new sample keeps θ̂_k.

    Limits: there is no guarantee. At first all weights are equal, so one Byzantine neighbour can ruin the first rounds.
    The step for a neighbour shrinks with its weight: one that has lost its weight comes back slowly.

    Assumes: Honest neighbours with different tasks, and a sample of its own.
    Cost: One gradient, and |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.l2c(), rounds=5)

    Reference:
        Li, Zhou, Tian and Tao, "Learning to collaborate in decentralized learning of personalized models", CVPR 2022.
        https://doi.org/10.1109/CVPR52688.2022.00954
    """

    step: float = 0.5
    """η: how far the largest entry of α moves in one round. With 0.1, target localization ends ten times worse."""
    judge: JudgedOn | None = None
    """The sample to learn from: the `next` one, or the `same` one as just trained on. By default the task decides."""

    def __post_init__(self) -> None:
        if not 0 < self.step < math.inf:
            raise BadInput(f"the step η must be a positive number, but step is {self.step}")

    def init(self, table: Table) -> Logits:
        return (torch.zeros_like(table),)

    def combine(self, inbox: Inbox, state: Logits) -> Combined[Logits]:
        # A model too far away to be measured cannot be part of a mixture.
        near = inbox.distance(inbox.own) < math.inf
        before = _softmax(inbox, state[0], near)
        mixture, on = inbox.mix(before), self.judge or inbox.judged_on
        gradient = inbox.model.gradient(mixture, inbox.samples[on])
        width = inbox.rows.shape[1]
        slope = inbox.by_neighbourhood(_slopes, gradient[:, :width], mixture[:, :width])
        slope = torch.where(near, before * slope, 0.0)
        # A slope that is not finite teaches nothing, and neither does a sample that is not new.
        slope = torch.where(finite_rows(slope) & inbox.has_fresh(on), slope, 0.0)
        largest = slope.abs().amax(1, keepdim=True)
        learned = state[0] - self.step * slope / torch.where(largest > 0, largest, 1.0)
        weights = torch.where(inbox.has_fresh(on), _softmax(inbox, learned, near), onto_self(inbox))
        return Combined(inbox.mix(weights), weights, (learned,))


def _softmax(inbox: Inbox, logits: Table, among: Bool[Tensor, "agent slot"]) -> Table:
    """Weights ∝ exp α over some neighbours. Where there are none, the agent itself has all weight."""
    shown = torch.where(among, logits, -math.inf)
    return torch.where(among.any(1, keepdim=True), shown.softmax(1), onto_self(inbox))


def _slopes(
    messages: Float[Tensor, "agent slot shared"],
    heard: Bool[Tensor, "agent slot"],
    gradient: Float[Tensor, "agent shared"],
    mixture: Float[Tensor, "agent shared"],
) -> Table:
    """⟨gradient, message − mixture⟩ for every message."""
    return ((messages - mixture[:, None]) * gradient[:, None]).sum(2)
