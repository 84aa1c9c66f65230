"""The values of a curve, which are the mean and the range over normal agents, and the line style of each rule."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import xarray as xr

from varangian.engine.results import UNWEIGHED, higher_is_better, in_percent

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


def spread(run: xr.Dataset, metric: str, group: object = None) -> xr.Dataset:
    """`mean`, `low` and `high` over the normal agents of one cell (and group), at up to 500 rounds or epochs.

    `mean` is over agents and seeds. `low` and `high` are the smallest and the largest value of an agent, averaged over
    seeds. Rounds without values are left out.
    """
    values = of_normal(run, metric)
    if group is not None:
        values = values.where(run["group"] == group)
    return pooled(values).dropna(time_of(values))


def of_normal(run: xr.Dataset, metric: str, points: int = POINTS) -> xr.DataArray:
    """A metric of the normal agents of one cell, smoothed and thinned for drawing. Time is the first dimension."""
    values = run[metric].astype(float).where(~run["byzantine_agent"].astype(bool))
    return trailing_mean(values, time_of(values), smoothing_window(run, metric), points)


def pooled(values: xr.DataArray) -> xr.Dataset:
    """The mean over agents and seeds; the smallest and the largest value of an agent, averaged over seeds."""
    low, high = values.min("agent").mean("seed"), values.max("agent").mean("seed")
    return xr.Dataset({"mean": values.mean(("seed", "agent")), "low": low, "high": high})


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


def trailing_mean(values: xr.DataArray, time: str, window: int, points: int = POINTS) -> xr.DataArray:
    """Each agent's mean over the last `window` records, at up to `points` of them, the first and the last included.

    Each sum is computed separately. With a running sum, one huge value would make all later means inexact.
    """
    length = values.sizes[time]
    ends = np.unique(np.linspace(0, length - 1, min(length, points)).round().astype(int))
    drawn = values.isel({time: ends}).transpose(time, ...)
    if window == 1:
        return drawn
    every = values.transpose(time, ...).values
    known = ~np.isnan(every)
    filled = np.where(known, every, 0.0)
    sums, counts = np.zeros((2, *drawn.shape))
    for point, end in enumerate(ends):
        last = slice(max(0, end - window + 1), end + 1)
        sums[point], counts[point] = filled[last].sum(0), known[last].sum(0)
    return drawn.copy(data=np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0))


def is_logarithmic(metric: str) -> bool:
    """Losses, errors and regret fall by orders of magnitude; shares and counts do not."""
    return not (higher_is_better(metric) or in_percent(metric)) and metric not in UNWEIGHED
