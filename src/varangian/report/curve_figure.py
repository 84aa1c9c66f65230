"""The paper's figures: one panel per number of Byzantine agents, with one line and one band per rule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import xarray as xr
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, PercentFormatter, StrMethodFormatter

from varangian.engine.results import Array, in_percent
from varangian.report.curve_data import CurveData
from varangian.report.spread import PAPER, Look, is_logarithmic, time_of


def curve_figure(data: CurveData) -> Figure:
    """One column per number of Byzantine agents, one row per attack, and in each panel a line and a band per rule."""
    panels, looks = data.panels, data.looks
    rows, columns = (1 + max(place) for place in zip(*(panel[:2] for panel in panels), strict=True))
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
            rule, curve = data.rules[cell], data.curves[cell]
            if curve["mean"].size:
                draw_curve(ax, curve, looks[rule], min(1.0, 4 / len(looks)))
                drawn.setdefault(rule, []).append(curve)
        if not ax.lines:
            ax.text(0.5, 0.5, "not measured", transform=ax.transAxes, ha="center", va="center", color="0.5")
    scale_axis(axes[0, 0], data.metric, [curve for of_rule in drawn.values() for curve in of_rule])
    _dress(axes, data)
    if data.group is not None:
        figure.suptitle(f"Group {data.group}", fontsize=11.5, fontweight="bold")
    legend_below(figure, {rule: look for rule, look in looks.items() if rule in drawn}, legend_columns)
    return figure


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


def _dress(axes: Array, data: CurveData) -> None:
    """Add labels to the outer panels and a light grid. Hide the panels of scenarios that were not run."""
    used = {(panel.row, panel.column) for panel in data.panels}
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
            ax.set_xlabel(data.time.capitalize(), fontsize=10)
            ax.tick_params(labelbottom=True)
        if (row, column - 1) not in used:
            ax.set_ylabel(data.label, fontsize=10)
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
