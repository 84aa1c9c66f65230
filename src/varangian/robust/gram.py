"""How far vectors are from each other, through inner products: one matrix product instead of n² passes.

Inner products are taken about a reference vector, since |x|² + |y|² − 2⟨x, y⟩ of vectors that nearly agree is a small
difference of large numbers. In a neighbourhood the reference is slot 0, the receiver itself. A plain stack has nobody
to trust: its vector 0 is tried, and where the others turn out to lie far from it, compared with each other, the
products are taken again in float64. Rows are scaled where their squares could leave the range of their type, and all
that is (n, n) is float64.
"""

from __future__ import annotations

from functools import reduce
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.errors import BadInput
from varangian.robust.stack import Array, Mask, Present, Stack, admit, everyone, look

_AT_ONCE = 2**18
"""How many numbers are handled together: what a cache holds."""
_ROWS_AT_ONCE = 32
"""Products of a row with those before it are known already: fewer rows at once save more, and cost more each."""
_FARTHEST = 2.0**465
"""Vectors of float64 beyond 1e140 are drawn in to it, so that squares and their sums stay finite."""


class Products(NamedTuple):
    inner: Float[Tensor, "*batch n n"]
    """⟨x_i − r, x_j − r⟩; zeros where one of them is absent."""
    squared: Float[Tensor, "*batch n n"]
    """|x_i − x_j|²."""
    present: Present


def squared_distances(vectors: Array, mask: Mask = None) -> Array:
    """|x_i − x_j|² for every pair: infinite where one of them is absent, zero from a vector to itself.

    Distances of vectors that nearly agree are accurate; those too large for the type are its largest number. Half types
    come back in float32, whose range their squares need. Costs one matrix product, n² d.

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
    """|x_i − r|² for every vector: infinite where it is absent. The reference must be finite.

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
    """A vector that came from outside, in the type that is computed in, and finite."""
    given: Tensor = torch.as_tensor(centre, dtype=stack.work, device=stack.vectors.device).detach()
    if given.shape[-1:] != stack.vectors.shape[-1:] or given.ndim > stack.vectors.ndim - 1:
        want, got = (*stack.vectors.shape[:-2], stack.d), tuple(given.shape)
        raise BadInput(f"a centre or reference must be a vector {want} beside these vectors, not {got}")
    return given.nan_to_num()


def products(stack: Stack[Any]) -> Products:
    """Inner products and squared distances of all pairs, and who is present."""
    if stack.may_look:
        inner = _quick_products(stack)
        squared = _squared(inner)
        if _precise(squared, stack.work):
            return Products(inner, squared, everyone(stack))
    present = look(stack)
    if stack.vectors.ndim == 2 and stack.mask is None:
        inner = _sure_products(stack, present, None, torch.float64)
    else:
        inner = _sure_products(stack, present, row(stack, first(present), present), stack.work)
    return Products(inner, _squared(inner), present)


def squared_to(
    stack: Stack[Any], reference: Float[Tensor, "*batch d"], present: Present | None = None
) -> tuple[Float[Tensor, "*batch n"], Present]:
    """|x_i − r|² in float64, zero where absent, and who is present."""
    if stack.may_look and present is None:
        parts = (stack.vectors[:, some].to(stack.work) - reference[some] for some in stack.columns(_AT_ONCE))
        quick: Tensor = reduce(torch.add, map(_norm, parts))
        low, high = _range(stack.work)
        if low < float(quick.max()) < high:
            return quick, everyone(stack)
    present = present or look(stack)
    scale = _scale(stack, present, reference, stack.work)
    parts = (_scaled(stack, present, reference, scale, some) for some in stack.columns(_AT_ONCE))
    total: Tensor = reduce(torch.add, map(_norm, parts))
    return total * _unscale(scale).square(), present


def _norm(block: Float[Tensor, "*batch n columns"]) -> Float[Tensor, "*batch n"]:
    norm: Tensor = torch.linalg.vector_norm(block, dim=-1)
    return norm.double().square_()


def first(present: Present) -> Int[Tensor, "*batch"]:
    """The first who is present; slot 0 where nobody is."""
    if present.who is None:
        return torch.tensor(0)
    return present.who.to(torch.uint8).argmax(-1)


