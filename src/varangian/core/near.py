"""Networks of many near points in a plane, from a grid of cells and loops in C++.

The same graph as `geometric.pairs_within` makes with a tree and by sorting, edge for edge, but in linear time. Where
several points are exactly as far away as the last one that counts, either way may choose another one of them.
"""

from __future__ import annotations

import ctypes
import math
from importlib.resources import files
from typing import Any

import numpy as np

from varangian.core.cpp.build import NotBuilt, built
from varangian.core.execution import DEFAULT

Array = np.ndarray[Any, Any]

MANY = 20_000
"""From this number of agents on, compiling the loops pays."""
IN_CELL, CROWDED = 3, 200
"""How many points a cell has on average, and more than how many make the search slow."""


def nearest_graph(points: Array, radius: float, most: int, max_degree: int, seed: int) -> tuple[Array, Array] | None:
    """Senders and offsets of the graph in which points hear points near them, `max_degree` of them at most.

    Args:
        points: One row per agent.
        radius: Points less than this far apart can be a pair.
        most: Only the nearest so many of each point are considered.
        max_degree: The most pairs of a point. Pairs are taken in a random order.
        seed: Decides this order.

    Returns:
        None if this way does not pay or is not possible: few points, points that are not in a plane or that crowd
        together, or no C++ compiler.
    """
    agents = len(points)
    if agents < MANY or not 0 < agents * most < 2**31 or points.shape[1] != 2:
        return None
    grid = _grid(points)
    if grid is None:
        return None
    try:
        # Squares are not fused with sums, so that distances are rounded as elsewhere.
        loops = built(files("varangian.core.cpp").joinpath("near.cpp").read_text(encoding="utf-8"), "-ffp-contract=off")
    except NotBuilt:
        return None
    number, begin, (columns, rows), corner, side = grid
    x, y = (np.ascontiguousarray(points[number, axis]) for axis in range(2))
    near = np.empty((agents, most), dtype=np.int32)
    given = (
        _at(x),
        _at(y),
        _at(number),
        _at(begin),
        columns,
        rows,
        *map(ctypes.c_double, (*corner, side, radius)),
        most,
    )
    cuts = [agents * part // (4 * DEFAULT.at_once) for part in range(4 * DEFAULT.at_once + 1)]
    DEFAULT.each(lambda first, last: _call(loops.nearest, *given, first, last, _at(near)), cuts[:-1], cuts[1:])
    start, higher = np.empty(agents + 2, dtype=np.int64), np.empty(agents * most, dtype=np.int32)
    count = int(_call(loops.pairs, _at(number), _at(near), agents, most, _at(start), _at(higher)))
    del near
    higher = higher[:count].copy()
    lower = np.repeat(np.arange(agents, dtype=np.int32), np.diff(start[: agents + 1]))
    room, taken = np.full(agents, max_degree, dtype=np.int32), np.empty(count, dtype=np.uint8)
    order = np.random.default_rng(seed).permutation(count)
    _call(loops.take, _at(lower), _at(higher), _at(order), count, _at(room), _at(taken))
    del order
    offsets = np.zeros(agents + 1, dtype=np.int64)
    offsets[1:] = max_degree - room
    senders = np.empty(agents + int(offsets.sum()), dtype=np.int64)
    _call(loops.rows, _at(lower), _at(higher), _at(taken), count, agents, _at(offsets), _at(senders))
    return senders, offsets


def _grid(points: Array) -> tuple[Array, Array, tuple[int, int], tuple[float, float], float] | None:
    """Points sorted by cell, where each cell begins, the cells per axis, the corner, and the side of a cell."""
    low, high = points.min(0), points.max(0)
    wide, tall = (high - low).tolist()
    side = max(math.sqrt(wide * tall * IN_CELL / len(points)), max(wide, tall) / len(points))
    if not 0 < side < math.inf:
        return None
    columns, rows = (max(1, math.ceil(length / side)) for length in (wide, tall))
    if columns * rows > 2 * len(points):
        return None
    column = np.minimum(((points[:, 0] - low[0]) / side).astype(np.int64), columns - 1)
    row = np.minimum(((points[:, 1] - low[1]) / side).astype(np.int64), rows - 1)
    cell = row * columns + column
    counts = np.bincount(cell, minlength=columns * rows)
    if counts.max() > CROWDED:
        return None
    begin = np.zeros(columns * rows + 1, dtype=np.int32)
    np.cumsum(counts, out=begin[1:])
    return np.argsort(cell, kind="stable").astype(np.int32), begin, (columns, rows), (low[0], low[1]), side


def _at(array: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def _call(function: Any, *given: Any) -> int:
    function.restype = ctypes.c_int64
    return int(function(*(ctypes.c_int64(one) if isinstance(one, int) else one for one in given)))
