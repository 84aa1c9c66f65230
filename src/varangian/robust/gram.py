"""Distances between vectors from inner products: one matrix product instead of n² passes.

For vectors that nearly agree, |x|² + |y|² − 2⟨x, y⟩ is a small difference of large numbers. Inner products are
therefore taken about a reference vector. In a neighbourhood it is slot 0, the receiver itself. In a plain stack no
vector can be trusted. Its vector 0 is tried first. If the others turn out to be far from it, compared with their
distances from each other, the products are computed again in float64.

Rows are scaled if their squares could leave the range of their type. All (n, n) tables are float64.
"""

from __future__ import annotations

import math
from functools import reduce
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.memory import check_fits
from varangian.robust.stack import Array, Mask, Present, Stack, admit, everyone, look

_AT_ONCE = 2**18
"""How many numbers to compute together: about what a cache holds."""
QUICK_AT_ONCE = 2**20
"""The same in the quick ways, which copy their numbers only once: there, fewer and larger calls are faster."""
_ROWS_AT_ONCE = 32
"""How many rows to multiply together. Products with earlier rows are known already: fewer rows at once save more of
them, but need more calls."""
_MANY = 4096
"""With more vectors than this, it is checked whether memory is enough for their pairs."""
_FEW = 8
"""Vectors with at most so many columns are multiplied in float64: it costs little, and they need not be scaled."""
_FARTHEST = 2.0**465
"""Vectors of float64 beyond about 1e140 are scaled down to it, so that squares and their sums stay finite."""


class Products(NamedTuple):
    """Inner products and squared distances of all pairs."""

    inner: Float[Tensor, "*batch n n"]
    """⟨x_i − r, x_j − r⟩; zero where one of the two is absent."""
    squared: Float[Tensor, "*batch n n"]
    """|x_i − x_j|²."""
    present: Present
    """Which vectors are present."""


def squared_distances(vectors: Array, mask: Mask = None) -> Array:
    """|x_i − x_j|² for every pair: infinite where one vector is absent, zero from a vector to itself.

    Distances of vectors that nearly agree are accurate. Distances too large for the type become its largest number.
    Half types come back in float32, because their squares need its range. Cost: one matrix product, n² d.

    >>> squared_distances(torch.tensor([[0.0, 0.0], [3.0, 4.0], [0.0, 1.0]]))
    tensor([[ 0., 25.,  1.],
            [25.,  0., 18.],
            [ 1., 18.,  0.]])
    """
    stack = admit(vectors, mask)
    _, squared, present = products(stack)
    squared = torch.maximum(squared, squared.mT).clamp_(max=torch.finfo(stack.work).max)
    if present.who is not None:
        squared = squared.masked_fill_(~(present.who[..., None] & present.who[..., None, :]), torch.inf)
    return stack.back(squared.to(stack.work))


def squared_distances_to(vectors: Array, reference: Array, mask: Mask = None) -> Array:
    """|x_i − r|² for every vector: infinite where it is absent. The reference must be finite. Cost: one pass, n d.

    >>> squared_distances_to(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.zeros(2))
    tensor([ 0., 25.])
    """
    stack = admit(vectors, mask)
    squared, present = squared_to(stack, centre_of(stack, reference))
    squared = squared.clamp(max=torch.finfo(stack.work).max)
    if present.who is not None:
        squared = squared.masked_fill(~present.who, torch.inf)
    return stack.back(squared.to(stack.work))


def centre_of(stack: Stack[Any], centre: Any) -> Float[Tensor, "*batch d"]:
    """A vector from the caller, made finite, in the type of the computation."""
    given: Tensor = torch.as_tensor(centre, dtype=stack.work, device=stack.vectors.device).detach()
    if given.shape[-1:] != stack.vectors.shape[-1:] or given.ndim > stack.vectors.ndim - 1:
        want, got = (*stack.vectors.shape[:-2], stack.d), tuple(given.shape)
        raise BadInput(f"the centre or reference must have the shape {want} of one vector, but has {got}")
    if stack.may_look and math.isfinite(given.sum()):
        return given
    return given.nan_to_num()


