"""The geometric median as a search for weights: after one matrix product, no iteration touches the vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.tracing import has_values
from varangian.robust.gram import Products, products
from varangian.robust.stack import Array, Mask, Present, admit, ranked
from varangian.robust.weights import combine, lowest, only

_ITERATIONS = 100
_TOLERANCE = 1e-6
_SMOOTHING = 1e-6
_SMALLEST = 1e-290
"""A divisor that is never zero."""
_FEW = 64
"""Up to so many vectors, call overhead dominates an iteration."""


def geometric_median_weights(
    vectors: Array,
    *,
    smoothing: float = _SMOOTHING,
    iterations: int = _ITERATIONS,
    tolerance: float = _TOLERANCE,
    mask: Mask = None,
) -> Array:
    """The convex weights of `geometric_median`. Vectors far away have little weight."""
    stack = admit(vectors, mask)
    weights = weiszfeld(products(stack), smoothing, iterations, tolerance)
    return stack.back(weights.to(stack.work))


def geometric_median(
    vectors: Array,
    *,
    smoothing: float = _SMOOTHING,
    iterations: int = _ITERATIONS,
    tolerance: float = _TOLERANCE,
    mask: Mask = None,
) -> Array:
    """argmin_z Σ_i |x_i − z|, by Weiszfeld's iteration, smoothed (Pillutla et al. 2022, "RFA").

    z is a convex combination Σ w_i x_i with w_i ← 1 / max(|x_i − z|, ν), normalised. All distances come from one matrix
    of inner products. ν is `smoothing` times the distance of the majority from its middle. The search stops after
    `iterations`. On a CPU it stops earlier if no weight changes by more than `tolerance`. The result is bounded while
    honest vectors are the majority. Cost: n² d for one matrix product, and n² per iteration.

    >>> geometric_median(torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0], [1.0, 1.0]]))
    tensor([1., 1.])
    """
    stack = admit(vectors, mask)
    found = products(stack)
    weights = weiszfeld(found, smoothing, iterations, tolerance)
    return stack.vector(combine(stack, weights, found.present), found.present)


def weiszfeld(found: Products, smoothing: float, iterations: int, tolerance: float) -> Float[Tensor, "*batch n"]:
    """The weights of the geometric median. The start is the mean of the half of the vectors nearest to the most central
    one."""
    if iterations < 1 or smoothing < 0 or tolerance < 0:
        what = f"iterations is {iterations}, smoothing {smoothing} and tolerance {tolerance}"
        raise BadInput(f"geometric_median needs iterations ≥ 1, smoothing ≥ 0 and tolerance ≥ 0, but {what}")
    inner, squared, present = found
    if present.who is not None:
        squared = squared.masked_fill(~(present.who[..., None] & present.who[..., None, :]), torch.inf)
    midst, reach = _midst(squared, present)
    half = (present.number + 1) // 2
    start = lowest(torch.take_along_dim(squared, midst[..., None, None], dim=-2)[..., 0, :], half, present)
    floor = (reach * smoothing**2).clamp_(min=_SMALLEST)
    n = start.shape[-1]
    if present.who is None and n <= _FEW and has_values(inner):
        alone = _iterated_alone(inner.numpy(), floor.numpy(), start.numpy(), iterations, tolerance)
        return torch.from_numpy(alone)
    norm = inner.diagonal(dim1=-2, dim2=-1)
    if present.who is not None:
        # What is infinitely far has no weight.
        norm = norm.masked_fill(~present.who, torch.inf)
    weights = _iterated(
        inner.reshape(-1, n, n), norm.reshape(-1, n), floor.reshape(-1, 1), start.reshape(-1, n), iterations, tolerance
    )
    return only(present, weights.view_as(start))


def _next(inner: Array, norm: Array, floor: Array, weights: Array) -> Array:
    """One iteration: w_i ← 1 / max(|x_i − z|, ν), normalised. All distances come from inner products."""
    product = (inner @ weights[..., None])[..., 0]
    apart = norm - 2 * product + (weights * product).sum(-1)[..., None]
    nearer = apart.clip(floor) ** -0.5
    after: Array = nearer / nearer.sum(-1)[..., None]
    return after


def _iterated_alone(
    inner: NDArray[Any], floor: NDArray[Any], weights: NDArray[Any], iterations: int, tolerance: float
) -> NDArray[Any]:
    """`_iterated` for one neighbourhood of few vectors, with NumPy, whose calls on few numbers are faster."""
    norm = inner.diagonal()
    for iteration in range(iterations):
        before, weights = weights, _next(inner, norm, floor, weights)
        if iteration % 2 and np.abs(before - weights).max() <= tolerance:
            break
    return weights


def _iterated(
    inner: Float[Tensor, "neighbourhood n n"],
    norm: Float[Tensor, "neighbourhood n"],
    floor: Float[Tensor, "neighbourhood 1"],
    weights: Float[Tensor, "neighbourhood n"],
    iterations: int,
    tolerance: float,
) -> Float[Tensor, "neighbourhood n"]:
    """Weiszfeld's iteration.

    Each neighbourhood stops by itself: its result must not depend on others in the same batch. On a CPU, those that
    have stopped are left out as soon as they are many.

    Args:
        inner: All inner products.
        norm: Their diagonal, and infinity where a vector is absent.
        floor: The smallest squared distance to divide by.
        weights: The weights to start from.
        iterations: The most iterations.
        tolerance: The change of a weight up to which a neighbourhood stops.
    """
    found, place = weights, torch.arange(len(weights), device=weights.device)
    moves = torch.ones_like(floor, dtype=torch.bool)
    for iteration in range(iterations):
        before, weights = weights, torch.where(moves, _next(inner, norm, floor, weights), weights)
        if iteration % 2 and weights.device.type == "cpu":
            moves &= (before - weights).abs().amax(-1, keepdim=True) > tolerance
            left = torch.nonzero(moves[:, 0])[:, 0]
            if 4 * len(left) <= 3 * len(place):
                found, place = found.index_copy(0, place, weights), place[left]
                inner, norm, floor = (part[left] for part in (inner, norm, floor))
                weights, moves = weights[left], moves[left]
            if not len(left):
                break
    return found.index_copy(0, place, weights)


def _midst(squared: Float[Tensor, "*batch n n"], present: Present) -> tuple[Tensor, Tensor]:
    """The most central vector, the one with the smallest distance to the majority, and that distance squared."""
    majority = present.number // 2
    if isinstance(majority, Tensor):
        reach = torch.take_along_dim(ranked(squared), majority[..., None, None], dim=-1)[..., 0]
    else:
        reach = ranked(squared)[..., majority]
    reach, midst = reach.min(-1)
    return midst, reach
