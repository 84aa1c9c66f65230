"""How matrices are stored, and how to work in pieces of bounded size.

Where agents have few parameters, their matrix is stored column by column. Operations then run along many agents, not
along two or three parameters. Torch keeps this order in elementwise operations. Only code that joins or replaces rows
must take care of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from varangian.core.tracing import has_values

FEW = 8
"""A matrix with at most this many columns is stored column by column."""
PIECE = 2**24
"""How many numbers a piece of work holds, about, by default."""


def by_column(matrix: Float[Tensor, "row column"]) -> Float[Tensor, "row column"]:
    """The same matrix, stored column by column.

    >>> by_column(torch.zeros(5, 2)).stride()
    (1, 5)
    """
    return matrix.T.contiguous().T


def is_by_column(values: Tensor, rows: int = 0) -> bool:
    """Whether the tensor is stored column by column, where `rows` is the dimension of the rows."""
    return values.ndim > rows + 1 and values.stride(rows) == 1 and values.shape[rows] > 1


def joined(parts: Sequence[Tensor], rows: int = 0) -> Tensor:
    """The rows of all parts in one tensor, in the memory order of the first part; `rows` is their dimension."""
    if len(parts) == 1:
        return parts[0]
    if is_by_column(parts[0], rows):
        return torch.cat([part.movedim(rows, -1) for part in parts], dim=-1).movedim(-1, rows)
    return torch.cat(list(parts), dim=rows)


def lengths(vectors: Float[Tensor, "*several column"], p: float = 2.0) -> Float[Tensor, "*several"]:
    """‖x‖_p of vectors along the last dimension.

    Few columns are squared one after another. Where they are apart in memory, torch's function takes fifty times as
    long, because it looks at one vector at a time.

    >>> lengths(torch.tensor([[3.0, 4.0], [0.0, 2.0]]))
    tensor([5., 2.])
    """
    if p != 2 or vectors.shape[-1] > FEW:
        norm: Tensor = torch.linalg.vector_norm(vectors, p, dim=-1)
        return norm
    first, *others = vectors.unbind(-1)
    squared = first * first
    for column in others:
        squared.addcmul_(column, column)
    return squared.sqrt_()


def replaced(
    matrix: Float[Tensor, "row column"], rows: Int[Tensor, " some"], new: Float[Tensor, "some column"]
) -> Float[Tensor, "row column"]:
    """The matrix with some of its rows replaced, in the same memory order."""
    return matrix.clone().index_copy_(0, rows, new)


def rows_where(
    take: Bool[Tensor, "row 1"], new: Float[Tensor, "row column"], old: Float[Tensor, "row column"]
) -> Float[Tensor, "row column"]:
    """The rows of `new` where `take` is true, and those of `old` elsewhere; `new` itself if all are taken.

    `torch.where` reads and writes every number of both. Where rows are long, it is faster to copy those of `old`.

    >>> rows_where(torch.tensor([[True], [False]]), torch.ones(2, 9), torch.zeros(2, 9)).sum(1)
    tensor([9., 0.])
    """
    if new.shape[1] <= FEW or not has_values(take):
        return torch.where(take, new, old)
    if take.all():
        return new
    left = torch.nonzero(~take[:, 0])[:, 0]
    return new.index_copy(0, left, old.index_select(0, left))


def pieces(rows: int, numbers: int, most: int | None = None) -> Iterator[slice]:
    """Slices of rows. A piece holds at most about `most` numbers, where one row takes `numbers`.

    >>> list(pieces(5, numbers=10, most=20))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    some = max(1, (PIECE if most is None else most) // max(1, numbers))
    return (slice(first, first + some) for first in range(0, rows, some))


def in_pieces(
    function: Callable[..., Tensor], *parts: Tensor, numbers: int, dim: int = 0, most: int | None = None
) -> Tensor:
    """`function(*parts)`, computed for some rows at a time and joined along `dim`.

    Args:
        function: Its result has one entry along `dim` for every row.
        parts: Tensors with the same number of rows.
        numbers: About how many numbers the function holds for one row.
        dim: The dimension of the rows in the result.
        most: The most numbers that one piece may hold. By default `PIECE`.

    >>> in_pieces(lambda a, b: a + b, torch.arange(3), torch.ones(3), numbers=1, most=2)
    tensor([1., 2., 3.])
    """
    done = [function(*(part[some] for part in parts)) for some in pieces(len(parts[0]), numbers, most)]
    return done[0] if len(done) == 1 else torch.cat(done, dim)