def products(stack: Stack[Any]) -> Products:
    """Inner products and squared distances of all pairs, and which vectors are present."""
    check_pairs(stack)
    if stack.may_look:
        inner = _quick_products(stack)
        squared = _squared(inner)
        if _precise(squared.numpy(), stack.work):
            return Products(inner, squared, everyone(stack))
    present = look(stack)
    if stack.vectors.ndim == 2 and stack.mask is None:
        inner = _sure_products(stack, present, None, torch.float64)
    elif stack.d <= _FEW and stack.vectors.dtype != torch.float64:
        inner = _wide_products(stack, present, row(stack, first(present), present))
    else:
        inner = _sure_products(stack, present, row(stack, first(present), present), stack.work)
    return Products(inner, _squared(inner), present)


def check_pairs(stack: Stack[Any], tables: int = 6) -> None:
    """Refuse to compare more pairs than memory holds. The program would be killed."""
    if stack.n > _MANY:
        neighbourhoods = stack.vectors.shape[:-2].numel()
        what = f"comparing all pairs of {stack.n} vectors"
        check_fits(8 * tables * neighbourhoods * stack.n**2, what, stack.vectors.device, hint="use fewer vectors")


def squared_to(
    stack: Stack[Any], reference: Float[Tensor, "*batch d"], present: Present | None = None
) -> tuple[Float[Tensor, "*batch n"], Present]:
    """|x_i − r|² in float64, zero where absent, and which vectors are present."""
    if stack.may_look and present is None:
        blocks = (stack.block(some) - reference[some] for some in stack.columns(QUICK_AT_ONCE))
        quick: Tensor = reduce(torch.add, map(_norm, blocks))
        if in_range(float(quick.max()), stack.work):
            return quick, everyone(stack)
    present = present or look(stack)
    scale = _scale(stack, present, reference, stack.work)
    parts = (_scaled(stack, present, reference, scale, some) for some in stack.columns(_AT_ONCE))
    total: Tensor = reduce(torch.add, map(_norm, parts))
    return total * _unscale(scale).square(), present


def _norm(block: Float[Tensor, "*batch n columns"]) -> Float[Tensor, "*batch n"]:
    """The squared norm of each row, in float64. The block is overwritten."""
    if block.is_cpu:  # Here two simple passes are faster than one of vector_norm.
        return block.square_().sum(-1).double()
    norm: Tensor = torch.linalg.vector_norm(block, dim=-1)
    return norm.double().square_()


def first(present: Present) -> Int[Tensor, "*batch"]:
    """The first present vector, or slot 0 if none is present."""
    if present.who is None:
        return torch.tensor(0)
    return present.who.to(torch.uint8).argmax(-1)


def row(stack: Stack[Any], index: Int[Tensor, "*batch"], present: Present) -> Float[Tensor, "*batch d"]:
    """One vector of each neighbourhood, made finite, in the type of the computation."""
    if present.who is None:
        return stack.vectors[int(index)].to(stack.work, copy=True)
    taken = torch.take_along_dim(stack.vectors, index[..., None, None], dim=-2)[..., 0, :]
    return taken.to(stack.work).nan_to_num()


def _quick_products(stack: Stack[Any]) -> Float[Tensor, "n n"]:
    """Products about vector 0, whatever it is. `_precise` tells whether they can be used."""
    inner = torch.zeros(stack.n, stack.n, dtype=torch.float64)
    of_others = inner[1:, 1:]
    for some in stack.columns(QUICK_AT_ONCE):
        of_others += _products_of_others(stack.block(some))
    return inner


def _products_of_others(block: Float[Tensor, "n columns"]) -> Float[Tensor, "n-1 n-1"]:
    """Products about row 0 of the other rows. Those of row 0 itself are zero."""
    n, columns = block.shape
    others = n - 1
    # Matrix products work on 16 rows at a time. If only a few of them are missing, zeros in their place save much time.
    missing = -others % 16
    if missing > 5:
        return _product_with_itself(block[1:] - block[0])
    rows = block.new_empty(others + missing, columns)
    torch.sub(block[1:], block[0], out=rows[:others])
    rows[others:] = 0
    return _product_with_itself(rows)[:others, :others]


def _product_with_itself(block: Float[Tensor, "n columns"]) -> Float[Tensor, "n n"]:
    """block @ block.T, of which only the upper half is computed."""
    n, _ = block.shape
    if n <= _ROWS_AT_ONCE:
        return block @ block.T
    products = block.new_zeros(n, n)
    for start in range(0, n, _ROWS_AT_ONCE):
        products[start : start + _ROWS_AT_ONCE, start:] = block[start : start + _ROWS_AT_ONCE] @ block[start:].T
    return products.triu_().add_(products.triu(1).T)


