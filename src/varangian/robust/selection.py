"""Functions that choose some vectors by their distances and average them.

The result is a convex combination. The weights follow from one matrix product, without another pass over the vectors.
"""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.errors import BadInput
from varangian.core.tracing import has_values
from varangian.robust.gram import first, products, row, squared_to
from varangian.robust.stack import MINORITY, Array, Bound, Mask, Number, Present, Stack, admit, look, ranked
from varangian.robust.weights import combine, lowest, mix

_KRUM = Bound(2, 2)
_MIXING = Bound(1, 0)
_SUBSETS = 200_000
"""How many subsets `minimum_diameter_average` may look at."""
_AT_ONCE = 2**20
"""How many numbers to compute together."""


def krum_weights(vectors: Array, f: Number, *, mask: Mask = None) -> Array:
    """1 for the vector that `krum` chooses, 0 for the others."""
    stack = admit(vectors, mask)
    scores, present, _ = _krum(stack, "krum", f)
    return stack.back(lowest(scores, 1, present, stack.work))


def krum(vectors: Array, f: Number, *, mask: Mask = None) -> Array:
    """The vector with the lowest score: the sum of squared distances to its n − f − 2 nearest others.

    Needs 2f + 2 < n (Blanchard et al. 2017). ByzFL and ByzPy sum over the n − f − 1 nearest others, one more than the
    paper. If scores tie, the lower number wins. Cost: one matrix product, n² d.

    >>> krum(torch.tensor([[0.0], [1.0], [2.0], [4.0], [5.0]]), f=1)
    tensor([1.])
    """
    stack = admit(vectors, mask)
    scores, present, _ = _krum(stack, "krum", f)
    return stack.vector(row(stack, scores.argmin(-1), present), present)


def multi_krum_weights(vectors: Array, f: Number, m: int | None = None, *, mask: Mask = None) -> Array:
    """1/m for each vector that `multi_krum` chooses, 0 for the others."""
    stack = admit(vectors, mask)
    return stack.back(_multi_krum(stack, f, m)[0].to(stack.work))


def multi_krum(vectors: Array, f: Number, m: int | None = None, *, mask: Mask = None) -> Array:
    """The mean of the m vectors with the lowest scores of `krum`. By default m is n − f.

    Needs 2f + 2 < n (Blanchard et al. 2017). With a mask, m is at most the number present. Cost: n² d.

    >>> multi_krum(torch.tensor([[0.0], [1.0], [2.0], [4.0], [99.0]]), f=1, m=3)
    tensor([1.])
    """
    stack = admit(vectors, mask)
    weights, present = _multi_krum(stack, f, m)
    return stack.vector(combine(stack, weights, present), present)


def _multi_krum(stack: Stack[Any], f: Number, m: int | None) -> tuple[Float[Tensor, "*batch n"], Present]:
    """The weights of `multi_krum`, and which vectors are present."""
    if m is not None and not 1 <= m <= stack.n:
        raise BadInput(f"multi_krum averages m of n vectors, 1 ≤ m ≤ n, but n is {stack.n} and m is {m}")
    scores, present, few = _krum(stack, "multi_krum", f)
    taken = present.number - few if m is None else _most(present.number, m)
    return lowest(scores, taken, present, stack.work), present


def _krum(stack: Stack[Any], rule: str, f: Number) -> tuple[Float[Tensor, "*batch n"], Present, Number]:
    """The scores, infinite where absent, which vectors are present, and the f that was used."""
    _KRUM.check(rule, f, stack)
    _, squared, present = products(stack)
    squared = torch.maximum(squared, squared.mT)  # rounding must not decide between two that are nearest to each other
    few = _KRUM.bear(f, present)
    if present.who is not None:
        squared = squared.masked_fill(~present.who[..., None, :], math.inf)
    # A vector is its own nearest at distance zero, so n − f − 1 with itself are n − f − 2 others.
    scores = _sum_of_lowest(squared, present.number - few - 1)
    return scores if present.who is None else scores.masked_fill(~present.who, math.inf), present, few


