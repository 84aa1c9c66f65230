"""Sorting along the short side of a stack: a network of minima and maxima over blocks of columns.

Sorting n values in each of many columns one column at a time is slow. A sorting network does the same comparisons in
every column, so that each comparison is one vectorised minimum and one maximum of whole rows. This is Batcher's
odd-even merge exchange (Knuth, The Art of Computer Programming 3, 5.2.2, Algorithm M), pruned to the ranks that are
asked for; comparisons of a step that lie regularly are done together. n values take about n (log₂ n)² / 4 comparisons.
Where there are few numbers, calling them all takes longer than sorting, and sorting is what is done.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Rows = Sequence[Float[Tensor, "neighbourhood column"]]
"""The rows of the ranks asked for, in that order."""

_WIDTH = 2**14
"""Columns at once: few enough for a cache, many enough to hide the cost of a call."""
_WIDTH_OF_ACCELERATORS = 2**22
_NARROW = 2**12
_FEW = 2**13
"""Numbers that are sorted in the usual way before all comparisons of a network are called."""


class _Rows(NamedTuple):
    """`runs` runs of `length` rows each, every `step` rows, in one of two buffers."""

    buffer: int
    start: int
    runs: int
    step: int
    length: int

    def of(self, buffers: Float[Tensor, "two n column"]) -> Float[Tensor, "runs length column"]:
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
    steps: tuple[_Step, ...]
    homes: tuple[int, ...]
    """In which buffer each rank asked for ends up."""


def sort_columns(
    vectors: Float[Tensor, "neighbourhood n d"],
    ranks: tuple[int, ...],
    reduce: Callable[[Rows, slice], Float[Tensor, "neighbourhood column"]],
    work: torch.dtype,
    low: Bool[Tensor, "neighbourhood n"] | None = None,
    high: Bool[Tensor, "neighbourhood n"] | None = None,
) -> Float[Tensor, "neighbourhood d"]:
    """Sort each column, and reduce the rows of the ranks asked for, some neighbourhoods and columns at a time.

    Entries in `low` are taken as −∞ and those in `high` as +∞, whatever they are.
    """
    neighbourhoods, n, d = vectors.shape
    if vectors.numel() <= _FEW:
        entry = _fill(torch.empty(n, neighbourhoods, d, dtype=work, device=vectors.device), vectors, low, high)
        return _finite(reduce(list(entry.sort(0).values[list(ranks)]), slice(None)))
    out = torch.empty(neighbourhoods, d, dtype=work, device=vectors.device)
    several, width = _shape_of_blocks(vectors)
    buffers = torch.empty(2, n, several * width, dtype=work, device=vectors.device)
    network = sorting_network(n, ranks)
    calls = [
        (torch.minimum if smaller else torch.maximum, left.of(buffers), right.of(buffers), into.of(buffers))
        for smaller, left, right, into in network.steps
    ]
    rows = [buffers[home, rank].view(several, width) for home, rank in zip(network.homes, ranks, strict=True)]
    entry = buffers[0].view(n, several, width)
    for some in _pieces(neighbourhoods, several):
        for columns in _pieces(d, width):
            _fill(
                entry,
                vectors[some, :, columns],
                low if low is None else low[some],
                high if high is None else high[some],
            )
            for extreme, left, right, into in calls:
                extreme(left, right, out=into)
            out[some, columns] = reduce(rows, some)
    return _finite(out)


def _fill(
    entry: Float[Tensor, "n neighbourhood column"],
    vectors: Float[Tensor, "neighbourhood n column"],
    low: Bool[Tensor, "neighbourhood n"] | None,
    high: Bool[Tensor, "neighbourhood n"] | None,
) -> Float[Tensor, "n neighbourhood column"]:
    entry.copy_(vectors.transpose(0, 1))
    if low is not None:
        entry.masked_fill_(low.T[..., None], -torch.inf)
    if high is not None:
        entry.masked_fill_(high.T[..., None], torch.inf)
    return entry


def _finite(out: Float[Tensor, "neighbourhood d"]) -> Float[Tensor, "neighbourhood d"]:
    """Rounding may pass the largest number."""
    largest = torch.finfo(out.dtype).max
    return out.clamp_(-largest, largest)


def _shape_of_blocks(vectors: Float[Tensor, "neighbourhood n d"]) -> tuple[int, int]:
    """How many neighbourhoods, and how many columns of each, at a time: two buffers take no more than the vectors."""
    neighbourhoods, _, d = vectors.shape
    total = neighbourhoods * d
    most = _WIDTH if vectors.device.type == "cpu" else _WIDTH_OF_ACCELERATORS
    wide = total if total <= _NARROW else min(most, -(-total // 2))
    return (1, min(d, wide)) if d >= wide else (min(neighbourhoods, wide // d), d)


def _pieces(total: int, size: int) -> Iterator[slice]:
    """Pieces of the same size; the last goes back over part of the one before rather than be smaller."""
    for start in range(0, total, size):
        start = min(start, total - size)
        yield slice(start, start + size)


@lru_cache(maxsize=256)
def sorting_network(n: int, ranks: tuple[int, ...]) -> Network:
    """A minimum goes to the other buffer of its row, and the maximum takes its own row's place: nothing is copied."""
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
    """Knuth's Algorithm M: steps of comparisons (i, j), after each of which row i holds the smaller value."""
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
    """Only what the ranks asked for depend on, and of each comparison which of minimum and maximum is needed."""
    needed = set(ranks)
    kept: list[list[tuple[int, int, bool, bool]]] = []
    for comparisons in reversed(steps):
        useful = [(i, j, i in needed, j in needed) for i, j in comparisons if i in needed or j in needed]
        needed.update(row for i, j, _, _ in useful for row in (i, j))
        kept.append(useful)
    return kept[::-1]


def _regular(starts: list[int]) -> Iterator[tuple[int, int, int, int]]:
    """Cut ascending rows into (start, runs, step, length): runs of neighbours of one length, evenly spaced."""
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