def _precise(squared: Float[np.ndarray, "n n"], dtype: torch.dtype) -> bool:
    """Whether vector 0 can be the reference: everything is finite and in range, and vector 0 is not far out.

    It may be at most 10 times as far from the majority as the most central vector.

    The rounding error of a product is relative to the distances from the reference. So these must not dwarf the others.
    """
    majority = len(squared) // 2
    from_majority: list[float] = np.partition(squared, majority, axis=1)[:, majority].tolist()
    central = from_majority[0] <= 100 * min(from_majority)
    return central and in_range(from_majority[0], dtype) and in_range(squared[0].max(), dtype)


def in_range(squared: float, dtype: torch.dtype) -> bool:
    """Whether a sum of squares of this type is finite, and has neither overflowed nor vanished."""
    low, high = (1e-25, 1e30) if dtype == torch.float32 else (1e-250, 1e280)
    # A comparison with nan is false.
    return low < squared < high


def _wide_products(
    stack: Stack[Any], present: Present, reference: Float[Tensor, "*batch d"]
) -> Float[Tensor, "*batch n n"]:
    """Products in float64 of vectors of a smaller type, whose squares are all in its range."""
    block = stack.vectors.double() - reference.double()[..., None, :]
    if present.who is not None:
        block.masked_fill_(~present.who[..., None], 0)
    return block @ block.mT


def _sure_products(
    stack: Stack[Any], present: Present, reference: Float[Tensor, "*batch d"] | None, dtype: torch.dtype
) -> Float[Tensor, "*batch n n"]:
    """Products of scaled rows: slower, but safe for numbers of any size."""
    scale = _scale(stack, present, reference, dtype)
    blocks = (_scaled(stack, present, reference, scale, some) for some in stack.columns(_AT_ONCE))
    inner = reduce(torch.add, ((block @ block.mT).double() for block in blocks))
    unscale = _unscale(scale)
    return inner.mul_(unscale[..., None]).mul_(unscale[..., None, :])


def _scale(
    stack: Stack[Any], present: Present, reference: Float[Tensor, "*batch d"] | None, dtype: torch.dtype
) -> Float[Tensor, "*batch n"]:
    """A power of two for each row that brings the larger of the row and the reference close to one."""
    size = present.size
    if size is None:
        size = torch.maximum(stack.vectors.amax(-1), -stack.vectors.amin(-1))
    size = size.to(dtype)
    if present.who is not None:
        size = size.masked_fill(~present.who, 0)
    if reference is not None:
        size = torch.maximum(size, reference.to(dtype).abs().amax(-1, keepdim=True))
    most = 126 if dtype == torch.float32 else 1022
    return torch.exp2(-torch.frexp(size).exponent.clamp(-most + 6, most).to(torch.float64)).to(dtype)


def _unscale(scale: Float[Tensor, "*batch n"]) -> Float[Tensor, "*batch n"]:
    """The inverse of the scale, bounded so that squares stay finite."""
    return scale.double().reciprocal().clamp(max=_FARTHEST)


def _scaled(
    stack: Stack[Any],
    present: Present,
    reference: Float[Tensor, "*batch d"] | None,
    scale: Float[Tensor, "*batch n"],
    columns: slice,
) -> Float[Tensor, "*batch n columns"]:
    """scale_i (x_i − r), both scaled before the subtraction; zero where absent."""
    block = stack.vectors[..., columns].to(scale.dtype)
    origin = None if reference is None else reference[..., None, columns].to(scale.dtype)
    if present.who is not None:
        block = torch.where(present.who[..., None], block, 0 if origin is None else origin)
    block = block * scale[..., None]
    return block if origin is None else block.addcmul_(origin, scale[..., None], value=-1)


def _squared(inner: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    """Squared distances from inner products."""
    norm = inner.diagonal(dim1=-2, dim2=-1)
    # In this order the diagonal is exactly zero.
    return (norm.unsqueeze(-1) + norm.unsqueeze(-2)).sub_(inner, alpha=2).clamp_(min=0)
