"""A picture of the network: colours are groups, crosses are Byzantine agents, and wide edges are trusted ones."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from varangian.engine.results import Array
from varangian.report.network_data import NetworkData
from varangian.report.spread import BYZANTINE, GROUPS

EDGE, INK = "#B8B8B8", "#333333"
CROWD = 5000
"""With more edges than this, readers cannot follow a single edge."""


def network_figure(data: NetworkData) -> Figure:
    """The network, and beside it the final weights, if they are known: an edge is as wide as its weight is large."""
    places, pairs, is_byzantine, trust = data.places, data.pairs, data.is_byzantine, data.trust
    panels = 1 if trust is None else 2
    figure = Figure(figsize=(4.6 * panels, 4.9), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _edges(axes[0], places, pairs, to_rgba(EDGE, 0.3 if len(pairs) > CROWD else 1), np.full(len(pairs), 0.6))
    axes[0].set_title(data.heading, fontsize=11)
    if trust is not None:
        _edges(axes[1], places, pairs, EDGE, np.full(len(pairs), 0.25))
        _trusted_edges(axes[1], places, pairs, trust, is_byzantine)
        axes[1].set_title(data.heading_of_trust, fontsize=11)
    for ax in axes:
        _agents(ax, places, data.group, is_byzantine)
        ax.set_aspect("equal")
        ax.margins(0.06)
        ax.set_axis_off()
    fooled = trust is not None and bool((trust[is_byzantine[pairs].any(1)] > 0).any())
    _legend(figure, _marks(data.group, is_byzantine, trust is not None, fooled), 3 if panels == 1 else 8)
    return figure


def _edges(ax: Axes, places: Array, pairs: Array, colour: Any, widths: Array) -> None:
    """Draw straight lines. If there are more than `CROWD`, they are pixels even in a PDF."""
    crowded = len(pairs) > CROWD
    lines = LineCollection(list(places[pairs]), colors=colour, linewidths=widths, zorder=1, rasterized=crowded)
    ax.add_collection(lines)


def _trusted_edges(ax: Axes, places: Array, pairs: Array, trust: Array, is_byzantine: Array) -> None:
    """Draw edges wider and darker the larger their weight is, and red if one end is Byzantine.

    Edges have full width from the 95th percentile of the weights on, or from one sixth if that is larger.
    """
    seen = np.flatnonzero(trust > 0)
    seen = seen[np.argsort(trust[seen])]
    full = max(np.quantile(trust[seen], 0.95), 1 / 6) if len(seen) else 1.0
    strength = np.minimum(trust[seen] / full, 1)
    to_byzantine = is_byzantine[pairs[seen, 0]] | is_byzantine[pairs[seen, 1]]
    colours = np.where(to_byzantine[:, None], to_rgba(BYZANTINE), to_rgba(INK))
    colours[:, 3] = 0.15 + 0.75 * strength
    _edges(ax, places, pairs[seen], colours, 0.4 + 2.2 * strength)


def _colours(group: Array) -> dict[Any, Any]:
    names = list(np.unique(group))
    if len(names) <= len(GROUPS):
        return dict(zip(names, GROUPS, strict=False))
    return {name: colormaps["viridis"](i / (len(names) - 1)) for i, name in enumerate(names)}


def _agents(ax: Axes, places: Array, group: Array, is_byzantine: Array) -> None:
    size = float(np.clip(4000 / len(places), 12, 70))
    colours = _colours(group)
    fill = [colours[name] for name in group[~is_byzantine]]
    x, y = places.T
    ax.scatter(x[~is_byzantine], y[~is_byzantine], s=size, c=fill, edgecolors="white", linewidths=0.7, zorder=3)
    ax.scatter(
        x[is_byzantine],
        y[is_byzantine],
        s=1.4 * size,
        c=BYZANTINE,
        marker="X",
        edgecolors="white",
        linewidths=0.7,
        zorder=4,
    )


def _marks(group: Array, is_byzantine: Array, weighted: bool, fooled: bool) -> list[Line2D]:
    """The entries of the legend. A single group needs no entry, and too many groups would not fit."""
    colours = {name: colour for name, colour in _colours(group).items() if name in group[~is_byzantine]}
    dot: dict[str, Any] = {"linestyle": "", "markersize": 8, "markeredgecolor": "white"}
    if len(np.unique(group)) > 1 and len(colours) <= len(GROUPS):
        marks = [Line2D([], [], marker="o", color=c, label=f"Group {g}", **dot) for g, c in colours.items()]
    else:
        marks = [Line2D([], [], marker="o", color=GROUPS[0], label="Normal", **dot)]
    if is_byzantine.any():
        marks += [Line2D([], [], marker="X", color=BYZANTINE, label="Byzantine", **dot)]
    if weighted:
        marks += [Line2D([], [], color=INK, linewidth=2.2, label="Trusted")]
    if fooled:
        marks += [Line2D([], [], color=BYZANTINE, linewidth=2.2, label="Trusted Byzantine")]
    return marks


def _legend(figure: Figure, marks: list[Line2D], columns: int) -> None:
    """A legend below all panels."""
    columns = min(len(marks), columns)
    figure.legend(handles=marks, loc="outside lower center", ncols=columns, frameon=False, fontsize=9.5)
