"""Points that lie deep among others: every half-space that contains such a point holds many of the vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.memory import check_fits
from varangian.robust.coordinatewise import median
from varangian.robust.geometric import geometric_median
from varangian.robust.network import sort_rows
from varangian.robust.stack import Array, Mask, admit, look

_EXCHANGES = 100
"""The largest number of exchanges in the dual simplex method."""
_ROUNDING = 1e-13
"""Violations and shares up to this size are rounding errors."""
_SMALLEST = 1e-300
"""A divisor that is never zero."""
_LARGE, _SHRINK = 1e150, 2.0**-600
"""Larger numbers are shrunk by this factor."""
_AT_ONCE = 2**21
"""How many numbers to compute together on a CPU. On an accelerator it is 32 times as many."""

_MANY = 256
"""With more vectors than this, it is checked whether memory is enough for all directions in the plane."""

Points = Float[Tensor, "neighbourhood n d"]
Directions = Float[Tensor, "2 direction neighbourhood"]
Bounds = Float[Tensor, "direction neighbourhood"]


def centerpoint(vectors: Array, *, mask: Mask = None) -> Array:
    """A point of large Tukey depth: every half-space that contains it holds many of the n vectors.

    - On a line, it is the median. Its depth is at least n/2.
    - In the plane, it is the centre of the largest disc of points with depth at least n/3. Such points always exist.
      Fewer than n/3 Byzantine vectors cannot move it out of the convex hull of the others. If the disc is a single
      point, or if there are several largest ones, rounding decides where among them the result lies.
    - In d ≥ 3 dimensions, it is an iterated Radon point (Clarkson et al. 1996). Groups of d + 2 vectors, in their
      order, give one point each. These points are grouped again while there are d + 2 of them. The result is the
      geometric median of the last ones. Its depth is at least 2^h with h = ⌊log n / log(d + 2)⌋, so fewer than 2^h
      Byzantine vectors cannot move it out of the convex hull of the others. With fewer than d + 2 vectors, it is the
      geometric median of all. Then nothing more is known than that it lies in their convex hull.

    Cost: n³ in the plane, n d² beyond; on a line that of the median.

    >>> centerpoint(torch.tensor([[0.0, 0.0], [4.0, 0.0], [0.0, 4.0], [4.0, 4.0]]))
    tensor([2., 2.])
    """
    stack = admit(vectors, mask)
    if stack.d == 1:
        return median(vectors, mask=mask)
    if stack.d > 2 and stack.n < stack.d + 2:
        return geometric_median(vectors, mask=mask)
    present = look(stack)
    who = torch.ones_like(stack.vectors[..., 0], dtype=torch.bool) if present.who is None else present.who
    points = stack.vectors.double().masked_fill(~who[..., None], 0).reshape(-1, stack.n, stack.d)
    there = who.reshape(-1, stack.n)
    if stack.d == 2:
        if stack.n > _MANY:
            check_fits(16 * stack.n**3, f"a centerpoint of {stack.n} vectors in the plane", hint="use fewer vectors")
        # Products of the largest numbers would overflow. A power of two changes no digit.
        size = points.abs().amax((1, 2))
        smaller = torch.ones_like(size).masked_fill_(size > _LARGE, _SHRINK)[:, None]
        result = _in_the_plane(points * smaller[..., None], there) / smaller
    else:
        result = _iterated_radon(points, there)
    largest = torch.finfo(stack.vectors.dtype).max
    result = result.clamp(-largest, largest).view(*stack.vectors.shape[:-2], stack.d)
    return stack.vector(result, present)


def _in_the_plane(points: Points, there: Bool[Tensor, "neighbourhood n"]) -> Float[Tensor, "neighbourhood 2"]:
    """The deepest point of the region of depth k = ⌈n/3⌉, an intersection of slabs low(u) ≤ u · z ≤ high(u).

    Here and below, neighbourhoods are the last dimension, so that operations run along many of them.
    """
    coordinates, there = points.permute(2, 1, 0).contiguous(), there.T.contiguous()
    at_once = _AT_ONCE if points.device.type == "cpu" else 32 * _AT_ONCE
    some = max(1, at_once // points.shape[1] ** 3)
    parts = [_slabs(*part) for part in zip(coordinates.split(some, -1), there.split(some, -1), strict=True)]
    normal, low, high = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    middle, half = (low[:2] + high[:2]) / 2, (high[:2] - low[:2]) / 2
    scale = half.amax(0)
    scale = torch.where(scale > 0, scale, 1)
    offset = normal[0] * middle[0] + normal[1] * middle[1]
    found = _deepest(normal, low.sub_(offset).div_(scale), high.sub_(offset).div_(scale))
    return (middle + scale * found).T


def _slabs(
    points: Float[Tensor, "2 n neighbourhood"], there: Bool[Tensor, "n neighbourhood"]
) -> tuple[Directions, Bounds, Bounds]:
    """The directions u, low(u) and high(u). The axes come first.

    high(u) is the k-th largest of u · x_i, and low(u) the k-th smallest. The directions that are normal to a line
    through two of the points are enough: between two such directions that are next to each other, the same point
    attains the bound. The axes are added, because the two directions of points on one line are opposite.
    """
    n, neighbourhoods = there.shape
    i, j = torch.triu_indices(n, n, 1, device=points.device)
    # Halves: the difference of the largest numbers must not overflow.
    half = points * 0.5
    along = half.index_select(1, i).sub_(half.index_select(1, j))
    length = torch.hypot(along[0], along[1])
    known = there[i] & there[j] & (length > 0)
    along = (along / length.clamp_(min=_SMALLEST)).masked_fill_(~known, 0)
    axes = torch.eye(2, dtype=points.dtype, device=points.device)[..., None].expand(2, 2, neighbourhoods)
    normal = torch.cat((axes, torch.stack((-along[1], along[0]))), 1)

    def project(place: Float[Tensor, "n direction neighbourhood"]) -> None:
        absent = torch.where(there, 0, torch.inf).to(place.dtype)
        torch.addcmul(absent[:, None], points[0][:, None], normal[0], out=place)
        place.addcmul_(points[1][:, None], normal[1])

    ranked = sort_rows((n, *normal.shape[1:]), project, tuple(range(n)), points)
    count = there.sum(0)
    k = (count + 2) // 3
    most = (n + 2) // 3
    low, high = _rank(ranked[:most], k - 1), _rank(ranked[: n - most + 1], count - k)
    low[2:].masked_fill_(~known, -torch.inf)
    high[2:].masked_fill_(~known, torch.inf)
    return normal, low, high


def _rank(ranked: Sequence[Bounds], rank: Int[Tensor, " neighbourhood"]) -> Bounds:
    """The entry of this rank in every direction."""
    found = ranked[0].clone()
    for number, row in enumerate(ranked[1:], 1):
        torch.where(rank == number, row, found, out=found)
    return found


class _Program(NamedTuple):
    """A linear program for each neighbourhood: the least t with u · z − t ≤ high(u) and low(u) ≤ u · z + t."""

    normal: Directions
    low: Bounds
    high: Bounds
    basis: Float[Tensor, "2 3 neighbourhood"]
    """The directions of the three constraints that determine z and t."""
    bounds: Float[Tensor, "3 neighbourhood"]
    """Their bounds."""
    best: Float[Tensor, "2 neighbourhood"]
    """The best z so far."""
    least: Float[Tensor, " neighbourhood"]
    """The least t with which all constraints hold there."""


def _deepest(normal: Directions, low: Bounds, high: Bounds) -> Float[Tensor, "2 neighbourhood"]:
    """argmin_z max_u max(u · z − high(u), low(u) − u · z), by the dual simplex method.

    The first three constraints are too weak to matter in the end.
    """
    turn = torch.tensor([1.0, 5.0, 9.0], dtype=low.dtype, device=low.device) * (torch.pi / 6)
    basis = torch.stack((turn.cos(), turn.sin()))[..., None].expand(2, 3, low.shape[1])
    nothing = torch.zeros_like(normal[:, 0])
    program = _Program(normal, low, high, basis, torch.full_like(basis[0], 8), nothing, nothing[0] + torch.inf)
    found, place = torch.zeros_like(nothing), torch.arange(low.shape[1], device=low.device)
    for _ in range(_EXCHANGES):
        program, violated = _exchange(program)
        if violated.device.type != "cpu":  # where the answer would have to be waited for
            continue
        unsolved = torch.nonzero(violated)[:, 0]
        if 2 * len(unsolved) <= len(place):
            found[:, place], place = program.best, place[unsolved]
            program = _Program(*(part.index_select(-1, unsolved) for part in program))
        if not len(place):
            break
    found[:, place] = program.best
    return found


def _exchange(program: _Program) -> tuple[_Program, Bool[Tensor, " neighbourhood"]]:
    """One step: the most violated constraint replaces the one of the three for which all multipliers stay non-negative.

    It is not done where no constraint is violated; the second result says where one is.
    """
    normal, low, high, basis, bounds, best, least = program
    # The inverse of the matrix with rows (u, −1), by Cramer's rule.
    after = torch.cat((basis, basis[:, :2]), 1)
    second, third = after[:, 1:4], after[:, 2:5]
    across = torch.stack((third[1] - second[1], second[0] - third[0], second[0] * third[1] - second[1] * third[0]))
    inverse = across / (across[0, 0] * basis[0, 0] + across[1, 0] * basis[1, 0] - across[2, 0])
    z_0, z_1, t = (inverse * bounds).sum(1)
    place = (normal[0] * z_0).addcmul_(normal[1], z_1)
    above, below = place - high, low - place
    worst, which = torch.maximum(above, below).max(0, keepdim=True)
    is_above = above.gather(0, which)[0] == worst[0]
    worst = worst[0]
    best = torch.where(worst < least, torch.stack((z_0, z_1)), best)
    violated = worst - t > _ROUNDING
    sign = torch.where(is_above, 1, -1)
    enters = normal.gather(1, which.expand(2, 1, -1))[:, 0] * sign
    bound = torch.where(is_above, high.gather(0, which)[0], -low.gather(0, which)[0])
    share = inverse[0] * enters[0] + inverse[1] * enters[1] - inverse[2]
    ratio = torch.where(share > _ROUNDING, -inverse[2] / share, torch.inf)
    leaves = (torch.arange(3, device=ratio.device)[:, None] == ratio.min(0).indices) & violated
    basis, bounds = torch.where(leaves, enters[:, None], basis), torch.where(leaves, bound, bounds)
    return _Program(normal, low, high, basis, bounds, best, torch.minimum(worst, least)), violated


def _iterated_radon(points: Points, there: Bool[Tensor, "neighbourhood n"]) -> Float[Tensor, "neighbourhood d"]:
    """One level of Radon points. Each full group gives a point of the next level; the last level with points is the
    answer."""
    n, d = points.shape[1:]
    here: Tensor = geometric_median(points, mask=there)
    if n < d + 2:
        return here
    order = (~there).to(torch.uint8).argsort(dim=-1, stable=True)
    points, there = torch.take_along_dim(points, order[..., None], dim=1), there.gather(1, order)
    groups = n // (d + 2)
    full = there[:, : groups * (d + 2)].view(-1, groups, d + 2).all(-1)
    found = _radon(points[:, : groups * (d + 2)].view(-1, groups, d + 2, d))
    above = _iterated_radon(found.masked_fill(~full[..., None], 0), full)
    return torch.where(full.any(-1, keepdim=True), above, here)


def _radon(points: Float[Tensor, "neighbourhood group d+2 d"]) -> Float[Tensor, "neighbourhood group d"]:
    """The Radon point of d + 2 points: where the convex hulls of two parts of them meet.

    The parts are the signs of a solution λ of Σ λ_i x_i = 0, Σ λ_i = 0.

    The points are taken about their median, and each (x_i, 1) is scaled to the same size. So one point far away does
    not drown the others.
    """
    middle: Tensor = median(points)[..., None, :]
    # Quarters: the difference of the largest numbers must not overflow.
    from_middle = points * 0.25 - middle * 0.25
    size = from_middle.abs().amax(-1, keepdim=True)
    usual = size.median(-2, keepdim=True).values
    usual = torch.where(usual > 0, usual, 1)
    larger = torch.maximum(size, usual)
    lifted = torch.cat((from_middle / larger, usual / larger), -1)
    # The last column of Q is orthogonal to all columns of the factored matrix, whatever their rank.
    null: Tensor = torch.linalg.qr(lifted, mode="complete").Q[..., -1:]
    share = null.clamp(min=0) * usual / larger
    share = share / share.sum(-2, keepdim=True).clamp(min=_SMALLEST)
    return middle[..., 0, :] + 4 * (share * from_middle).sum(-2)
