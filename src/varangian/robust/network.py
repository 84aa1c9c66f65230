"""Sort along the short side of a stack, with a network of minima and maxima over blocks of columns.

Sorting n values in each of many columns, one column at a time, is slow. A sorting network makes the same comparisons in
every column. So each comparison is one vectorised minimum and one maximum of whole rows.

This is Batcher's odd-even merge exchange (Knuth, The Art of Computer Programming 3, 5.2.2, Algorithm M), pruned to the
ranks that are needed. Comparisons of one step at regular distances are done in one call. n values take about
n (log₂ n)² / 4 comparisons. For few numbers, call overhead dominates, and an ordinary sort is used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Rows = Sequence[Float[Tensor, "neighbourhood column"]]
"""The rows of the ranks asked for, in that order."""

_WIDTH = 2**14
"""How many columns to sort together: few enough for a cache, many enough to hide call overhead."""
_WIDTH_OF_ACCELERATORS = 2**22
"""The same on an accelerator."""
_NARROW = 2**12
"""Up to so many columns are one block."""
_FEW = 2**13
"""Up to so many numbers are sorted in the ordinary way."""


class _Rows(NamedTuple):
    """`runs` runs of `length` rows each, every `step` rows, in one of two buffers."""

    buffer: int
    start: int
    runs: int
    step: int
    length: int

    def of(self, buffers: Float[Tensor, "two n column"]) -> Float[Tensor, "runs length column"]:
        """These rows as a view of the buffers."""
        _, n, width = buffers.shape
        shape, strides = (self.runs, self.length, width), (self.step * width, width, 1)
        return buffers.as_strided(shape, strides, (self.buffer * n + self.start) * width)


class _Step(NamedTuple):
    """One minimum or maximum of rows."""

    smaller: bool
    left: _Rows
    right: _Rows
    out: _Rows


class Network(NamedTuple):
    """The steps that sort, and where the results are."""

    steps: tuple[_Step, ...]
    homes: tuple[int, ...]
    """The buffer in which each rank asked for ends up."""


def sort_columns(
    vectors: Float[Tensor, "neighbourhood n d"],
    ranks: tuple[int, ...],
    reduce: Callable[[Rows, slice], Float[Tensor, "neighbourhood column"]],
    work: torch.dtype,
    low: Bool[Tensor, "neighbourhood n"] | None = None,
    high: Bool[Tensor, "neighbourhood n"] | None = None,
) -> Float[Tensor, "neighbourhood d"]:
    """Sort each column and reduce the rows of the ranks asked for, some neighbourhoods and columns at a time.

    Args:
        vectors: The numbers to sort along their second dimension.
        ranks: Which ranks `reduce` needs.
        reduce: Makes one row of the rows of these ranks, for a slice of neighbourhoods.
        work: The type to compute in.
        low: Entries that count as −∞.
        high: Entries that count as +∞.
    """
    neighbourhoods, n, d = vectors.shape
    if vectors.numel() <= _FEW:
        entry = _fill(torch.empty(n, neighbourhoods, d, dtype=work, device=vectors.device), vectors, low, high)
        return _finite(reduce(list(entry.sort(0).values[list(ranks)]), slice(None)))
    out = torch.empty(neighbourhoods, d, dtype=work, device=vectors.device)
    several, width = _shape_of_blocks(vectors)
    buffers = torch.empty(2, n, several * width, dtype=work, device=vectors.device)
    calls, homes = _calls(buffers, ranks)
    rows = [home.view(several, width) for home in homes]
    entry = buffers[0].view(n, several, width)
    for some in _pieces(neighbourhoods, several):
        for columns in _pieces(d, width):
            _fill(
                entry,
                vectors[some, :, columns],
                low if low is None else low[some],
                high if high is None else high[some],
            )
            _run(calls)
            out[some, columns] = reduce(rows, some)
    return _finite(out)


def sort_rows(
    shape: tuple[int, ...], fill: Callable[[Tensor], object], ranks: tuple[int, ...], like: Tensor
) -> list[Tensor]:
    """Sort along the first dimension of a table whose entries differ from column to column.

    It takes twice the memory of the table. Callers keep tables small enough for a cache.

    Args:
        shape: The shape of the table.
        fill: Writes the table into the tensor that it is given.
        ranks: Which rows of the sorted table to return.
        like: A tensor of the same type and device.

    >>> sort_rows((3, 2), lambda table: table.copy_(torch.tensor([[3, 1], [2, 5], [1, 0]])), (0, 2), torch.zeros(()))
    [tensor([1., 0.]), tensor([3., 5.])]
    """
    buffers = like.new_empty(2, shape[0], math.prod(shape[1:]))
    fill(buffers[0].view(shape))
    if buffers[0].numel() <= _FEW:
        return list(buffers[0].view(shape).sort(0).values[list(ranks)])
    calls, rows = _calls(buffers, ranks)
    _run(calls)
    return [row.view(shape[1:]) for row in rows]


_Call = tuple[Callable[..., Tensor], Tensor, Tensor, Tensor]


def _calls(buffers: Float[Tensor, "two n column"], ranks: tuple[int, ...]) -> tuple[list[_Call], list[Tensor]]:
    """The calls that sort the first buffer, and the rows that then hold these ranks."""
    network = sorting_network(buffers.shape[1], ranks)
    calls = [
        (torch.minimum if smaller else torch.maximum, left.of(buffers), right.of(buffers), into.of(buffers))
        for smaller, left, right, into in network.steps
    ]
    return calls, [buffers[home, rank] for home, rank in zip(network.homes, ranks, strict=True)]


def _run(calls: list[_Call]) -> None:
    for extreme, left, right, into in calls:
        extreme(left, right, out=into)


def _fill(
    entry: Float[Tensor, "n neighbourhood column"],
    vectors: Float[Tensor, "neighbourhood n column"],
    low: Bool[Tensor, "neighbourhood n"] | None,
    high: Bool[Tensor, "neighbourhood n"] | None,
) -> Float[Tensor, "n neighbourhood column"]:
    """Copy the vectors into the buffer, with −∞ and +∞ where asked for."""
    entry.copy_(vectors.transpose(0, 1))
    if low is not None:
        entry.masked_fill_(low.T[..., None], -torch.inf)
    if high is not None:
        entry.masked_fill_(high.T[..., None], torch.inf)
    return entry


def _finite(out: Float[Tensor, "neighbourhood d"]) -> Float[Tensor, "neighbourhood d"]:
    """Rounding may exceed the largest number."""
    largest = torch.finfo(out.dtype).max
    return out.clamp_(-largest, largest)


def _shape_of_blocks(vectors: Float[Tensor, "neighbourhood n d"]) -> tuple[int, int]:
    """How many neighbourhoods, and how many columns of each, to sort together. Two buffers take no more than the
    vectors."""
    neighbourhoods, _, d = vectors.shape
    total = neighbourhoods * d
    most = _WIDTH if vectors.device.type == "cpu" else _WIDTH_OF_ACCELERATORS
    wide = total if total <= _NARROW else min(most, -(-total // 2))
    return (1, min(d, wide)) if d >= wide else (min(neighbourhoods, wide // d), d)


def _pieces(total: int, size: int) -> Iterator[slice]:
    """Pieces of equal size. The last one overlaps the one before instead of being smaller."""
    for start in range(0, total, size):
        start = min(start, total - size)
        yield slice(start, start + size)


@lru_cache(maxsize=256)
def sorting_network(n: int, ranks: tuple[int, ...]) -> Network:
    """The steps of a network. A minimum goes to the other buffer of its row and the maximum replaces its own row, so
    nothing is copied."""
    home = [0] * n
    steps: list[_Step] = []
    for comparisons in _pruned(_merge_exchange(n), ranks):
        alike: dict[tuple[int, bool, bool, int, int], list[int]] = {}
        for i, j, smaller, larger in comparisons:
            alike.setdefault((j - i, smaller, larger, home[i], home[j]), []).append(i)
        for (apart, smaller, larger, of_i, of_j), starts in alike.items():
            for start, runs, step, length in _regular(starts):
                left = _Rows(of_i, start, runs, step, length)
                right = _Rows(of_j, start + apart, runs, step, length)
                if smaller and larger:
                    other = left._replace(buffer=1 - of_i)
                    steps += [_Step(True, left, right, other), _Step(False, left, right, right)]
                else:
                    steps.append(_Step(smaller, left, right, left if smaller else right))
            if smaller and larger:
                for i in starts:
                    home[i] = 1 - of_i
    return Network(tuple(steps), tuple(home[rank] for rank in ranks))


def _merge_exchange(n: int) -> list[list[tuple[int, int]]]:
    """Knuth's Algorithm M: steps of comparisons (i, j). After each, row i holds the smaller value."""
    steps: list[list[tuple[int, int]]] = []
    top = 1 << max(0, (n - 1).bit_length() - 1)
    p = top if n > 1 else 0
    while p:
        q, r, apart = top, 0, p
        while True:
            steps.append([(i, i + apart) for i in range(n - apart) if i & p == r])
            if q == p:
                break
            apart, q, r = q - p, q // 2, p
        p //= 2
    return steps


def _pruned(steps: list[list[tuple[int, int]]], ranks: tuple[int, ...]) -> list[list[tuple[int, int, bool, bool]]]:
    """Only the comparisons that the ranks asked for depend on, with the halves of each (minimum, maximum) that are
    needed."""
    needed = set(ranks)
    kept: list[list[tuple[int, int, bool, bool]]] = []
    for comparisons in reversed(steps):
        useful = [(i, j, i in needed, j in needed) for i, j in comparisons if i in needed or j in needed]
        needed.update(row for i, j, _, _ in useful for row in (i, j))
        kept.append(useful)
    return kept[::-1]


def _regular(starts: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """Split ascending rows into (start, runs, step, length): evenly spaced runs of adjacent rows."""
    runs: list[tuple[int, int]] = []
    for i in starts:
        if runs and sum(runs[-1]) == i:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((i, 1))
    while runs:
        (start, length), step, count = runs[0], 0, 1
        while count < len(runs) and runs[count][1] == length:
            gap = runs[count][0] - runs[count - 1][0]
            if step and gap != step:
                break
            step, count = gap, count + 1
        yield start, count, step, length
        del runs[:count]