def _sum_of_lowest(squared: Float[Tensor, "*batch n n"], how_many: Number) -> Float[Tensor, "*batch n"]:
    """The sum of so many of the smallest numbers of each row. NumPy's calls on few numbers are faster than torch's."""
    if isinstance(how_many, Tensor):
        rank = torch.arange(squared.shape[-1], device=squared.device)
        return torch.where(rank < how_many[..., None, None], ranked(squared), 0).sum(-1)
    how_many = max(0, how_many)
    if has_values(squared):
        return torch.from_numpy(np.sort(squared.numpy(), axis=-1)[..., :how_many].sum(-1))
    return ranked(squared)[..., :how_many].sum(-1)


def _most(count: Number, m: int) -> Number:
    """The smaller of two numbers."""
    return count.clamp(max=m) if isinstance(count, Tensor) else min(count, m)


def monna_weights(vectors: Array, f: Number, own: int = 0, *, mask: Mask = None) -> Array:
    """1/(n − f) for each vector that `monna` chooses, 0 for the others."""
    stack = admit(vectors, mask)
    return stack.back(_monna(stack, f, own)[0].to(stack.work))


def monna(vectors: Array, f: Number, own: int = 0, *, mask: Mask = None) -> Array:
    """The mean of the n − f vectors nearest to vector number `own`, which is one of them (Farhadkhani et al. 2023).

    Needs 2f < n. If one's own vector is absent, the first present one takes its place. Cost: two passes, 2 n d.

    >>> monna(torch.tensor([[0.0], [1.0], [2.0], [90.0]]), f=1)
    tensor([1.])
    """
    stack = admit(vectors, mask)
    weights, present = _monna(stack, f, own)
    return stack.vector(combine(stack, weights, present), present)


def _monna(stack: Stack[Any], f: Number, own: int) -> tuple[Float[Tensor, "*batch n"], Present]:
    """The weights of `monna`, and which vectors are present."""
    MINORITY.check("monna", f, stack)
    squared, present, _ = squared_from(stack, own)
    return lowest(squared, present.number - MINORITY.bear(f, present), present, stack.work), present


def squared_from(stack: Stack[Any], own: int) -> tuple[Float[Tensor, "*batch n"], Present, Int[Tensor, "*batch"] | int]:
    """|x_i − x_own|², which vectors are present, and the number of x_own: the first present one if that vector is
    absent."""
    if not 0 <= own < stack.n:
        raise BadInput(f"own must be the number of a vector, from 0 to {stack.n - 1}, but is {own}")
    if stack.may_look:
        squared, present = squared_to(stack, stack.vectors[own])
        if present.who is None:
            return squared, present, own
    present = look(stack)
    if present.who is None:
        return *squared_to(stack, stack.vectors[own].to(stack.work), present), own
    mine = torch.where(present.who[..., own], own, first(present))
    return *squared_to(stack, row(stack, mine, present), present), mine


def nearest_neighbour_mixing_weights(vectors: Array, f: Number, *, mask: Mask = None) -> Array:
    """(…, n, n): row i holds the weights of the mean that `nearest_neighbour_mixing` puts in place of vector i."""
    stack = admit(vectors, mask)
    return stack.back(_mixing(stack, f)[0].to(stack.work))


def nearest_neighbour_mixing(vectors: Array, f: Number, *, mask: Mask = None) -> Array:
    """Each vector replaced by the mean of the n − f nearest to it, itself included (Allouah et al. 2023). The result is
    (…, n, d).

    Needs f < n. A function such as `trimmed_mean` should follow. An absent vector gets the same replacement as the
    first present one. Cost: two matrix products, 2 n² d.

    >>> nearest_neighbour_mixing(torch.tensor([[0.0], [1.0], [5.0], [90.0]]), f=2)
    tensor([[ 0.5000],
            [ 0.5000],
            [ 3.0000],
            [47.5000]])
    """
    stack = admit(vectors, mask)
    weights, present = _mixing(stack, f)
    mixed = mix(stack, weights, present).to(stack.vectors.dtype)
    if present.who is not None:
        nobody = torch.as_tensor(present.number == 0, device=mixed.device)[..., None, None]
        mixed = torch.where(nobody, stack.vectors[..., :1, :].nan_to_num(), mixed)
    return stack.back(mixed)


