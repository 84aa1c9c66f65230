"""A rule that removes outliers one by one: iterative outlier scissor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.inbox import Inbox
from varangian.rules.base import Combined, pairs
from varangian.rules.evidence import Table, uniformly
from varangian.rules.neighbourhoods import (
    check_tolerated,
    honest_majority,
    most_tolerated,
    others,
    tolerated,
)


@dataclass(frozen=True)
class ios:
    """Iterative outlier scissor: f times, drop the neighbour that is farthest from the mean of those left.

    Equation:
        U ← N_k
        f times:  U ← U ∖ {argmax_{l∈U, l≠k} ‖θ̂_l − θ̄_U‖}
        θ_k = θ̄_U = mean_{l∈U} θ̂_l

    The agent never drops itself. f is lowered to less than half of those heard. The result contracts towards the honest
    mean if Byzantine agents have less than a third of the weight. Equal weights stand in for the paper's mixing matrix.

    Limits: it finds a few Byzantine agents that stand out. With several tasks, the agents of the minority task stand
    out too.

    Assumes: At most f Byzantine neighbours with less than a third of the weight, and one task.
    Cost: |N_k|² d operations, for the inner products that give all f means and distances.

    Example:
        >>> from varangian import rules, simulate, studies
        >>> study = studies.target_localization(agents=12)
        >>> result = simulate(study, rule=rules.ios(f=1), rounds=5)

    Reference:
        Wu, Chen and Ling, "Byzantine-resilient decentralized stochastic optimization with robust aggregation rules",
        IEEE Transactions on Signal Processing 2023. https://arxiv.org/abs/2206.04568
    """

    f: float = 0.2
    """f: how many neighbours to drop, as a whole number or as a share below 1."""

    def __post_init__(self) -> None:
        check_tolerated(self.f)

    def workspace(self, slots: int, shared: int) -> int:
        return pairs(slots, tables=4)

    def init(self, table: Table) -> tuple[()]:
        return ()

    def combine(self, inbox: Inbox, state: tuple[()]) -> Combined[tuple[()]]:
        f = tolerated(self.f, inbox.heard).minimum(honest_majority(inbox.heard))
        slots = inbox.heard.shape[1]
        cut = partial(_without_outliers, most=min(most_tolerated(self.f, slots), (slots - 1) // 2))
        weights = inbox.by_neighbourhood(cut, f)
        return Combined(inbox.mix(weights), weights, state)


def _without_outliers(
    messages: Float[Tensor, "agent slot shared"],
    heard: Bool[Tensor, "agent slot"],
    f: Int[Tensor, " agent"],
    /,
    *,
    most: int,
) -> Table:
    """Equal weights for those left after f times the farthest from the mean was dropped. f is at most `most`.

    It needs only lengths and cosines of the differences to the agent itself, as ‖x_l − x̄‖² = ‖x_l‖² − 2 x_lᵀx̄ +
    ‖x̄‖². Lengths are relative to the largest one left. So no square overflows, and dropped outliers do not drown the
    others.
    """
    largest = torch.finfo(messages.dtype).max
    gap = (messages - messages[:, :1]).clamp_(-largest, largest)
    scale = gap.abs().amax(2)
    gap.div_(torch.where(scale > 0, scale, 1.0)[:, :, None])
    cosine = gap @ gap.mT
    norm = cosine.diagonal(dim1=1, dim2=2).sqrt()
    cosine = cosine / (norm[:, :, None] * norm[:, None, :]).clamp(min=1)
    length = (scale * norm).clamp(max=largest)
    slot = torch.arange(heard.shape[1], device=heard.device)
    kept = heard
    for cut in range(most):
        longest = torch.where(kept, length, 0.0).amax(1, keepdim=True)
        x = torch.where(kept, length / torch.where(longest > 0, longest, 1.0), 0.0)
        towards_mean = (cosine @ x[:, :, None])[:, :, 0] / kept.sum(1, keepdim=True)
        excess = torch.where(others(kept), x * (x - 2 * towards_mean), -math.inf)
        goes = (slot == excess.argmax(1, keepdim=True)) & (cut < f)[:, None]
        kept = kept & ~goes
    return uniformly(kept, messages.dtype)
