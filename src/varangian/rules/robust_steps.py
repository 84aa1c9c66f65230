"""How a robust function of a neighbourhood becomes the step of a rule."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.inbox import Inbox, OfNeighbourhoods
from varangian.rules.base import Combined

Messages = Float[Tensor, "agent slot shared"]
Mask = Bool[Tensor, "agent slot"]
Stateless = Combined[tuple[()]]


def in_place(inbox: Inbox, vector: OfNeighbourhoods, *of_agents: Tensor, any_order: bool = False) -> Stateless:
    """The result for a neighbourhood replaces the part of the model that travels."""
    return Combined(inbox.with_private(inbox.by_neighbourhood(vector, *of_agents, any_order=any_order)), None, ())


def weighed(inbox: Inbox, weights: OfNeighbourhoods, *of_agents: Tensor) -> Stateless:
    """The mixture with the weights that the function finds."""
    found = inbox.by_neighbourhood(weights, *of_agents)
    return Combined(inbox.mix(found), found, ())


def weighed_nearest_first(inbox: Inbox, weights: OfNeighbourhoods, *of_agents: Tensor) -> Stateless:
    """The same, for functions that break ties by the order of the models."""
    nearest, order = nearest_first(inbox)
    found = nearest.by_neighbourhood(weights, *of_agents)
    found = torch.zeros_like(found).scatter(1, order, found)
    return Combined(inbox.mix(found), found, ())


def nearest_first(inbox: Inbox) -> tuple[Inbox, Int[Tensor, "agent slot"]]:
    """The neighbours ordered by distance, the agent itself first, for functions that depend on the order."""
    order = inbox.distance(inbox.own).argsort(dim=1, stable=True)
    return inbox.in_order(order), order
