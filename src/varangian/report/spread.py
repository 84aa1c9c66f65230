"""The values of a curve, which are the mean and the range over normal agents, and the line style of each rule."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from varangian.engine.results import UNWEIGHED, Array, higher_is_better, in_percent

POINTS = 500
"""The largest number of points in a curve; a panel cannot show more."""

Look = tuple[str, Any]
"""A colour and a line style, in matplotlib's form: `-`, or lengths of strokes and gaps."""
PAPER: dict[str, Look] = {
    "loss-based": ("#0072B2", "-"),
    "distance-based": ("#E69F00", (0, (5, 1.5))),
    "average": ("#009E73", (0, (3, 1.2, 1, 1.2))),
    "alone": ("#000000", (0, (1, 1.2))),
}
"""The paper's rules look the same in every study. Okabe and Ito chose these colours for colour-blind readers."""
OTHERS: tuple[Look, ...] = (
    ("#D55E00", (0, (7, 2))),
    ("#CC79A7", (0, (4, 1.2, 1, 1.2, 1, 1.2))),
    ("#56B4E9", "-"),
    ("#8A6D00", (0, (2, 1))),
    ("#7F7F7F", (0, (6, 1.5, 2, 1.5))),
    ("#882255", (0, (9, 1.5, 1, 1.5))),
)
"""The styles of all other rules, in the order of the run. Okabe and Ito's yellow is too light for a line."""
GROUPS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#F0E442", "#8C8C8C", "#000000")
"""Okabe and Ito's colours for colour-blind readers, without the colour of Byzantine agents."""
BYZANTINE = "#D55E00"


def looks_of(metrics: xr.Dataset) -> dict[str, Look]:
    """The colour and line style of each rule: the same in all figures of a run."""
    return looks_of_rules(str(rule) for rule in metrics["rule"].values)


def looks_of_rules(rules: Iterable[str]) -> dict[str, Look]:
    """The colour and line style of each rule, from names in the order of the run.

    >>> looks_of_rules(["alone", "median"])["median"]
    ('#D55E00', (0, (7, 2)))
    """
    names = list(dict.fromkeys(rules))
    others = [name for name in names if name not in PAPER]
    return {name: PAPER[name] if name in PAPER else OTHERS[others.index(name) % len(OTHERS)] for name in names}


class Smoothed(NamedTuple):
    """A metric of the normal agents of one cell, as it is drawn. Other agents have nan."""

    time: str
    """What it was measured along: `round` or `epoch` …"""
    at: Array
    """… and at which of them."""
    values: Array
    """Time × seed × agent."""


def spread(run: xr.Dataset, metric: str, group: object = None) -> xr.Dataset:
    """`mean`, `low` and `high` over the normal agents of one cell (and group), at up to 500 rounds or epochs.

    `mean` is over agents and seeds. `low` and `high` are the smallest and the largest value of an agent, averaged over
    seeds. Rounds without values are left out.
    """
    time, at, values = of_normal(run, metric)
    pool = pooled(values if group is None else in_group(values, run, group))
    curve = xr.Dataset({name: (time, row) for name, row in zip(("mean", "low", "high"), pool, strict=True)}, {time: at})
    return curve.dropna(time)


def of_normal(run: xr.Dataset, metric: str, points: int = POINTS) -> Smoothed:
    """A metric of the normal agents of one cell, smoothed and thinned for drawing."""
    time = time_of(run[metric])
    measured = run[metric].transpose(time, "seed", "agent")
    is_byzantine = run["byzantine_agent"].transpose("seed", "agent").values.astype(bool)
    normal = np.where(is_byzantine, np.nan, measured.values.astype(float))
    ends = drawn_points(len(normal), points)
    return Smoothed(time, measured[time].values[ends], trailing_mean(normal, smoothing_window(run, metric), ends))


def in_group(values: Array, run: xr.Dataset, group: object) -> Array:
    """Values (time × seed × agent), with nan for agents of other groups."""
    groups: Array = run["group"].transpose("seed", "agent").values
    return np.where(groups == group, values, np.nan)


def pooled(values: Array) -> Array:
    """Mean, low and high over time, one row each.

    These are the mean over agents and seeds, and the smallest and the largest value of an agent, averaged over seeds.
    """
    with _nan_for_nobody():
        low, high = np.nanmin(values, axis=2), np.nanmax(values, axis=2)
        return np.stack((np.nanmean(values, axis=(1, 2)), np.nanmean(low, axis=1), np.nanmean(high, axis=1)))


def mean_of_seeds(values: Array) -> Array:
    """The mean over agents: seed × time."""
    with _nan_for_nobody():
        means: Array = np.nanmean(values, axis=2).T
    return means


@contextmanager
def _nan_for_nobody() -> Iterator[None]:
    """No warning where all agents have nan; so has their mean."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        yield


def time_of(values: xr.DataArray) -> str:
    """The dimension along which a metric was measured."""
    return "epoch" if "epoch" in values.dims else "round"


def smoothing_window(metrics: xr.Dataset, metric: str) -> int:
    """How many records are averaged before drawing. Streaming metrics are noisy: a fiftieth of all records."""
    return max(1, metrics.sizes["round"] // 50) if "round" in metrics[metric].dims else 1


def smoothed_rounds(metrics: xr.Dataset, metric: str) -> int:
    """The smoothing window in rounds; there may be several rounds between two records."""
    rounds = metrics["round"].values if "round" in metrics else np.zeros(1)
    apart = round((int(rounds[-1]) - int(rounds[0])) / max(1, len(rounds) - 1))
    return smoothing_window(metrics, metric) * apart


def drawn_points(length: int, points: int = POINTS) -> Array:
    """The places of up to `points` of `length` records, the first and the last included.

    >>> drawn_points(7, 3).tolist()
    [0, 3, 6]
    """
    return np.unique(np.linspace(0, length - 1, min(length, points)).round().astype(int))


def trailing_mean(values: Array, window: int, ends: Array) -> Array:
    """The mean over the last `window` records, at each of the places `ends`, which are in order. Nan does not count.

    Each sum is computed separately. With a running sum, one huge value would make all later means inexact.
    """
    if window == 1:
        return values[ends]
    known = ~np.isnan(values)
    filled = np.where(known, values, 0.0)
    sums, counts = np.zeros((2, len(ends), *values.shape[1:]))
    for back in reversed(range(window)):  # one record of all windows that reach back so far, the oldest first
        reaching = slice(int(np.searchsorted(ends, back)), None)
        sums[reaching] += filled[ends[reaching] - back]
        counts[reaching] += known[ends[reaching] - back]
    means: Array = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
    return means


def is_logarithmic(metric: str) -> bool:
    """Losses, errors and regret fall by orders of magnitude; shares and counts do not."""
    return not (higher_is_better(metric) or in_percent(metric)) and metric not in UNWEIGHED
