"""A rule that clusters: find the models around one's own, and take their centre."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.rules.base import Combined
from varangian.rules.evidence import Table
from varangian.rules.mixture_loss import onto_self
from varangian.rules.neighbourhoods import check_tolerated, honest_majority, others, tolerated


@dataclass(frozen=True)
class threshold_clustering:
    """Threshold clustering: start at my own model, and move to the centre of the models within a radius.

    Equation:
        v ← θ̂_k
        y_l = θ̂_l  if ‖θ̂_l − v‖ ≤ τ,  else v
        v ← (1 / |N_k|) Σ_{l∈N_k} y_l
        θ_k = v  after M iterations

    A model outside the radius is replaced by v, and so has no pull. v stays a mixture of models, so this is a weighing
    rule. The paper clusters gradients: for each client those of all clients, all at this client's model. Here every
    agent clusters the models that it hears.

    The radius of the paper's theory lies between the spread within a cluster and the distance between clusters, which
    nobody knows. By default, the rule sets aside the f farthest neighbours and divides the others into a near and a far
    group, so that the squared deviations within groups are smallest. τ is the middle between their mean distances. It
    is chosen anew in every iteration. The authors' program does the same with k-means, without setting anyone aside.

    Limits: it judges by distance alone. On target localization it ends at a regret of 6.7 without an attack, against
    0.02 of no cooperation. A Byzantine neighbour inside the radius has the weight of any other. Where all models are
    near each other, the far half is left out. An agent with one neighbour listens to nobody.

    Assumes: Clusters of agents with the same task, farther apart than they are wide, and a bounded share of Byzantine
    agents.
    Cost: M times |N_k| d operations.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.threshold_clustering(), rounds=5)

    Reference:
        Werner, He, Jordan, Jaggi and Karimireddy, "Provably personalized and robust federated learning", Transactions
        on Machine Learning Research 2023. https://arxiv.org/abs/2306.08393
    """

    radius: float | None = None
    """τ, the same for all agents and rounds. By default each agent chooses its own."""
    f: float = 0.2
    """f: how many of the farthest neighbours to ignore when choosing the radius, as a whole number or as a share below
    1."""
    iterations: int = 5
    """M: how often the centre moves."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)
        if self.radius is not None and not 0 <= self.radius < math.inf:
            raise BadInput(f"the radius τ must be 0 or a positive number, but radius is {self.radius}")
        if self.iterations < 1:
            raise BadInput(f"threshold clustering needs at least one iteration, but iterations is {self.iterations}")

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        weights, centre = onto_self(inbox), inbox.own
        for _ in range(self.iterations):
            distance = inbox.distance(centre)
            near = (distance <= self._radius(inbox, distance)) & (distance < math.inf)
            near[:, 0] = True
            share = near.to(weights.dtype) / (1 + others(inbox.heard).sum(1, keepdim=True))
            weights = share + weights * (1 - share.sum(1, keepdim=True))
            centre = inbox.mix(weights)
        return Combined(centre, weights, state)

    def _radius(self, inbox: Inbox, distance: Table) -> Float[Tensor, "agent 1"]:
        if self.radius is not None:
            return distance.new_full((1, 1), self.radius)
        f = tolerated(self.f, inbox.heard).minimum(honest_majority(inbox.heard))
        neighbours = others(inbox.heard)
        ordered = torch.where(neighbours, distance, math.inf).sort(1).values
        return between_groups(ordered, neighbours.sum(1) - f)


def between_groups(distance: Float[Tensor, "agent slot"], number: Int[Tensor, " agent"]) -> Float[Tensor, "agent 1"]:
    """The middle between the means of a near and a far group: the first `number` of some sorted distances, divided so
    that squared deviations within groups are smallest. It is 0 where fewer than two distances are finite.

    >>> between_groups(torch.tensor([[1.0, 3.0, 14.0, 16.0, 900.0]]), torch.tensor([4]))
    tensor([[8.5000]])
    """
    slot = torch.arange(distance.shape[1], device=distance.device)
    counts = (slot < number[:, None]) & (distance < math.inf)
    # Relative to the largest distance that counts, so that no square overflows.
    scale = torch.where(counts, distance, 0.0).amax(1, keepdim=True)
    x = torch.where(counts, distance / torch.where(scale > 0, scale, 1.0), 0.0)
    total, sums = counts.sum(1, keepdim=True), x.cumsum(1)
    near, far = sums / (slot + 1), (sums[:, -1:] - sums) / (total - slot - 1).clamp(min=1)
    # Deviations within groups are smallest where those between groups are largest.
    between = (slot + 1) * (total - slot - 1) * (far - near).square()
    divides = slot < total - 1
    best = torch.where(divides, between, -1.0).argmax(1, keepdim=True)
    middle = (near + far).gather(1, best) / 2 * scale
    return torch.where(total > 1, middle, 0.0)
