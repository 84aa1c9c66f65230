"""Functions that treat every coordinate by itself: mean, median, trimmed mean, mean around the median."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from varangian.robust.network import Rows, sort_columns
from varangian.robust.stack import MINORITY, Array, Mask, Number, Present, Stack, admit, look
from varangian.robust.weights import average, combine, uniform


def mean(vectors: Array, *, mask: Mask = None) -> Array:
    """The mean of the present vectors. It is no defence; the other functions are compared with it.

    Cost: one pass, n d.

    >>> mean(torch.tensor([[1.0], [2.0], [6.0]]))
    tensor([3.])
    """
    stack = admit(vectors, mask)
    quick = average(stack)
    if quick is not None:
        return stack.back(quick)
    present = look(stack)
    return stack.vector(combine(stack, uniform(stack, present), present), present)


def median(vectors: Array, *, mask: Mask = None) -> Array:
    """The coordinate-wise median; for an even number of vectors, the mean of the two middle values.

    It stays within the range of the honest vectors while they are the majority. Cost: n (log n)² d / 4 comparisons,
    less those that the middle does not need.

    >>> median(torch.tensor([[1.0], [2.0], [3.0], [10.0]]))
    tensor([2.5000])
    """
    stack = admit(vectors, mask)
    present = look(stack)
    plain = _static(stack, present)
    if plain is not None:
        n = plain.shape[-2]
        ranks = ((n - 1) // 2,) if n % 2 else (n // 2 - 1, n // 2)
        result = _of_ranks(plain, ranks, lambda rows: _sum(rows, 1 / len(ranks)), stack.work)
    else:
        result = _median_of_some(stack, present)
    return stack.vector(result, present)


def trimmed_mean(vectors: Array, f: Number, *, mask: Mask = None) -> Array:
    """The mean of each coordinate without its f largest and its f smallest values.

    Needs 2f < n (Yin et al. 2018). Cost: n (log n)² d / 4 comparisons.

    >>> trimmed_mean(torch.tensor([[1.0], [2.0], [6.0], [99.0], [-5.0]]), f=1)
    tensor([3.])
    """
    stack = admit(vectors, mask)
    MINORITY.check("trimmed_mean", f, stack)
    present = look(stack)
    few = MINORITY.bear(f, present)
    plain = _static(stack, present)
    if isinstance(few, int) and few == 0:
        result = combine(stack, uniform(stack, present), present)
    elif plain is not None and isinstance(few, int):
        n = plain.shape[-2]
        result = _of_ranks(plain, tuple(range(few, n - few)), lambda rows: _sum(rows, 1 / (n - 2 * few)), stack.work)
    else:
        result = _sorted(stack, present, few, _trimmed)
    return stack.vector(result, present)


def mean_around_median(vectors: Array, f: Number, *, mask: Mask = None) -> Array:
    """In each coordinate, the mean of the n − f values nearest to the median (Xie et al. 2018, "Meamed").

    Needs 2f < n. In sorted order these values are next to each other, so one sort is enough. Of two values at the same
    distance from the median, the smaller is kept. Cost: n (log n)² d / 4 comparisons.

    >>> mean_around_median(torch.tensor([[1.0], [2.0], [3.0], [4.0], [99.0]]), f=1)
    tensor([2.5000])
    """
    stack = admit(vectors, mask)
    MINORITY.check("mean_around_median", f, stack)
    present = look(stack)
    few = MINORITY.bear(f, present)
    plain = _static(stack, present)
    if plain is not None and isinstance(few, int):
        n, f_static = plain.shape[-2], few
        result = _of_ranks(plain, tuple(range(n)), lambda rows: _around(rows, f_static), stack.work)
    else:
        result = _sorted(stack, present, few, _around_of_some)
    return stack.vector(result, present)


def _static(stack: Stack[Any], present: Present) -> Float[Tensor, "n d"] | None:
    """The present vectors, if their number is known beforehand: those of a plain stack that are finite."""
    if not stack.may_look or present.number == 0:
        return None
    return stack.vectors if present.who is None else stack.vectors[present.who]


def _of_ranks(
    vectors: Float[Tensor, "n d"],
    ranks: tuple[int, ...],
    reduce: Callable[[Rows], Float[Tensor, "neighbourhood column"]],
    work: torch.dtype,
) -> Float[Tensor, " d"]:
    """The result of `reduce` on the rows of these ranks.

    Many short columns are sorted with NumPy, which compares many numbers at once, unlike torch. For them the calls of a
    sorting network would take longer than the sort.
    """
    n, d = vectors.shape
    if n < 8 or d > 2**12:
        return sort_columns(vectors[None], ranks, lambda rows, _: reduce(rows), work)[0]
    columns = vectors.T.to(work).contiguous()
    rows = torch.from_numpy(np.sort(columns.numpy(), axis=1).T.copy())
    largest = torch.finfo(work).max
    return reduce([rows[rank] for rank in ranks]).clamp_(-largest, largest)


def _sum(rows: Rows, weight: float) -> Float[Tensor, "neighbourhood column"]:
    """The weighted sum. Rows are weighted before they are added, because the sum of large numbers may overflow where
    their mean does not."""
    total = rows[0] * weight
    for row in rows[1:]:
        total.add_(row, alpha=weight)
    return total


def _around(rows: Rows, f: int) -> Float[Tensor, "neighbourhood column"]:
    """The n − 2f values in the middle, and from each pair of a low and a high value the one nearer to the median."""
    n, kept = len(rows), len(rows) - f
    middle = rows[(n - 1) // 2] * 0.5 + rows[n // 2] * 0.5
    total = _sum(rows[f:kept], 1 / kept)
    for below, above in zip(rows[:f], rows[kept:], strict=True):
        nearer = middle - below <= above - middle
        total.add_(torch.where(nearer, below, above), alpha=1 / kept)
    return total


Table = Float[Tensor, "rank neighbourhood column"]
Numbers = Int[Tensor, " neighbourhood"]


def _sorted(
    stack: Stack[Any], present: Present, f: Number, reduce: Callable[[Table, Numbers, Numbers], Tensor]
) -> Float[Tensor, "*batch d"]:
    """Sort with absent vectors last, then reduce with the number of present ones."""
    vectors, who, count = _flat(stack, present)
    few = torch.as_tensor(f, device=count.device).expand(stack.vectors.shape[:-2]).reshape(-1)
    result = sort_columns(
        vectors,
        tuple(range(stack.n)),
        lambda rows, some: reduce(torch.stack(list(rows)), count[some], few[some]),
        stack.work,
        high=~who,
    )
    return result.view(*stack.vectors.shape[:-2], stack.d)


def _flat(stack: Stack[Any], present: Present) -> tuple[Tensor, Tensor, Tensor]:
    """The vectors, which are present and how many, with a single dimension of neighbourhoods."""
    who = present.who
    if who is None:
        who = torch.ones(stack.vectors.shape[:-1], dtype=torch.bool, device=stack.vectors.device)
    return stack.vectors.reshape(-1, stack.n, stack.d), who.reshape(-1, stack.n), who.sum(-1).reshape(-1)


def _trimmed(rows: Table, count: Numbers, f: Numbers) -> Float[Tensor, "neighbourhood column"]:
    """The mean of the ranks from f to count − f − 1."""
    rank = torch.arange(len(rows), device=rows.device)[:, None]
    kept = (rank >= f) & (rank < count - f)
    weight = (count - 2 * f).clamp(min=1).to(rows.dtype).reciprocal()
    return (rows.masked_fill_(~kept[..., None], 0) * weight[:, None]).sum(0)


def _around_of_some(rows: Table, count: Numbers, f: Numbers) -> Float[Tensor, "neighbourhood column"]:
    """As `_around`, with numbers that differ between neighbourhoods."""
    kept = (count - f).clamp(min=1)
    rank = torch.arange(len(rows), device=rows.device)[:, None]
    middle = _rank(rows, (count - 1).clamp(min=0) // 2) * 0.5 + _rank(rows, count // 2) * 0.5
    above = rows.gather(0, (rank + kept).clamp(max=len(rows) - 1)[..., None].expand_as(rows))
    swap = (middle - rows > above - middle) & (rank < f)[..., None]
    chosen = torch.where(swap, above, rows).masked_fill_((rank >= kept)[..., None], 0)
    return (chosen * kept.to(rows.dtype).reciprocal()[:, None]).sum(0)


def _rank(rows: Table, rank: Numbers) -> Float[Tensor, "neighbourhood column"]:
    """The row of this rank in each neighbourhood."""
    rank = rank.clamp(max=len(rows) - 1)
    return rows.gather(0, rank[None, :, None].expand_as(rows[:1]))[0]


def _median_of_some(stack: Stack[Any], present: Present) -> Float[Tensor, "*batch d"]:
    """The median of the present vectors. Absent entries go to both ends in turn, so the middle stays in place and the
    rest need not be sorted."""
    n = stack.n
    vectors, who, count = _flat(stack, present)
    turn = (~who).cumsum(-1) % 2 == 0
    ranks = (0,) if n == 1 else ((n - 1) // 2 - n % 2, n // 2)

    def reduce(rows: Rows, some: slice) -> Float[Tensor, "neighbourhood column"]:
        first, second = rows[0], rows[-1]
        even = (count[some] % 2 == 0)[:, None]
        if n % 2:
            first = torch.where(even, first, second)
        else:
            second = torch.where(even, second, first)
        return first * 0.5 + second * 0.5

    result = sort_columns(vectors, ranks, reduce, stack.work, low=~who & turn, high=~who & ~turn)
    return result.view(*stack.vectors.shape[:-2], stack.d)
