"""Functions that clip far vectors: a Byzantine vector moves the result by at most a radius."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.robust.coordinatewise import median
from varangian.robust.gram import QUICK_AT_ONCE, centre_of, in_range, squared_to
from varangian.robust.selection import squared_from
from varangian.robust.stack import Array, Mask, Present, Stack, admit
from varangian.robust.weights import combine, uniform

Radius = float | Float[Tensor, "*batch"]
"""One radius for all neighbourhoods, or one for each."""


def clip(vectors: Array, centre: Array, radius: Radius, *, mask: Mask = None) -> Array:
    """c + min(1, τ / |x_i − c|) (x_i − c): every vector, clipped to a ball around the centre. The result is (…, n, d).

    Vectors inside the ball stay the same to the bit. Absent vectors become the centre. Cost: two passes, 2 n d.

    >>> clip(torch.tensor([[3.0, 4.0], [0.3, 0.4]]), torch.zeros(2), 1.0)
    tensor([[0.6000, 0.8000],
            [0.3000, 0.4000]])
    """
    stack = admit(vectors, mask)
    middle = centre_of(stack, centre)
    squared, present = squared_to(stack, middle)
    share = _share(stack, squared, radius).to(stack.work)[..., None]
    clipped = torch.empty_like(stack.vectors)
    for columns in stack.columns(_AT_ONCE):
        block, around = stack.block(columns), middle[..., None, columns]
        if present.who is not None:
            block = torch.where(present.who[..., None], block, around)
        clipped[..., columns] = torch.where(share < 1, (block * share).addcmul_(around, 1 - share), block)
    return stack.back(clipped)


def self_centred_clipping_weights(
    vectors: Array, own: int, radius: Radius, weights: Any = None, *, mask: Mask = None
) -> Array:
    """The convex weights of `self_centred_clipping`: w_l min(1, τ / |x_l − x_own|), and the rest for oneself."""
    stack = admit(vectors, mask)
    return stack.back(_self_centred(stack, own, radius, weights)[0].to(stack.work))


def self_centred_clipping(vectors: Array, own: int, radius: Radius, weights: Any = None, *, mask: Mask = None) -> Array:
    """x_own + Σ_l w_l clip(x_l − x_own, τ), where x_own is vector number `own` (He et al. 2022, "ClippedGossip").

    `weights` (…, n) are the gossip weights: not negative, with a sum of at most one. By default all present vectors
    have the same weight. There may be one radius per neighbourhood. Cost: two passes, 2 n d.

    >>> self_centred_clipping(torch.tensor([[0.0], [1.0], [90.0]]), own=0, radius=2.0)
    tensor([1.])
    """
    stack = admit(vectors, mask)
    found, present = _self_centred(stack, own, radius, weights)
    return stack.vector(combine(stack, found, present), present)


def _self_centred(
    stack: Stack[Any], own: int, radius: Radius, weights: Any
) -> tuple[Float[Tensor, "*batch n"], Present]:
    """The weights of `self_centred_clipping`, and which vectors are present."""
    squared, present, mine = squared_from(stack, own)
    share = _share(stack, squared, radius)
    gossip = uniform(stack, present) if weights is None else torch.as_tensor(weights, device=squared.device)
    if gossip.shape[-1:] != squared.shape[-1:]:
        raise BadInput(
            f"there must be one weight for each of {stack.n} vectors, but their shape is {tuple(gossip.shape)}"
        )
    found = share * gossip
    if present.who is not None:
        found = found.masked_fill_(~present.who, 0)
    place = torch.as_tensor(mine, device=found.device).expand(found.shape[:-1])[..., None]
    found = found.scatter_(-1, place, 0.0)
    return found.scatter_(-1, place, 1 - found.sum(-1, keepdim=True)), present


def centred_clipping(
    vectors: Array, radius: Radius, centre: Array | None = None, *, iterations: int = 1, mask: Mask = None
) -> Array:
    """v ← v + (1/n) Σ_i min(1, τ / |x_i − v|) (x_i − v), starting from a centre (Karimireddy, He & Jaggi 2021).

    The centre is what was agreed on before. By default it is the coordinate-wise median. Each iteration moves it by at
    most τ.
    Cost: two passes, 2 n d, per iteration, and the median.

    >>> centred_clipping(torch.tensor([[1.0], [2.0], [90.0]]), radius=3.0, centre=torch.zeros(1))
    tensor([2.])
    """
    stack = admit(vectors, mask)
    if iterations < 1:
        raise BadInput(f"centred_clipping needs at least one iteration, not {iterations}")
    middle = centre_of(stack, median(stack.vectors, mask=stack.mask) if centre is None else centre)
    for _ in range(iterations):
        quick = _quick_step(stack, radius, middle)
        middle = _step(stack, radius, middle) if quick is None else quick
    return stack.back(middle.to(stack.vectors.dtype))


def _quick_step(stack: Stack[Any], radius: Radius, centre: Float[Tensor, " d"]) -> Float[Tensor, " d"] | None:
    """One iteration on a small plain stack, as its equation says, or None if the radius or a distance is not in
    range."""
    if not stack.may_look or stack.vectors.numel() > QUICK_AT_ONCE or isinstance(radius, Tensor):
        return None
    apart = stack.vectors.to(stack.work) - centre
    distance: Tensor = torch.linalg.vector_norm(apart, dim=-1)
    farthest = float(distance.max())
    if not (radius > 0 and in_range(radius * radius, stack.work) and in_range(farthest * farthest, stack.work)):
        return None
    # Where the distance is zero, the share is infinite before it is lowered to one.
    share = distance.reciprocal_().mul_(radius).clamp_(max=1)
    return torch.addmv(centre, apart.T, share, alpha=1 / stack.n)


def _step(stack: Stack[Any], radius: Radius, centre: Float[Tensor, "*batch d"]) -> Float[Tensor, "*batch d"]:
    """One iteration for numbers of any size: the vectors and the centre are combined, so no difference overflows."""
    squared, present = squared_to(stack, centre)
    share = _share(stack, squared, radius) * uniform(stack, present)
    stays = (1 - share.sum(-1, keepdim=True)).to(stack.work)
    return combine(stack, share, present).to(stack.work).addcmul(stays, centre)


_AT_ONCE = 2**19
"""How many numbers to compute together."""


def _share(stack: Stack[Any], squared: Float[Tensor, "*batch n"], radius: Radius) -> Float[Tensor, "*batch n"]:
    """min(1, τ / distance)."""
    distance = squared.sqrt()
    if not isinstance(radius, Tensor):
        if not radius >= 0:
            raise BadInput(f"a radius must not be negative, but is {radius}")
        return (radius / distance).masked_fill_(distance <= radius, 1)
    if radius.shape != squared.shape[:-1]:
        raise BadInput(f"a radius is one number, or one for each neighbourhood, but its shape is {tuple(radius.shape)}")
    reach = radius.to(squared)[..., None]
    return (reach / distance).masked_fill_(distance <= reach, 1)
