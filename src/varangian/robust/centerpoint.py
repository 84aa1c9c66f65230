"""Points that lie deep among others: every half-space that contains such a point holds many of the vectors."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.memory import check_fits
from varangian.robust.coordinatewise import median
from varangian.robust.geometric import geometric_median
from varangian.robust.stack import Array, Mask, admit, look, settled

_EXCHANGES = 100
"""The largest number of exchanges in the dual simplex method."""
_ROUNDING = 1e-13
"""Violations and shares up to this size are rounding errors."""
_SMALLEST = 1e-300
"""A divisor that is never zero."""
_AT_ONCE = 2**22
"""How many numbers to compute together."""

_MANY = 256
"""With more vectors than this, it is checked whether memory is enough for all directions in the plane."""

Points = Float[Tensor, "neighbourhood n d"]


def centerpoint(vectors: Array, *, mask: Mask = None) -> Array:
    """A point of large Tukey depth: every half-space that contains it holds many of the n vectors.

    - On a line, it is the median. Its depth is at least n/2.
    - In the plane, it is the centre of the largest disc of points with depth at least n/3. Such points always exist.
      Fewer than n/3 Byzantine vectors cannot move it out of the convex hull of the others. If the disc is a single
      point, rounding decides on which side of a vector the result lies.
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
        at_once = max(1, _AT_ONCE // stack.n**3)
        parts = [_in_the_plane(*some) for some in zip(points.split(at_once), there.split(at_once), strict=True)]
        result = torch.cat(parts)
    else:
        result = _iterated_radon(points, there)
    largest = torch.finfo(stack.vectors.dtype).max
    result = result.clamp(-largest, largest).view(*stack.vectors.shape[:-2], stack.d)
    return stack.vector(result, present)


def _in_the_plane(points: Points, there: Bool[Tensor, "neighbourhood n"]) -> Float[Tensor, "neighbourhood 2"]:
    """The deepest point of the region of depth k = ⌈n/3⌉, an intersection of half-planes u · z ≤ h(u).

    h(u) is the k-th largest of u · x_i. The directions u that are normal to a line through two of the points are
    enough: between two such directions that are next to each other, the same point attains h. The axes are added,
    because the two directions of points on one line are opposite.
    """
    count = there.sum(-1, keepdim=True)
    k = (count + 2) // 3
    i, j = torch.triu_indices(points.shape[1], points.shape[1], 1, device=points.device)
    # Halves: the difference of the largest numbers must not overflow.
    along = points[:, i] * 0.5 - points[:, j] * 0.5
    size = along.abs().amax(-1, keepdim=True)
    length = torch.linalg.vector_norm(along / size.clamp(min=_SMALLEST), dim=-1, keepdim=True) * size
    known = (there[:, i] & there[:, j])[..., None] & (size > 0)
    normal = torch.where(known, torch.stack((-along[..., 1], along[..., 0]), -1) / length.clamp(min=_SMALLEST), 0)
    axes = torch.eye(2, dtype=points.dtype, device=points.device).expand(len(points), 2, 2)
    normal = torch.cat((axes, normal), 1)
    place = (normal @ points.mT).masked_fill_(~there[:, None], torch.inf).sort(-1).values
    low = _at(place, (k - 1).clamp(min=0))
    high = _at(place, (count - k).clamp(min=0))
    middle, half = (low[:, :2] + high[:, :2]) / 2, (high[:, :2] - low[:, :2]) / 2
    scale = half.amax(-1, keepdim=True)
    scale = torch.where(scale > 0, scale, 1)
    offset = (normal @ middle[..., None])[..., 0]
    bound = torch.cat((high - offset, offset - low), 1) / scale
    known = torch.cat((known.new_ones(len(known), 2, 1), known), 1)[..., 0]
    bound = bound.masked_fill_(~torch.cat((known, known), 1), torch.inf)
    return middle + scale * _deepest(torch.cat((normal, -normal), 1), bound)


def _at(place: Float[Tensor, "neighbourhood direction n"], rank: Int[Tensor, "neighbourhood 1"]) -> Tensor:
    """The entry of this rank in every direction."""
    return torch.take_along_dim(place, rank[..., None], dim=-1)[..., 0]


def _deepest(
    normal: Float[Tensor, "neighbourhood m 2"], bound: Float[Tensor, "neighbourhood m"]
) -> Float[Tensor, "neighbourhood 2"]:
    """argmin_z max_m (u_m · z − h_m): the linear program "least t with u_m · z − t ≤ h_m for all m".

    Solved by the dual simplex method. Three constraints determine (z, t). The most violated constraint replaces the one
    of them for which all multipliers stay non-negative. The first three constraints are too weak to matter in the end.
    """
    turn = torch.tensor([1.0, 5.0, 9.0], dtype=normal.dtype, device=normal.device) * (torch.pi / 6)
    basis = torch.stack((turn.cos(), turn.sin(), torch.full_like(turn, -1)), -1).expand(len(normal), 3, 3)
    bounds = torch.full_like(basis[..., 0], 8)
    best, lowest = torch.zeros_like(normal[:, 0]), torch.full_like(bound[:, 0], torch.inf)
    for _ in range(_EXCHANGES):
        # The rows of the inverse by Cramer's rule; everything else follows from them.
        inverse = torch.linalg.cross(basis.roll(-1, 1), basis.roll(-2, 1))
        inverse = inverse / (inverse[:, :1] * basis[:, :1]).sum(-1, keepdim=True)
        z, t = (bounds[..., None] * inverse).sum(1).split((2, 1), -1)
        worst, which = ((normal @ z[..., None])[..., 0] - bound).max(-1)
        best = torch.where((worst < lowest)[:, None], z, best)
        lowest = torch.minimum(worst, lowest)
        violated = worst[:, None] - t
        if settled(violated.clamp(min=0), _ROUNDING):
            break
        enters = torch.cat((torch.take_along_dim(normal, which[:, None, None], 1)[:, 0], torch.full_like(t, -1)), -1)
        share = (inverse @ enters[..., None])[..., 0]
        ratio = torch.where(share > _ROUNDING, -inverse[..., 2] / share, torch.inf)
        leaves = torch.arange(3, device=ratio.device) == ratio.argmin(-1, keepdim=True)
        leaves = leaves & (violated > _ROUNDING)
        basis = torch.where(leaves[..., None], enters[:, None], basis)
        bounds = torch.where(leaves, bound.gather(1, which[:, None]), bounds)
    return best


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
