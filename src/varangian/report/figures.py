"""All figures of a run: its curves, and its network with the Byzantine agents and the final loss-based weights.

Figures are made without pyplot, so no window opens and no figure stays in memory after it is written.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import FigureCanvasPdf
from matplotlib.collections import LineCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from varangian.core.errors import BadInput
from varangian.engine.results import Array, metrics_of
from varangian.report.curve_figure import curves
from varangian.report.spread import BYZANTINE, GROUPS

__all__ = ["curves", "draw_figures", "network"]


WORTH_SEEING = ("regret", "test_loss", "accuracy", "backdoor_success", "byzantine_weight")
"""Metrics that are drawn in addition to the study's own metric."""
EDGE, INK = "#B8B8B8", "#333333"
CROWD = 5000
"""With more edges than this, readers cannot follow a single edge."""
VISIBLE = 2000
"""The most agents in a picture of a network; more would cover each other."""


def draw_figures(metrics: xr.Dataset, folder: Path) -> list[Path]:
    """Write all figures of a run as PNG and PDF into `folder`/figures; returns the files written.

    These are the curves of the study's own metric and of `WORTH_SEEING`, if they were measured, and the network.
    Studies with results by group also have curves for each group.
    """
    return write_images(images_of(metrics), folder)


def images_of(metrics: xr.Dataset) -> dict[str, bytes]:
    """All figures of a run, as files by name."""
    images: dict[str, bytes] = {}
    for metric in _drawn(metrics):
        images |= _images(curves(metrics, metric), metric)
        for group in _groups(metrics):
            images |= _images(curves(metrics, metric, group), f"{metric}-group-{_as_file_name(group)}")
    if "sender" in metrics or "position" in metrics:
        images |= _images(network(metrics), "network")
    return images


def write_images(images: Mapping[str, bytes], folder: Path) -> list[Path]:
    """Write figures into `folder`/figures; returns the files."""
    target = folder / "figures"
    target.mkdir(parents=True, exist_ok=True)
    for name, image in images.items():
        (target / name).write_bytes(image)
    return [target / name for name in images]


def only_drawn(metrics: xr.Dataset) -> xr.Dataset:
    """The metrics without those that no figure shows."""
    drawn = set(_drawn(metrics))
    return metrics.drop_vars([name for name in metrics_of(metrics) if name not in drawn])


def figure_names(metrics: xr.Dataset) -> list[str]:
    """The names of all figures that `draw_figures` may have written for these metrics, without endings."""
    own = str(metrics.attrs.get("metric", "loss"))
    drawn = [metric for metric in dict.fromkeys((own, *WORTH_SEEING)) if metric in metrics]
    groups = [f"{metric}-group-{_as_file_name(group)}" for metric in drawn for group in _groups(metrics)]
    return [*drawn, *groups, "network"]


def network(metrics: xr.Dataset, byzantine: int | None = None) -> Figure:
    """The network of the first seed. Colours are groups, and crosses are Byzantine agents.

    Agents are drawn at their positions, or on a circle if they have none. `byzantine` is the number of Byzantine
    agents; by default it is the largest number that leaves a majority of normal agents. If the weights of a loss-based
    run of this scenario are known, a second panel draws edges with a width according to their final weight. Of a large
    network, the picture shows the `VISIBLE` agents in the middle.
    """
    everyone = metrics.isel(seed=0)
    cell = cell_of(everyone, largest_minority(metrics) if byzantine is None else byzantine)
    heading = _heading(metrics.sizes["agent"], int(everyone["byzantine_agent"].isel(cell=cell).sum()))
    first = in_the_middle(everyone)
    shown = first.isel(cell=cell)
    places, group, is_byzantine = positions(first), groups(first), shown["byzantine_agent"].values.astype(bool)
    pairs = neighbours(first)
    trust = final_trust(shown, pairs, is_byzantine)
    panels = 1 if trust is None else 2
    figure = Figure(figsize=(4.6 * panels, 4.9), layout="constrained")
    axes = figure.subplots(1, panels, squeeze=False)[0]
    _edges(axes[0], places, pairs, to_rgba(EDGE, 0.3 if len(pairs) > CROWD else 1), np.full(len(pairs), 0.6))
    axes[0].set_title(heading, fontsize=11)
    if trust is not None:
        _edges(axes[1], places, pairs, EDGE, np.full(len(pairs), 0.25))
        _trusted_edges(axes[1], places, pairs, trust, is_byzantine)
        axes[1].set_title(_heading_of_weights(shown), fontsize=11)
    for ax in axes:
        _agents(ax, places, group, is_byzantine)
        ax.set_aspect("equal")
        ax.margins(0.06)
        ax.set_axis_off()
    fooled = trust is not None and bool((trust[is_byzantine[pairs].any(1)] > 0).any())
    _legend(figure, _marks(group, is_byzantine, trust is not None, fooled), 3 if panels == 1 else 8)
    return figure