def row(stack: Stack[Any], index: Int[Tensor, "*batch"], present: Present) -> Float[Tensor, "*batch d"]:
    """One vector of each neighbourhood, in the type that is computed in, made finite where it is not."""
    if present.who is None:
        return stack.vectors[int(index)].to(stack.work, copy=True)
    taken = torch.take_along_dim(stack.vectors, index[..., None, None], dim=-2)[..., 0, :]
    return taken.to(stack.work).nan_to_num()


def _quick_products(stack: Stack[Any]) -> Float[Tensor, "n n"]:
    """About vector 0, whoever it is; of no use where _precise says so."""
    blocks = (stack.vectors[:, some].to(stack.work) for some in stack.columns(_AT_ONCE))
    return reduce(torch.add, (_product_with_itself(block - block[0]).double() for block in blocks))


def _product_with_itself(block: Float[Tensor, "n columns"]) -> Float[Tensor, "n n"]:
    if len(block) <= _ROWS_AT_ONCE:
        return block @ block.T
    products = block.new_zeros(len(block), len(block))
    for start in range(0, len(block), _ROWS_AT_ONCE):
        products[start : start + _ROWS_AT_ONCE, start:] = block[start : start + _ROWS_AT_ONCE] @ block[start:].T
    return products.triu_().add_(products.triu(1).T)


def _precise(squared: Float[Tensor, "n n"], dtype: torch.dtype) -> bool:
    """Whether all is finite, in range, and vector 0 no farther from the majority than that from itself, within 10×.

    The rounding of a product is relative to distances from the reference, so those must not dwarf the others.
    """
    from_majority: list[float] = squared.kthvalue(len(squared) // 2 + 1, dim=1).values.tolist()
    low, high = _range(dtype)
    # A nan is neither above nor below anything.
    return low < from_majority[0] <= 100 * min(from_majority) and float(squared[0].max()) < high


def _range(dtype: torch.dtype) -> tuple[float, float]:
    """Sums of squares within these neither overflowed nor vanished."""
    return (1e-25, 1e30) if dtype == torch.float32 else (1e-250, 1e280)


def _sure_products(
    stack: Stack[Any], present: Present, reference: Float[Tensor, "*batch d"] | None, dtype: torch.dtype
) -> Float[Tensor, "*batch n n"]:
    scale = _scale(stack, present, reference, dtype)
    blocks = (_scaled(stack, present, reference, scale, some) for some in stack.columns(_AT_ONCE))
    inner = reduce(torch.add, ((block @ block.mT).double() for block in blocks))
    unscale = _unscale(scale)
    return inner * unscale[..., None] * unscale[..., None, :]


def _scale(
    stack: Stack[Any], present: Present, reference: Float[Tensor, "*batch d"] | None, dtype: torch.dtype
) -> Float[Tensor, "*batch n"]:
    """A power of two for each row that brings the larger of it and the reference near one."""
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
    return scale.double().reciprocal().clamp(max=_FARTHEST)


def _scaled(
    stack: Stack[Any],
    present: Present,
    reference: Float[Tensor, "*batch d"] | None,
    scale: Float[Tensor, "*batch n"],
    columns: slice,
) -> Float[Tensor, "*batch n columns"]:
    """scale_i (x_i − r), both scaled before they are subtracted; zeros where absent."""
    block = stack.vectors[..., columns].to(scale.dtype)
    origin = None if reference is None else reference[..., None, columns].to(scale.dtype)
    if present.who is not None:
        block = torch.where(present.who[..., None], block, 0 if origin is None else origin)
    block = block * scale[..., None]
    return block if origin is None else block.addcmul_(origin, scale[..., None], value=-1)


def _squared(inner: Float[Tensor, "*batch n n"]) -> Float[Tensor, "*batch n n"]:
    norm = inner.diagonal(dim1=-2, dim2=-1)
    # Zero on the diagonal, exactly.
    return (norm[..., :, None] + norm[..., None, :]).sub_(inner, alpha=2).clamp_(min=0)