def _mixing(stack: Stack[Any], f: Number) -> tuple[Float[Tensor, "*batch n n"], Present]:
    """The weights of `nearest_neighbour_mixing`, and which vectors are present."""
    _MIXING.check("nearest_neighbour_mixing", f, stack)
    _, squared, present = products(stack)
    kept = present.number - _MIXING.bear(f, present)
    # A vector is nearest to itself, even if there are copies of it.
    squared.diagonal(dim1=-2, dim2=-1).fill_(-1)
    if present.who is None:
        return lowest(squared, kept, present, stack.work), present
    columns = Present(present.who[..., None, :], kept, 0)
    weights = lowest(squared, kept[..., None] if isinstance(kept, Tensor) else kept, columns, stack.work)
    of_first = torch.take_along_dim(weights, first(present)[..., None, None], dim=-2)
    return torch.where(present.who[..., None], weights, of_first), present


def minimum_diameter_average_weights(vectors: Array, f: Number, *, mask: Mask = None) -> Array:
    """1/(n − f) for each vector that `minimum_diameter_average` chooses, 0 for the others."""
    stack = admit(vectors, mask)
    return stack.back(_smallest(stack, f)[0].to(stack.work))


def minimum_diameter_average(vectors: Array, f: Number, *, mask: Mask = None) -> Array:
    """The mean of the n − f vectors with the smallest diameter (El Mhamdi et al. 2018, "MDA").

    The diameter is the largest distance between two of them. Needs 2f < n. The result is exact: every subset is looked
    at. So it is for small n and f only, with at most 200 000 subsets. If diameters tie, the subset of lower numbers
    wins. Cost: n² d, and n² per subset.

    >>> minimum_diameter_average(torch.tensor([[0.0], [1.0], [2.0], [4.0], [90.0]]), f=2)
    tensor([1.])
    """
    stack = admit(vectors, mask)
    weights, present = _smallest(stack, f)
    return stack.vector(combine(stack, weights, present), present)


def _smallest(stack: Stack[Any], f: Number) -> tuple[Float[Tensor, "*batch n"], Present]:
    """The weights of `minimum_diameter_average`, and which vectors are present."""
    MINORITY.check("minimum_diameter_average", f, stack)
    most = min(f, (stack.n - 1) // 2) if isinstance(f, int) else (stack.n - 1) // 2
    number = sum(math.comb(stack.n, k) for k in range(most if stack.may_look else 0, most + 1))
    if number > _SUBSETS:
        what = f"{number} subsets of {stack.n} vectors"
        raise BadInput(
            f"minimum_diameter_average would look at {what}, but at most {_SUBSETS} are allowed; lower f or n"
        )
    _, squared, present = products(stack)
    few = MINORITY.bear(f, present)
    left_out = _subsets(stack.n, *((few, few) if isinstance(few, int) else (0, most))).to(squared.device)
    who = torch.ones_like(squared[..., 0], dtype=torch.bool) if present.who is None else present.who
    few = torch.as_tensor(few, device=squared.device)
    at_once = max(1, _AT_ONCE // squared.numel())
    diameter = torch.cat([_diameter(squared, who, few, some) for some in left_out.split(at_once)], dim=-1)
    best = diameter.argmin(-1)
    kept = who & ~left_out.index_select(0, best.flatten()).view_as(who)
    kept[..., 0] |= ~kept.any(-1)
    return kept / kept.sum(-1, keepdim=True).double(), present


def _diameter(
    squared: Float[Tensor, "*batch n n"], who: Bool[Tensor, "*batch n"], few: Tensor, left_out: Bool[Tensor, "subset n"]
) -> Float[Tensor, "*batch subset"]:
    """The squared diameter without those left out. Infinite unless exactly `few` of the present vectors are left
    out."""
    who = who[..., None, :]
    kept = who & ~left_out
    pairs = kept[..., None] & kept[..., None, :]
    diameter = torch.where(pairs, squared[..., None, :, :], 0).amax((-2, -1))
    fits = (left_out.sum(-1) == few[..., None]) & ~(left_out & ~who).any(-1)
    return diameter.masked_fill_(~fits, math.inf)


@lru_cache(maxsize=16)
def _subsets(n: int, fewest: int, most: int) -> Bool[Tensor, "subset n"]:
    """Every way to leave out from `fewest` to `most` of n vectors, high numbers first."""
    sets = [chosen for k in range(fewest, most + 1) for chosen in reversed(list(combinations(range(n), k)))]
    table = torch.zeros(len(sets), n, dtype=torch.bool)
    rows = torch.tensor([r for r, chosen in enumerate(sets) for _ in chosen], dtype=torch.long)
    columns = torch.tensor([i for chosen in sets for i in chosen], dtype=torch.long)
    table[rows, columns] = True
    return table
