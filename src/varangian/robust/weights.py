"""From scores to convex weights, and from weights to vectors."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from varangian.core.tracing import has_values
from varangian.robust.stack import Number, Present, Stack, everyone, ranked

_AT_ONCE = 2**19
"""How many numbers to compute together."""
_SHORT, _FEW = 2**15, 16
"""Of vectors up to this length, or of fewer than so many, torch's mean is faster than a matrix product."""


def lowest(
    scores: Float[Tensor, "*batch n"], how_many: Number, present: Present, dtype: torch.dtype = torch.float64
) -> Float[Tensor, "*batch n"]:
    """Equal weights for the present vectors with the lowest scores.

    If scores tie, the lower number wins. If no vector is present, slot 0 has all weight.
    """
    if present.who is not None:
        scores = scores.masked_fill(~present.who, math.inf)
    if isinstance(how_many, int):
        how_many = max(1, how_many)
        untied = _untied(scores.numpy(), how_many) if has_values(scores) else None
        if untied is not None:
            kind: type[np.floating[Any]] = np.float32 if dtype == torch.float32 else np.float64
            return torch.from_numpy(untied.astype(kind) / how_many)
        last = ranked(scores)[..., how_many - 1 : how_many]
    else:
        how_many = how_many.clamp(min=1, max=scores.shape[-1])[..., None]
        last = torch.take_along_dim(ranked(scores), how_many.expand_as(scores[..., :1]) - 1, -1)
    taken, tied = scores < last, scores == last
    left = how_many - taken.sum(-1, keepdim=True)
    taken |= tied & (tied.cumsum(-1) <= left)
    return taken.to(dtype) / how_many


def _untied(scores: NDArray[Any], how_many: int) -> NDArray[np.bool_] | None:
    """Which scores are the lowest of their row, or None if some tie for the last place. NumPy's calls on few numbers
    are faster than torch's."""
    ranks = scores.copy()
    ranks.partition(how_many - 1)
    taken: NDArray[np.bool_] = scores <= ranks[..., how_many - 1 : how_many]
    # No row has fewer than `how_many`, so rows with more cannot go unseen.
    return taken if np.count_nonzero(taken) * scores.shape[-1] == how_many * scores.size else None


def only(present: Present, weights: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """No weight for absent vectors. If no vector is present, slot 0 has all weight."""
    if present.who is None:
        return weights
    weights = weights.masked_fill(~present.who, 0)
    weights[..., 0] += torch.as_tensor(present.number == 0, device=weights.device)
    return weights


def uniform(stack: Stack[Any], present: Present) -> Float[Tensor, "*batch n"]:
    """The same weight for all present vectors."""
    if present.who is None:
        return stack.vectors.new_full(stack.vectors.shape[:-1], 1 / stack.n, dtype=stack.work)
    count = torch.as_tensor(present.number, device=present.who.device).clamp(min=1)
    return present.who.to(stack.work) / count[..., None]


def combine(stack: Stack[Any], weights: Float[Tensor, "*batch n"], present: Present) -> Float[Tensor, "*batch d"]:
    """Σ_l w_l x_l. Absent vectors never enter a product."""
    if present.who is None and stack.vectors.ndim == 2:
        return mix(stack, weights, present)
    return mix(stack, weights[..., None, :], present)[..., 0, :]


def mix(stack: Stack[Any], weights: Float[Tensor, "*batch m n"], present: Present) -> Float[Tensor, "*batch m d"]:
    """One combination per row of weights, kept finite where rounding exceeds the largest number."""
    if weights.dtype != stack.work:
        weights = weights.to(stack.work)
    largest = torch.finfo(stack.vectors.dtype).max
    if present.who is None and stack.vectors.dtype == stack.work:
        return (weights @ stack.vectors).clamp_(-largest, largest)
    shape = (*weights.shape[:-1], stack.d)
    out = torch.empty(shape, dtype=stack.vectors.dtype, device=stack.vectors.device)
    for columns in stack.columns(_AT_ONCE):
        block = stack.block(columns)
        if present.who is not None:
            block = block.masked_fill(~present.who[..., None], 0)
        out[..., columns] = (weights @ block).clamp_(-largest, largest)
    return out


def average(stack: Stack[Any]) -> Float[Tensor, " d"] | None:
    """The mean of a plain stack in one pass, or None if not all of it is finite, which the sum tells."""
    vectors = stack.vectors
    if not stack.may_look or vectors.dtype != stack.work:
        return None
    n, d = vectors.shape
    # In torch's mean the sum may overflow where the mean does not. Then the result is not finite either.
    out = vectors.mean(0) if d <= _SHORT or n < _FEW else uniform(stack, everyone(stack)) @ vectors
    return out if math.isfinite(out.sum()) else None
