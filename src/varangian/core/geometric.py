"""Pairs of nearby points, with a limit on the number of pairs per point."""

from __future__ import annotations

from typing import Any

import numpy as np

from varangian.core.errors import BadInput
from varangian.core.lazy import imported
from varangian.core.near import nearest_graph

Array = np.ndarray[Any, Any]


def graph_within(points: Array, radius: float, max_degree: int | None, seed: int) -> tuple[Array, Array] | None:
    """Senders and offsets of the graph of `pairs_within`, made in a faster way. None if there is no such way.

    The faster way is for many points in a plane that do not crowd together, and needs a C++ compiler.
    """
    _check(radius, max_degree)
    if max_degree is None or _few(points, radius):
        return None
    return nearest_graph(points, radius, 2 * max_degree, max_degree, seed)


def pairs_within(points: Array, radius: float, max_degree: int | None, seed: int) -> Array:
    """Pairs (i < j) of points at most `radius` apart, at most `max_degree` pairs for each point.

    With a limit, pairs are taken greedily in a random order (drawn by seed) while both points are below the limit. The
    result is symmetric, and two points within `radius` that are not a pair are never both below the limit. If there are
    too many pairs to list them all, only the nearest points of each point are considered.
    """
    _check(radius, max_degree)
    tree = imported("scipy.spatial").cKDTree(points)
    if max_degree is None:
        return _all(tree, radius)
    few = _few(points, radius)
    pairs = _all(tree, radius) if few else _nearest(tree, points, radius, 2 * max_degree)
    return _greedy(pairs, len(points), max_degree, np.random.default_rng(seed))


def _check(radius: float, max_degree: int | None) -> None:
    if not radius > 0:
        raise BadInput(f"radius must be positive, but is {radius}")
    if max_degree is not None and max_degree < 0:
        raise BadInput(f"max_degree must not be negative, but is {max_degree}")


def _few(points: Array, radius: float) -> bool:
    """Whether there are so few pairs that all of them can be listed, as a sample of points says."""
    if not len(points):
        return True
    columns = np.ascontiguousarray(points.T)
    within: list[int] = []
    for one in points[:: max(1, len(points) // 100)]:
        apart = np.square(columns[0] - one[0])
        for column, own in zip(columns[1:], one[1:], strict=True):
            apart += np.square(column - own)
        within.append(int(np.count_nonzero(apart <= radius**2)))
    return float(np.mean(within)) * len(points) <= 10**7


def _all(tree: Any, radius: float) -> Array:
    return np.asarray(tree.query_pairs(radius, output_type="ndarray"), dtype=np.int64)


def _nearest(tree: Any, points: Array, radius: float, count: int) -> Array:
    near = tree.indices  # in the order of their positions, so that neighbours are in the cache
    _, other = tree.query(points[near], k=count + 1, distance_upper_bound=radius, workers=-1)
    this = np.repeat(near, count + 1)
    other = other.reshape(-1)
    found = (other < len(points)) & (other != this)
    low, high = np.minimum(this, other)[found], np.maximum(this, other)[found]
    return np.stack(np.divmod(distinct(low * len(points) + high), len(points)), axis=1)


def distinct(numbers: Array) -> Array:
    """Every number once, sorted. Many times as fast as `np.unique`."""
    in_order = np.sort(numbers)
    first = np.ones(len(numbers), dtype=bool)
    np.not_equal(in_order[1:], in_order[:-1], out=first[1:])
    return in_order[first]


def _greedy(pairs: Array, n: int, max_degree: int, rng: np.random.Generator) -> Array:
    """Take pairs in random order while both points are below the limit, with a few passes over all pairs.

    At each point, the first pairs that fit below its limit are certain to be taken from that side. Each pass takes all
    pairs that are certain at both of their points, and drops pairs with a full point. The next pass works on the rest.
    The result is the same as taking the pairs one by one.
    """
    pairs = pairs[rng.permutation(len(pairs))]
    room = np.full(n, max_degree)
    taken: list[Array] = []
    while len(pairs):
        rank = _rank_among_equals(pairs.reshape(-1)).reshape(-1, 2)
        take = (rank < room[pairs]).all(axis=1)
        taken.append(pairs[take])
        room -= np.bincount(pairs[take].reshape(-1), minlength=n)
        pairs = pairs[~take]
        pairs = pairs[(room[pairs] > 0).all(axis=1)]
    return np.concatenate(taken) if taken else np.empty((0, 2), dtype=np.int64)


def _rank_among_equals(values: Array) -> Array:
    """For each value, how many equal values come before it."""
    # Value and position are combined into one number: sorting these is faster than argsort.
    in_order, order = np.divmod(np.sort(values * len(values) + np.arange(len(values))), max(1, len(values)))
    first = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]])
    rank = np.empty_like(values)
    rank[order] = np.arange(len(values)) - np.repeat(first, np.diff(np.r_[first, len(values)]))
    return rank
