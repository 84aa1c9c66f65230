"""The paper's figures: one panel per number of Byzantine agents, with one line and one band per rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from varangian.engine.results import Array, in_percent
from varangian.report.spread import (
    PAPER,
    Look,
    is_logarithmic,
    looks_of,
    smoothed_rounds,
    smoothing_window,
    spread,
    time_of,
)

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


def curves(metrics: xr.Dataset, metric: str, group: object = None) -> Figure:
    """`metric` of normal agents over time: one column per number of Byzantine agents, one row per attack.

    The line of each rule is the mean over agents and seeds. Its band reaches from the best to the worst agent, both
    averaged over seeds. Streaming metrics are drawn as a moving mean, and the axis label says so. With `group`, only
    the agents of this group are shown.
    """
    panels = scenarios(metrics, metric)
    rows, columns = (1 + max(place) for place in zip(*(panel[:2] for panel in panels), strict=True))
    looks = looks_of(metrics)
    width, height = (4.8, 3.2) if columns == 1 else (2.9 * columns + 0.7, 2.7)
    legend_columns = columns_of_legend(list(looks), width)
    below = 0.2 + 0.2 * math.ceil(len(looks) / legend_columns)
    figure = Figure(figsize=(width, height * rows + below), layout="constrained")
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    drawn: dict[str, list[xr.Dataset]] = {}
    for panel in panels:
        ax = axes[panel.row, panel.column]
        ax.set_title(panel.title, fontsize=10.5, y=1.0)  # otherwise matplotlib measures all ticks to find this place
        for cell in panel.cells:
            rule = str(metrics["rule"].values[cell])
            curve = spread(metrics.isel(cell=cell), metric, group)
            if curve["mean"].size:
                draw_curve(ax, curve, looks[rule], min(1.0, 4 / len(looks)))
                drawn.setdefault(rule, []).append(curve)
        if not ax.lines:
            ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", va="center", color="0.5")
    scale_axis(axes[0, 0], metric, [curve for of_rule in drawn.values() for curve in of_rule])
    _dress(axes, panels, metrics, metric)
    if group is not None:
        figure.suptitle(f"Group {group}", fontsize=11.5, fontweight="bold")
    legend_below(figure, {rule: look for rule, look in looks.items() if rule in drawn}, legend_columns)
    return figure


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


def draw_curve(ax: Axes, curve: xr.Dataset, look: Look, strength: float) -> None:
    """Draw a line and its band. The more bands overlap, the smaller the `strength` of each should be."""
    colour, style = look
    front = 2.0 if look == PAPER["loss-based"] else 1.5  # the paper's rule is drawn above the others
    faint = strength * (0.08 if look == PAPER["alone"] else 0.14)  # black covers more than colours do
    at = curve[time_of(curve["mean"])].values
    few = len(at) <= 15  # with few epochs, markers show that nothing was measured between them
    low, high = curve["low"].values, curve["high"].values
    if len(at) == 1:  # a band without width is invisible
        ax.vlines(at, low, high, color=colour, alpha=0.35, linewidth=5)
        ax.set_xlim(at[0] - 1, at[0] + 1)
    ax.fill_between(at, low, high, color=colour, alpha=faint, linewidth=0, zorder=front - 1)
    top = 3.5 if look == PAPER["alone"] else front + 1  # its dots show where another rule is as good as alone
    (line,) = ax.plot(at, curve["mean"].values, color=colour, linestyle=style, linewidth=1.7, zorder=top)
    line.set(marker="o" if few else "", markersize=3.5)


def scale_axis(ax: Axes, metric: str, shown: Sequence[xr.Dataset]) -> None:
    """Set the limits of the y axis that all panels share, so that the curves stay readable.

    A logarithmic axis reaches at most a factor of 100 below the lowest line; only single lucky agents are below that.
    It reaches at most eight decades above the lowest line: a rule that diverges leaves the panel instead of flattening
    the others.
    """
    if is_logarithmic(metric):
        lines = _positive([curve["mean"].values for curve in shown])
        bands = _positive([curve[edge].values for curve in shown for edge in ("low", "high")])
        if not lines.size:
            return
        low = max(bands.min(), lines.min() / 100)
        high = max(min(bands.max(), lines.min() * 1e8), low * 10)
        margin = (high / low) ** 0.04
        ax.set_ylim(low / margin, high * margin)  # first: otherwise matplotlib computes limits and may overflow
        ax.set_yscale("log")
        if high < 100 * low:  # by default matplotlib would write 2 × 10⁰ at every tick
            ax.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.yaxis.set_minor_formatter(NullFormatter())
    elif metric == "byzantine_weight":
        top = max((float(curve["high"].max()) for curve in shown), default=1.0)
        ax.set_ylim(-0.03, max(top, 0.2) * 1.05)
    elif in_percent(metric):
        ax.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _positive(parts: Sequence[Array]) -> Array:
    values = np.concatenate([np.ravel(part) for part in parts]) if parts else np.empty(0)
    return values[np.isfinite(values) & (values > 0)]


def _dress(axes: Array, panels: Sequence[Panel], metrics: xr.Dataset, metric: str) -> None:
    """Add labels to the outer panels and a light grid. Hide the panels of scenarios that were not run."""
    used = {(panel.row, panel.column) for panel in panels}
    time = time_of(metrics[metric])
    for (row, column), ax in np.ndenumerate(axes):
        if (row, column) not in used:
            ax.set_visible(False)
            continue
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, color="0.9", linewidth=0.6)
        ax.set_axisbelow(True)
        ax.tick_params(labelsize=9)
        ax.xaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 2.5, 5, 10], integer=True))
        if (row + 1, column) not in used:
            ax.set_xlabel(time.capitalize(), fontsize=10)
            ax.tick_params(labelbottom=True)
        if (row, column - 1) not in used:
            ax.set_ylabel(label_of(metrics, metric), fontsize=10)
            ax.tick_params(labelleft=True)


def columns_of_legend(names: Sequence[str], width: float) -> int:
    """How many columns of `names` fit into `width` inches, with rows of similar length."""
    inches = [0.073 * len(name) + 0.72 for name in names]
    fitting = len(names) if sum(inches) < width else max(1, int(width / max(inches)))
    return math.ceil(len(names) / math.ceil(len(names) / fitting))


def legend_below(figure: Figure, looks: dict[str, Look], columns: int) -> None:
    """One legend below all panels, with the rules that are shown."""
    marks = [Line2D([], [], color=colour, linestyle=style, label=rule) for rule, (colour, style) in looks.items()]
    if marks:
        look: dict[str, Any] = {"frameon": False, "fontsize": 9.5, "handlelength": 2.6}
        figure.legend(handles=marks, loc="outside lower center", ncols=min(columns, len(marks)), **look)
