"""Rules around rules that change the messages before another rule sees them.

bucketing = means of a few random neighbours,   then another rule
clipped   = far messages pulled nearer,         then another rule
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import embedding_bag, pad
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from varangian.core.errors import BadInput
from varangian.core.inbox import Inbox
from varangian.rules.base import Combined, Companion, Rule, companion_of
from varangian.rules.evidence import Table
from varangian.rules.neighbourhoods import check_tolerated, honest_majority, others, tolerated
from varangian.rules.robust import median, nearest_neighbour_mixing
from varangian.rules.robust_steps import nearest_first

AnyRule = Rule[Any]


@dataclass(frozen=True)
class bucketing:
    """Bucketing: average random buckets of s neighbours first, then apply another rule to the buckets.

    Equation:
        π = a random order of the neighbours heard
        y_b = mean of θ̂_{π(j)},  (b−1)s < j ≤ bs
        θ_k = rule(θ̂_k, y_1, y_2, …)

    Honest models differ, and many robust functions take the odd ones for Byzantine. Means of s of them differ less: the
    variance falls by the factor s. In return, one Byzantine neighbour spoils a whole bucket. If f neighbours are
    Byzantine, up to f of |N_k| / s buckets are, so the other rule must tolerate s times the share.

    The agent's own model stays outside the buckets. In every round each agent draws a new order, which depends on the
    seed, the round, the agent and the neighbour only. The last bucket may be smaller. What the other rule remembers of
    single neighbours starts afresh in every round, because the buckets do.

    Limits: a mean of models with different tasks is a good model for nobody. The buckets of all agents are in memory at
    once.

    Assumes: What the other rule assumes, with s times the share of Byzantine neighbours.
    Cost: |N_k| d operations, and the cost of the other rule for |N_k| / s neighbours.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.bucketing(rules.krum(f=1)), rounds=5)

    Reference:
        Karimireddy, He and Jaggi, "Byzantine-robust learning on heterogeneous datasets via bucketing", ICLR 2022.
        https://arxiv.org/abs/2006.09365
    """

    rule: AnyRule = field(default_factory=median)
    """The rule to apply to the buckets."""
    size: int = 2
    """s: how many neighbours share a bucket. With 1, the other rule sees the neighbours themselves."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise BadInput(f"a bucket holds at least one neighbour, but size is {self.size}")

    @property
    def companion(self) -> Companion | None:
        return companion_of(self.rule)

    def init(self, table: Table) -> tuple[Tensor, ...]:
        return tuple(leaf for leaf in tree_flatten(self.rule.init(self._blank(table)))[0] if leaf.ndim == 1)

    def combine(self, inbox: Inbox, state: tuple[Tensor, ...]) -> Combined[tuple[Tensor, ...]]:
        order, share = self._arranged(inbox)
        seen = self._averaged(inbox, order, share)
        models, weights, after, personal = self.rule.combine(seen, self._restored(seen, state))
        if weights is not None:
            of_slot = (weights[:, 1:, None] * share).flatten(1)[:, : order.shape[1]]
            weights = torch.cat((weights[:, :1], torch.zeros_like(of_slot).scatter(1, order - 1, of_slot)), 1)
        kept = tuple(leaf for leaf in tree_flatten(after)[0] if leaf.ndim == 1)
        return Combined(models, weights, kept, personal)

    def _arranged(self, inbox: Inbox) -> tuple[Int[Tensor, "agent neighbour"], Float[Tensor, "agent bucket place"]]:
        """The slots of the neighbours in random order, and each one's share of its bucket."""
        neighbours = others(inbox.heard)
        # Neighbours that were not heard come last: they must not change the buckets of the others.
        order = torch.where(neighbours, inbox.random("bucketing"), 2.0)[:, 1:].argsort(dim=1, stable=True) + 1
        there = pad(neighbours.gather(1, order), (0, -order.shape[1] % self.size))
        there = there.view(len(order), there.shape[1] // self.size, self.size)
        return order, there.to(inbox.own.dtype) / there.sum(2, keepdim=True).clamp(min=1)

    def _averaged(
        self, inbox: Inbox, order: Int[Tensor, "agent neighbour"], share: Float[Tensor, "agent bucket place"]
    ) -> Inbox:
        """The inbox of an agent that hears itself and its buckets."""
        slots = pad(order, (0, -order.shape[1] % self.size))
        bags = inbox.source.gather(1, slots).view(-1, self.size)
        means = embedding_bag(bags, inbox.rows, per_sample_weights=share.view(-1, self.size), mode="sum")
        own = inbox.rows[inbox.source[:, :1]]
        messages = torch.cat((own, means.view(*share.shape[:2], own.shape[2])), 1)
        return inbox.with_messages(messages, torch.cat((inbox.heard[:, :1], (share > 0).any(2)), 1))

    def _blank(self, table: Table) -> Table:
        """An empty table with a slot for the agent itself and one for every bucket."""
        return table.new_zeros(len(table), 1 + -(-(table.shape[1] - 1) // self.size))

    def _restored(self, seen: Inbox, state: tuple[Tensor, ...]) -> Any:
        """The state of the other rule: what it remembers per agent, and nothing about single neighbours."""
        fresh, form = tree_flatten(self.rule.init(seen.own.new_zeros(seen.heard.shape)))
        per_agent = iter(state)
        return tree_unflatten([next(per_agent) if leaf.ndim == 1 else leaf for leaf in fresh], form)


@dataclass(frozen=True)
class clipped:
    """Adaptive robust clipping (ARC): pull the farthest messages nearer, then apply another rule.

    Equation:
        n = |N_k|,  j = ⌊2 (f / n) (n − f)⌋
        τ_k = the (j+1)-th largest ‖θ̂_l − θ̂_k‖
        y_l = θ̂_k + min(1, τ_k / ‖θ̂_l − θ̂_k‖) (θ̂_l − θ̂_k)
        θ_k = rule(y_l : l ∈ N_k)

    In the paper, a server clips the largest gradients to the length of the next one. Here agents send models, so each
    agent clips the difference to its own. The radius depends on what arrives: there is nothing to tune but f. With at
    most f Byzantine neighbours it is never above the largest distance of an honest one. The paper proves that the
    guarantees of the other rule stay.

    Limits: clipping changes the length of a difference and not its direction. f is lowered to less than half of those
    heard. The clipped messages of all agents are in memory at once.

    Assumes: What the other rule assumes, for at most f Byzantine neighbours.
    Cost: |N_k| d operations, and the cost of the other rule.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.clipped(rules.median(), f=1), rounds=5)

    Reference:
        Allouah, Guerraoui, Gupta, Jellouli, Rizk and Stephan, "Adaptive gradient clipping for robust federated
        learning", ICLR 2025, algorithm 2. https://arxiv.org/abs/2405.14432
    """

    rule: AnyRule = field(default_factory=nearest_neighbour_mixing)
    """The rule to apply to the clipped messages."""
    f: float = 0.2
    """f: how many Byzantine neighbours to tolerate, as a whole number or as a share below 1."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)

    @property
    def companion(self) -> Companion | None:
        return companion_of(self.rule)

    def init(self, table: Table) -> Any:
        return self.rule.init(table)

    def combine(self, inbox: Inbox, state: Any) -> Combined[Any]:
        # Clipped messages are all at the same distance. Rules that choose the nearest ones break such ties by order,
        # so the other rule sees the messages in the order of their distances before clipping.
        nearest, order = nearest_first(inbox)
        clip = self._factors(nearest)
        # In this form, a factor of 0 gives the agent's own model, however far the message is.
        messages = (1 - clip[:, :, None]) * nearest.rows[nearest.source[:, :1]] + clip[:, :, None] * nearest.received()
        seen = nearest.with_messages(messages, nearest.heard)
        models, weights, after, personal = self.rule.combine(seen, _reordered(state, order))
        back = order.argsort(dim=1)
        if weights is not None:
            weights = weights * clip
            weights[:, 0] = 1 - weights[:, 1:].sum(1)
            weights = weights.gather(1, back)
        return Combined(models, weights, _reordered(after, back), personal)

    def _factors(self, inbox: Inbox) -> Table:
        """min(1, τ / distance) for every neighbour."""
        f = tolerated(self.f, inbox.heard).minimum(honest_majority(inbox.heard))
        n = inbox.heard.sum(1)
        number = (2 * f * (n - f)) // n.clamp(min=1)
        distance = torch.where(others(inbox.heard), inbox.distance(inbox.own), 0.0)
        radius = distance.sort(1, descending=True).values.gather(1, number[:, None])
        return torch.where(distance <= radius, 1.0, (radius / distance).clamp(max=1))


def _reordered(state: Any, order: Int[Tensor, "agent slot"]) -> Any:
    """A rule's state with its slots in another order."""

    def reordered(leaf: Tensor) -> Tensor:
        if leaf.ndim == 1:
            return leaf
        return leaf.gather(1, order.view(*order.shape, *[1] * (leaf.ndim - 2)).expand_as(leaf))

    return tree_map(reordered, state)
