"""Count sketches: short summaries of long vectors that keep their distances."""

from __future__ import annotations

from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.draws import Draws
from varangian.core.layout import in_pieces


def sketched(rows: Float[Tensor, "row parameter"], width: int, seed: int = 0) -> Float[Tensor, "row width"]:
    """The count sketch of every row: `width` sums of coordinates with random signs, at most one sum per coordinate.

    >>> rows = torch.tensor([[3.0, 0.0, 4.0], [0.0, 1.0, 0.0]])
    >>> sketched(rows, width=2).shape, sketched(rows, width=5).norm(dim=1)
    (torch.Size([2, 2]), tensor([5., 1.]))
    """
    parameters = rows.shape[1]
    width = max(1, min(width, parameters))
    order, sign = _hashes(parameters, seed, rows.device)
    return in_pieces(lambda some: _summed(some[:, order] * sign, width), rows, numbers=parameters)


def _summed(signed: Float[Tensor, "row parameter"], width: int) -> Float[Tensor, "row width"]:
    """The coordinates are in random order; coordinate i goes to bucket i modulo width."""
    padded = torch.nn.functional.pad(signed, (0, -signed.shape[1] % width))
    return padded.view(len(signed), -1, width).sum(1)


@lru_cache(maxsize=16)
def _hashes(
    parameters: int, seed: int, device: torch.device
) -> tuple[Int[Tensor, " parameter"], Int[Tensor, " parameter"]]:
    """A random order of the coordinates and a random sign for each."""
    bits = Draws.of(seed, 1, device).bits("sketch", torch.zeros(1, dtype=torch.long, device=device), parameters)[0, 0]
    return bits.argsort(), (1 - 2 * (bits & 1)).to(torch.int8)