def in_the_middle(first: xr.Dataset, most: int = VISIBLE) -> xr.Dataset:
    """One seed of a network, cut to the agents in the middle. Agents without positions are taken at equal distances."""
    agents = first.sizes["agent"]
    if agents <= most:
        return first
    if "position" in first:
        places = positions(first)
        from_middle = np.abs(places - np.median(places, axis=0)).max(1)
        kept = np.sort(np.argpartition(from_middle, most)[:most])
    else:
        kept = np.linspace(0, agents - 1, most).round().astype(int)
    some = first.isel(agent=kept)
    if "sender" not in first:
        return some
    place = np.full(agents + 1, np.nan)  # the last entry stands for senders that are missing
    place[kept] = np.arange(most)
    senders = some["sender"].transpose("agent", "slot")
    return some.assign(sender=senders.copy(data=place[np.nan_to_num(senders.values, nan=-1).astype(int)]))


def largest_minority(metrics: xr.Dataset) -> int:
    """The largest number of Byzantine agents that leaves a normal majority; if there is none, the smallest."""
    counts = sorted({int(count) for count in metrics["byzantine"].values})
    return max((count for count in counts if 2 * count < metrics.sizes["agent"]), default=counts[0])


def positions(first: xr.Dataset) -> Array:
    """The positions of the agents of one seed: agent × 2."""
    if "position" in first and first.sizes["axis"] >= 2:
        return np.asarray(first["position"].values[:, :2], dtype=float)
    around = 2 * np.pi * np.arange(first.sizes["agent"]) / first.sizes["agent"]
    return np.stack((np.sin(around), np.cos(around)), 1)


def groups(first: xr.Dataset) -> Array:
    """The group of each agent. Without groups, all agents are in the same one."""
    return first["group"].values if "group" in first else np.zeros(first.sizes["agent"], dtype=int)


def cell_of(first: xr.Dataset, byzantine: int) -> int:
    """A cell with this number of Byzantine agents; preferably one of the paper's loss-based rule."""
    rules = [str(rule) for rule in first["rule"].values]
    cells = np.flatnonzero(first["byzantine"].values == byzantine).tolist()
    if not cells:
        raise BadInput(f"no run has {byzantine} Byzantine agents")
    return min(cells, key=lambda c: (not _is_loss_based(rules[c]), rules[c] != "loss-based"))


def neighbours(first: xr.Dataset) -> Array:
    """All pairs i < j in which one agent receives from the other, without duplicates."""
    if "sender" not in first:
        return np.empty((0, 2), dtype=int)
    senders = first["sender"].transpose("agent", "slot").values
    receivers = np.broadcast_to(np.arange(len(senders))[:, None], senders.shape)
    heard = np.stack((senders, receivers), -1).reshape(-1, 2)
    heard = heard[np.isfinite(heard).all(1)].astype(int)  # joining cells may have filled missing values with nan
    return np.unique(np.sort(heard[heard[:, 0] != heard[:, 1]], axis=1), axis=0)


