"""What a figure with curves shows: its panels, and one curve for each cell. It is drawn elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import xarray as xr

from varangian.report.spread import Look, looks_of, smoothed_rounds, smoothing_window, spread, time_of

LABELS = {
    "loss": r"Loss $\ell(\theta_k;\,\xi_k)$",
    "regret": r"Regret $r_k(\theta_k) - r_k^*$",
    "msd": r"Squared deviation $\|\theta_k - \theta_k^*\|^2$",
    "byzantine_weight": r"Weight on Byzantine $\Sigma_{\ell \in \mathcal{B}}\; a_{\ell k}$",
    "kept": "Neighbours kept",
}


class Panel(NamedTuple):
    """One scenario: its place in the grid, its title and its cells."""

    row: int
    column: int
    title: str
    cells: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class CurveData:
    """A metric of normal agents over time."""

    metric: str
    group: object
    """Only the agents of this group are shown. None for all agents."""
    panels: tuple[Panel, ...]
    rules: tuple[str, ...]
    """The rule of each cell."""
    looks: Mapping[str, Look]
    """The colour and line style of each rule."""
    curves: Mapping[int, xr.Dataset]
    """The curve of each cell that is shown, as `spread` makes it."""
    time: str
    label: str
    """The label of the y axis."""


def curve_data(metrics: xr.Dataset, metric: str, group: object = None) -> CurveData:
    """The curves of a metric. With `group`, only those of its agents."""
    panels = tuple(scenarios(metrics, metric))
    return CurveData(
        metric=metric,
        group=group,
        panels=panels,
        rules=tuple(str(rule) for rule in metrics["rule"].values),
        looks=looks_of(metrics),
        curves={cell: spread(metrics.isel(cell=cell), metric, group) for panel in panels for cell in panel.cells},
        time=time_of(metrics[metric]),
        label=label_of(metrics, metric),
    )


def scenarios(metrics: xr.Dataset, metric: str) -> list[Panel]:
    """The panels of a figure. For comparison, every row begins with a panel without an attack.

    If `metric` is about Byzantine agents, this panel is left out: without an attack the metric is always zero.
    """
    counts, attacks = metrics["byzantine"].values.astype(int), [str(attack) for attack in metrics["attack"].values]
    shown = sorted(set(counts.tolist()))
    if metric == "byzantine_weight" and len(shown) > 1:
        shown = [count for count in shown if count]
    rows = list(dict.fromkeys(attack for attack, count in zip(attacks, counts, strict=True) if count)) or [""]
    names = [attack.partition(":")[0] for attack in rows]
    if len(set(names)) < len(rows):
        names = rows  # the same attack with several settings: the titles must show the settings
    panels: list[Panel] = []
    for row, attack in enumerate(rows):
        for column, count in enumerate(shown):
            cells = [c for c in np.flatnonzero(counts == count).tolist() if not count or attacks[c] == attack]
            once = {str(metrics["rule"].values[c]): c for c in reversed(cells)}  # all attacks coincide: keep one cell
            gap = " " if len(names[row]) < 22 else "\n"
            title = f"{count} Byzantine:{gap}{names[row]}" if count else "No attack"
            if once:
                panels.append(Panel(row, column, title, tuple(sorted(once.values()))))
    return panels


def label_of(metrics: xr.Dataset, metric: str) -> str:
    """The label of the y axis. It names the moving mean, if there is one."""
    label = LABELS.get(metric, metric.replace("_", " ").capitalize())
    if smoothing_window(metrics, metric) == 1:
        return label
    return f"{label}\nmoving mean over {smoothed_rounds(metrics, metric)} rounds"
