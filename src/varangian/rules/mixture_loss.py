"""The loss of models that nobody sent, such as mixtures of messages, on an agent's own sample."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.inbox import Inbox
from varangian.core.task import JudgedOn


def judged(
    inbox: Inbox, models: Float[Tensor, "agent several number"], on: JudgedOn | None = None
) -> Float[Tensor, "agent several"]:
    """ℓ(θ; ξ_k) of several models per agent. It is infinite where the loss is not a number or the sample is old.

    The models are whole, or hold only the part that travels. In that case each is judged with the agent's own private
    part.
    """
    if models.shape[2] < inbox.own.shape[1]:
        own = inbox.own[:, None].expand(-1, models.shape[1], -1)
        models = own.slice_scatter(models, 2, 0, models.shape[2])
    on = on or inbox.judged_on
    loss = inbox.of_fresh(inbox.model.judge(models, inbox.samples[on]), on)
    return torch.where(loss.abs() < math.inf, loss, math.inf)


def onto_self(inbox: Inbox) -> Float[Tensor, "agent slot"]:
    """The weights of an agent that keeps its own model."""
    weights = inbox.own.new_zeros(inbox.heard.shape)
    weights[:, 0] = 1
    return weights
