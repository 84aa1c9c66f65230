"""The leash: how far to go from the anchor towards another model, by what would have been best so far.

The agent's model is a + w (c − a), from the anchor a towards a candidate c. Three losses in each round, at w = 0, ½ and
1, give a parabola in w. The leash adds the parabolas of all rounds up, with older ones discounted. It takes the w in
[0, 1] where the sum is least. The newest sample counts as well: it has been judged, but nobody has trained on it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from varangian.core.models.base import Models

PerAgent = Float[Tensor, " agent"]


class Leash(NamedTuple):
    """The sum of all parabolas s w + b w², per agent."""

    slope: PerAgent
    bend: PerAgent

    @staticmethod
    def start(agents: PerAgent) -> Leash:
        return Leash(torch.zeros_like(agents), torch.zeros_like(agents))


def pull(
    half: PerAgent, whole: PerAgent, most: float, forgetting: float, trust: float, before: Leash
) -> tuple[PerAgent, Bool[Tensor, " agent"], Leash]:
    """The best w so far, who may go there, and the sums after this round.

        F(w) ← (1 − ν) F(w) + s w + b w²,    w = argmin_{[0, 1]} F(w) + λ (1 − w)²

    A candidate above `most` is too bad: the agent stays, and `most` · w counts against later ones. Networks also have
    hills: only the place half way is above `most`. Then the agent goes all the way, if that is best, or stays.

    Args:
        half: The loss at w = ½, less the loss at w = 0.
        whole: The loss at w = 1, less the loss at w = 0.
        most: The largest difference to accept.
        forgetting: ν.
        trust: λ: how strongly w begins at 1.
        before: The sums before this round.

    >>> start = Leash.start(torch.zeros(3))
    >>> half, whole = torch.tensor([-1.5, 8.0, 3.0]), torch.tensor([-2.0, -2.0, 6.0])
    >>> w, goes, leash = pull(half, whole, most=5.0, forgetting=0.1, trust=0.0, before=start)
    >>> w, leash.slope
    (tensor([1., 1., 0.]), tensor([-4., 22.,  5.]))
    """
    level = half <= most  # a comparison with nan is false
    bend = torch.sub(whole, torch.where(level, half, most), alpha=2).mul_(2)
    slope = (whole - bend).add_(before.slope, alpha=1 - forgetting)
    bend.add_(before.bend, alpha=1 - forgetting)
    down, curve = 2 * trust - slope, bend + trust
    # A parabola that opens upwards is least at its vertex or at the end next to it, and any other at an end: the far
    # end if its value, curve − down, is negative. The quotient is then huge, of the right sign.
    w = down.sub_(curve.clamp(max=0)).div_(curve.clamp_(min=torch.finfo(curve.dtype).tiny)).mul_(0.5).clamp_(0, 1)
    goes = level.logical_or_(w == 1).logical_and_(whole <= most)
    slope = torch.where(goes, slope, before.slope * (1 - forgetting) + most)
    bend = torch.where(goes, bend, before.bend * (1 - forgetting))
    return torch.where(goes, w, 0.0), goes, Leash(slope, bend)


def within_reach(candidate: Models, start: Models, most: PerAgent) -> tuple[Models, Float[Tensor, "agent 1"], PerAgent]:
    """How far to go from a start to the candidate, so that the squared distance is at most `most`.

    A sender that was good for long must not move the agent far at once. Returns where this leads, the share of the way,
    and the squared distance.

    >>> within_reach(torch.tensor([[6.0, 8.0]]), torch.zeros(1, 2), torch.tensor([25.0]))
    (tensor([[3., 4.]]), tensor([[0.5000]]), tensor([25.]))
    """
    gap = candidate - start
    number = torch.finfo(gap.dtype)
    distance = gap.square().sum(1).clamp_(number.tiny, number.max)
    allowed = torch.minimum(distance, most)
    share = (allowed / distance).sqrt_()[:, None]
    return torch.addcmul(start, gap, share), share, allowed
