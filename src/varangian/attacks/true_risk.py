"""What an adversary that knows the true risk of its victims can compute from it."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import normalize

from varangian.attacks.base import View
from varangian.core.models.base import Models

Told = Float[Tensor, "agent parameter"]
"""The message that each agent hears from all its Byzantine neighbours."""
PerAgent = Float[Tensor, " agent"]
Length = Float[Tensor, "agent 1"]


def improved(view: View, far: Length, descents: int = 4, halvings: int = 8) -> Told:
    """A better model for each agent: a few steps down its true risk, each the best of several halved lengths."""
    models, shared = view.insight.models, view.adapted.shape[1]
    least = view.insight.risk(models)
    for _ in range(descents):
        up = gradient_of_risk(view, models)
        up[:, shared:] = 0
        halves = 0.5 ** torch.arange(halvings, dtype=models.dtype, device=models.device)
        tried = models - far * halves[:, None, None] * normalize(up)
        best = view.insight.risk(tried).min(0)
        better, agent = best.values < least, torch.arange(len(models), device=models.device)
        least = torch.where(better, best.values, least)
        models = torch.where(better[:, None], tried[best.indices, agent], models)
    return models[:, :shared]


def gradient_of_risk(
    view: View, models: Float[Tensor, "*trial agent parameter"]
) -> Float[Tensor, "*trial agent parameter"]:
    """∇r_k(θ_k) for every agent. Where the risk has no gradient, that of the loss on the last sample."""
    with torch.enable_grad():
        leaf = models.detach().requires_grad_()
        risk = view.insight.risk(leaf)
        if risk.requires_grad:
            # The risk of an agent depends on its own model only, so the gradient of the sum holds all gradients.
            (gradient,) = torch.autograd.grad(risk.sum(), leaf)
        else:
            rows, sample = models.flatten(0, -2), view.insight.sample
            trials = len(rows) // len(view.adapted)
            wide = tuple(part.repeat(trials, *[1] * (part.ndim - 1)) for part in sample)
            gradient = view.insight.model.gradient(rows, wide).view_as(models)
    return gradient.nan_to_num(0, 0, 0)


def curvature_times(view: View, models: Models, vector: Models) -> Models:
    """∇²r_k(θ_k) v_k for every agent, from the difference of two gradients on both sides of θ_k."""
    size = 1e-2 * (1 + models.abs().amax(1, keepdim=True)) / vector.abs().amax(1, keepdim=True).clamp(min=1e-12)
    ahead, behind = gradient_of_risk(view, torch.stack((models + size * vector, models - size * vector)))
    bent: Tensor = (ahead - behind) / (2 * size)
    return bent
