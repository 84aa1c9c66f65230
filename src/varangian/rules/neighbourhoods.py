"""How many Byzantine neighbours an agent tolerates: shared by the rules that take f."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from varangian.core.errors import BadInput

Heard = Bool[Tensor, "agent slot"]


def others(heard: Heard) -> Heard:
    """The neighbours heard, without the agent itself."""
    without = heard.clone()
    without[:, 0] = False
    return without


def share_of(share: float, heard: Heard) -> Int[Tensor, " agent"]:
    """A share of the neighbours heard, rounded up. The agent itself does not count.

    >>> share_of(0.7, torch.ones(1, 11, dtype=torch.bool))
    tensor([7])
    """
    # Rounding: 0.07 × 100 is slightly more than 7.
    return torch.ceil(others(heard).sum(1).double() * share - 1e-9).long()


def tolerated(f: float, heard: Heard) -> Int[Tensor, " agent"]:
    """How many Byzantine neighbours each agent tolerates.

    f is a whole number of neighbours, or a share of the neighbours heard, rounded up. The result is never more than
    were heard. The agent itself (slot 0) is neither counted nor suspected.

    >>> heard = torch.tensor([[True, True, True, True], [True, True, False, False], [True, False, False, False]])
    >>> tolerated(2, heard)
    tensor([2, 1, 0])
    >>> tolerated(0.5, heard)
    tensor([2, 1, 0])
    """
    if f < 1:
        return share_of(f, heard)
    return others(heard).sum(1).clamp(max=int(f))


def honest_majority(heard: Heard) -> Int[Tensor, " agent"]:
    """The largest number of Byzantine neighbours with which honest agents are the majority, the agent itself included.

    >>> honest_majority(torch.ones(1, 5, dtype=torch.bool)), honest_majority(torch.ones(1, 6, dtype=torch.bool))
    (tensor([2]), tensor([2]))
    """
    return others(heard).sum(1) // 2


def most_tolerated(f: float, slots: int) -> int:
    """The largest result that `tolerated` can give for a table with this number of slots.

    >>> most_tolerated(0.2, slots=11), most_tolerated(3, slots=2)
    (2, 1)
    """
    return int(tolerated(f, torch.ones(1, max(1, slots), dtype=torch.bool))[0])


def check_tolerated(f: float) -> None:
    """Refuse an f that is neither a share below 1 nor a whole number.

    >>> check_tolerated(1.5)
    Traceback (most recent call last):
    varangian.core.errors.BadInput: f must be a share below 1 or a whole number of neighbours, but is 1.5
    """
    if not (0 <= f < 1 or (1 <= f < float("inf") and f == int(f))):
        raise BadInput(f"f must be a share below 1 or a whole number of neighbours, but is {f}")