def final_trust(shown: xr.Dataset, pairs: Array, is_byzantine: Array) -> Array | None:
    """For each pair, the larger of the two weights that its normal agents give each other.

    None if the weights are unknown, or if the rule is not loss-based.
    """
    if not ("weight" in shown and "sender" in shown and len(pairs) and _is_loss_based(str(shown["rule"].values))):
        return None
    table = shown["weight"].isel(snapshot=-1).transpose("agent", "slot").values
    senders = shown["sender"].transpose("agent", "slot").values
    if not np.isfinite(table).any():
        return None
    known = np.isfinite(senders) & np.isfinite(table) & ~is_byzantine[:, None]
    receivers = np.broadcast_to(np.arange(len(senders))[:, None], senders.shape)
    weight = np.zeros((len(senders), len(senders)))
    np.maximum.at(weight, (receivers[known], senders[known].astype(int)), table[known])
    i, j = pairs.T
    heavier: Array = np.maximum(weight[i, j], weight[j, i])
    return heavier


def _heading(agents: int, byzantine: int) -> str:
    many = f"{agents} agents" if agents != 1 else "1 agent"
    many += f", {byzantine} Byzantine" if byzantine else ""
    return many if agents <= VISIBLE else f"{many}; the {VISIBLE} in the middle"


def _heading_of_weights(shown: xr.Dataset) -> str:
    attack = str(shown["attack"].values).partition(":")[0]
    against = f", attack {attack}" if int(shown["byzantine"]) else ""
    return rf"Final weights $a_{{\ell k}}$ of {shown['rule'].values}{against}"


def _is_loss_based(rule: str) -> bool:
    return rule.partition(":")[0] == "loss-based"


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


def _drawn(metrics: xr.Dataset) -> Iterator[str]:
    """The metrics to draw, without duplicates: those that have finite values."""
    own = str(metrics.attrs.get("metric", "loss"))
    for metric in dict.fromkeys((own, *WORTH_SEEING)):
        if metric == "byzantine_weight" and not metrics["byzantine"].values.any():
            continue
        if metric in metrics and bool(metrics[metric].notnull().any()):
            yield metric


def _groups(metrics: xr.Dataset) -> Sequence[Any]:
    """The groups that have their own figures."""
    if str(metrics.attrs.get("by_group", "0")) != "1" or "group" not in metrics:
        return ()
    groups: Sequence[Any] = np.unique(metrics["group"].values).tolist()
    return groups


def _as_file_name(group: object) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in str(group))


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write a figure as PNG and PDF."""
    images = {stem.with_name(name): image for name, image in _images(figure, stem.name).items()}
    for path, image in images.items():
        path.write_bytes(image)
    return list(images)


def _images(figure: Figure, name: str) -> dict[str, bytes]:
    """A figure as PNG and PDF.

    The PNG has a palette, which makes it a third of the size. The palette is chosen by maximum coverage, because the
    default method turns rare colours grey.
    """
    png, pdf = BytesIO(), BytesIO()
    # `savefig` would draw four times, and lay out the figure twice.
    figure.dpi = 150
    canvas = FigureCanvasAgg(figure)
    canvas.draw()  # type: ignore[no-untyped-call]
    image = Image.frombuffer("RGBA", canvas.get_width_height(), canvas.buffer_rgba()).convert("RGB")  # type: ignore[no-untyped-call]
    few = image.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=3, dither=Image.Dither.NONE)
    few.save(png, "PNG", optimize=True, dpi=(150, 150))
    figure.set_layout_engine("none")
    figure.dpi = 200  # of what is drawn as pixels
    FigureCanvasPdf(figure).print_pdf(pdf, metadata={"CreationDate": None})  # type: ignore[no-untyped-call]
    return {f"{name}.png": png.getvalue(), f"{name}.pdf": pdf.getvalue()}
