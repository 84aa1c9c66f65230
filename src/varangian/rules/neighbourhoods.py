"""What rules on whole neighbourhoods share: how many Byzantine neighbours to tolerate."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from varangian.errors import BadInput

Heard = Bool[Tensor, "agent slot"]


def others(heard: Heard) -> Heard:
    """Who was heard, the agent itself left out."""
    without = heard.clone()
    without[:, 0] = False
    return without


def share_of(share: float, heard: Heard) -> Int[Tensor, " agent"]:
    """A share of the others heard, rounded up.

    >>> share_of(0.7, torch.ones(1, 11, dtype=torch.bool))
    tensor([7])
    """
    # The product of a share such as 0.07 and a count such as 100 may be a hair too large.
    return torch.ceil(others(heard).sum(1).double() * share - 1e-9).long()


def tolerated(f: float, heard: Heard) -> Int[Tensor, " agent"]:
    """How many liars each agent is to bear: a whole number of neighbours, or a share of those heard, rounded up.

    Never more than it heard. The agent itself, slot 0, is neither counted nor suspected.

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
    """The most liars that leave more than half of those heard honest, the agent itself being one of them.

    >>> honest_majority(torch.ones(1, 5, dtype=torch.bool)), honest_majority(torch.ones(1, 6, dtype=torch.bool))
    (tensor([2]), tensor([2]))
    """
    return others(heard).sum(1) // 2


def most_tolerated(f: float, slots: int) -> int:
    """The largest number that `tolerated` can give in a table of so many slots, known without looking into it.

    >>> most_tolerated(0.2, slots=11), most_tolerated(3, slots=2)
    (2, 1)
    """
    return int(tolerated(f, torch.ones(1, max(1, slots), dtype=torch.bool))[0])


def check_tolerated(f: float) -> None:
    """A share below 1 or a whole number of neighbours.

    >>> check_tolerated(1.5)
    Traceback (most recent call last):
    varangian.errors.BadInput: f must be a share of neighbours below 1 or a whole number of them, but is 1.5
    """
    if not (0 <= f < 1 or (1 <= f < float("inf") and f == int(f))):
        raise BadInput(f"f must be a share of neighbours below 1 or a whole number of them, but is {f}")
